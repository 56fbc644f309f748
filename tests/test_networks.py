"""Networks that explorers offer: who provides them, and that their costs are those of the machines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankscope.box import Profile, bank
from rankscope.box.networks import RECORDED, network_of, registered
from rankscope.train import ddp
from tests.box.made import links, point, profile

ROOT = Path(__file__).parents[1]
PROFILES = ROOT / "notebooks" / "profiles"


@pytest.mark.parametrize("name", ["abci_a100_4x8", "dgx_h100_8", "l40s_2"])
def test_a_machine_of_the_bank_costs_what_was_measured(name: str) -> None:
    network, box = registered()[name], Profile.load(f"bank:{name}")
    assert network.num_ranks == box.num_ranks
    measured = box.native_s("allreduce")
    cost = network.cost(num_ranks=1024)  # its own ranks, whatever is asked for
    assert float(cost(2**20)) == measured[2**20]
    assert network.most_bytes == max(measured)
    assert bank()[name] in network.about[0]
    np.testing.assert_array_equal(ddp.cost(box)(sorted(measured)), list(measured.values()))


def test_machines_without_small_sizes_or_without_an_allreduce_are_not_offered() -> None:
    offered = set(registered())
    assert not offered & {"h100_fleet_8", "jeanzay_v100_4x4", "mi100_copies", "h100_fleet_a_pairs_2x8"}
    labels = [network.label for network in registered().values()]
    assert len(set(labels)) == len(labels)


def test_the_recorded_profiles_are_those_of_the_notebooks() -> None:
    paths = sorted(RECORDED.glob("*.json"))
    assert len(paths) == 2
    for path in paths:
        recorded, whole = Profile.load(path), Profile.load(PROFILES / path.name)
        assert recorded.provenance == whole.provenance
        assert recorded.points == whole.select("allreduce", algorithm="native")
        assert registered()[recorded.provenance["name"]].num_ranks == whole.num_ranks


def test_a_profile_has_a_cost_and_a_network() -> None:
    own = profile([*links(), *[point("allreduce", 2**p, 2.0**p / 1e9, algorithm="native") for p in (10, 20)]])
    assert own.cost()([2**10, 2**19, 2**20]).tolist() == pytest.approx([2**10 / 1e9, 2**19 / 1e9, 2**20 / 1e9], 1e-4)
    ring = point("allreduce", 2**20, 1.0, algorithm="ring")
    assert float(own.cost(num_ranks=6)(2**20)) == own.predict(ring, num_ranks=6).makespan_s
    network = network_of("mine", own)
    assert (network.label, network.num_ranks) == ("mine (4 ranks)", 4)
    assert network.about == ("network: made up, 4 ranks, measured with gloo",)
    assert network.cost(2)(2**10) == own.cost()(2**10)
    unmeasured = profile(links())
    assert unmeasured.cost()(2**20) == unmeasured.predict(ring).makespan_s
