"""Explorers in JupyterLab: a slider moved by keyboard paints what their functions predict."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page

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
    slider_labels,
)
from tests.browser.sliders import SLIDERS, label, picture, source

ROOT = Path(__file__).parents[2]
NOTEBOOK_01, ALL = "01_who_reads_what.ipynb", "explorers.ipynb"
ARTIFACTS = ROOT / "test-artifacts"


def test_a_slider_of_each_explorer_is_known() -> None:
    assert set(SLIDERS) == {entry.name for entry in CATALOGUE}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str]]:
    """A page, and the address of a JupyterLab with notebook 01 and one that has a cell for each explorer."""
    find_browser()
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / NOTEBOOK_01, folder / "notebooks")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source(name)) for name in SLIDERS])
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, folder / "notebooks" / ALL)
    with (
        lab_server(folder / "notebooks", folder) as address,
        browser_page(folder / "browser", ARTIFACTS / "jupyterlab.png") as page,
    ):
        yield page, address


@pytest.fixture(scope="module")
def cells(lab: tuple[Page, str]) -> Locator:
    page, address = lab
    open_and_run_all(page, address, ALL)
    return page.locator(".jp-CodeCell")


def drive(name: str, box: Locator) -> None:
    before, after = marks(picture(name)), marks(picture(name, steps=1))
    assert before != after
    box.wait_for()
    box.scroll_into_view_if_needed()
    assert label(name) in slider_labels(box)
    assert marks(picture_in(box)) == before
    move_right(box, label(name))
    assert picture_after(box, before) == after
    box.screenshot(path=ARTIFACTS / f"explorer_{name}.png")


@pytest.mark.browser
@pytest.mark.slow
def test_notebook_01_runs_and_its_explorer_follows_the_keyboard(lab: tuple[Page, str]) -> None:
    page, address = lab
    open_and_run_all(page, address, NOTEBOOK_01)
    drive("samplers", explorer(page))


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", SLIDERS)
def test_a_slider_moved_by_keyboard_paints_the_right_picture(cells: Locator, name: str) -> None:
    drive(name, explorer(cells.nth(list(SLIDERS).index(name))))
