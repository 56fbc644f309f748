"""Explorers in JupyterLab: a slider moved by keyboard paints what their functions predict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from rankscope.explorers.catalogue import CATALOGUE
from tests.browser.jupyterlab import (
    browser_page,
    explorer,
    find_browser,
    lab_server,
    marks,
    move_right,
    open_and_run_all,
    picture_after,
    picture_in,
)
from tests.browser.sliders import SLIDERS, moved, picture, source

ROOT = Path(__file__).parents[2]
IN_NOTEBOOK_01 = "samplers"  # driven in its own notebook, by test_notebook_01


def test_a_slider_of_each_explorer_is_known() -> None:
    assert set(SLIDERS) == {entry.name for entry in CATALOGUE}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab with a notebook for each explorer."""
    find_browser()
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for name in SLIDERS:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source(name))])
        notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")
    with lab_server(folder / "notebooks", folder) as address:
        yield address


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SLIDERS if name != IN_NOTEBOOK_01])
def test_a_slider_moved_by_keyboard_paints_the_right_picture(tmp_path: Path, lab: str, name: str) -> None:
    paint = picture(name)
    before, after = marks(paint()), marks(paint(**moved(name)))
    assert before != after

    with browser_page(tmp_path, ROOT / "test-artifacts" / f"explorer_{name}.png") as page:
        open_and_run_all(page, lab, f"{name}.ipynb")
        box = explorer(page)
        box.wait_for()
        box.scroll_into_view_if_needed()
        assert marks(picture_in(box)) == before

        move_right(box, SLIDERS[name].label)
        assert picture_after(box, before) == after
