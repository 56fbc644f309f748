"""Lays out what Sphinx reads: each page lies where it does in the repository, so that links between them hold."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from rankscope.explorers.entries import catalogue
from tests.tools.execute_notebooks import WIDGET_TEXT, every_notebook, read

from . import api, commands, gpu_box, notebooks
from .states import Grid, Shown

_AT_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages, where they are there
_GUIDES = "docs"  # the folder of the guides, each of which is a page
_TOUR = "README.md"  # in notebooks/: the table of all notebooks

_EXPLORERS = """# Explorers

Move a control and see what changes. Everything was computed by rankscope when this page was made."""
_EXPLORER = """## {title}

{html}

Explained in notebook [{about}](notebooks/{notebook}.ipynb)"""


def lay_out(root: Path, to: Path, only_ends: Collection[str] = ()) -> list[Grid]:
    """Write the sources of the site of the repository at `root`: README as index, guides, notebooks, commands, API.

    Returns the grids of explorers that pages need, those named in `only_ends` with two values of each setting.
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
    parts = [
        _EXPLORER.format(
            title=one.title,
            html=notebooks.as_markdown(place(at_first.get(one.name, Shown(one.name)))),
            about=f"{_number(one.notebook)}, {titles[one.notebook]}",
            notebook=one.notebook,
        )
        for one in catalogue()
    ]
    (to / "explorers.md").write_text("\n\n".join([_EXPLORERS, *parts]), encoding="utf-8")
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
    for name in ("README.md", *at_the_root):
        text = linked((root / name).read_text(encoding="utf-8"), root, root)
        (to / name.replace("README", "index")).write_text(text, encoding="utf-8")
    in_order = [f"{_number(name)} {titles[name]} <notebooks/{name}>" for name in titles]
    with (to / "index.md").open("a", encoding="utf-8") as index:
        index.write(_contents("Play", ["explorers"]))
        index.write(_contents("Guides", [f"{_GUIDES}/{path.stem}" for path in guides]))
        index.write(_contents("Notebooks", ["notebooks/README", *in_order]))
        index.write(
            _contents("Reference", ["commands", "api/index", *(name.removesuffix(".md") for name in at_the_root)])
        )
    return list(grids.values())


def linked(text: str, root: Path, folder: Path) -> str:
    """A page's text with links to the README leading to the index, and those to files that are no pages left out."""

    def changed(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match[3].partition("#")
        target = Path(os.path.normpath(folder / path)) if path else root
        if not match[3] or ":" in match[3] or not target.exists() or target == root:
            return match[0]
        if target == root / "README.md":
            return f"{match[1]}[{match[2]}]({os.path.relpath(root / 'index.md', folder)}{hash_sign}{anchor})"
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
