"""Where explorers are shown to readers: in their notebooks, on the dashboard, and as pictures on the site's pages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import pytest
from pages.states import Shown

from rankscope.explorers.entries import catalogue
from rankscope.explorers.explorer import Explorer
from rankscope.explorers.opening import Entry

from .extents import SAMPLE_OR_EVERYTHING
from .figures.readable import svg_problems

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_each_is_of_a_notebook_that_shows_it(entry: Entry) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{entry.notebook}.ipynb", as_version=4)
    call = re.compile(rf"(?<!\w){re.escape(entry.name)}\(")  # not the end of another name, as in real_allreduce(
    is_shown = any(call.search(cell.source) for cell in notebook.cells if cell.cell_type == "code")
    assert is_shown, (
        f"notebooks/{entry.notebook}.ipynb does not call explorers.{entry.name}(): call it there, or name the notebook "
        "that does in the `notebook=` of the explorer's @shows."
    )


@pytest.mark.slow
def test_the_dashboards_notebook_runs_where_it_lies() -> None:
    path = NOTEBOOKS / "dashboard" / "explorers.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
    script = f"{code.rsplit('explorers.gallery', 1)[0]}print(sorted(explorers.gallery(recorded).children[0].options))"
    done = subprocess.run([sys.executable, "-c", script], cwd=path.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted((entry.title, entry.name) for entry in catalogue()))


def pictures_of(explorer: Explorer, now: Any) -> list[str]:
    pictures = []
    for picture in explorer.pictures:
        with suppress(ValueError):  # a sentence stands there
            pictures.append(explorer.svg(picture, now))
    return list(filter(None, pictures))


def text_problems(explorer: Explorer, states: Iterable[Any]) -> str:
    """Return what cannot be read in the pictures of these states, each picture looked at once, and how to mend it."""
    state_of_picture = {svg: now for now in states for svg in pictures_of(explorer, now)}
    problems = [f"{now}: {problem}" for svg, now in state_of_picture.items() for problem in svg_problems(svg)]
    if not problems:
        return ""
    problems.append(
        "A text must lie inside its picture, lie on no other text, and stand out from what is behind it: move, shorten "
        "or recolour it where the picture is drawn."
    )
    return "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in catalogue()])
@SAMPLE_OR_EVERYTHING
def test_every_text_of_an_explorer_can_be_read_as_it_opens_and_at_its_presets(name: str, everything: bool) -> None:
    explorer = Shown(name).grid(only_ends=True).explorer
    presets = [explorer.at(**settings) for settings in explorer.presets.values()]
    if not everything:
        presets = presets[:1]
    problems = text_problems(explorer, [explorer.at(), *presets])
    assert not problems, problems


@pytest.mark.oracle
@pytest.mark.parametrize("name", [entry.name for entry in catalogue()])
def test_every_text_of_an_explorer_can_be_read_in_all_states_of_the_site(name: str) -> None:
    grid = Shown(name).grid(only_ends=True)
    problems = text_problems(grid.explorer, grid.states())
    assert not problems, problems
