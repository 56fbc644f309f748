"""`make lab` in a fresh clone and an empty home: pictures before anything runs, and a clean `git status` afterwards.

What is set up here (.venv) is used there as well, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.jupyterlab import (
    LOAD_MS,
    REPAINT_MS,
    RUN_MS,
    TOKEN,
    browser_page,
    choose,
    find_browser,
    lab_server,
    open_notebook,
    running,
    wait_for_address,
)
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
ARTIFACTS = ROOT / "test-artifacts"
FIRST, RUN = "00_one_step.ipynb", "01_who_reads_what.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"
OURS = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "TZ")  # what the server knows of this environment
pytestmark = pytest.mark.browser


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=reader", "-c", "user.email=reader@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=100).stdout


def make_clone(folder: Path) -> None:
    """Make a repository of what lies here, committed or not, without what git ignores."""
    for name in git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "as it lies here")


def link_environment(folder: Path) -> None:
    """Give the clone a .venv that has everything of this environment, and a folder `trust` of its own."""
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != "trust" and not path.name.startswith("ready-"):
            (folder / ".venv" / path.name).symlink_to(path)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    find_browser()
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is not a git repository, or there is no git")
    folder = tmp_path / "clone"
    folder.mkdir()
    make_clone(folder)
    link_environment(folder)
    return folder


@pytest.fixture
def page(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    find_browser()
    with browser_page(tmp_path / "browser", ARTIFACTS / f"{request.node.name}.png") as opened:
        yield opened


def first_picture(page: Page) -> Locator:
    """The picture under the first code cell, once it is drawn."""
    picture = page.locator(".jp-Notebook .jp-CodeCell").first.locator(".jp-OutputArea-output img")
    expect(picture).to_be_visible(timeout=LOAD_MS)
    page.wait_for_function("image => image.complete && image.naturalWidth > 300", arg=picture.element_handle())
    return picture


def was_run(path: Path) -> bool:
    """Whether each cell has run since the notebook was copied: only the stored ones have a PNG, too."""
    try:
        notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return False  # Jupyter is writing it at this moment
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    is_stored = any("image/png" in output.get("data", {}) for output in cells[0]["outputs"])
    return not is_stored and all(cell["execution_count"] for cell in cells)


def run_all_and_save(page: Page, path: Path) -> None:
    choose(page, "Run", "runmenu:run-all")
    deadline = time.monotonic() + RUN_MS / 1000
    while not was_run(path):
        assert time.monotonic() < deadline, "the notebook does not come to its end"
        page.wait_for_timeout(500)
        page.keyboard.press("Control+s")
    page.wait_for_function("() => !document.querySelector('#jp-main-dock-panel .lm-TabBar-tab.jp-mod-dirty')")


@contextmanager
def made(clone: Path, home: Path, log: Path) -> Iterator[tuple[str, str]]:
    """Run `make lab` in the clone; gives the address and the token of its JupyterLab."""
    home.mkdir(exist_ok=True)
    environment = {name: os.environ[name] for name in OURS if name in os.environ} | {"HOME": str(home)}
    # LOCKED is what sets up; here everything is there already.
    command = ["make", "lab", "LOCKED=true", f"LAB_ARGS=--no-browser --port={free_port()}"]
    with running(command, environment, log, clone) as server:
        yield wait_for_address(server, home, log)


def test_a_new_reader_sees_a_picture_first_and_leaves_git_status_clean(clone: Path, page: Page, tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "lab.log"
    with made(clone, home, log) as (address, token):
        open_notebook(page, f"{address}?token={token}")
        assert page.url.startswith(f"{address}lab/tree/{FIRST}")
        source = first_picture(page).get_attribute("src")
        assert source
        assert source.startswith("data:image/svg+xml"), "a trusted notebook shows the SVG"

        open_notebook(page, f"{address}lab/tree/{RUN}?reset")
        first_picture(page)
        run_all_and_save(page, clone / "my_notebooks" / RUN)
        choose(page, "File", "filemenu:close-and-cleanup")
        page.locator(".jp-Dialog button.jp-mod-accept").click()
        expect(page.locator(".jp-Notebook")).to_have_count(0, timeout=REPAINT_MS)
        expect(page.locator(".Toastify__toast")).to_have_count(0)  # no question in front of the figure

        # The panel that was saved is a picture when its kernel is gone.
        assert WIDGET not in (clone / "my_notebooks" / RUN).read_text(encoding="utf-8")
        open_notebook(page, f"{address}lab/tree/{RUN}?reset")
        first_picture(page)
    assert git(clone, "status", "--porcelain") == "", git(clone, "diff", "--unified=1")
    assert not list(home.rglob("nbsignatures.db")), "what is trusted is kept in .venv"


def test_without_trust_there_is_the_png(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(ROOT / "notebooks" / FIRST, folder)
    with lab_server(folder, tmp_path / "lab") as address:
        open_notebook(page, f"{address}lab/tree/{FIRST}?token={TOKEN}&reset")
        picture = first_picture(page)
        source = picture.get_attribute("src")
        assert source
        assert source.startswith("data:image/png")
        assert picture.evaluate("image => image.naturalWidth == 2 * image.width || image.width < 963")
