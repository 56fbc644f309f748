"""Names are text wherever they are shown: no formula, no markup, no tag, no escape sequence, and nothing breaks."""

from __future__ import annotations

import json
import random
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.text import Text

from rankscope import explorers, figures
from rankscope.box import Profile
from rankscope.box.link_facts import LinkFacts
from rankscope.box.profile import Point
from rankscope.box.tables import overview
from rankscope.cli import main
from rankscope.cli.commands.doctor import tables
from rankscope.cli.output import print_parts
from rankscope.doctor import Diagnosis
from rankscope.explorers.explorer import Explorer
from rankscope.figures.assignments import draw_label_counts
from rankscope.figures.axes import to_axes
from rankscope.figures.marks import Drawing
from rankscope.figures.rankings import draw_ranking
from rankscope.figures.svg import to_svg
from rankscope.figures.timelines import draw_timeline
from rankscope.timeline import Span, Timeline
from rankscope.train import zero
from rankscope.train.figures.memory import draw_memory

from .box.made import links, profile

Names = Sequence[str]
PIECES = [
    *("$x^2$", "$\\frac{$", "5 $", r"\$5 to $6$", "%s {0} {name!r}", "_hidden", "x" * 3000, "e" + "\u0301" * 50),
    *("[red]ring[/red]", "[/]", "[link=file:a]a[/link]", ":smile: 🙂", r"\x1b \u202e", "\"'`", "nbsp\u00a0nbsp"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</text></svg><b>", "]]>", "&lt;b&gt;", "<!--"),
    *("\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "a\x00b", "\x7f\x08\x08", "a\rb", "a\tb", "two\nlines"),
    *("\ud800", "\udcff\udc80", "\u202egnp.exe", "zero\u200bwidth", "\ufffe\uffff", "a\u2028b\x85c", "\ue000"),
]
DRAW = random.Random(17)
NAMES = [*PIECES, *(" ".join(DRAW.sample([piece for piece in PIECES if len(piece) < 99], 3)) for _ in range(12))]
FEW = [*PIECES[:7], "\x1b[31mred", "a\x00b", "two\nlines", "\ud800"]  # where a name takes a figure of its own
PRINTABLE = [name for name in NAMES if name.isprintable()]  # a profile has no others


def is_text(char: str) -> bool:
    return char in " \n\u00a0" or not unicodedata.category(char).startswith(("C", "Z"))


def stands(name: str, shown: str) -> bool:
    """Whether a name is shown: its beginning as it is if all of it is text, else its characters that are text."""
    if all(map(is_text, name)):
        return " ".join(name.split())[:99] in " ".join(shown.split())
    rest = iter(shown)
    return all(char in rest for char in name if is_text(char) and not char.isspace())


def assert_text(shown: Iterable[str], names: Names) -> None:
    """Raise AssertionError unless all that is shown is text, which a file can contain, and every name is shown."""
    texts = list(shown)
    unsafe = [text for text in texts if not all(map(is_text, text))]
    assert not unsafe, (
        f"These texts contain characters that are not text: {unsafe!r}. Only characters for which is_text() holds may "
        "be shown: let the code that shows a name replace the others, as `printable` in rankscope.common.checks does."
    )
    lost = [name for name in names if not any(stands(name, text) for text in texts)]
    assert not lost, (
        f"These names are not shown: {lost!r}. Of a name, all characters that are text must be shown, in their order. "
        f"These texts are shown: {texts!r}"
    )


# ---- drawings, which both painters paint

MEMORY = zero.memory(1e9, 4, 0)
TAGS = {"svg", "g", "title", "defs", "pattern", "rect", "line", "path", "text"}


def spans(names: Names, place: str) -> Timeline:
    known: dict[str, Any] = {"rank": 0, "lane": "a", "kind": "b", "item": -1}
    return Timeline.of(Span(**known | {place: name}, start_s=n, stop_s=n + 1) for n, name in enumerate(names))


def eights(names: Names) -> Iterator[Names]:
    yield from (names[place : place + 8] for place in range(0, len(names), 8))


DRAWINGS: dict[str, Callable[[Names], Iterable[Drawing]]] = {
    "lane": lambda names: [draw_timeline(spans(names, "lane"))],
    "kind": lambda names: [draw_timeline(spans(some, "kind")) for some in eights(names)],
    "title": lambda names: [draw_timeline(spans("a", "lane"), name) for name in names],
    "label": lambda names: [draw_label_counts([[1, 2]], name) for name in names],
    "bar": lambda names: [draw_memory(dict.fromkeys(names, MEMORY))],
    "limit": lambda names: [draw_memory({"a": MEMORY}, dict.fromkeys(names, 1e9))],
    "algorithm": lambda names: [draw_ranking(dict.fromkeys(names, 1.0))],
}


def words_of_svg(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg.encode())
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= TAGS
    assert not [key for element in root.iter() for key in element.attrib if key.startswith("on") or "href" in key]
    return list(root.itertext())


@pytest.mark.parametrize("place", DRAWINGS)
def test_a_name_in_svg_is_text(place: str) -> None:
    assert_text((text for drawing in DRAWINGS[place](NAMES) for text in words_of_svg(to_svg(drawing))), NAMES)


# ---- matplotlib

TWO = [1.0, 2.0]
OVER_RANKS = [zero.memory(1e9, num_ranks, 0) for num_ranks in (4, 8)]
Draws = Iterable[Callable[..., Axes]]


def painted(draw: Callable[[Names], Iterable[Drawing]], names: Names) -> Draws:
    return (partial(to_axes, drawing) for drawing in draw(names))


