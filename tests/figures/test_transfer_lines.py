"""What the pictures of copies show, read back from the artists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from rankscope import figures
from rankscope.figures.palette import looks
from rankscope.figures.profiles import draw_peers
from rankscope.machine import Point, Profile
from rankscope.machine.link_facts import METHODS, stated
from rankscope.values.units import bytes_words, rate_words

from ..machine.made import profile

FACTS = stated(4)
SIZES = [2**power for power in range(12, 27, 2)]
SLOWER = {"pinned_non_blocking": 1.1, "pageable": 1.5, "pin_on_the_fly": 3.0}


def point(num_bytes: int, seconds: float, **options: Any) -> Point:
    """Nine iterations from 0.96 to 1.04 times as long; their median is `seconds`."""
    told = {"direction": "h2d", "pieces": 1, "both": False} | options
    return Point("transfer", num_bytes, tuple(seconds * np.linspace(0.96, 1.04, 9)), (True,) * 9, told)


def copies(**options: Any) -> list[Point]:
    """Copies that take so many times what the facts allow, by method."""
    return [
        point(size, times * FACTS.seconds(size, "h2d", method, **options), method=method, **options)
        for method, times in SLOWER.items()
        for size in SIZES
        if size >= 4096 * options.get("pieces", 1)
    ]


@pytest.fixture(scope="module")
def measured() -> Profile:
    return profile([*copies(), *copies(both=True), *copies(pieces=256)])


def line(ax: Axes, label: str) -> np.ndarray:
    """The y of the line, or of the markers, with this label."""
    handles, labels = ax.get_legend_handles_labels()
    found = handles[labels.index(label)]
    return np.asarray((found[0] if hasattr(found, "lines") else found).get_ydata(), dtype=float)


def named(ax: Axes) -> set[str]:
    return {text.get_text() for text in ax.texts}


def test_without_a_profile_lines_are_predicted_and_nothing_is_called_measured() -> None:
    ax = figures.copies(FACTS)
    sizes = 2.0 ** np.arange(10, 31)
    for method in SLOWER:
        seconds = [FACTS.seconds(size, "h2d", method) for size in sizes]
        assert line(ax, f"{method}, predicted") == pytest.approx(sizes / seconds / 1e9)
        assert method in named(ax)
    assert line(ax, "the link alone") == pytest.approx(np.full(21, FACTS.bytes_per_s("h2d") / 1e9))
    assert not [label for label in ax.get_legend_handles_labels()[1] if "measured" in label]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["predicted from facts: at best"]
    assert ax.get_title("left").startswith("Predicted, to the GPU: pinned ")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("size of the copy", "bandwidth, one way [GB/s]")


def test_half_of_the_link_is_reached_at_the_size_that_is_marked() -> None:
    ax = figures.copies(FACTS)
    half = FACTS.start_s * FACTS.bytes_per_s("h2d")
    assert f"n½ = {bytes_words(half)}" in named(ax)
    assert half / FACTS.seconds(half, "h2d") == pytest.approx(FACTS.bytes_per_s("h2d") / 2)


@pytest.mark.parametrize("quantity", ["rate", "time"])
def test_markers_are_medians_with_their_quartiles(measured: Profile, quantity: str) -> None:
    ax = figures.copies(FACTS, measured, view=quantity)
    for method, times in SLOWER.items():
        predicted, seen = (line(ax, f"{method}, {kind}") for kind in ("predicted", "measured"))
        assert seen == pytest.approx(predicted / times if quantity == "rate" else predicted * times, rel=1e-5)
        (bars,) = [one for one in ax.containers if one.get_label() == f"{method}, measured"]
        ends = np.array(bars.lines[2][0].get_segments())[:, :, 1]
        low, high = (0.98, 1.02) if quantity == "time" else (1 / 1.02, 1 / 0.98)
        assert ends[:, 0] == pytest.approx(seen * low, rel=1e-4)
        assert ends[:, 1] == pytest.approx(seen * high, rel=1e-4)
        assert bars.lines[0].get_color() == looks([method])[method].color
    assert ax.get_yscale() == ("linear" if quantity == "rate" else "log")


def test_the_title_is_what_was_measured_of_what_the_link_carries(measured: Profile) -> None:
    words = figures.copies(FACTS, measured).get_title("left")
    rates = [rate_words(SIZES[-1] / (SLOWER[m] * FACTS.seconds(SIZES[-1], "h2d", m))) for m in list(SLOWER)[:2]]
    link = f"PCIe 4 x16 carries {rate_words(FACTS.bytes_per_s('h2d'))}"
    assert words == f"Measured, to the GPU: pinned {rates[0]}, pageable {rates[1]}; {link}"


def test_a_profile_alone_has_markers_and_no_lines(measured: Profile) -> None:
    ax = figures.copies(None, measured)
    labels = ax.get_legend_handles_labels()[1]
    assert labels == [f"{method}, measured" for method in SLOWER]
    assert set(SLOWER) <= named(ax)


def test_a_direction_that_was_not_measured_is_predicted_only(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured, direction="d2h", methods=METHODS)
    labels = ax.get_legend_handles_labels()[1]
    assert set(labels) == {"the link alone", "n½", *(f"{method}, predicted" for method in METHODS)}
    assert line(ax, "the link alone")[-1] == pytest.approx(FACTS.bytes_per_s("d2h") / 1e9)


def test_both_ways_halve_pageable_copies_and_not_pinned_ones(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured, "both_ways")
    pinned, pageable = (
        line(ax, f"{name}, both ways, predicted")[-1] / line(ax, f"{name}, predicted")[-1]
        for name in ("pinned", "pageable")
    )
    assert pinned > 0.97
    assert pageable == pytest.approx(0.5, rel=0.01)
    for name, times in (("pinned", 1.1), ("pageable", 1.5)):
        seen = line(ax, f"{name}, both ways, measured")
        assert seen == pytest.approx(line(ax, f"{name}, both ways, predicted") / times, rel=1e-5)


def test_pieces_pay_for_their_starts(measured: Profile) -> None:
    ax = figures.copies(FACTS, measured, "pieces")
    one, many = (line(ax, f"pinned, {words}, predicted") for words in ("one copy", "256 copies"))
    assert many - one == pytest.approx(np.full(one.size, 255 * FACTS.start_s * 1e6))
    assert line(ax, "pageable, 256 copies, measured").size == one.size == sum(size >= 2**20 for size in SIZES)
    assert ax.get_ylabel() == "time [µs]"


def test_peers_are_a_matrix_of_rates_at_the_largest_size() -> None:
    ends = [(src, dst) for src in range(3) for dst in range(3) if src != dst]
    rates = {(src, dst): (1 + src + 10 * dst) * 1e9 for src, dst in ends}
    told: dict[str, Any] = {"direction": "p2p", "method": "device"}
    points = [point(size, size / rates[s, d], src=s, dst=d, **told) for size in (2**20, 2**24) for s, d in ends]
    points.append(point(2**26, 1.0, src=0, dst=1, **told | {"both": True}))
    drawing = draw_peers(profile(points))
    (texts,) = (one for one in drawing.texts if one.text)
    cells = {(int(y), int(x)): word for x, y, word in zip(texts.x, texts.y, texts.text, strict=True)}
    assert cells == {(src, dst): f"{1 + src + 10 * dst:.3g}" for src, dst in ends}
    assert drawing.title == "16 MiB from GPU to GPU: 2 GB/s to 22 GB/s"
    assert figures.copies(None, profile(points), "peers").get_title("left") == drawing.title


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.copies(None), "facts or profile must be given, got None for both"),
        (lambda: figures.copies(None, profile([])), "profile must have copies by .*, as no facts are given, got none"),
        (lambda: figures.copies(FACTS, direction="up"), "direction must be one of 'h2d', 'd2h', got 'up'"),
        (lambda: figures.copies(FACTS, view="cost"), "view must be one of 'rate', .*, got 'cost'"),
        (lambda: figures.copies(FACTS, methods=["magic"]), "methods must be one of .*, got 'magic'"),
        (lambda: figures.copies(FACTS, methods=[]), "methods must be at least one of pageable, .*, got none"),
        (lambda: figures.copies("PCIe", view="pieces"), "facts must be a LinkFacts, got 'PCIe'"),  # type: ignore[arg-type]
        (lambda: figures.copies(FACTS, 3, "both_ways"), "profile must be a Profile, got 3"),  # type: ignore[arg-type]
        (lambda: figures.copies(None, None, "peers"), "profile must be a Profile, got None"),  # type: ignore[arg-type]
        (lambda: figures.copies(None, profile([]), "peers"), "profile must have copies between GPUs .*, got none"),
    ],
)
def test_bad_input_is_one_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
