"""The site's own parts: pages made of notebooks and docstrings, and a check of links that is seen to fail."""

from __future__ import annotations

import doctest
import gzip
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from html import escape
from importlib import import_module
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import make_site
import pytest
import typer
from pages import api, commands, docstrings, gpu_box, inline, links, notebooks, sources
from pages.docstrings import as_rst, is_left_out
from pages.states import LEAST_STATES, Shown, stored
from typer.main import get_command
from typer.testing import CliRunner

from rankscope.box import bank
from rankscope.box.machines import is_sick, provenances
from rankscope.cli import app
from rankscope.explorers.entries import catalogue
from rankscope.explorers.opening import ENTRIES

ROOT = Path(__file__).parents[1]
DRAWN_BY_MAKE_TEST = "uneven"
NAMES = [entry.name for entry in catalogue()]
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
    explorer = cell("explorers.zero(module, stage=2)", WIDGET)
    before = json.dumps(explorer)
    code, shown, rest = page(explorer, cell("1 + 1"))["cells"]
    assert json.dumps(explorer) == before
    assert (code["source"], code["outputs"], rest["source"]) == (explorer["source"], [], "1 + 1")
    assert shown["source"] == f"```{{raw}} html\n<b>{Shown('zero', (('stage', 2),), of_module=True)}</b>\n```"


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


def test_a_picture_is_described_and_a_number_is_not() -> None:
    made = page(cell("# Why?\n\n## 1. A road", kind="markdown"), cell("draw()", PNG), cell("print(1)"))
    assert made["cells"][1]["metadata"]["mystnb"]["image"]["alt"] == "Figure: “1. A road”"
    assert made["cells"][2]["metadata"] == {}


TIMELINE, CURVES = "The spans of a timeline, with one row per lane of a rank: ", "time [s] over ranks: "


@pytest.mark.parametrize(
    ("source", "alt"),
    [
        ('figures.timeline(spans, title="Two stages, three batches")', TIMELINE + "“Two stages, three batches”"),
        ('figures.timeline(spans, None, "Two stages")', TIMELINE + "“Two stages”"),
        (
            'title = f"{name} waits {share:.0%} of the time"\nfigures.timeline(spans, title=title)',
            TIMELINE + "“… waits … of the time”",
        ),
        ('figures.timeline(spans, title="One by one" if a else "All at once")', TIMELINE + "“One by one; All at once”"),
        ('figures.timeline(spans, title=f"{name}: {ms} ms")', TIMELINE + "“2. The road”"),
        ("figures.timeline(spans)", TIMELINE + "“2. The road”"),
        ("figures.timeline(spans, title=made_up(1))", TIMELINE + "“2. The road”"),
        ('figures.curves(x, y, "More is less", "ranks", "time [s]")', "T" + CURVES[1:] + "“More is less”"),
        ('a, b = "ranks", "time [s]"\nfigures.curves(x, y, "More is less", a, b)', "T" + CURVES[1:] + "“More is less”"),
        ("over_time(1)", "Figure: “2. The road”"),
    ],
)
def test_words_for_a_figure(source: str, alt: str) -> None:
    assert notebooks.described(source, "## 2. The `road`") == alt


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


def test_the_page_of_gpu_boxes_has_five_commands_the_picture_and_every_machine_of_the_bank() -> None:
    page = gpu_box.page((ROOT / "docs" / gpu_box.GUIDE).read_text(encoding="utf-8"))
    first_commands = page.split("```")[1]
    assert len(re.findall(r"^(?:make|rankscope) .*#", first_commands, re.MULTILINE)) == 5
    assert "The picture shows two A100s whose peer-to-peer access is off." in page
    assert "(../notebooks/pictures/gpu_box.svg)" in page
    assert "Unset NCCL_P2P_DISABLE" in page
    assert re.findall(r"^\* - `(\w+)`$", page, re.MULTILINE) == list(bank())
    assert gpu_box.NAMES not in page
    assert "nan" not in page
    num_faulty = sum(is_sick(about) for about in provenances().values())
    assert page.count("**Known or suspected fault: ") == num_faulty > 0


