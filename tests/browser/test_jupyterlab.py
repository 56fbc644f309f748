"""A notebook in JupyterLab: its explorer's slider, moved by keyboard, paints what its functions predict."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat.v4 as nbformat
import pytest
from playwright.sync_api import Locator, Page

from rankscope.drawing.drawing import to_svg
from rankscope.explorers import EXPLORERS
from tests.browser.jupyterlab import (
    REPAINT_MS,
    TOKEN,
    browser_page,
    find_browser,
    lab_server,
    open_and_run_all,
    open_notebook,
    picture_in,
    texts,
)
from tests.tools.execute_notebooks import METADATA

ROOT = Path(__file__).parents[2]
NOTEBOOK_01 = "01_who_reads_what.ipynb"
ARTIFACTS = ROOT / "test-artifacts"
ONE = "one.ipynb"  # with one cell, which opens an explorer
# Parts of a panel that are wider than their place, so that something of them cannot be seen.
CUT = """panel => [panel, ...panel.querySelectorAll('.rankscope-side, .rankscope-shown, .widget-label, svg')]
  .filter(part => part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).overflow !== 'visible'
    || part.getBoundingClientRect().right > panel.getBoundingClientRect().right + 1)
  .map(part => part.className.baseVal ?? part.className)"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str]]:
    """A page, and the address of a JupyterLab with notebook 01."""
    find_browser()
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for name in (NOTEBOOK_01, "helpers.py"):
        shutil.copy(ROOT / "notebooks" / name, folder / "notebooks")
    cell = nbformat.new_code_cell("from rankscope.explorers import samplers\nsamplers()")
    one = nbformat.new_notebook(cells=[cell], metadata=METADATA)
    (folder / "notebooks" / ONE).write_text(nbformat.writes(one))
    with (
        lab_server(folder / "notebooks", folder) as address,
        browser_page(folder / "browser", ARTIFACTS / "jupyterlab.png") as page,
    ):
        yield page, address


@pytest.mark.browser
def test_notebook_01_runs_and_its_explorer_follows_the_keyboard(lab: tuple[Page, str]) -> None:
    page, address = lab
    open_and_run_all(page, address, NOTEBOOK_01)
    panel = page.locator(".rankscope-explorer").first
    explorer = EXPLORERS["samplers"].make()
    now = explorer.at()
    expect_shown(panel, to_svg(explorer.draw(now)[0]))
    ranks = panel.locator(".widget-slider").filter(has=page.get_by_text("ranks", exact=True))
    ranks.locator(".noUi-handle").press("ArrowRight")
    now = now._replace(num_ranks=5)
    expect_shown(panel, to_svg(explorer.draw(now)[0]))
    samples = panel.locator("input[type=number]").nth(1)
    samples.fill("37")
    samples.press("Enter")
    now = now._replace(size=37)
    expect_shown(panel, to_svg(explorer.draw(now)[0]))


@pytest.mark.browser
@pytest.mark.parametrize(("width", "is_dark"), [(1440, False), (1280, True), (390, False)])
def test_nothing_is_cut_and_the_drawing_is_seen_at_once(lab: tuple[Page, str], width: int, is_dark: bool) -> None:
    page, address = lab
    page.set_viewport_size({"width": width, "height": 900})
    open_notebook(page, f"{address}lab/tree/{ONE}?token={TOKEN}&reset")
    if width < 400:
        page.keyboard.press("Control+b")  # a narrow page has no room for the list of files
    page.evaluate("is_dark => { document.body.dataset.jpThemeLight = String(!is_dark); }", is_dark)
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    panel = page.locator(".rankscope-explorer")
    svg = panel.locator(".rankscope-shown svg").first
    svg.wait_for()
    page.screenshot(path=ARTIFACTS / f"samplers-{width}.png")
    assert panel.evaluate(CUT) == []
    if width >= 1280:
        box = svg.bounding_box()
        side = panel.locator(".rankscope-side").first.bounding_box()
        assert box
        assert side
        assert box["y"] + box["height"] < 900
        assert side["x"] + side["width"] <= box["x"]


def expect_shown(panel: Locator, svg: str) -> None:
    """Wait until the panel's first drawing has the texts of this one, wherever they come from."""
    deadline = time.monotonic() + REPAINT_MS / 1000
    while texts(picture_in(panel)) != texts(svg):
        assert time.monotonic() < deadline, "the drawing does not come"
        panel.page.wait_for_timeout(100)
