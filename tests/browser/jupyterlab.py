"""A real JupyterLab and a real Chromium, for tests: both on this machine, both cut off from the user's settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SETTINGS = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},  # cells out of sight are in the page too
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}
TOKEN = "rankscope-tests"
START_S, STOP_S = 200, 60  # all of these only bound a hang, on a machine that is busy with something else too
LOAD_MS, RUN_MS, REPAINT_MS = 200_000, 400_000, 60_000


def find_browser() -> str:
    """The browser to drive; without one the test skips."""
    named = os.environ.get("RANKSCOPE_CHROMIUM")
    for name in (named,) if named else BROWSERS:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("no browser on the PATH: apt-get install chromium")


@contextmanager
def lab_server(notebook_dir: Path, tmp: Path) -> Iterator[str]:
    """Serve a folder with JupyterLab, on a free loopback port; gives its address."""
    log = tmp / "jupyterlab.log"
    command = [
        *[sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"],
        *[f"--ServerApp.root_dir={notebook_dir}", f"--IdentityProvider.token={TOKEN}"],
        *["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"],
        *["--ServerApp.kernel_websocket_connection_class=rankscope.common.notebooks.PromptConnection"],
        *["--LabApp.extension_manager=readonly", "--KernelSpecManager.ensure_native_kernel=True"],
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    with running(command, isolated(tmp), log) as server:
        address, _ = wait_for_address(server, tmp / "runtime", log)
        yield address


@contextmanager
def running(
    command: list[str], environment: dict[str, str], log: Path, folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in `folder`, in a process group of its own; what it says goes into the log."""
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield server
    finally:
        stop(server)


def isolated(tmp: Path) -> dict[str, str]:
    """The environment of a server that knows nothing of the user."""
    folders = {
        "HOME": "home",
        "IPYTHONDIR": "ipython",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    for folder in folders.values():
        (tmp / folder).mkdir(parents=True, exist_ok=True)
    settings = tmp / "config" / "labconfig" / "default_setting_overrides.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps(SETTINGS))
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("JUPYTER")}
    return {**inherited, **{name: str(tmp / folder) for name, folder in folders.items()}}


def wait_for_address(server: subprocess.Popen[bytes], folder: Path, log: Path) -> tuple[str, str]:
    """Return the server's address and its token, which it leaves in a file below the folder once it listens."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        for path in folder.rglob("jpserver-*.json"):
            try:
                said = json.loads(path.read_text())
                with socket.create_connection((said["hostname"], said["port"]), timeout=1):
                    return str(said["url"]), str(said["token"])
            except (ValueError, OSError):  # half written, or not listening yet
                break
        time.sleep(0.05)
    raise RuntimeError(f"JupyterLab did not start\n{log.read_text()[-4000:]}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and its kernels: kindly, then with their whole process group."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait(STOP_S)


@contextmanager
def browser_page(tmp: Path, screenshot: Path) -> Iterator[Page]:
    """An empty page in a headless browser with a new profile, photographed at the end, however that came.

    Names other than this machine's do not resolve in it.
    """
    program = find_browser()
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    arguments += ["--disable-component-update", "--disable-sync", "--no-first-run", "--no-proxy-server"]
    arguments += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    (tmp / "profile").mkdir(parents=True)
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp / "profile",
            executable_path=program,
            headless=True,
            timeout=LOAD_MS,
            args=arguments,
            viewport={"width": 1400, "height": 1400},
            env={**os.environ, "HOME": str(tmp / "profile")},
        )
        context.set_default_timeout(LOAD_MS)
        try:
            yield context.pages[0]
        finally:
            screenshot.parent.mkdir(exist_ok=True)
            context.pages[0].screenshot(path=screenshot)
            context.close()


def open_and_run_all(page: Page, address: str, name: str) -> None:
    """Open a notebook and no other, clear what is stored in it, run all cells, and wait until each has its count."""
    open_notebook(page, f"{address}lab/tree/{name}?token={TOKEN}&reset")
    choose(page, "Edit", "editmenu:clear-all")
    choose(page, "Run", "runmenu:run-all")
    page.wait_for_function(
        """() => {
            const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
            return prompts.length > 0 && prompts.every(prompt => /^\\[\\d+\\]:$/.test(prompt.textContent));
        }""",
        timeout=RUN_MS,
    )


def open_notebook(page: Page, address: str) -> None:
    """Open a notebook, and wait until its kernel has started."""
    page.goto(address, timeout=LOAD_MS)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=LOAD_MS)
    page.locator(".jp-StatusBar-TextItem", has_text=re.compile(r"^Python 3.* \| Idle$")).wait_for(timeout=LOAD_MS)


def choose(page: Page, menu: str, command: str) -> None:
    """Choose a command of a menu."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.locator(f'[data-command="{command}"]').click()


def picture_in(box: Locator) -> str:
    """The explorer's picture as the browser holds it, as XML."""
    svg = box.locator(".rankscope-shown svg").first
    return str(svg.evaluate("element => new XMLSerializer().serializeToString(element)"))


def texts(svg: str) -> list[str]:
    """A picture's texts, sorted."""
    return sorted("".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("text"))
