"""What is particular to each explorer of `box`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope import explorers
from rankscope.box import Profile
from rankscope.box.explorers.transfers import LINKS as PCIE
from rankscope.box.explorers.transfers import between
from rankscope.box.link_facts import METHODS
from rankscope.box.nccl import GPUS, Model
from rankscope.box.nccl.constants import HOP
from rankscope.box.nccl.public import public
from rankscope.common.units import bytes_words, cell_words, percent_words, time_words
from rankscope.explorers import machine, transfers
from rankscope.explorers.core.allreduce import H100_LINKS, L40S_LINKS
from rankscope.explorers.explorer import explorer_of
from rankscope.figures.palette import INK
from rankscope.transfer import overlap_share
from rankscope.transfer import simulate as simulate_loop

from ..explorers.cases import controls, report, shown, svg
from .explorer_cases import CASES, NATIVE_S, SIZES, gpu, profiles
from .made import links, point, profile

MACHINE = CASES["machine"].made()
TRANSFERS = CASES["transfers"].made()
MEASURED = CASES["transfers of a profile"].made()
BOXES = CASES["boxes"].made()
BOXES_OF_YOURS = CASES["boxes of yours"].made()
NCCL = CASES["nccl"].made()

# ---- boxes


def test_boxes_says_what_was_measured_and_what_the_curve_says() -> None:
    said = report(BOXES, first="h100_8", second="dgx_h100_8", third="none", message="512 MiB")
    assert "2.11 ms" in said[0]
    assert "445 GB/s" in said[0]
    assert len(said) == 4
    assert "interpolated" in report(BOXES, first="h100_8", message="8 GiB")[0]
    assert "NCCL_P2P_DISABLE=1" in report(BOXES, first="runpod_a100_2_no_p2p")[1]
    few = tuple(point("allreduce", size, 1e-4, algorithm="native", in_place=True) for size in (2**12, 2**13, 2**14))
    of_few = explorers.boxes({"few": Profile({"name": "few", "backend": "nccl", "num_ranks": 4}, {}, few)}).explorer
    assert "64 MiB" in report(of_few, first="few", message="64 MiB")[0]
    assert "100 µs" in report(of_few, first="few", message="4 KiB")[0]


@pytest.mark.parametrize("message", ["64 KiB", "4 MiB", "128 MiB", "512 MiB"])
@pytest.mark.parametrize("view", ["busbw", "time"])
def test_the_title_of_boxes_is_of_the_size_that_is_set(message: str, view: str) -> None:
    """It said "allreduce of 512 MiB" whatever the slider said."""
    title = BOXES.pictures["picture"](BOXES.at(message=message, view=view)).title
    lines = report(BOXES, message=message, view=view)
    assert title.startswith(f"allreduce of {message}: ")
    for said in title.partition(": ")[2].split(", "):
        name, _, value = said.partition(" ")
        (line,) = [line for line in lines if line.startswith(f"{name}: ")]
        assert f" {value}," in line or line.endswith(f" {value}")


def test_boxes_shows_yours_first_and_passes_over_machines_without_the_collective() -> None:
    panel = controls(CASES["boxes of yours"].open())
    assert panel["first"].value == "mine"
    assert {INK} in [set(rects.fill) for rects in BOXES_OF_YOURS.pictures["picture"](BOXES_OF_YOURS.at()).rects]
    assert [name for name, _ in panel["second"].options[:3]] == ["none", "mine", "a100_40gb_8"]
    assert not [name for name in panel["first"].options if "copies" in name or "pairs" in name]
    picture = svg(BOXES, first="dgx_h100_8", second="h100_8", third="none", collective="all_to_all")
    assert "dgx_h100_8" not in picture
    assert svg(BOXES, first="dgx_h100_8", second="none", third="none", collective="all_to_all") == ""


# ---- machine


def test_machine_says_what_the_profile_predicts_and_what_was_measured() -> None:
    one = profiles()["one"]
    expected_s = one.predict("allreduce", "ring", 2**18).makespan_s
    lines = report(MACHINE, algorithm="ring", message="256 KiB")
    assert time_words(expected_s) in lines[0]
    assert time_words(0.8 * expected_s) in lines[1]
    assert "+25.0 %" in lines[1]
    assert time_words(NATIVE_S) in lines[2]
    assert lines[3] == f"link: {one.best_link('intra')}"
    assert svg(MACHINE, "ranking", message="256 KiB").count(", measured ") == 3
    other_s = one.predict("allreduce", "ring", 2**18, num_ranks=6).makespan_s
    assert cell_words(other_s) in report(MACHINE, num_ranks=6)[0]
    assert ", measured " not in svg(MACHINE, "ranking", num_ranks=6)


def test_machine_shows_native_by_its_curve_at_sizes_that_were_not_measured() -> None:
    native = [point("allreduce", 2**power, 1e-9 * 2**power, algorithm="native") for power in range(9, 24, 2)]
    box = machine({"made": profile([*links(), *native])})
    low, high = map(time_words, profile(native).curve("allreduce").interval_s(2**18))
    assert f"262 µs ({low} to {high})" in shown(box)[1]
    controls(box)["num_ranks"].value = 8
    assert "262 µs" not in shown(box)[1]


def test_ranks_that_do_not_fill_their_nodes_are_refused_and_nothing_is_drawn() -> None:
    box = machine({"two nodes": profile(links(), num_nodes=2, ranks_per_node=[2, 2])})
    assert "<svg" in shown(box)[0]
    controls(box)["num_ranks"].value = 3
    assert "<svg" not in shown(box)[0]
    assert "num_ranks" in shown(box)[1]


# ---- transfers


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_copy_takes_what_the_facts_say(method: str, direction: str) -> None:
    line = report(TRANSFERS, link="PCIe 4 x16", method=method, direction=direction, size="16 MiB")[1]
    seconds = PCIE["PCIe 4 x16"].seconds(2**24, direction, method)
    share = 2**24 / seconds / PCIE["PCIe 4 x16"].bytes_per_s(direction)
    assert line.startswith(f"copy: 16 MiB by the method {method} in {time_words(seconds)}, ")
    assert line.endswith(f", {percent_words(share)} of the link")


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_batch_takes_what_the_loop_does(prefetched: bool) -> None:
    lines = report(TRANSFERS, load_ms=0, step_ms=5, prefetched=prefetched)
    copy_s = PCIE["PCIe 5 x16"].seconds(2**26, "h2d", "pageable")
    batch_s = max(copy_s, 0.005) if prefetched else copy_s + 0.005
    bound = "copies" if prefetched else "copy + step"
    assert lines[2] == f"loop: {time_words(batch_s)} per batch; {bound} alone would take {time_words(batch_s)}"
    loop = simulate_loop(300, 0.0, copy_s, 0.005, num_workers=2, prefetched=prefetched)
    achieved = f"{percent_words(overlap_share(loop))} of the overlap is achieved"
    assert lines[3].endswith(f"max(copy, step) is {time_words(copy_s)}; {achieved}")


def test_loading_and_pinning_can_bound_the_loop() -> None:
    slow = report(TRANSFERS, load_ms=60, num_workers=1)[2]
    assert slow == "loop: 60 ms per batch; loading alone would take 60 ms"
    free = {"load_ms": 0, "step_ms": 0, "prefetched": True, "method": "pinned"}
    pin_s = 2**26 / PCIE["PCIe 5 x16"].host_copy_bytes_per_s
    assert report(TRANSFERS, **free)[2].endswith(f"pinning alone would take {time_words(pin_s)}")
    assert report(MEASURED, **free)[2].endswith(f"pinning alone would take {time_words(2**26 / 4e9)}")


def test_with_a_profile_times_are_the_measured_ones() -> None:
    box = transfers(gpu())
    assert controls(box)["link"].value == "measured: made up"
    copied = report(MEASURED)[1]
    assert time_words(2**26 / 8e9) in copied
    assert "8 GB/s" in copied
    assert svg(MEASURED, "ranking", direction="d2h") == ""
    assert svg(MEASURED, "ranking").count("pin_on_the_fly") == 0


def test_without_copies_to_the_gpu_the_loop_has_no_effect_whatever_the_direction_is() -> None:
    options = {"direction": "d2h", "method": "pageable", "pieces": 1, "both": False}
    copies_to_host = [point("transfer", size, size / 8e9, **options) for size in SIZES]
    box = explorer_of(transfers, profile(copies_to_host))
    assert set(box.without_effect(box.at(direction="d2h"))) == {"load_ms", "num_workers", "step_ms", "prefetched"}


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
    title = NCCL.pictures["picture"](NCCL.at(**now)).title
    assert title.endswith(f"{choice.algorithm} {protocol} at {now['message']}")


def test_nccl_marks_what_machines_took_divided_by_nccls_estimate() -> None:
    now = NCCL.at(gpu="h100", message="16 MiB")
    drawing = NCCL.pictures["picture"](now)
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


def test_nccl_names_public_machines_and_what_nvls_saves() -> None:
    lines = report(NCCL, message="1 GiB")
    assert lines[0].startswith("1 GiB: nvls simple")
    assert {"aws_p5_8: 4.26 ms", "dgx_h100_8: 4.02 ms"} < set(lines)
    assert report(NCCL, message="1 GiB", nvls=False)[0].startswith("1 GiB: ring simple")
    assert NCCL.without_effect(NCCL.at(gpu="a100"))["nvls"]
    assert "nics" not in NCCL.without_effect(NCCL.at(num_nodes=2))


@pytest.mark.parametrize(("links", "gpu"), [(H100_LINKS, "h100"), (L40S_LINKS, "l40s")])
def test_links_of_presets_are_those_of_nccls_model(links: dict[str, int], gpu: str) -> None:
    about = GPUS[gpu]
    real = {
        "intra_us": HOP[about.link]["ring"][2],
        "inter_us": HOP["net"]["ring"][2],
        "intra_gb_per_s": about.wire,
        "inter_gb_per_s": about.nic,
    }
    offered = {setting.name: setting.values for setting in explorer_of(explorers.allreduce).settings}
    for name, value in real.items():
        assert links[name] == min(offered[name], key=lambda one: abs(one - value))
