"""Explorers in JupyterLab: a slider moved by keyboard paints what their functions predict."""

from __future__ import annotations

import sys
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
    move_right,
    open_and_run_all,
    picture_after,
    picture_in,
)

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "label", "setting"),
    [
        ("pipeline", "decoders", "num_workers"),
        ("pipeline_parallel", "microbatches", "num_microbatches"),
        ("parts", "queue", "queue_size"),
        ("allreduce", "step", "step"),
        ("machine", "ranks", "num_ranks"),
        ("transfers", "log₂ bytes", "log2_bytes"),
        ("zero", "log₂ ranks", "log2_ranks"),
        ("ddp", "accumulation", "accumulation"),
        ("uneven", "rank 0", "rank_0"),
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
    if name == "transfers":
        picture = module.Copies().ranking
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

        move_right(box, label)
        assert picture_after(box, before) == after
