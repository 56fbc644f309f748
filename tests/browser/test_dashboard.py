"""The dashboard as `make dashboard` serves it: every explorer picked and moved, nothing asked of another machine."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page

from rankscope.explorers.catalogue import CATALOGUE, Entry
from tests.browser.jupyterlab import (
    START_S,
    STOP_S,
    Mark,
    browser_page,
    explorer,
    find_browser,
    isolated,
    marks,
    move_right,
    picture_after,
    running,
)
from tests.browser.sliders import label, picture
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks" / "dashboard"


def command() -> list[str]:
    """What the Makefile runs, with this Python."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    (line,) = re.findall(r"\$\(PY\) -m voila (.*) \$\(DASHBOARD_ARGS\)", recipe)
    return [sys.executable, "-m", "voila", *line.split()]


@contextmanager
def dashboard(tmp: Path) -> Iterator[tuple[str, int]]:
    """Serve the dashboard on a free port; gives its address with the token, and the server's process id."""
    environment = isolated(tmp) | {"JUPYTER_PATH": str(FOLDER), "TMPDIR": str(tmp)}
    log = tmp / "voila.log"
    with running([*command(), f"--port={free_port()}"], environment, log, ROOT) as server:
        yield _address(server, log), server.pid


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"^(http://\S+token=\w+)\s", log.read_text(), re.MULTILINE):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"Voilà did not start\n{log.read_text()[-4000:]}")


def children(pid: int) -> set[str]:
    """The processes that a process started, kernels among them; none where the system does not tell."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return set(listed.read_text().split()) if listed.exists() else set()


def drive(page: Page, entry: Entry, previous: list[Mark]) -> list[Mark]:
    """Pick an explorer, move its slider, and expect a picture other than before: of most, the very one predicted.

    `previous` is the picture of the explorer that was picked before, which stays until this one is there.
    """
    page.get_by_role("button", name=entry.title, exact=True).click()
    page.get_by_text(f"of notebook {entry.notebook}").wait_for()
    box = explorer(page).locator(".widget-vbox", has=page.locator("svg.rankscope")).last
    before = picture_after(box, previous)
    exact = entry.name != "machine"  # which has other profiles here
    assert not exact or before == marks(picture(entry.name))
    move_right(box, label(entry.name))
    after = picture_after(box, before)
    assert after != before
    assert not exact or after == marks(picture(entry.name, steps=1))
    return after


@pytest.mark.browser
@pytest.mark.slow
def test_every_explorer_is_there_and_moves_and_no_request_leaves_the_machine(tmp_path: Path) -> None:
    find_browser()
    screenshot = ROOT / "test-artifacts" / "dashboard.png"
    asked: list[str] = []
    with dashboard(tmp_path / "voila") as (address, pid):
        with browser_page(tmp_path / "browser", screenshot) as page:
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address)
            explorer(page).wait_for()
            shown: list[Mark] = []
            for entry in CATALOGUE:
                shown = drive(page, entry, shown)
        kernels = children(pid)
    host = address.split("/?")[0] + "/"
    assert any(url.startswith(host) for url in asked)
    assert [url for url in asked if not url.startswith((host, "data:", "blob:"))] == []
    assert address.startswith("http://127.0.0.1:")
    deadline = time.monotonic() + STOP_S
    while any(Path("/proc", kernel).exists() for kernel in kernels) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [kernel for kernel in kernels if Path("/proc", kernel).exists()] == []
    assert not list((tmp_path / "voila").glob("voila_*")), "connection files"


@pytest.mark.slow
def test_without_the_token_it_shows_nothing(tmp_path: Path) -> None:
    with dashboard(tmp_path / "voila") as (address, _), urlopen(address.split("?")[0], timeout=START_S) as answer:
        assert "/login" in answer.url
