"""Explorers in JupyterLab: a slider moved by keyboard paints what their functions predict."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
import pytest

import rankscope.explorers  # noqa: F401  (its modules are looked up by name: their functions have the same names)
from rankscope.machine import Profile
from tests.browser.jupyterlab import (
    browser_page,
    explorer,
    find_browser,
    lab_server,
    marks,
    open_and_run_all,
    picture_in,
    slider_handle,
)

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"
REPAINT_S = 15


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "label", "setting"),
    [
        ("pipeline", "decoders", "num_workers"),
        ("parts", "queue", "queue_size"),
        ("allreduce", "step", "step"),
        ("machine", "ranks", "num_ranks"),
        ("ddp", "accumulation", "accumulation"),
    ],
)
def test_a_slider_moved_by_keyboard_paints_the_right_picture(
    tmp_path: Path, name: str, label: str, setting: str
) -> None:
    find_browser()
    module = sys.modules[f"rankscope.explorers.{name}"]
    notebook = nbformat.v4.new_notebook()
    source, picture = f"explorers.{name}()", getattr(module, "picture", None)
    if name == "machine":
        source = f"from rankscope.machine import Profile\nexplorers.machine({{'slow': Profile.load({str(PROFILE)!r})}})"
        picture = module.Machines({"slow": Profile.load(PROFILE)}).ranking
    notebook.cells = [nbformat.v4.new_code_cell(f"from rankscope import explorers\n{source}")]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    nbformat.write(notebook, notebooks / f"{name}.ipynb")
    before = marks(picture())
    after = marks(picture(**{setting: module.DEFAULTS[setting] + 1}))
    assert before != after

    screenshot = ROOT / "test-artifacts" / f"explorer_{name}.png"
    with lab_server(notebooks, tmp_path / "lab") as address, browser_page(tmp_path / "browser", screenshot) as page:
        open_and_run_all(page, address, f"{name}.ipynb")
        box = explorer(page)
        box.wait_for()
        box.scroll_into_view_if_needed()
        assert marks(picture_in(box)) == before

        slider_handle(box, label).focus()
        page.keyboard.press("ArrowRight")
        deadline = time.monotonic() + REPAINT_S
        while (seen := marks(picture_in(box))) == before and time.monotonic() < deadline:
            page.wait_for_timeout(20)
        assert seen == after
