"""The site's own parts: pages made of notebooks and docstrings, and a check of links that is seen to fail."""

from __future__ import annotations

import doctest
import gzip
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from html import escape
from inspect import ismodule
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import make_site
import pytest
from pages import api, commands, docstrings, inline, links, notebooks, sources
from pages.states import LEAST_STATES, Shown, stored

from rankscope.explorers.entries import EXPLORERS

ROOT = Path(__file__).parents[1]
DRAWN_BY_MAKE_TEST = "uneven"
NAMES = list(EXPLORERS)
PNG = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "aGk=", "text/plain": "<Figure>"}}
WIDGET = {
    "output_type": "execute_result",
    "metadata": {},
    "data": {"text/plain": "(a widget)", "image/svg+xml": "<svg/>"},
    "execution_count": 1,
}


def cell(source: str, *outputs: dict[str, Any], kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "id": "one", "metadata": {}, "source": source, "outputs": list(outputs)}


def page(*cells: dict[str, Any]) -> dict[str, Any]:
    return notebooks.page({"cells": list(cells)}, "(a widget)", lambda shown: f"<b>{shown}</b>")


# ---- notebooks


def test_an_explorer_stands_where_its_widget_would() -> None:
    explorer = cell("explorers.zero(stage=2)", WIDGET)
    before = json.dumps(explorer)
    code, shown, rest = page(explorer, cell("1 + 1"))["cells"]
    assert json.dumps(explorer) == before
    assert (code["source"], code["outputs"], rest["source"]) == (explorer["source"], [], "1 + 1")
    assert shown["source"] == f"```{{raw}} html\n<b>{Shown('zero', (('stage', 2),))}</b>\n```"


@pytest.mark.parametrize(
    ("source", "word"),
    [("my_own_widget()", "make lab"), ("explorers.gallery()", "../index.md")],
)
def test_other_widgets_are_a_sentence(source: str, word: str) -> None:
    assert word in page(cell(source, WIDGET))["cells"][1]["source"]


def test_a_page_shows_the_svg_alone_and_names_no_keys() -> None:
    both = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "aGk=", "image/svg+xml": "<svg/>"}}
    first = cell("# Why?\n\nPress **Shift+Enter**.\n\nMove the sliders.", kind="markdown")
    title, figure = page(first, cell("draw()", both))["cells"]
    assert title["source"] == "# Why?\n\nMove the sliders."
    assert set(figure["outputs"][0]["data"]) == {"image/svg+xml"}


def test_their_examples() -> None:
    assert doctest.testmod(notebooks) == (0, 2)
    assert doctest.testmod(inline) == (0, 2)
    assert doctest.testmod(make_site) == (0, 1)
    assert doctest.testmod(commands) == (0, 1)
    assert doctest.testmod(docstrings) == (0, 1)


def test_figures_become_a_part_of_their_page_with_names_of_their_own(tmp_path: Path) -> None:
    svg = "<svg class='figure'><clipPath id='a'/><g clip-path='url(#a)'/></svg>"
    (tmp_path / "a b.svg").write_text(svg)
    image = '<p><img alt="Two ranks" src="a%20b.svg" /></p><img src="gone.svg"><img src="p.png">'
    page = inline.inlined(image + image, tmp_path)
    assert page.count('<svg role="img" aria-label="Two ranks" class=') == 2
    assert re.findall(r"id='([^']*)'", page) == re.findall(r"url\(#([^)]*)\)", page) == ["a-0", "a-1"]
    assert page.count('<img src="gone.svg"><img src="p.png">') == 2


# ---- the page of GPU boxes


# ---- explorers


def unpacked(script: str) -> dict[str, Any]:
    letters = re.search(r'="([^"]+)"\n$', script)
    assert letters
    drawn: dict[str, Any] = json.loads(gzip.decompress(b64decode(letters[1])))
    return drawn


def stored_explorers() -> Iterator[Any]:
    """Yield one explorer for `make test`, and all others for `make oracles`, which draws thousands of states."""
    for name in NAMES:
        marks = () if name == DRAWN_BY_MAKE_TEST else (pytest.mark.oracle,)
        yield pytest.param(name, id=name, marks=marks)


@pytest.mark.parametrize("name", list(stored_explorers()))
def test_every_stored_state_is_what_the_explorer_shows(name: str) -> None:
    grid = Shown(name).grid(only_ends=True)
    drawn = unpacked(stored(grid).script)
    all_states = list(grid.states())
    assert len(all_states) == len(drawn["states"]) == grid.num_states == prod(map(len, grid.axes.values()))
    assert grid.explorer.at() == grid.start
    for now, (pictures, report, _, line) in zip(all_states, drawn["states"], strict=True):
        svg = "".join(drawn["parts"][part] for picture in pictures for part in drawn["pictures"][picture])
        assert (svg, drawn["reports"][report]) == grid.explorer.html(now)
        assert line == grid.explorer.line(now)


