"""Notebook 01 as a reader meets it: opened in JupyterLab, run, its explorer moved by keyboard."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankscope.explorers.samplers import DEFAULTS, picture
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

ROOT = Path(__file__).parents[2]
NAME = "01_who_reads_what.ipynb"


@pytest.mark.browser
@pytest.mark.slow
def test_a_slider_moved_by_keyboard_paints_the_right_picture(tmp_path: Path) -> None:
    find_browser()
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    shutil.copy(ROOT / "notebooks" / NAME, notebooks)
    before = marks(picture(**DEFAULTS))
    after = marks(picture(**{**DEFAULTS, "num_ranks": DEFAULTS["num_ranks"] + 1}))
    assert before != after

    screenshot = ROOT / "test-artifacts" / "notebook_01.png"
    with lab_server(notebooks, tmp_path / "lab") as address, browser_page(tmp_path / "browser", screenshot) as page:
        open_and_run_all(page, address, NAME)
        box = explorer(page)
        box.wait_for()
        box.scroll_into_view_if_needed()
        assert "ranks" in slider_labels(box)
        assert marks(picture_in(box)) == before

        move_right(box, "ranks")
        assert picture_after(box, before) == after
