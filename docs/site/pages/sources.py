"""Lays out what Sphinx reads: each page lies where it does in the repository, so that links between them hold."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rankscope.cli.program import COMMANDS, program
from rankscope.explorers import EXPLORERS
from tests.tools.execute_notebooks import WIDGET_TEXT, every_notebook, read

from .states import Place

ROOT = Path(__file__).parents[3]
START = "start.md"  # the README's page
_AT_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")
# A paragraph on keys, which a page does not have.
_KEYS = re.compile(r"(?:\A|\n\n)[^\n]*\*\*(?:Shift\+Enter|Run > Run All Cells)\*\*[^\n]*")
_HOME = """# rankscope

{lead}

{flagship}

Move a control and see what changes. This page needs no server, and nothing leaves it.
[Install and start]({start}) ·{own} [All notebooks](notebooks/README.md) · [Reference](api/index.rst)
"""
_PACKAGES = ("sampling", "ranks", "pipeline", "collectives", "timeline", "figures", "explorers")
_PACKAGES += ("train.ddp", "train.fsdp", "train.zero", "train.uneven", "train.pipeline_parallel", "train.data_parallel")
_PACKAGES += ("box", "diagnose", "cluster", "networks")
_WITH_INPUTS = re.compile(r"explorers\.\w+\((?!\w+=|\))")  # a panel of what a page does not have: its picture stays


def lay_out(to: Path, is_live: bool) -> list[Place]:
    """Write the sources of the site. Returns where explorers stand.

    The index opens with the first explorer; the others follow it, each under its title.
    """
    places: list[Place] = []
    shutil.copytree(ROOT / "notebooks" / "pictures", to / "notebooks" / "pictures")
    (to / "notebooks" / "appendix").mkdir()
    titles = {}
    for path in every_notebook():
        name = path.relative_to(ROOT / "notebooks").with_suffix("").as_posix()
        nb = page(read(path), name.rpartition("/")[2], path.parent, places, is_live)
        titles[name] = nb["cells"][0]["source"].partition("\n")[0].lstrip("# ")
        (to / "notebooks" / f"{name}.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    first, *others = [home_place(name, places) for name in EXPLORERS]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lead = readme.split("\n\n")[1]
    own = sorted((ROOT / "docs" / "site" / "live" / "pages").glob("*.md")) if is_live else []
    for path in own:
        explorer = raw(home_place(path.stem, places).html(is_live))
        (to / path.name).write_text(path.read_text(encoding="utf-8") + explorer, encoding="utf-8")
    links = "".join(f" [](/{path.name}) ·" for path in own)  # Sphinx inserts their titles
    parts = [_HOME.format(lead=lead, flagship=raw(first.html(is_live)), start=START, own=links)]
    for entry, place in zip(list(EXPLORERS.values())[1:], others, strict=True):
        about = f"Explained in notebook [{titles[entry.notebook]}](notebooks/{entry.notebook}.ipynb)"
        parts.append(f"## {entry.title}\n\n{raw(place.html(is_live))}\n\n{about}")
    start = readme.replace("# rankscope\n", "# Install and start\n", 1)
    (to / START).write_text(linked(start, ROOT), encoding="utf-8")
    (to / "commands.md").write_text(commands(), encoding="utf-8")
    api(to / "api")
    guides = [path.relative_to(ROOT) for path in sorted((ROOT / "docs").glob("*.md"))]
    for path in (*guides, Path("notebooks/README.md"), *map(Path, _AT_THE_ROOT)):
        (to / path).parent.mkdir(exist_ok=True)
        text = (ROOT / path).read_text(encoding="utf-8")
        (to / path).write_text(linked(text, (ROOT / path).parent), encoding="utf-8")
    in_order = [
        f"{name.rpartition('/')[2].partition('_')[0]} {title} <notebooks/{name}>" for name, title in titles.items()
    ]
    parts += [
        contents("Start", ["start", *[path.stem for path in own]]),
        contents("Notebooks", ["notebooks/README", *in_order]),
        contents("Guides", [path.with_suffix("").as_posix() for path in guides]),
        contents("Reference", ["commands", "api/index", *[name.removesuffix(".md") for name in _AT_THE_ROOT]]),
    ]
    (to / "index.md").write_text("\n\n".join(parts), encoding="utf-8")
    return list(dict.fromkeys(places))


def home_place(name: str, places: list[Place]) -> Place:
    """Return the place of an explorer on the index: that of its first cell, or a new one with its defaults."""
    for place in places:
        if place.name == name:
            return place
    places.append(Place(f"explorers.{name}()", name))
    return places[-1]


def page(nb: dict[str, Any], key: str, folder: Path, places: list[Place], is_live: bool = False) -> dict[str, Any]:
    """Return a notebook's page: its explorers stand where the widgets would, and pictures have words."""
    cells = []
    heading = ""
    for number, cell in enumerate(nb["cells"]):
        source = "".join(cell["source"])
        cells.append(cell)
        if cell["cell_type"] == "markdown":
            cell["source"] = linked(_KEYS.sub("", source), folder)
            heading = [heading, *re.findall(r"^#+ (.+)$", source, re.MULTILINE)][-1]
            continue
        shown = [output.get("data", {}) for output in cell["outputs"]]
        is_panel = any("".join(data.get("text/plain", "")) == WIDGET_TEXT for data in shown)
        if is_panel and not _WITH_INPUTS.search(source):
            cell["outputs"] = []
            same = [place for place in places if place.source == source]
            place = same[0] if same else Place(source, f"{key}_{number}")
            places.append(place)
            text = raw(place.html(is_live))
            cells.append({"cell_type": "markdown", "id": f"explorer-{number}", "metadata": {}, "source": text})
        else:
            cell["metadata"]["mystnb"] = {"image": {"alt": f"Figure: {heading}"}}
            for data in shown:
                if "image/svg+xml" in data:
                    data.pop("image/png", None)  # its copy for readers who do not see SVG
    return {**nb, "cells": cells}


