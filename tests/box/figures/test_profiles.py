"""What the pictures of a profile show, read back from the artists."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.figures.profiles import draw_peers
from rankscope.box.link_facts import stated
from rankscope.box.profile import Point
from rankscope.cluster import Cluster, Link
from rankscope.collectives import build, simulate_executor
from rankscope.common.units import bytes_words, percent_words, rate_words
from rankscope.figures.palette import looks

from ...figures.shown import artist, bars, below, heights, labels, named, placed
from ...figures.shown import points as drawn_points
from .. import made

LINK = Link(5e-3, 12.5e6)
SIZES = [2**power for power in range(10, 21)]
ALGORITHMS = ["ring", "recursive_doubling", "flat"]


def point(what: str, num_bytes: int, seconds: float, clean: int = 8, **options: Any) -> Point:
    """Eight iterations from 0.98 to 1.05 times as long, so many of them clean; their median is `seconds`."""
    spread = seconds * np.array([0.98, 0.99, 1.0, 1.0, 1.0, 1.0, 1.02, 1.05])
    return Point(what, num_bytes, tuple(spread.tolist()), (True,) * clean + (False,) * (8 - clean), options)


def profile(scale: float = 1.0, native: bool = True, clean: int = 8) -> Profile:
    """Four nodes whose ranks take `scale` times what is predicted."""
    points = [point("together", 2**power, LINK.seconds(2**power), link="inter") for power in range(8, 24)]
    cluster = Cluster.uniform(4, LINK)
    for size, name in product(SIZES, ALGORITHMS):
        seconds = scale * simulate_executor(build("allreduce", name, 4), size, cluster).makespan_s
        points.append(point("allreduce", size, seconds, clean, algorithm=name, in_place=True))
    if native:
        points += [point("allreduce", size, 0.1, algorithm="native", in_place=True) for size in SIZES]
    provenance = {"name": "made up", "date": "2026-11-21", "backend": "gloo", "num_ranks": 4, "num_nodes": 4}
    return Profile(provenance | {"ranks_per_node": [1] * 4}, {}, tuple(points))


def medians_s(of: Profile, algorithm: str) -> np.ndarray:
    return np.array([p.median_s for p in of.select("allreduce", algorithm=algorithm)])


def test_busbw_is_in_the_links_units_and_predicted_next_to_measured() -> None:
    one = profile()
    ax = figures.profile(one)
    assert {"native", "recursive_doubling", "one link: 12.5 MB/s"} <= set(named(ax))
    seen = heights(ax, "recursive_doubling, measured")
    assert seen == pytest.approx(1.5 * np.array(SIZES) / medians_s(one, "recursive_doubling") / 1e6)
    assert heights(ax, "recursive_doubling, predicted") == pytest.approx(seen, rel=1e-3)
    assert ax.get_ylabel() == "bus bandwidth (busbw) [MB/s]"
    assert heights(ax, "link") == pytest.approx([12.5, 12.5], rel=0.01)
    only = figures.profile(one, algorithms=["ring"])
    assert heights(only, "ring, measured") == pytest.approx(1.5 * np.array(SIZES) / medians_s(one, "ring") / 1e6)
    assert "native" not in named(only)
    share = 1.5 * SIZES[-1] / medians_s(one, "ring")[-1] / 12.5e6
    assert (
        figures.profile(profile(native=False)).get_title("left")
        == f"ring reaches {percent_words(share)} of a link's bandwidth"
    )


@pytest.mark.parametrize("view", ["busbw", "residuals"])
def test_a_size_of_0_is_left_out(view: str) -> None:
    """Its marker on a logarithmic axis left no room for the axes, and no residual of its algorithm was drawn."""
    one = profile()
    nothing = point("allreduce", 0, 1e-3, algorithm="ring", in_place=True)
    ax = figures.profile(Profile(one.provenance, {}, (*one.points, nothing)), view, algorithms=["ring"])
    ax.figure.canvas.draw()
    assert drawn_points(ax, "ring, measured" if view == "busbw" else "ring")[:, 0].min() == SIZES[0]
    with pytest.raises(ValueError, match="profile must have points of allreduce above 0 bytes, got none"):
        figures.profile(Profile(one.provenance, {}, (nothing,)), view)


def test_through_native_goes_its_curve_and_never_a_straight_line() -> None:
    def native_s(size: int) -> float:
        return 1e-3 + size / 1e6 if size < 2**15 else 3e-2 + size / 1e8

    some = [point("allreduce", size, native_s(size), algorithm="native", in_place=False) for size in SIZES]
    one = Profile({"name": "a log", "backend": "nccl", "num_ranks": 4}, {}, tuple(some))
    ax = figures.profile(one)
    (line,) = (line for line in ax.lines if line.get_label() == "native, curve")
    sizes, curve = np.asarray(line.get_xdata()), one.curve("allreduce")
    assert len(sizes) > 10 * len(SIZES)
    expected = [1.5 * size / curve.seconds(size) / 1e6 for size in sizes]
    assert np.asarray(line.get_ydata()) == pytest.approx(expected)
    assert ax.get_title("left").startswith("native reaches "), "no link was measured"
    assert "one link" not in " ".join(named(ax))
    few = Profile(one.provenance, {}, one.points[:4])
    assert "native, curve" not in labels(figures.profile(few))
    legend = "native: the curve through it, and where 90 % lie"
    assert legend in below(ax)
    assert legend not in below(figures.profile(few)), "too few sizes for a curve"


def test_algorithms_of_other_programs_look_different() -> None:
    names = ["mine", "theirs"]
    points = [point("allreduce", size, 1e-3, algorithm=name, in_place=True) for size, name in product(SIZES, names)]
    ax = figures.profile(Profile({"name": "a log", "backend": "nccl", "num_ranks": 4}, {}, points), algorithms=names)
    ours, others = (artist(ax, f"{name}, predicted") for name in names)
    assert ours.get_color() != others.get_color()


@pytest.mark.parametrize("scale", [1.0, 1.1, 0.8])
def test_residuals_are_those_of_the_prediction(scale: float) -> None:
    ax = figures.profile(profile(scale), "residuals")
    expected = 100 * (1 / scale - 1)
    shown = [name for name in ALGORITHMS if name in named(ax)]
    assert len(shown) == min(5, len(ALGORITHMS)) == len(named(ax))
    for name in ALGORITHMS:
        line = name if name in shown else f"{name}, other"
        assert heights(ax, line) == pytest.approx([expected] * len(SIZES), abs=0.3)
    assert below(ax) == ["other algorithms"] * (len(ALGORITHMS) > 5)
    words = ax.get_title("left")
    assert words.startswith("Predictions against measurements: half within ")
    assert float(words.split(" within ")[1].split("%")[0]) == pytest.approx(abs(expected), abs=0.3)
    assert "native" not in labels(ax)
    low, high = ax.get_ylim()
    assert low == -high
    assert high > abs(expected)


@pytest.mark.parametrize(("clean", "filled"), [(8, True), (5, True), (2, False)])
def test_markers_with_few_clean_iterations_are_hollow(clean: int, filled: bool) -> None:
    ax = figures.profile(profile(clean=clean), "residuals", algorithms=["ring"])
    fills = {str(one.get_markerfacecolor()) for one in ax.lines if one.get_marker() not in ("None", None, "")}
    assert (fills != {"none"}) is filled
    assert below(ax) == ([] if filled else ["few iterations without interference from the host"])


# ---- copies

FACTS = stated(4)
COPIED = [2**power for power in range(12, 27, 2)]
SLOWER = {"pinned_non_blocking": 1.1, "pageable": 1.5, "pin_on_the_fly": 3.0}


def copy_of(num_bytes: int, seconds: float, **options: Any) -> Point:
    """Nine iterations from 0.96 to 1.04 times as long; their median is `seconds`."""
    given = {"direction": "h2d", "pieces": 1, "both": False} | options
    return Point("transfer", num_bytes, tuple(seconds * np.linspace(0.96, 1.04, 9)), (True,) * 9, given)


def copies(**options: Any) -> list[Point]:
    """Copies that take so many times what the facts allow, by method."""
    return [
        copy_of(size, times * FACTS.seconds(size, "h2d", method, **options), method=method, **options)
        for method, times in SLOWER.items()
        for size in COPIED
        if size >= 4096 * options.get("pieces", 1)
    ]


@pytest.fixture(scope="module")
def measured() -> Profile:
    return made.profile([*copies(), *copies(both=True), *copies(pieces=256)])


def test_without_a_profile_lines_are_predicted_and_nothing_is_called_measured() -> None:
    ax = figures.copies(FACTS)
    sizes = 2.0 ** np.arange(10, 31)
    for method in SLOWER:
        seconds = [FACTS.seconds(size, "h2d", method) for size in sizes]
        assert heights(ax, f"{method}, predicted") == pytest.approx(sizes / seconds / 1e9)
        assert method in named(ax)
    link = FACTS.bytes_per_s("h2d")
    assert heights(ax, "the link alone") == pytest.approx(np.full(21, link / 1e9))
    assert not [label for label in labels(ax) if "measured" in label]
    assert below(ax) == ["predicted from facts: at best"]
    assert ax.get_legend() is None  # nothing lies on the data
    assert ax.get_title("left").startswith("Predicted, to the GPU: pinned ")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("size of the copy", "bandwidth, one way [GB/s]")
    half = FACTS.start_s * link  # the size at which half of the link is reached
    assert f"n½ = {bytes_words(half)}" in named(ax)
    assert half / FACTS.seconds(half, "h2d") == pytest.approx(link / 2)


def test_markers_are_medians_with_their_quartiles(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured)
    for method, times in SLOWER.items():
        predicted, seen = (heights(ax, f"{method}, {kind}") for kind in ("predicted", "measured"))
        assert seen == pytest.approx(predicted / times, rel=1e-5)
        ends = bars(ax, f"{method}, measured")
        assert ends == pytest.approx(np.stack([seen / 1.02, seen / 0.98], axis=1), rel=1e-4)
        assert artist(ax, f"{method}, measured").lines[0].get_color() == looks([method])[method].color
    rates = [rate_words(COPIED[-1] / (SLOWER[m] * FACTS.seconds(COPIED[-1], "h2d", m))) for m in list(SLOWER)[:2]]
    link = f"PCIe 4 x16 carries {rate_words(FACTS.bytes_per_s('h2d'))}"
    assert ax.get_title("left") == f"Measured, to the GPU: pinned {rates[0]}, pageable {rates[1]}; {link}"


def test_a_profile_alone_has_markers_and_no_lines(measured: Profile) -> None:
    ax = figures.copies(None, measured)
    assert labels(ax) == [f"{method}, measured" for method in SLOWER]
    assert set(SLOWER) <= set(named(ax))


def test_both_ways_halve_pageable_copies_and_not_pinned_ones(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured, "both_ways")
    shares = {}
    for name, times in (("pinned", 1.1), ("pageable", 1.5)):
        both = heights(ax, f"{name}, both ways, predicted")
        shares[name] = both[-1] / heights(ax, f"{name}, predicted")[-1]
        assert heights(ax, f"{name}, both ways, measured") == pytest.approx(both / times, rel=1e-5)
    assert shares["pinned"] > 0.97
    assert shares["pageable"] == pytest.approx(0.5, rel=0.01)


def test_pieces_pay_for_their_starts(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured, "pieces")
    one, many = (heights(ax, f"pinned, {words}, predicted") for words in ("one copy", "256 copies"))
    assert many - one == pytest.approx(np.full(one.size, 255 * FACTS.start_s * 1e6))
    ends, seen = bars(ax, "pinned, one copy, measured"), heights(ax, "pinned, one copy, measured")
    assert ends == pytest.approx(np.stack([seen * 0.98, seen * 1.02], axis=1), rel=1e-4)
    assert heights(ax, "pageable, 256 copies, measured").size == one.size == sum(size >= 2**20 for size in COPIED)
    assert ax.get_ylabel() == "time [µs]"


def test_the_line_of_a_fast_link_is_within_the_axis() -> None:
    """Its left end, at 9.3 µs, was below 9.7 µs, half of the fastest copy."""
    ax = figures.copies(stated(6), None, "pieces")
    assert ax.get_ylim()[0] < heights(ax, "the link alone").min()


def test_the_other_direction_is_predicted_and_called_so(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured, direction="d2h")  # of which nothing was measured
    assert set(labels(ax)) == {"the link alone", "n½", *(f"{method}, predicted" for method in SLOWER)}
    assert heights(ax, "the link alone")[-1] == pytest.approx(FACTS.bytes_per_s("d2h") / 1e9)
    sizes = 2.0 ** np.arange(10, 31)
    seconds = [FACTS.seconds(size, "d2h", "pageable") for size in sizes]
    assert heights(ax, "pageable, predicted") == pytest.approx(sizes / seconds / 1e9)
    assert ax.get_title("left").startswith("Predicted, to the host: pinned ")
    back = figures.copies(FACTS, None, "both_ways", "d2h")
    assert back.get_title("left").startswith("A link has lanes in both directions: copies to the host, alone")


def test_peers_are_a_matrix_of_rates_at_the_largest_size() -> None:
    rates = {(src, dst): (1 + src + 10 * dst) * 1e9 for src, dst in permutations((0, 1, 5), 2)}
    given: dict[str, Any] = {"direction": "p2p", "method": "device"}
    points = [copy_of(z, z / rate, src=s, dst=d, **given) for z in (2**20, 2**24) for (s, d), rate in rates.items()]
    points.append(copy_of(2**26, 1.0, src=0, dst=1, **given | {"both": True}))
    drawing = draw_peers(made.profile(points))
    gpus = [label for _, label in drawing.y_ticks]
    found = {(int(gpus[int(y)]), int(gpus[int(x)])): word for (x, y), word in placed(drawing).items()}
    assert found == {(src, dst): f"{1 + src + 10 * dst:.3g}" for src, dst in rates}
    assert drawing.title == "16 MiB from GPU to GPU: 2 GB/s to 52 GB/s"


@pytest.mark.parametrize("fastest_first", [True, False])
def test_of_several_methods_peers_have_the_fastest(fastest_first: bool) -> None:
    rates = {"write": 279e9, "read": 276e9}
    methods = ["write", "read"] if fastest_first else ["read", "write"]
    points = [copy_of(2**24, 2**24 / rates[name], direction="p2p", method=name, src=0, dst=1) for name in methods]
    assert draw_peers(made.profile(points)).title == "16 MiB from GPU to GPU: 279 GB/s to 279 GB/s"


def test_peers_have_a_scale_whose_colours_are_those_of_the_cells() -> None:
    rates = {(0, 1): 100e9, (1, 0): 50e9}
    given: dict[str, Any] = {"direction": "p2p", "method": "device"}
    points = [copy_of(2**24, 2**24 / rate, src=src, dst=dst, **given) for (src, dst), rate in rates.items()]
    drawing = draw_peers(made.profile(points))
    scale = {key.label: key.fill for key in drawing.legend}
    assert list(scale) == ["25 GB/s", "50 GB/s", "75 GB/s", "100 GB/s"]
    (cells,) = drawing.rects
    fills = {(x, y): fill for x, y, fill in zip(cells.x.tolist(), cells.y.tolist(), cells.fill, strict=True)}
    assert fills[1.0, 0.0] == scale["100 GB/s"]
    assert fills[0.0, 1.0] == scale["50 GB/s"]