def curves(names: Names, title: str = "a", x_label: str = "a", y_label: str = "a", **on: Any) -> Axes:
    return figures.curves(TWO, dict.fromkeys(names, (TWO, TWO)), title, x_label, y_label, **on)


def measured(names: Names) -> Profile:
    points = [Point("allreduce", 1024, (1.0,), (True,), {"algorithm": name, "in_place": True}) for name in names]
    return profile([*links(noise=0), *points])


FIGURES: dict[str, Callable[[Names], Draws]] = {
    **{f"drawn {place}": partial(painted, draw) for place, draw in DRAWINGS.items()},
    "curve": lambda names: (partial(curves, some) for some in eights(names)),
    "title and labels": lambda names: (partial(curves, "a", name, name, name) for name in names),
    "cost": lambda names: [partial(figures.costs, TWO, dict.fromkeys(names, TWO))],
    "cost measured": lambda names: [partial(figures.costs, TWO, {"a": TWO}, None, dict.fromkeys(names, (TWO, TWO)))],
    "memory": lambda names: [partial(figures.zero_memory, dict.fromkeys(names, OVER_RANKS))],
    "memory limit": lambda names: [partial(figures.zero_memory, {"a": OVER_RANKS}, dict.fromkeys(names, 1e9))],
    "link": lambda names: (partial(figures.copies, LinkFacts(name, 1e9, 1e9)) for name in names),
    "profile": lambda names: [partial(figures.profile, measured(names), algorithms=names)],
}
ALONE = ("drawn title", "drawn label", "title and labels", "link")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph")  # which a font lacks
@pytest.mark.parametrize("place", FIGURES)
def test_a_name_in_matplotlib_is_text(place: str) -> None:
    figure, shown = plt.figure(), list[str]()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    names = {"profile": PRINTABLE, **dict.fromkeys(ALONE, FEW)}.get(place, NAMES)
    for draw in FIGURES[place](names):
        figure.clear()
        draw(ax=figure.add_subplot())
        for text in figure.findobj(Text):
            text.get_window_extent(renderer)  # raises where it cannot be drawn
            shown.append(text.get_text())
            own = shown[-1].startswith("$\\mathdefault{")  # matplotlib's, of a logarithmic axis
            assert own or not (text.get_parse_math() and is_math_text(shown[-1]))
    plt.close(figure)
    assert_text(shown, names)


def test_a_curve_whose_name_begins_with_an_underscore_is_named() -> None:
    ax = figures.curves(TWO, {"_a": (TWO, None), "b": (None, TWO)}, "", "", "")
    assert [text.get_text() for text in ax.texts] == ["_a", "b"]
    plt.close(ax.figure)  # type: ignore[arg-type]


# ---- HTML


class Reader(HTMLParser):
    """What a browser makes of HTML: its texts; no tag, and no attribute, that could do something."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = list[str]()

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        assert tag in (TAGS | {"p", "pre"})
        assert not [key for key, _ in attributes if key.startswith("on") or key in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def refused(name: str) -> Drawing:
    raise ValueError(name)


HTML: dict[str, Callable[[str], Explorer]] = {
    "report": lambda name: Explorer([], {}, lambda now: [name]),
    "error": lambda name: Explorer([], {"a": lambda now: refused(name)}, lambda now: []),
    "picture": lambda name: Explorer([], {"a": lambda now: draw_timeline(spans("a", "lane"), name)}, lambda now: []),
}


@pytest.mark.parametrize("place", HTML)
def test_a_name_in_html_is_text(place: str) -> None:
    for name in NAMES:
        reader, explorer = Reader(), HTML[place](name)
        reader.feed("".join(explorer.html(explorer.at())))
        reader.close()
        assert_text(["".join(reader.texts)], [name])


def test_a_name_in_a_list_to_choose_from_is_text() -> None:
    panel = explorers.machine(dict.fromkeys(NAMES, measured(["ring"])))
    assert_text([name for option in panel.controls["profile"].options for name in option], NAMES)


# ---- the terminal


def write(name: str) -> str:
    """A file of another format, of that name."""
    Path("a.json").write_text(json.dumps({"format": name}))
    return "a.json"


WORDS: dict[str, Callable[[str], list[str]]] = {
    "command": lambda name: [name],
    "file": lambda name: ["show", name],
    "option": lambda name: ["predict", "p.json", f"--num-bytes={name}"],
    "format": lambda name: ["show", write(name)],
}


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20000")
    monkeypatch.chdir(tmp_path)
    measured(["ring"]).save("p.json")


@pytest.mark.slow
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("place", WORDS)
def test_a_name_on_the_command_line_is_text(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        name = name.replace("\0", "")[:99]  # as long as a file's name may be; there is no argument with the other
        assert main(WORDS[place](name)) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert_text([said.err], [])
        assert any(stands(form, said.err) for form in (name, repr(name)[1:-1]))  # as it is, or quoted


@pytest.mark.usefixtures("wide")
def test_a_name_in_a_table_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(measured(PRINTABLE).save("a.json")), "--num-bytes", "1KiB"]) == 0
    assert_text([capsys.readouterr().out], PRINTABLE)
    for name in PRINTABLE:
        print_parts(overview(profile(name=name)))
        assert_text([capsys.readouterr().out], [name])
    print_parts(tables([Diagnosis("a", n % 2 == 0, name, "all") for n, name in enumerate(PIECES)], {}))
    assert_text([capsys.readouterr().out], PIECES)
