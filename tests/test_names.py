"""A name from a user's file is shown as text: no markup, no formula, no escape sequence."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.cbook import is_math_text

from rankscope import figures
from rankscope.cli import main
from rankscope.drawing.drawing import to_svg
from rankscope.panel.explorer import Explorer
from rankscope.timeline import Span, Timeline
from rankscope.timeline.picture import draw_timeline

NAMES = ["<script>alert(1)</script>", "</text></svg>", "$x^2$ and $y$", "[red]ring[/red]", "&lt;b&gt;"]


def one_lane(name: str) -> Timeline:
    return Timeline.of([Span(rank=0, lane=name, kind="read", item=0, start_s=0.0, stop_s=1.0)])


@pytest.mark.parametrize("name", NAMES)
def test_in_svg(name: str) -> None:
    root = ElementTree.fromstring(to_svg(draw_timeline(one_lane(name))).encode())
    assert any(name in text for text in root.itertext())
    assert not [element for element in root.iter() if element.tag.endswith("script")]


@pytest.mark.parametrize("name", NAMES)
def test_in_matplotlib(name: str) -> None:
    ax = figures.curves([1.0, 2.0], {name: ([1.0, 2.0], None), "b": ([2.0, 1.0], None)}, "title", "ranks", "time [s]")
    (label,) = [text for text in ax.texts if name in text.get_text()]
    assert not (label.get_parse_math() and is_math_text(label.get_text()))
    plt.close("all")


@pytest.mark.parametrize("name", NAMES)
def test_in_a_report(name: str) -> None:
    explorer = Explorer([], lambda now: [], lambda now: [name], {})
    report = explorer.shown(explorer.at()).report
    assert [name] == ElementTree.fromstring(f"<div>{report}</div>").findtext("details/summary", "").splitlines()


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("[red]ring[/red]", "\x1b[31mred"):
        assert main(["show", name]) == 2
        error = capsys.readouterr().err
        assert "\x1b" not in error
        assert "red" in error
