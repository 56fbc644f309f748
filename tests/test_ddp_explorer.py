"""The explorer of DDP on the networks of machines: `train` shows them and `box` provides them."""

from __future__ import annotations

from typing import Any

import pytest

from rankscope.box import Profile
from rankscope.box.nccl import Model
from rankscope.cluster import Link
from rankscope.collectives import closed_form
from rankscope.explorers import ddp
from rankscope.explorers.networks import Networks
from rankscope.train.explorers.ddp import Training

from .box.explorer_cases import CASES as CASES_OF_BOX
from .box.explorer_cases import six_ranks
from .box.made import links, profile
from .explorers.cases import report
from .train.explorer_cases import CASES

DDP = CASES["ddp"].made()
DDP_BY_HAND = CASES["ddp by hand"].made()
DDP_OF_YOURS = CASES_OF_BOX["ddp of yours"].made()


def test_ddps_report_is_of_the_step_that_is_drawn() -> None:
    shown = Training(Networks())
    held = report(DDP, slower=50)[1]
    assert held.startswith(f"{shown.timeline(DDP.at(slower=50)).makespan_s * 1e3:.3g} ms per step: computing alone ")
    lines = report(DDP)
    assert lines[0] == "ResNet-50: 161 gradients, 97.5 MiB in total; 13.1 ms of backward per micro-batch; 32 ranks"
    waiting_ms = shown.timeline(DDP.at()).select(kind="wait").busy_s * 1e3
    assert f"held up by allreduces 0 ms, waiting {waiting_ms:.3g} ms (exposed communication)" in lines[1]


def test_ddp_starts_on_a_real_machine_that_ran_such_a_job() -> None:
    """It started on a bare ring of 32 ranks with 50 µs per hop: 1 MiB took 3.18 ms, and it advised a cap of 32 MiB."""
    cost = Profile.load("bank:abci_a100_4x8").cost()
    assert float(Training(Networks()).networks.cost(DDP.at())(2**20)) == float(cost(2**20)) < 0.2e-3
    lines = report(DDP)
    assert "extrapolated" in lines[-1]
    assert "extrapolated" not in report(DDP, network="a100_80gb_8")[-1]


def test_nothing_is_recommended_that_is_longer_for_no_fewer_buckets() -> None:
    """It said "Best: 1 MiB" where 4 and 8 MiB were shorter and had fewer buckets."""
    advice = Training(Networks()).recommended(DDP.at())
    assert advice.bucket_cap_mb == 8
    assert "8 MiB" in DDP.draw(DDP.at())[1].title
    for candidate in advice.candidates:
        assert candidate.step_s >= advice.chosen.step_s or candidate.num_buckets > advice.chosen.num_buckets


@pytest.mark.parametrize(("network", "num_ranks"), [("aws_p4d_2x8", 16), ("v100_25gbe_2x1_no_gdr", 2)])
def test_a_measured_network_has_its_own_number_of_ranks(network: str, num_ranks: int) -> None:
    box = ddp(network="nccl:h100", num_ranks=1024)
    assert not box.controls["num_ranks"].disabled
    box.controls["network"].value = network
    assert box.controls["num_ranks"].disabled
    assert f"; {num_ranks} ranks" in box.shown.value
    box.controls["network"].value = "nccl:h100"
    assert "; 1024 ranks" in box.shown.value


def test_a_network_of_any_size_follows_the_ranks() -> None:
    shown = Training(Networks())
    cost = shown.networks.cost
    for num_ranks, gpus, nodes in ((8, 8, 1), (64, 8, 8), (2, 2, 1)):
        table = cost(DDP.at(network="nccl:h100", num_ranks=num_ranks))
        for size in (2**10, 2**20, 2**28):
            expected_s = Model("h100", gpus, nodes).choose("allreduce", size).time_s
            assert float(table(size)) == pytest.approx(expected_s, rel=1e-9)
    assert cost(DDP.at(network="nccl:a100", num_ranks=4096))(2**20) > cost(DDP.at(network="nccl:a100"))(2**20)


def test_latency_and_bandwidth_have_an_effect_by_hand_alone() -> None:
    panel = ddp().controls
    assert panel["alpha_us"].disabled
    assert panel["gb_per_s"].disabled
    panel["network"].value = "latency and bandwidth"
    assert not any(panel[name].disabled for name in ("alpha_us", "gb_per_s", "num_ranks"))
    now = DDP_BY_HAND.at(network="latency and bandwidth", alpha_us=20, gb_per_s=3, num_ranks=64)
    ring_s = closed_form("allreduce", "ring", 64, 2**20, Link(20e-6, 3e9))
    assert float(Training(Networks()).networks.cost(now)(2**20)) == ring_s


def test_ddp_of_your_own_profile() -> None:
    assert report(DDP_OF_YOURS)[0].endswith("; 6 ranks")
    now = DDP_OF_YOURS.at()
    networks = Networks({"mine": six_ranks()})
    assert (now.network, now.num_ranks, networks.num_ranks(now)) == ("mine", 6, 6)
    assert float(networks.cost(now)(2**13)) == pytest.approx(1e-4 + 2**13 / 1e9)
    assert DDP_OF_YOURS.line(now) == ""
    model = report(DDP_OF_YOURS, network="nccl:h100", num_ranks=6)
    assert model[0].endswith("; 6 ranks")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"box": "box.json"}, "must be a Profile"),
        ({"box": profile(links())}, "backend's own allreduce"),
    ],
)
def test_what_has_no_allreduce_is_no_network(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ddp(given)
