"""Lays out what Sphinx reads: each page lies where it does in the repository, so that links between them hold."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from rankscope.explorers.entries import EXPLORERS
from tests.tools.execute_notebooks import WIDGET_TEXT, every_notebook, read

from . import api, commands, gpu_box, notebooks
from .states import Grid, Shown

_AT_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages, where they are there
_GUIDES = "docs"  # the folder of the guides, each of which is a page
_TOUR = "README.md"  # in notebooks/: the table of all notebooks

START = "start.md"  # the README's page
_HOME = """# rankscope

{lead}

Move a control and see what changes. This page needs no server, because every state was drawn when the site was built.

[Install and start]({start}) · [All notebooks](notebooks/README.md) · [Reference](api/index.rst)"""
_EXPLORER = """## {title}

{html}

Explained in notebook [{about}](notebooks/{notebook}.ipynb)"""


def lay_out(root: Path, to: Path, only_ends: Collection[str] = ()) -> list[Grid]:
    """Write the sources of the site of the repository at `root`: explorers, README, guides, notebooks, commands, API.

    The index opens with the explorers, and the README is a page of its own. Returns the grids of explorers that pages
    need, those named in `only_ends` with two values of each setting.
    """
    grids: dict[str, Grid] = {}

    at_first: dict[str, Shown] = {}  # of each explorer, as its own notebook shows it

    def place(shown: Shown) -> str:
        at_first.setdefault(shown.name, shown)
        grid = shown.grid(only_ends=shown.name in only_ends)
        grids[grid.key] = grid
        return grid.html()

    shutil.copytree(root / "notebooks" / "pictures", to / "notebooks" / "pictures")
    titles = {}
    (to / "notebooks" / "appendix").mkdir()
    for path in every_notebook():
        nb = notebooks.page(read(path), WIDGET_TEXT, place)
        for cell in nb["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = linked(cell["source"], root, path.parent)
        name = path.relative_to(root / "notebooks").with_suffix("").as_posix()
        titles[name] = nb["cells"][0]["source"].partition("\n")[0].lstrip("# ")
        (to / "notebooks" / f"{name}.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    readme = (root / "README.md").read_text(encoding="utf-8")
    parts = [_HOME.format(lead=_lead(readme), start=START)]
    for entry in EXPLORERS.values():
        shown = at_first.get(entry.name, Shown(entry.name))
        part = _EXPLORER.format(
            title=entry.title,
            html=notebooks.as_markdown(place(shown)),
            about=f"{_number(entry.notebook)}, {titles[entry.notebook]}",
            notebook=entry.notebook,
        )
        parts.append(part)
    (to / "api").mkdir()
    for file, text in api.pages().items():
        (to / "api" / file).write_text(text, encoding="utf-8")
    (to / "commands.md").write_text(commands.page(), encoding="utf-8")
    guides = sorted((root / _GUIDES).glob("*.md"))
    (to / _GUIDES).mkdir()
    for path in guides:
        text = linked(path.read_text(encoding="utf-8"), root, path.parent)
        if path.name == gpu_box.GUIDE:
            text = gpu_box.page(text)
        (to / _GUIDES / path.name).write_text(text, encoding="utf-8")
    tour = root / "notebooks" / _TOUR
    (to / "notebooks" / _TOUR).write_text(linked(tour.read_text(encoding="utf-8"), root, tour.parent), encoding="utf-8")
    at_the_root = [name for name in _AT_THE_ROOT if (root / name).exists()]
    start = linked(readme, root, root).replace("# rankscope\n", "# Install and start\n", 1)
    (to / START).write_text(start, encoding="utf-8")
    for name in at_the_root:
        text = linked((root / name).read_text(encoding="utf-8"), root, root)
        (to / name).write_text(text, encoding="utf-8")
    in_order = [f"{_number(name)} {titles[name]} <notebooks/{name}>" for name in titles]
    reference = ["commands", "api/index", *[name.removesuffix(".md") for name in at_the_root]]
    parts.append(_contents("Start", [START.removesuffix(".md")]))
    parts.append(_contents("Notebooks", ["notebooks/README", *in_order]))
    parts.append(_contents("Guides", [f"{_GUIDES}/{path.stem}" for path in guides]))
    parts.append(_contents("Reference", reference))
    (to / "index.md").write_text("\n\n".join(parts), encoding="utf-8")
    return list(grids.values())


def _lead(readme: str) -> str:
    """Return the README's first paragraph, which says what rankscope is."""
    heading, lead, *_ = readme.split("\n\n")
    if not heading.startswith("# "):
        raise ValueError("README.md must begin with its title and, after an empty line, a paragraph")
    return lead


def linked(text: str, root: Path, folder: Path) -> str:
    """A page's text with links to the README leading to its page, and those to files that are no pages left out."""

    def changed(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match[3].partition("#")
        target = Path(os.path.normpath(folder / path)) if path else root
        if not match[3] or ":" in match[3] or not target.exists() or target == root:
            return match[0]
        if target == root / "README.md":
            return f"{match[1]}[{match[2]}]({os.path.relpath(root / START, folder)}{hash_sign}{anchor})"
        is_page = target.suffix == ".ipynb" or target.name in _AT_THE_ROOT or _is_guide(target, root)
        return match[0] if match[1] or is_page else match[2]

    return re.sub(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)", changed, text)


def _number(notebook: str) -> str:
    """The number of a notebook, such as 04 of 04_collectives and a2 of appendix/a2_part_files."""
    return notebook.rpartition("/")[2].partition("_")[0]


def _is_guide(target: Path, root: Path) -> bool:
    return target.suffix == ".md" and target.parent in (root / _GUIDES, root / "notebooks")


def _contents(caption: str, entries: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""])
