"""The dashboard as `make dashboard` serves it: every control moved, nothing asked of another machine."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from rankscope.explorers.entries import catalogue
from rankscope.explorers.explorer import Explorer, Now, Setting, explorer_of
from rankscope.explorers.opening import Entry
from tests.browser.jupyterlab import (
    LOAD_MS,
    REPAINT_MS,
    START_S,
    STOP_S,
    browser_page,
    find_browser,
    isolated,
    marks,
    picture_in,
    running,
)
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


def inputs() -> dict[str, list[Any]]:
    """What the dashboard's notebook gives to explorers that take something."""
    notebook = nbformat.read(FOLDER / "explorers.ipynb", as_version=4)
    (code,) = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    given: dict[str, Any] = {}
    with chdir(FOLDER):
        exec(code.rpartition("explorers.gallery")[0], given)
    return {"machine": [given["recorded"]], "transfers": [given["gpu"]] * (given["gpu"] is not None)}


def nearest(explorer: Explorer, now: Now, setting: Setting) -> Any:
    """The nearest value of a control at which something else is shown."""
    values, here = setting.values, explorer.html(now)
    start, most = values.index(getattr(now, setting.name)), explorer.most(now).get(setting.name)
    for value in sorted(values, key=lambda value: abs(values.index(value) - start)):
        if (most is None or value <= most) and explorer.html(now._replace(**{setting.name: value})) != here:
            return value
    raise AssertionError(f"{setting.name} changes nothing and is enabled: {explorer.line(now)}")


def move(control: Locator, setting: Setting, steps: int, place: int) -> None:
    """Move a control: a slider by keys, a switch by a click, a list by its place."""
    if setting.kind is bool:
        control.locator("input").click()
    elif control.locator(".noUi-handle").count():
        for _ in range(abs(steps)):
            control.locator(".noUi-handle").press("ArrowRight" if steps > 0 else "ArrowLeft")
    else:
        control.locator("select").select_option(index=place)


CONTROLS = ".widget-slider, .widget-checkbox, .widget-dropdown"
IS_OFF = "each => each.map(one => !!one.querySelector('[disabled], :disabled'))"
BOXES = "each => each.map(one => one.getBoundingClientRect()).map(box => [Math.round(box.top), Math.round(box.bottom)])"
SHOWN = "panel => [...panel.querySelectorAll('.widget-html')].map(one => one.innerHTML).join()"


def drive(page: Page, entry: Entry, given: list[Any]) -> int:
    """Pick an explorer and move each control once; expect another picture or report, and the state in the line.

    Returns how many controls were moved.
    """
    page.get_by_role("button", name=entry.title, exact=True).click()
    explorer, panel = explorer_of(entry.show, *given), page.locator(".rankscope-explorer")
    line = panel.locator(".widget-text input")
    now, moved = explorer.at(), 0
    for setting, control in zip(explorer.settings, range(len(explorer.settings)), strict=True):
        expect(line).to_have_value(explorer.line(now), timeout=REPAINT_MS)
        reasons = explorer.without_effect(now)
        off = [one.name in reasons for one in explorer.settings]
        deadline = time.monotonic() + REPAINT_MS / 1e3
        while panel.locator(CONTROLS).evaluate_all(IS_OFF) != off and time.monotonic() < deadline:
            page.wait_for_timeout(20)
        assert panel.locator(CONTROLS).evaluate_all(IS_OFF) == off, explorer.line(now)
        if off[control]:
            continue
        before, value = panel.evaluate(SHOWN), nearest(explorer, now, setting)
        place = setting.values.index(value)
        move(
            panel.locator(CONTROLS).nth(control),
            setting,
            place - setting.values.index(getattr(now, setting.name)),
            place,
        )
        now, moved = now._replace(**{setting.name: value}), moved + 1
        now = now._replace(**{name: min(getattr(now, name), most) for name, most in explorer.most(now).items()})
        expect(line).to_have_value(explorer.line(now), timeout=REPAINT_MS)
        assert panel.evaluate(SHOWN) != before, explorer.line(now)
    assert marks(picture_in(panel)) == marks(explorer.still(now))
    return moved


@pytest.mark.browser
def test_every_control_of_every_explorer_moves_and_no_request_leaves_the_machine(tmp_path: Path) -> None:
    find_browser()
    screenshot = ROOT / "test-artifacts" / "dashboard.png"
    asked: list[str] = []
    given, state = inputs(), 'explorers.uneven(handling="join", rank_0=4)'
    with dashboard(tmp_path / "voila") as (address, pid):
        with browser_page(tmp_path / "browser", screenshot) as page:
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{address}&state={quote(state)}")
            expect(page.locator(".rankscope-explorer .widget-text input")).to_have_value(
                'explorers.uneven(rank_0=4, handling="join")', timeout=LOAD_MS
            )
            buttons = page.locator(".rankscope-gallery button").evaluate_all(BOXES)
            rows = sorted({(top, bottom) for top, bottom in buttons})
            assert len(rows) > 1
            assert all(below[0] - above[1] >= 2 for above, below in pairwise(rows))
            for entry in sorted(catalogue(), key=lambda entry: entry.name == "uneven"):  # it is not at its defaults
                page.get_by_role("button", name="reset", exact=True).click()
                assert drive(page, entry, given.get(entry.name, [])) > 4
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


@pytest.mark.oracle
def test_without_the_token_it_shows_nothing(tmp_path: Path) -> None:
    with dashboard(tmp_path / "voila") as (address, _), urlopen(address.split("?")[0], timeout=START_S) as answer:
        assert "/login" in answer.url
