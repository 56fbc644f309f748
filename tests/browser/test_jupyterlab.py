"""A notebook in JupyterLab: its explorer's slider, moved by keyboard, paints what its functions predict."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

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
from tests.browser.sliders import SLIDERS, label, picture

ROOT = Path(__file__).parents[2]
NOTEBOOK_01 = "01_who_reads_what.ipynb"
ARTIFACTS = ROOT / "test-artifacts"


def test_a_slider_of_each_explorer_is_known() -> None:
    assert set(SLIDERS) == {entry.name for entry in CATALOGUE}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str]]:
    """A page, and the address of a JupyterLab with notebook 01."""
    find_browser()
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / NOTEBOOK_01, folder / "notebooks")
    with (
        lab_server(folder / "notebooks", folder) as address,
        browser_page(folder / "browser", ARTIFACTS / "jupyterlab.png") as page,
    ):
        yield page, address


@pytest.mark.browser
@pytest.mark.slow
def test_notebook_01_runs_and_its_explorer_follows_the_keyboard(lab: tuple[Page, str]) -> None:
    page, address = lab
    open_and_run_all(page, address, NOTEBOOK_01)
    box, name = explorer(page), "samplers"
    before, after = marks(picture(name)), marks(picture(name, steps=1))
    assert before != after
    box.wait_for()
    assert label(name) in slider_labels(box)
    assert marks(picture_in(box)) == before
    move_right(box, label(name))
    assert picture_after(box, before) == after
