"""What is particular to each explorer of `box`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.box import Profile
from rankscope.box.explorers.transfers import between
from rankscope.box.nccl import GPUS, Model
from rankscope.box.nccl.constants import HOP
from rankscope.box.nccl.public import public
from rankscope.common.units import bytes_words, cell_words, time_words, times_in_one_unit
from rankscope.explorers import machine, transfers
from rankscope.explorers.core.clusters import H100_LINKS
from rankscope.explorers.entries import EXPLORERS

from ..explorers.cases import report, svg
from .explorer_cases import CASES, SIZES, gpu
from .made import links, point, profile

MACHINE = CASES["machine"].made()
TRANSFERS = CASES["transfers"].made()
MEASURED = CASES["transfers of a profile"].made()
BOXES = CASES["boxes"].made()
BOXES_OF_YOURS = CASES["boxes of yours"].made()
NCCL = CASES["nccl"].made()

# ---- boxes


def test_boxes_shows_machines_with_as_many_gpus_that_were_measured_at_this_size() -> None:
    lines = report(BOXES, message="64 MiB", num_ranks=2)
    names = [line.partition(":")[0] for line in lines]
    assert "runpod_a100_2_no_p2p" in names
    assert not [name for name in names if name.endswith("_8") or "copies" in name or "pairs" in name]
    seconds = Profile.load("bank:h100_2").native_s("allreduce")[2**26]
    assert times_in_one_unit(seconds, 1e-3)[0] in " ".join(lines)
    assert "runpod_a100_2" not in " ".join(report(BOXES, message="64 MiB", num_ranks=2, collective="allgather"))
    with pytest.raises(ValueError, match="16 GPUs"):
        svg(BOXES, num_ranks=16, collective="all_to_all")
    assert report(BOXES_OF_YOURS)[0].startswith("mine: ")
    assert "your choice" in svg(BOXES_OF_YOURS)


# ---- machine


def test_machine_shows_what_is_predicted_and_what_was_measured() -> None:
    one = CASES["machine"].inputs[0]["one"]
    lines = report(MACHINE, algorithm="ring", message="256 KiB", num_ranks=4)
    assert cell_words(one.predict("allreduce", "ring", 2**18).makespan_s) in lines[0]
    assert "prediction error +25.0 %" in lines[1]  # measured: 0.8 times the prediction
    assert "5 ms" in lines[2]
    assert "measured" not in " ".join(report(MACHINE, num_ranks=8))


def test_ranks_that_do_not_fill_their_nodes_are_refused_and_nothing_is_drawn() -> None:
    box = machine({"two nodes": profile(links(), num_nodes=2, ranks_per_node=[2, 2])})
    assert "<svg" in box.shown.value
    box.controls["num_ranks"].value = 3
    assert "<svg" not in box.shown.value
    assert "num_ranks" in box.shown.value


# ---- transfers


def test_with_a_profile_times_are_the_measured_ones() -> None:
    box = transfers(gpu())
    assert box.controls["link"].value == "measured: made up"
    copied = report(MEASURED)[1]
    assert time_words(2**26 / 8e9) in copied
    assert "8 GB/s" in copied
    assert svg(MEASURED, direction="d2h").count("<svg") == 1  # the loop alone
    assert svg(MEASURED).count("pin_on_the_fly") == 0


def test_without_copies_to_the_gpu_there_is_no_loop() -> None:
    options = {"direction": "d2h", "method": "pageable", "pieces": 1, "both": False}
    copies_to_host = [point("transfer", size, size / 8e9, **options) for size in SIZES]
    explorer = EXPLORERS["transfers"].make(profile(copies_to_host))
    assert svg(explorer, direction="d2h").count("<svg") == 1
    with pytest.raises(ValueError, match="no such copies"):
        svg(explorer)
    assert report(explorer) == ["the profile has no h2d copies by the method pageable"]


def test_times_lie_on_lines_between_measured_sizes() -> None:
    points = [point("pin", size, size / 1e9, cached=True) for size in SIZES]
    for size in (2**12, 2**15, 2**21, 2**28, 2**30):
        assert between(points, size) == pytest.approx(size / 1e9, rel=1e-5)
    assert between(points, 2**4) == pytest.approx(2**12 / 1e9)
    assert between([], 1024) is None
    times = [between(points, 2**power) for power in range(10, 31)]
    assert (np.diff(np.array(times, dtype=float)) >= 0).all()


# ---- nccl


@pytest.mark.parametrize("size", [2**10, 2**20, 2**30])
def test_nccl_says_what_the_model_chooses(size: int) -> None:
    choice = Model("a100", 8, 4, (2, 27), nics=4).choose("allreduce", size)
    now = {"gpu": "a100", "num_nodes": 4, "version": "2.27", "nics": 4, "message": bytes_words(size)}
    first, second, *_ = report(NCCL, **now)
    assert first.startswith(f"{now['message']}: {choice.algorithm} {choice.protocol} on {choice.channels:.0f} of ")
    assert second.startswith(f"NCCL expects {time_words(choice.nccl_s)}; ")
    protocol = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}[choice.protocol]  # as the legend names it
    title = NCCL.draw(NCCL.at(**now))[0].title
    assert title.endswith(f"{choice.algorithm} {protocol} at {now['message']}")


def test_nccl_marks_what_machines_took_divided_by_nccls_estimate() -> None:
    now = NCCL.at(gpu="h100", message="16 MiB")
    (drawing,) = NCCL.draw(now)
    marks = drawing.rects[2:]
    machines = public(Model("h100", 8, 1))
    assert len(marks) == len(machines)
    tick = {label: y for y, label in drawing.y_ticks}
    choice = Model("h100", version=(2, 30)).choose("allreduce", 2**24)
    for squares, h100s in zip(marks, machines.values(), strict=True):
        took_s = h100s.native_s("allreduce").get(2**24)
        if took_s is None:
            continue
        at_size = np.isclose(squares.x + squares.width / 2, 24 - 10 + 0.5)
        (y,) = (squares.y + squares.height / 2)[at_size]
        ratio = 2 ** ((tick["1"] - y) / (tick["1"] - tick["2"]))
        assert ratio == pytest.approx(took_s / choice.nccl_s)


def test_links_of_presets_are_those_of_nccls_model() -> None:
    about = GPUS["h100"]
    real = {
        "intra_us": HOP[about.link]["ring"][2],
        "inter_us": HOP["net"]["ring"][2],
        "intra_gb_per_s": about.wire,
        "inter_gb_per_s": about.nic,
    }
    offered = {setting.name: setting.values for setting in EXPLORERS["allreduce"].make().settings}
    for name, value in real.items():
        assert H100_LINKS[name] == min(offered[name], key=lambda one: abs(one - value))