def test_a_guide_without_the_table_of_machines_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"gpu_box\.md has no table that begins with"):
        gpu_box.page("# What should your GPU box reach?")


# ---- explorers


def unpacked(script: str) -> dict[str, Any]:
    letters = re.search(r'="([^"]+)"\n$', script)
    assert letters
    drawn: dict[str, Any] = json.loads(gzip.decompress(b64decode(letters[1])))
    return drawn


def stored_explorers() -> Iterator[Any]:
    """Yield one explorer for `make test`, and all others for `make oracles`, which draws thousands of states."""
    for entry in catalogue():
        marks = () if entry.name == DRAWN_BY_MAKE_TEST else (pytest.mark.oracle,)
        yield pytest.param(entry.name, id=entry.name, marks=marks)


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
        assert grid.explorer.read(line) == now


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


def test_a_stored_state_has_the_ranks_of_its_network() -> None:
    grid = Shown("ddp").grid()
    ranks = {now.network: now.num_ranks for now in grid.states()}
    assert (ranks["abci_a100_4x8"], ranks["l40s_4"], ranks["nccl:h100"]) == (32, 4, 32)
    for now in grid.states():
        assert grid.explorer.read(grid.explorer.line(now)) == now


def test_pages_share_what_is_stored_where_the_grid_is_the_same() -> None:
    plain, moved = Shown("uneven").grid(), Shown("uneven", (("handling", "join"),)).grid()
    fixed, added = Shown("uneven", (("rank_2", 10),)).grid(), Shown("uneven", (("rank_0", 12),)).grid()
    assert plain.key == moved.key
    assert plain.at(plain.start) != moved.at(moved.start)
    assert len({plain.key, fixed.key, added.key}) == 3
    assert added.axes["rank_0"] == (*plain.axes["rank_0"], 12)


@pytest.mark.slow
def test_what_changes_nothing_is_known_and_where_a_slider_ends() -> None:
    for name in ("samplers", "allreduce"):
        grid = Shown(name).grid(only_ends=True)
        drawn = unpacked(stored(grid).script)
        places = {setting: str(place) for place, setting in enumerate(grid.axes)}
        for now, (_, _, number, _) in zip(grid.states(), drawn["states"], strict=True):
            limits = drawn["limits"][number]
            reasons = grid.explorer.without_effect(now)
            assert {places[one]: why for one, why in reasons.items() if one in places}.items() <= limits["dead"].items()
            most = grid.explorer.most(now)
            assert [most[one] >= grid.axes[one][-1] for one in most] == [end == 1 for end in limits["ends"].values()]


@pytest.mark.parametrize("name", NAMES)
def test_presets_of_an_explorer_are_on_its_page(name: str) -> None:
    grid = Shown(name).grid()
    explorer = grid.explorer
    found = {preset["label"]: preset["at"] for preset in grid.presets()}
    assert found, "no preset of this explorer can be set on its page: give its settings on the site more values"
    for label, at in found.items():
        assert at == grid.at(explorer.at(**explorer.presets[label]))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nothing", {}, "name must be one of 'samplers', .*, got 'nothing'"),
        ("samplers", {"speed": 1}, "settings are .* got speed"),
    ],
)
def test_what_has_no_states_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shown(name, tuple(settings.items())).grid()


def test_a_value_that_a_setting_does_not_offer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown("zero")
    entry = shown.entry._replace(on_the_site={"stage": (0, 7)})
    monkeypatch.setitem(ENTRIES, "zero", entry)
    with pytest.raises(ValueError, match=r"on_the_site of zero has stage \[7\], which the setting does not offer"):
        shown.grid()


# ---- docstrings and the API


