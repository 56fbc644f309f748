"""Hostile names in pictures, pages and terminals: they are shown as text, or refused in one sentence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import cbook
from matplotlib import pyplot as plt
from matplotlib.text import Text

from rankscope import explorers, figures
from rankscope.box import Profile
from rankscope.cluster import Cluster, Link
from rankscope.collectives import Schedule, build, simulate
from rankscope.figures.assignments import draw_assignment, draw_label_counts
from rankscope.figures.axes import to_axes
from rankscope.figures.marks import Drawing
from rankscope.figures.rankings import draw_ranking
from rankscope.figures.schedules import draw_schedule
from rankscope.figures.svg import to_svg
from rankscope.figures.timelines import draw_timeline
from rankscope.sampling import Assignment
from rankscope.timeline import Span, Timeline
from rankscope.train import ddp, zero
from rankscope.train.ddp.buckets import ParameterSpec
from rankscope.train.figures.ddp import draw_buckets
from rankscope.train.figures.memory import draw_memory

from ..box.made import as_predicted, links, profile
from .commands import _here
from .pool import Case, Wrong

WORDS = r"""$\frac{ $x$ $$ $ \alpha $\undefined$ $x^$ \ <script>alert(1)</script> <b &amp; &#0; ]]> <!-- --> <![CDATA[
'><svg/onload='alert(1)'> "/onclick="x javascript:alert(1) <?xml {0} %s%n [bold]x[/bold] [/] [link=file:///x]x :smile:
../../etc/passwd =1+1 None _hidden 😀 名前 ع"""
PIECES = [*WORDS.split(), "a\u0300" * 60, "x" * 2000, "", " "]
PIECES += [*"\0\x07\r\n\t\x7f\x85\u2028\u202e\u200d\ud800\udcff\ufffe\uffff", "\x1b[2J", "\x1b]0;owned\x07", "\x9b31m"]
CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SIZES = 2.0 ** np.arange(10, 20)
RING, WIRE = build("allreduce", "ring", 4), Cluster.uniform(4, Link(1e-5, 1e9))
TERMINAL = ("show", "compare", "predict", "trace", "path")


def _memory(name: str, ranks: Any = 4) -> dict[str, Any]:
    return {name: zero.memory(1e9, ranks, 1) if ranks == 4 else [zero.memory(1e9, one, 1) for one in ranks]}


DRAWINGS: dict[str, Callable[[str], Drawing]] = {
    "timeline": lambda name: draw_timeline(_timeline(name)),
    "title": lambda name: draw_timeline(_timeline("lane"), name),
    "assignment": lambda name: draw_assignment(Assignment(2, ([0], [1]), sampler=name)),
    "label counts": lambda name: draw_label_counts(np.arange(4).reshape(2, 2), name),
    "schedule": lambda name: draw_schedule(_named(name), 1),
    "schedule over time": lambda name: draw_schedule(_named(name), timeline=simulate(RING, 1e6, WIRE)),
    "buckets": lambda name: draw_buckets(ddp.buckets([ParameterSpec(name, 1 << 19)] * 2, 2.0)),
    "ranking": lambda name: draw_ranking({name: 1.0, "b": 2.0}, 0.5, name, name, {name: 1.5}),
    "memory": lambda name: draw_memory(_memory(name), {name: 24e9}),
}
FIGURES: dict[str, Callable[[str], Any]] = {
    **{what: lambda name, draw=draw: to_axes(draw(name)) for what, draw in DRAWINGS.items()},  # type: ignore[misc]
    "curves": lambda name: figures.curves([1, 2], {name: ([1, 2], [1, 3])}, title=name, x_label=name, y_label=name),
    "costs": lambda name: figures.costs(SIZES, {name: SIZES * 1e-9, "b": SIZES * 2e-9}, title=name),
    "zero memory": lambda name: figures.zero_memory(_memory(name, (1, 2, 4, 8)), {name: 24e9}),
    "profile": lambda name: figures.profile(_profile(name)),
    "residuals": lambda name: figures.profile(_profile(name), "residuals"),
}


def _timeline(name: str) -> Timeline:
    return Timeline.of([Span(rank, name, name, -1, 0.0, 1.0) for rank in range(2)])


def _named(name: str) -> Schedule:
    return Schedule.of_steps(list(RING.steps()), **RING.header() | {"algorithm": name})


@cache
def _points() -> Any:
    return as_predicted(profile(links()), ["ring"]).points


def _profile(name: str) -> Profile:
    return profile(_points(), name=name, cpu=name, system=name, topology=name, network=name)


def hostile(chance: Random) -> str:
    """Return one to three pieces, with some letter of all there are between them."""
    pieces = chance.choices(PIECES, k=chance.choice([1, 1, 2, 3]))
    return chance.choice(["", "", " ", chr(chance.randrange(0x110000))]).join(pieces)


def prepare(folder: Path) -> Callable[[Random, Path], Case]:
    tame_svg, tame_html = set[str](), _structure(_page("tame"))
    for draw in DRAWINGS.values():
        tame_svg |= _elements(to_svg(draw("tame")))

    def make(chance: Random, work: Path) -> Case:
        name = hostile(chance)
        surface = chance.choice(("SVG", "matplotlib", "HTML", "terminal"))
        places = {"SVG": DRAWINGS, "matplotlib": FIGURES, "HTML": ["machine"], "terminal": TERMINAL}
        what = chance.choice(list(places[surface]))
        run = {
            "SVG": lambda: check_svg(to_svg(DRAWINGS[what](name)), tame_svg),
            "matplotlib": lambda: check_axes(FIGURES[what](name)),
            "HTML": lambda: check_html(_page(name), tame_html),
            "terminal": lambda: _in_terminal(what, name),
        }[surface]
        return Case(surface, run, (ValueError, OSError), f"{what} of {ascii(name)[:200]}")

    return make


def check_svg(svg: str, tame: set[str]) -> None:
    """Raise Wrong unless it is XML without elements, attributes or letters that tame names do not give."""
    if strange := CONTROL.search(svg):
        raise Wrong(f"SVG has {strange[0]!r}")
    try:
        more = _elements(svg) - tame
    except ElementTree.ParseError as error:
        raise Wrong(f"SVG is no XML: {error}") from error
    if more:
        raise Wrong(f"SVG has {sorted(more)}")


def _elements(svg: str) -> set[str]:
    every = list(ElementTree.fromstring(svg).iter())
    return {one.tag for one in every} | {f"@{name}" for one in every for name in one.attrib}


def check_axes(ax: Any) -> None:
    """Raise Wrong where a name is set as mathematics; an error of matplotlib's is raised as it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of letters that no font has
            ax.figure.canvas.draw()
            for text in ax.figure.findobj(Text):
                said = text.get_text()
                if text.get_parse_math() and cbook.is_math_text(said) and "mathdefault" not in said:
                    raise Wrong(f"sets {said[:100]!r} as mathematics")
    except (ValueError, OSError) as error:
        raise Wrong(f"cannot be painted: {type(error).__name__}: {str(error)[:200]!r}") from error
    finally:
        plt.close("all")


def check_html(page: str, tame: set[str]) -> None:
    if strange := CONTROL.search(page):
        raise Wrong(f"HTML has {strange[0]!r}")
    if more := _structure(page) - tame:
        raise Wrong(f"HTML has {sorted(more)}")


def _structure(page: str) -> set[str]:
    found = set[str]()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.update([tag, *(f"@{name}" for name, _ in attrs)])  # type: ignore[method-assign]
    parser.handle_comment = lambda data: found.add("comment")  # type: ignore[method-assign]
    parser.feed(page)
    return found


def _page(name: str) -> str:
    """The picture and the report of a machine with this name."""
    box = explorers.machine({name: _profile(name)}, message="4 KiB")
    return "\n".join([box.pictures.value, box.report.value])


def _in_terminal(what: str, name: str) -> None:
    if what == "path":
        words = ["show", name.replace("\0", "")]
    else:
        path = str(_profile(name).save(Path("made.json")))
        more = {"compare": [path], "trace": ["--algorithm", "ring", "--num-bytes", "1KiB", "-o", name], "show": []}
        words = [what, path, *more.get(what, ["--num-bytes", "1KiB", "--algorithm", name])]
    _here(words)
