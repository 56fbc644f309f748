"""The explorer of DDP on the networks of machines: `train` shows them and `box` provides them."""

from __future__ import annotations

from typing import Any

import pytest

from rankscope.box.nccl import Model
from rankscope.cluster import Link
from rankscope.collectives import closed_form
from rankscope.explorers import ddp
from rankscope.train.ddp import recommend, resnet50_step, simulate
from rankscope.train.network_settings import Networks
from tests.box.explorer_cases import CASES as CASES_OF_BOX
from tests.box.explorer_cases import six_ranks
from tests.box.made import links, profile
from tests.explorers.cases import report

from ..explorer_cases import CASES

DDP = CASES["ddp"].made()
DDP_OF_YOURS = CASES_OF_BOX["ddp of yours"].made()


def test_the_report_is_of_the_step_that_is_drawn() -> None:
    now = DDP.at(network="abci_a100_4x8", cap="8 MiB")
    cost = Networks().cost(now)
    local = resnet50_step(32, 40e12)
    step = simulate(local, cost, bucket_cap_mb=8)
    advice = recommend(local, cost)
    lines = report(DDP, network="abci_a100_4x8", cap="8 MiB")
    assert lines[0] == "ResNet-50: 97.5 MiB of gradients; 32 ranks"
    assert lines[1].startswith(f"{step.makespan_s * 1e3:.3g} ms per step")
    assert str(advice).splitlines() == lines[2:5]
    assert "extrapolated" in lines[-1]
    assert f"Take {advice.chosen.name}" in DDP.draw(now)[0].title


def test_it_opens_where_a_rank_waits_for_most_of_the_step_and_both_first_sliders_change_that() -> None:
    def waiting_share(**settings: Any) -> float:
        now = DDP.at(**settings)
        step = simulate(resnet50_step(32, 40e12), Networks().cost(now))
        return step.select(kind="wait").busy_s / step.makespan_s

    assert waiting_share() > 0.7
    assert waiting_share(gb_per_s=25) < 0.1
    assert waiting_share(num_ranks=2) < waiting_share() - 0.2
    assert [setting.name for setting in DDP.settings[:3]] == ["network", "gb_per_s", "num_ranks"]


def test_the_number_of_ranks_is_live_and_one_that_cannot_apply_raises() -> None:
    box = ddp(num_ranks=2)
    assert not box.controls["num_ranks"].disabled
    assert "; 2 ranks" in box.shown.value
    box.controls["num_ranks"].value = 1024
    assert "; 1024 ranks" in box.shown.value
    box.controls["network"].value = "aws_p4d_2x8"
    assert box.controls["num_ranks"].disabled
    assert "; 16 ranks" in box.shown.value
    assert "num_ranks" not in box.code.value
    fixed = {"network": "aws_p4d_2x8"}
    for settings in ({**fixed, "num_ranks": 2}, {**fixed, "alpha_us": 20}, {"overlap": False, "slower": 10}):
        with pytest.raises(ValueError, match="has no effect"):
            ddp(**settings)


def test_a_network_of_any_size_follows_the_ranks() -> None:
    cost = Networks().cost
    for num_ranks, gpus, nodes in ((8, 8, 1), (64, 8, 8), (2, 2, 1)):
        table = cost(DDP.at(network="nccl:h100", num_ranks=num_ranks))
        for size in (2**10, 2**20, 2**28):
            expected_s = Model("h100", gpus, nodes).choose("allreduce", size).time_s
            assert float(table(size)) == pytest.approx(expected_s, rel=1e-9)
    by_hand = DDP.at(network="latency and bandwidth", alpha_us=20, gb_per_s=3, num_ranks=64)
    assert float(cost(by_hand)(2**20)) == closed_form("allreduce", "ring", 64, 2**20, Link(20e-6, 3e9))


def test_ddp_of_your_own_profile() -> None:
    assert report(DDP_OF_YOURS)[0].endswith("; 6 ranks")
    now = DDP_OF_YOURS.at()
    networks = Networks({"mine": six_ranks()})
    assert (now.network, now.num_ranks, networks.num_ranks(now)) == ("mine", 6, 6)
    assert float(networks.cost(now)(2**13)) == pytest.approx(1e-4 + 2**13 / 1e9)
    assert DDP_OF_YOURS.line(now) == ""


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