@pytest.mark.parametrize(
    ("text", "rst"),
    [
        ("takes *args and a trailing_ name", r"takes \*args and a trailing\_ name"),
        ("`Stage` and ``2 * N`` stay, 2 * N is text", r"`Stage` and ``2 * N`` stay, 2 \* N is text"),
        ("|z| < 2.5, num_ranks, C:\\x", r"\|z\| < 2.5, num_ranks, C:\\x"),
        (">>> f(*args)\n2 * N\n\n2 * N", ">>> f(*args)\n2 * N\n\n2 \\* N"),  # what it prints ends with an empty line
    ],
)
def test_a_docstring_is_shown_as_it_is(text: str, rst: str) -> None:
    lines = text.split("\n")
    as_rst(None, "function", "f", None, None, lines)
    assert lines == rst.split("\n")


def test_fields_and_private_names_are_left_out() -> None:
    def left_out(name: str, member: Any) -> bool:
        return is_left_out(None, "class", name, member, False, None) is True

    assert left_out("num_ranks", 4)
    assert left_out("_steps", property(len))
    assert not left_out("steps", property(len))
    assert not left_out("run", len)


@pytest.mark.parametrize("package", api.packages(), ids=lambda package: package.__name__)
def test_every_public_name_is_on_its_page_once(package: ModuleType) -> None:
    text = api.package_page(package)
    listed = [line.split("::")[-1].strip() for line in text.splitlines() if line.startswith(".. ")]
    assert sorted(listed[1:]) == sorted(package.__all__), (
        f"The page of {package.__name__} must list each name of its __all__ once: see site/pages/api.py."
    )
    assert f"   {package.__name__}\n" in api.pages()["index.rst"]


def _has_only_packages(package: ModuleType) -> bool:
    return all(isinstance(getattr(package, name), ModuleType) for name in package.__all__)


def test_every_package_with_public_names_has_a_page() -> None:
    root = ROOT / "lib" / "rankscope"
    files = [*root.glob("*/__init__.py"), *root.glob("*/*/__init__.py")]
    public = {path.parent.relative_to(root.parent) for path in files if "__all__" in path.read_text()}
    names = {".".join(folder.parts) for folder in public}
    lists_packages = {name for name in names if _has_only_packages(import_module(name))}
    assert lists_packages == {"rankscope.train"}
    missing = names - lists_packages - {package.__name__ for package in api.packages()}
    assert names
    assert not missing, (
        f"No page of the site describes {sorted(missing)}: let packages() in site/pages/api.py yield them."
    )


def test_a_command_is_on_the_page_as_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = typer.Option("--wide", "-w", help="How wide.\n[m]")

    def measure(wide: float = 2.5) -> None:
        """Measure a box."""

    measure.__annotations__["wide"] = Annotated[float, wide]
    monkeypatch.setattr(app, "registered_commands", list(app.registered_commands))
    before = commands.page()
    app.command()(measure)
    added = commands.page().removeprefix(before)
    table = "* - `-w, --wide` `<float>`\n  - How wide. \\[m] \\[default: 2.5]\n"
    for part in ("## rankscope measure", "rankscope measure [OPTIONS]", "Measure a box.", table):
        assert part in added


def test_a_command_without_arguments_has_no_table() -> None:
    """Sphinx refuses a table that has a head and no row."""
    assert "  - Meaning\n```" not in commands.page()


@pytest.mark.parametrize("name", get_command(app).commands)  # type: ignore[attr-defined]
def test_what_a_command_helps_with_is_on_the_page(name: str) -> None:
    _, _, section = commands.page().partition(f"## rankscope {name}\n")
    helped = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert helped.exit_code == 0, helped.output
    options = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", helped.output))
    assert "--help" in options
    missing = options - {"--help"} - set(re.findall(r"--?[a-z][a-z-]*", section.partition("\n## ")[0]))
    assert not missing, (
        f"The page of commands lacks {sorted(missing)} of rankscope {name}: see site/pages/commands.py. "
        f"This is what --help prints:\n{helped.output}"
    )


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
