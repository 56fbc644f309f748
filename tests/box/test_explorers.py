"""What is particular to each explorer of `box`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rankscope import explorers
from rankscope.box import Profile
from rankscope.box.explorers import nccl as nccl_explorer
from rankscope.box.explorers.transfers import LINKS as PCIE
from rankscope.box.explorers.transfers import between
from rankscope.box.link_facts import METHODS
from rankscope.box.nccl import GPUS, Model
from rankscope.box.nccl.constants import HOP
from rankscope.box.nccl.public import public
from rankscope.collectives import ALGORITHMS, Schedule
from rankscope.common.checks import printable
from rankscope.common.units import bytes_words, cell_words, percent_words, time_words
from rankscope.explorers import machine, transfers
from rankscope.explorers.core.allreduce import H100_LINKS, L40S_LINKS
from rankscope.explorers.explorer import explorer_of
from rankscope.figures.palette import INK
from rankscope.transfer import overlap_share
from rankscope.transfer import simulate as simulate_loop

from ..explorers.cases import Case, controls, report, shown, svg
from .explorer_cases import CASES, NATIVE_S, SIZES, gpu, profiles
from .made import links, point, profile

MACHINE = CASES["machine"].made()
TRANSFERS = CASES["transfers"].made()
MEASURED = CASES["transfers of a profile"].made()
BOXES = CASES["boxes"].made()
BOXES_OF_YOURS = CASES["boxes of yours"].made()
NCCL = CASES["nccl"].made()

# ---- boxes


def test_boxes_says_what_was_measured_what_the_curve_says_and_where_that_is_from() -> None:
    said = report(BOXES, first="h100_8", second="dgx_h100_8", third="none", message="512 MiB")
    assert said[0] == "h100_8: 512 MiB in 2.11 ms, busbw 445 GB/s"
    assert "ai-dynamo/aiconfigurator; Apache-2.0" in said[1]
    assert len(said) == 4
    assert report(BOXES, first="h100_8", message="8 GiB")[0].startswith("h100_8: 8 GiB in ")
    assert ", interpolated (" in report(BOXES, first="h100_8", message="8 GiB")[0]
    assert "all_to_all was not measured" in report(BOXES, first="dgx_h100_8", collective="all_to_all")[0]
    assert "known or suspected fault: NCCL_P2P_DISABLE=1" in report(BOXES, first="runpod_a100_2_no_p2p")[1]


def test_boxes_does_not_say_that_nothing_was_measured_if_only_the_size_was_not() -> None:
    few = tuple(point("allreduce", size, 1e-4, algorithm="native", in_place=True) for size in (2**12, 2**13, 2**14))
    of_few = explorers.boxes({"few": Profile({"name": "few", "backend": "nccl", "num_ranks": 4}, {}, few)}).explorer
    assert report(of_few, first="few", message="64 MiB")[0] == "few: allreduce was not measured at 64 MiB"
    assert report(of_few, first="few", message="4 KiB")[0].startswith("few: 4 KiB in 100 µs")
    assert report(of_few, first="few", collective="all_to_all")[0] == "few: all_to_all was not measured"


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


def test_the_title_of_boxes_leaves_out_what_was_not_measured_at_that_size() -> None:
    def title(**settings: str) -> str:
        return str(BOXES.pictures["picture"](BOXES.at(**settings)).title)

    pair = {"first": "abci_a100_4x8", "second": "dgx_h100_8", "third": "none"}
    assert re.fullmatch(r"allreduce of 1 GiB: dgx_h100_8 4\d\d GB/s", title(**pair, message="1 GiB"))
    fleet = {"first": "h100_fleet_8", "second": "none", "third": "none"}
    assert title(**fleet, message="1 MiB") == "allreduce of 1 MiB: measured on none of these machines"


def test_boxes_shows_yours_first_and_passes_over_machines_without_the_collective() -> None:
    panel = controls(CASES["boxes of yours"].open())
    assert panel["first"].value == "mine"
    assert {INK} in [set(rects.fill) for rects in BOXES_OF_YOURS.pictures["picture"](BOXES_OF_YOURS.at()).rects]
    assert [name for name, _ in panel["second"].options[:3]] == ["none", "mine", "a100_40gb_8"]
    assert not [name for name in panel["first"].options if "copies" in name or "pairs" in name]
    picture = svg(BOXES, first="dgx_h100_8", second="h100_8", third="none", collective="all_to_all")
    assert "dgx_h100_8" not in picture
    assert svg(BOXES, first="dgx_h100_8", second="none", third="none", collective="all_to_all") == ""


def test_boxes_draws_the_first_of_yours_with_a_collective_in_black_under_its_printable_name() -> None:
    yours = {"links only": profile(links()), "mine\a": Profile.load("bank:dgx_h100_8")}
    explorer = Case("boxes", (yours,)).made()
    (first,) = [setting for setting in explorer.settings if setting.name == "first"]
    assert first.default == printable("mine\a")
    assert {INK} in [set(rects.fill) for rects in explorer.pictures["picture"](explorer.at()).rects]


def test_times_that_stand_below_each_other_have_one_unit() -> None:
    """1,329 µs of one machine stood above 4.23 ms of another."""
    lines = report(BOXES, message="512 MiB")
    assert [line.split()[5] for line in lines[::2]] == ["ms,"] * 3
    assert lines[0].startswith("b200_8: 512 MiB in 1.33 ms, ")
    title = BOXES.pictures["picture"](BOXES.at(message="512 MiB", view="time")).title
    assert title == "allreduce of 512 MiB: b200_8 1.33 ms, a100_80gb_8 4.23 ms"
    times = re.findall(r"[\d.]+ (ns|µs|ms|s)\b", report(NCCL, message="512 MiB")[1])
    assert len(times) >= 2
    assert len(set(times)) == 1


# ---- machine


def test_machine_says_what_the_profile_predicts_and_what_was_measured() -> None:
    one = profiles()["one"]
    expected_s = one.predict("allreduce", "ring", 2**18).makespan_s
    lines = report(MACHINE, algorithm="ring", message="256 KiB")
    assert lines[0].startswith(f"predicted: {time_words(expected_s)}, ")
    assert lines[1] == f"measured:  {time_words(0.8 * expected_s)}; prediction error +25.0 %"
    assert lines[2] == f"gloo's own allreduce: {time_words(NATIVE_S)}"
    assert lines[3] == f"link: {one.best_link('intra')}"
    ranking = svg(MACHINE, "ranking", message="256 KiB")
    assert ranking.count(", measured ") == 3
    assert ">measured<" in ranking


def test_machine_shows_native_by_its_curve_at_sizes_that_were_not_measured() -> None:
    native = [point("allreduce", 2**power, 1e-9 * 2**power, algorithm="native") for power in range(9, 24, 2)]
    box = machine({"made": profile([*links(), *native])})
    low, high = map(time_words, profile(native).curve("allreduce").interval_s(2**18))
    assert f"gloo&#x27;s own allreduce, interpolated: 262 µs ({low} to {high})" in shown(box)[1]
    controls(box)["num_ranks"].value = 8
    assert "own allreduce, interpolated" not in shown(box)[1]
    assert "own allreduce, interpolated" not in shown(machine({"made": profile([*links(), *native[:4]])}))[1]


def test_machine_says_where_no_lower_bound_is_known() -> None:
    fleet = {"fleet": Profile.load("bank:h100_fleet_8")}  # of messages from 32 MiB on: α is not known
    assert ", no lower bound is known" in shown(machine(fleet))[1]


def test_machine_passes_over_points_that_do_not_say_by_which_algorithm() -> None:
    unsaid = point("allreduce", 1 << 18, 1e-3, in_place=True)
    assert "not measured at this size" in shown(machine({"made": profile([*links(), unsaid])}))[1]


def test_machine_predicts_other_numbers_of_ranks_and_says_that_they_were_not_measured() -> None:
    lines = report(MACHINE, num_ranks=6)
    expected_s = profiles()["one"].predict("allreduce", "ring", 2**18, num_ranks=6).makespan_s
    assert lines[0].startswith(f"predicted: {cell_words(expected_s)}, ")
    assert lines[1] == "not measured at this size, on 6 ranks"
    assert ", measured " not in svg(MACHINE, "ranking", num_ranks=6)


def test_ranks_that_do_not_fill_their_nodes_are_refused_and_nothing_is_drawn() -> None:
    box = machine({"two nodes": profile(links(), num_nodes=2, ranks_per_node=[2, 2])})
    assert "<svg" in shown(box)[0]
    controls(box)["num_ranks"].value = 3
    said = "num_ranks must be a multiple of the 2 ranks on a node, got 3"
    assert shown(box)[0] == f"<p>{said}</p>"
    assert said in shown(box)[1]
    controls(box)["num_ranks"].value = 6
    assert "<svg" in shown(box)[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "profiles must be at least one, by name, got none"),
        ({"box": "box.json"}, r"profiles\['box'\] must be a Profile, got 'box.json'"),
        ("box.json", "profiles must be Profiles by name, got 'box.json'"),
    ],
)
def test_what_is_no_profile_is_no_machine(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        machine(given)


def test_an_algorithm_that_refuses_says_so_on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(num_ranks: int) -> Schedule:
        raise ValueError(f"num_ranks must not be < 8, got {num_ranks}")

    monkeypatch.setitem(ALGORITHMS["allreduce"], "picky", picky)
    one = CASES["machine"].made()
    assert one.html(one.at(algorithm="picky"))[0].endswith("</svg><p>num_ranks must not be &lt; 8, got 4</p>")
    assert report(one, algorithm="picky") == ["picky: num_ranks must not be < 8, got 4", "gloo's own allreduce: 5 ms"]
    assert ">picky<" not in svg(one, "ranking", algorithm="picky")


# ---- transfers


def test_transfers_opens_on_facts_and_says_so() -> None:
    assert "from published figures, without measurements" in report(TRANSFERS)[0]
    assert "at best, from published figures" in svg(TRANSFERS, "ranking")


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
    assert "64 MiB to the GPU, measured" in shown(box)[0]
    assert "without measurements" not in shown(box)[1]
    assert report(MEASURED)[1].startswith(f"copy: 64 MiB by the method pageable in {time_words(2**26 / 8e9)}, 8 GB/s, ")
    controls(box)["link"].value = "PCIe 5 x16"
    assert "published figures" in shown(box)[0]


def test_what_a_profile_does_not_have_is_said() -> None:
    assert report(MEASURED, direction="d2h") == ["the profile has no d2h copies by the method pageable"]
    assert svg(MEASURED, "ranking", direction="d2h") == ""
    assert svg(MEASURED, "ranking").count("pin_on_the_fly") == 0
    measured = gpu()
    unknown = transfers(Profile(dict(measured.provenance) | {"topology": ""}, {}, measured.points))
    assert "the profile does not state how its GPU is connected" in shown(unknown)[1]
    assert "of the link" not in shown(unknown)[1]


def test_without_copies_to_the_gpu_the_loop_has_no_effect_whatever_the_direction_is() -> None:
    options = {"direction": "d2h", "method": "pageable", "pieces": 1, "both": False}
    copies_to_host = [point("transfer", size, size / 8e9, **options) for size in SIZES]
    box = explorer_of(transfers, profile(copies_to_host))
    reasons = box.without_effect(box.at(direction="d2h"))
    assert set(reasons) == {"load_ms", "num_workers", "step_ms", "prefetched"}
    assert set(reasons.values()) == {"the profile has no copies to the GPU by this method"}
    assert box.without_effect(box.at(direction="h2d"))["size"].endswith("no copies in this direction")


def test_times_lie_on_lines_between_measured_sizes() -> None:
    points = [point("pin", size, size / 1e9, cached=True) for size in SIZES]
    for size in (2**12, 2**15, 2**21, 2**28, 2**30):
        assert between(points, size) == pytest.approx(size / 1e9, rel=1e-5)
    assert between(points, 2**4) == pytest.approx(2**12 / 1e9)
    assert between([], 1024) is None
    times = [between(points, 2**power) for power in range(10, 31)]
    assert (np.diff(np.array(times, dtype=float)) >= 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (profile([]), "profile must have copies to or from a GPU .*, got none"),
        ("gpu.json", "profile must be a Profile, got 'gpu.json'"),
    ],
)
def test_a_profile_without_copies_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transfers(given)


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


def test_nccl_draws_each_estimate_divided_by_the_lowest() -> None:
    now = NCCL.at(gpu="h100", message="1 MiB")
    drawing = NCCL.pictures["picture"](now)
    tick = {label: y for y, label in drawing.y_ticks}
    assert [label for _, label in drawing.y_ticks] == ["1/2", "1", "2", "4"]
    assert tick["1"] - tick["2"] == pytest.approx(tick["2"] - tick["4"])  # a logarithmic axis
    octave = tick["1"] - tick["2"]
    compared = Model("h100", version=(2, 30)).compared("allreduce", [2**30])
    lowest_s = min(columns.nccl_s[0] for columns in compared.values())
    column = 30 - 10 + 0.5
    expected = {tick["1"] - octave * np.log2(columns.nccl_s[0] / lowest_s) for columns in compared.values()}
    drawn = {y for line in drawing.lines[:-1] for x, y in zip(line.x1, line.y1, strict=True) if x == column}
    assert sorted(drawn) == pytest.approx(sorted(y for y in expected if y >= tick["4"]))
    lines = np.concatenate([np.concatenate([line.y0, line.y1]) for line in drawing.lines])
    assert lines.min() >= tick["4"] - 1e-9  # what takes longer is cut off
    assert lines.max() <= tick["1/2"] + 1e-9
    channels, *_ = (text.text for text in drawing.texts)
    assert channels[20] == "16"


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


def test_of_a_line_between_two_limits_level_pieces_on_them_are_shown() -> None:
    x = np.array([0.0, 1.0, 2.0])
    for level, is_shown in ((2.0, True), (-1.0, True), (2.1, False), (-1.1, False), (0.5, True)):
        lines = nccl_explorer._line(nccl_explorer._RatioCurve(x, np.full(3, level), "black", False, 1.0), -1.0, 2.0)
        assert len(lines.x0) == (2 if is_shown else 0)
    rising = nccl_explorer._line(
        nccl_explorer._RatioCurve(x, np.array([-3.0, 1.0, 3.0]), "black", False, 1.0), -1.0, 2.0
    )
    assert rising.x0.tolist() == [0.5, 1.0]
    assert rising.x1.tolist() == [1.0, 1.5]
