"""The site's own parts: what is stored of an explorer, pages of notebooks, and a check of links."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
from pages import html, live, sources
from pages.states import Place, axes

from rankscope.explorers import EXPLORERS

WIDGET = {
    "output_type": "execute_result",
    "metadata": {},
    "data": {"text/plain": "(a widget: run this cell to use it)", "image/svg+xml": "<svg/>"},
    "execution_count": 1,
}


def cell(source: str, *outputs: dict[str, Any], kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "id": "one", "metadata": {}, "source": source, "outputs": list(outputs)}


def test_an_explorer_stands_where_its_widget_would() -> None:
    places: list[Place] = []
    first = cell("# Why?\n\nPress **Shift+Enter**.\n\n**Run > Run All Cells**.\n\nMove the sliders.", kind="markdown")
    figure = cell("draw()", {"data": {"image/png": "aGk=", "image/svg+xml": "<svg/>"}})
    explorer = cell("explorers.zero(stage=2)", WIDGET)
    own = cell("explorers.pipeline(path)", WIDGET)
    made = sources.page({"cells": [first, figure, explorer, own]}, "08", sources.ROOT, places)["cells"]
    assert made[0]["source"] == "# Why?\n\nMove the sliders."
    assert set(made[1]["outputs"][0]["data"]) == {"image/svg+xml"}
    assert places == [Place("explorers.zero(stage=2)", "08_2")]
    assert 'data-states="08_2"' in made[3]["source"]
    assert made[4]["outputs"] == [WIDGET]


@pytest.mark.parametrize("name", ["pipeline_parallel", "samplers"])
def test_every_stored_state_is_what_the_explorer_shows(name: str) -> None:
    place = Place(f"explorers.{name}()", name)
    explorer = EXPLORERS[name].make()
    letters = re.search(r'="([^"]+)"\n$', place.script(24))
    assert letters
    data = json.loads(gzip.decompress(b64decode(letters[1])))
    moving = axes(explorer, explorer.at(), 24)
    assert len(data["states"]) == prod(map(len, moving.values())) <= 24

    def html_of(state: Any) -> str:
        return "".join(data["pieces"][piece] for piece in data["shown"][state[0]])

    for state, values in zip(data["states"], product(*moving.values()), strict=True):
        now = explorer.at(**dict(zip(moving, values, strict=True)))
        assert {"html": html_of(state), "disabled": state[1]} == live.state(explorer, now)
    for preset, settings in zip(data["presets"][1:], explorer.presets.values(), strict=True):
        if preset["state"]:
            assert html_of(preset["state"]) == live.state(explorer, explorer.at(**settings))["html"]


def test_the_flagship_moves_over_1_to_16_ranks_and_sizes_that_they_do_not_divide() -> None:
    explorer = EXPLORERS["samplers"].make()
    moving = axes(explorer, explorer.at(), 800)
    assert moving["num_ranks"][:16] == [*range(1, 17)]
    assert any(size % 16 for size in moving["size"])
    assert {"shuffle", "drop_last"} < moving.keys()


GOOD = {
    "index.html": '<a href="a/b.html#here">b</a> <a href="https://x.org">x</a> <img src="p.png"><a href="#top">up</a>'
    '<p id="top">',
    "a/b.html": '<p id="here"><a href="../index.html">up</a> <a href="../a/">a</a>'
    '<img src="data:image/png;base64,aGk=">',
    "a/index.html": '<link rel="stylesheet" href="../s.css"><script src="../s.js?v=1"></script>',
    "s.css": "a { background: url('p.png') }",
    "s.js": "",
    "p.png": "",
}


def problems(folder: Path, changed: dict[str, str]) -> list[str]:
    for name, text in (GOOD | changed).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return html.problems(folder)


def test_good_pages_have_no_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="c.html">c</a>', "index.html: c.html leads nowhere"),
        ('<a href="a/b.html#there">b</a>', "index.html: a/b.html#there leads nowhere"),
        ('<a href="#there">b</a>', "index.html: #there leads nowhere"),
        ('<img src="q.png" alt="q">', "index.html: q.png leads nowhere"),
        ('<script src="https://x.org/a.js"></script>', "index.html: loads https://x.org/a.js from elsewhere"),
        ('<link rel="stylesheet" href="//x.org/a.css">', "index.html: loads //x.org/a.css from elsewhere"),
        ("@import 'https://x.org/f.css';", "s.css: loads https://x.org/f.css"),
        ("a { src: url(https://x.org/f.css) }", "s.css: loads https://x.org/f.css"),
    ],
)
def test_a_broken_page_is_caught(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, {problem.partition(":")[0]: text}) == [problem]


def test_a_page_shows_how_commands_are_called() -> None:
    assert "Usage: root" not in sources.commands()


def test_figures_become_a_part_of_their_page_with_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a b.svg").write_text("<svg class='figure'><clipPath id='a'/><g clip-path='url(#a)'/></svg>")
    image = '<p><img alt="Two ranks" src="a%20b.svg" /></p><img src="gone.svg"><img src="p.png">'
    page = html.inlined(image + image, tmp_path)
    assert page.count('<svg role="img" aria-label="Two ranks" class=') == 2
    assert re.findall(r"id='([^']*)'", page) == re.findall(r"url\(#([^)]*)\)", page) == ["a-0", "a-1"]
    assert page.count('<img src="gone.svg"><img src="p.png">') == 2


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("[a](notebooks/00_one_step.ipynb#x)", "[a](notebooks/00_one_step.ipynb#x)"),
        ("read [the rings](lib/rankscope/__init__.py#L3)", "read the rings"),
        ("[start](README.md#two-commands)", "[start](start.md#two-commands)"),
        ('[x](https://x.org), `ALL["ring"](4)`, [no](nowhere.md)',) * 2,
    ],
)
def test_links_to_what_is_no_page_become_text(text: str, made: str) -> None:
    assert sources.linked(text, sources.ROOT) == made
