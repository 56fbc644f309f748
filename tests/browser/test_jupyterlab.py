"""A notebook in JupyterLab: its explorer's slider, moved by keyboard, paints what its functions predict."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rankscope import explorers
from rankscope.explorers.explorer import explorer_of
from tests.browser.jupyterlab import (
    REPAINT_MS,
    browser_page,
    find_browser,
    lab_server,
    marks,
    open_and_run_all,
    picture_in,
)

ROOT = Path(__file__).parents[2]
NOTEBOOK_01 = "01_who_reads_what.ipynb"
ARTIFACTS = ROOT / "test-artifacts"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str]]:
    """A page, and the address of a JupyterLab with notebook 01."""
    find_browser()
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for name in (NOTEBOOK_01, "helpers.py"):
        shutil.copy(ROOT / "notebooks" / name, folder / "notebooks")
    with (
        lab_server(folder / "notebooks", folder) as address,
        browser_page(folder / "browser", ARTIFACTS / "jupyterlab.png") as page,
    ):
        yield page, address


@pytest.mark.browser
def test_notebook_01_runs_and_its_explorer_follows_the_keyboard(lab: tuple[Page, str]) -> None:
    page, address = lab
    open_and_run_all(page, address, NOTEBOOK_01)
    panel, samplers = page.locator(".rankscope-explorer").first, explorer_of(explorers.samplers)
    line = panel.locator(".widget-text input")
    now = samplers.at()
    expect(line).to_have_value(samplers.line(now))
    assert marks(picture_in(panel)) == marks(samplers.still(now))
    ranks = panel.locator(".widget-slider").filter(has=page.get_by_text("ranks", exact=True))
    ranks.locator(".noUi-handle").press("ArrowRight")
    after = now._replace(num_ranks=now.num_ranks + 1)
    expect(line).to_have_value(samplers.line(after), timeout=REPAINT_MS)
    assert marks(picture_in(panel)) == marks(samplers.still(after))