def raw(html: str) -> str:
    return f"```{{raw}} html\n{html}\n```"


def contents(caption: str, entries: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""])


def linked(text: str, folder: Path) -> str:
    """Return a page's text with links to the README leading to its page; those to files that are no pages are text."""

    def changed(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match[3].partition("#")
        target = Path(os.path.normpath(folder / path))
        if not path or ":" in path or not target.exists():
            return match[0]
        if target == ROOT / "README.md":
            return f"[{match[2]}]({os.path.relpath(ROOT / START, folder)}{hash_sign}{anchor})"
        is_page = target.suffix in (".ipynb", ".md")
        return match[0] if match[1] or is_page else match[2]

    return re.sub(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)", changed, text)


def commands() -> str:
    """Return a page with the help of each command."""
    sections = ["# Command line\n\n`make setup` installs `rankscope` in `.venv/bin`."]
    for name in COMMANDS:
        words = [name, "--help"]
        said = CliRunner().invoke(program(name), words, prog_name="rankscope", env={"COLUMNS": "100", "TERM": "dumb"})
        sections.append(f"## rankscope {name}\n\n```text\n{said.output.strip()}\n```")
    return "\n\n".join(sections)


def api(to: Path) -> None:
    """Write a page for each package, with all that its `__all__` names, and their index."""
    to.mkdir()
    names = [f"rankscope.{name}" for name in _PACKAGES]
    for name in names:
        text = f"{name}\n{'=' * len(name)}\n\n.. automodule:: {name}\n   :members:\n   :undoc-members:\n"
        (to / f"{name}.rst").write_text(text, encoding="utf-8")
    index = "API reference\n=============\n\n.. toctree::\n\n" + "".join(f"   {name}\n" for name in names)
    (to / "index.rst").write_text(index, encoding="utf-8")