@pytest.mark.parametrize("name", NAMES)
def test_an_explorer_has_hundreds_of_states_and_names_what_is_not_in_them(name: str) -> None:
    grid = Shown(name).grid()
    assert grid.num_states >= LEAST_STATES, (
        f"On the site {name} has {grid.num_states} states, and needs at least {LEAST_STATES} so that its controls do "
        "more than jump: name more values in the `on_the_site=` of the explorer's @shows."
    )
    values = [grid.axes[setting][place] for setting, place in zip(grid.axes, grid.at(grid.start), strict=True)]
    assert values == [getattr(grid.start, setting) for setting in grid.axes]
    more = grid.html().partition("explorer-more")[2].partition("</p>")[0]
    assert all((f" {escape(one.label)} (" in more) == (one.name not in grid.axes) for one in grid.explorer.settings)


@pytest.mark.parametrize("name", NAMES)
def test_presets_of_an_explorer_are_on_its_page(name: str) -> None:
    grid = Shown(name).grid()
    explorer = grid.explorer
    found = {preset["label"]: preset["at"] for preset in grid.presets()}
    assert found, "no preset of this explorer can be set on its page: give its settings on the site more values"
    for label, at in found.items():
        assert at == grid.at(explorer.at(**explorer.presets[label]))


# ---- docstrings and the API


@pytest.mark.parametrize("package", api.packages(), ids=lambda package: package.__name__)
def test_every_public_name_is_on_its_page_once(package: ModuleType) -> None:
    text = api.package_page(package)
    listed = [line.split("::")[-1].strip() for line in text.splitlines() if line.startswith(".. ")]
    assert sorted(listed[1:]) == [name for name in sorted(package.__all__) if not ismodule(getattr(package, name))], (
        f"The page of {package.__name__} must list each name of its __all__ once: see docs/site/pages/api.py."
    )
    assert f"   {package.__name__}\n" in api.pages()["index.rst"]


# ---- links


GOOD = {
    "index.html": '<a href="a/b.html#here">b</a> <a href="https://x.org">x</a> <img src="p.png" alt="a picture">'
    '<svg aria-hidden="true"></svg><svg><title>two ranks</title></svg><a href="#top">up</a><p id="top">'
    '<a href="https://x.org">nccl#212</a> <code>"#0072b2"</code>',
    "a/b.html": '<p id="here"><a href="../index.html">up</a> <a href="../a/">own folder</a>'
    '<img src="data:image/png;base64,aGk=" alt="b">',
    "a/index.html": '<link rel="stylesheet" href="../s.css"><script src="../s.js?v=1"></script>',
    "s.css": "a { background: url('p.png') }",
    "s.js": "",
    "p.png": "",
}


def problems(folder: Path, changed: dict[str, str]) -> list[str]:
    for name, text in (GOOD | changed).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return links.problems(folder)


def test_good_pages_have_no_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, {}) == []
    assert links.elsewhere(tmp_path) == ["https://x.org"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="c.html">c</a>', "index.html: c.html leads nowhere"),
        ('<a href="a/b.html#there">b</a>', "index.html: a/b.html#there: there is no such place on that page"),
        ('<a href="#there">b</a>', "index.html: #there: there is no such place on that page"),
        ('<img src="q.png" alt="q">', "index.html: q.png leads nowhere"),
        ('<img src="p.png" alt=" ">', "index.html: p.png has no words for readers who cannot see it"),
        ("see pytorch#36650", "index.html: pytorch#36650 is no link"),
        ("<svg><path/></svg>", "index.html: svg has no words for readers who cannot see it"),
        ('<script src="https://x.org/a.js"></script>', "index.html: loads https://x.org/a.js from elsewhere"),
        ('<link rel="stylesheet" href="//x.org/a.css">', "index.html: loads //x.org/a.css from elsewhere"),
        ('<iframe src="http://x.org"></iframe>', "index.html: loads http://x.org from elsewhere"),
        ("@import 'https://x.org/f.css';", "s.css: loads https://x.org/f.css from elsewhere"),
        ("a { src: url(https://x.org/f.css) }", "s.css: loads https://x.org/f.css from elsewhere"),
    ],
)
def test_a_broken_page_is_caught(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, {problem.partition(":")[0]: text}) == [problem]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("[a](notebooks/a.ipynb) and [b](notebooks/a.ipynb#x)", "[a](notebooks/a.ipynb) and [b](notebooks/a.ipynb#x)"),
        ("read [the rings](lib/rings.py#L3)", "read the rings"),
        ("![drawn](p.svg)", "![drawn](p.svg)"),
        ("[start](README.md#two-commands)", "[start](start.md#two-commands)"),
        ('[x](https://x.org), `ALL["ring"](4)`, [no](nowhere.md)',) * 2,
    ],
)
def test_links_to_what_is_no_page_become_text(tmp_path: Path, text: str, made: str) -> None:
    for name in ("notebooks/a.ipynb", "lib/rings.py", "p.svg", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert sources.linked(text, tmp_path, tmp_path) == made
    assert sources.linked("[up](../README.md)", tmp_path, tmp_path / "notebooks") == "[up](../start.md)"
