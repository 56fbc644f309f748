"""From a key on a slider to the picture changed in the browser: python -m tests.benchmarks.repaint [EXPLORER...]

Every slider of the explorers of the core, or of those that are named, in JupyterLab and Chromium. Times are taken in
the page: key down to the frame after the new picture came in.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import nbformat.v4 as nbformat
from playwright.sync_api import Locator, Page

from rankscope.explorers import EXPLORERS
from tests.browser.jupyterlab import browser_page, lab_server, open_and_run_all
from tests.tools.execute_notebooks import METADATA

CORE = [name for name, entry in EXPLORERS.items() if not entry.function.startswith(("train.", "box."))]
STEPS_EACH = 5
UNCHANGED_MS = 5_000  # a setting that the picture does not show repaints nothing
BAR_MS = 60  # the median over all sliders of the core, on a quiet machine
WATCH = """() => {
    window.repaints = [];
    window.next = () => null;
    let pressed = null;
    const wanted = 'svg.rs';
    const isPicture = node => node.nodeType === 1 && (node.matches(wanted) || node.querySelector(wanted));
    document.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    new MutationObserver(changes => {
        if (pressed === null || !changes.some(change => [...change.addedNodes].some(isPicture))) return;
        const start = pressed;
        pressed = null;
        requestAnimationFrame(() => setTimeout(() => {
            window.repaints.push(performance.now() - start);
            window.next();
        }));
    }).observe(document.body, {childList: true, subtree: true});
}"""


# Asked by one call and not in every frame: a page that draws 60 times a second takes half of a small machine.
WAIT = """([number, timeout_ms]) => new Promise(resolve => {
    window.next = () => { if (window.repaints.length > number) resolve(true); };
    setTimeout(() => resolve(false), timeout_ms);
    window.next();
})"""


def press(page: Page, handle: Locator) -> list[float]:
    """Milliseconds from each arrow key on a slider to its picture; to the left where it stands at its end."""
    handle.focus()
    at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    before = page.evaluate("() => window.repaints.length")
    for step in range(STEPS_EACH):
        page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
        if not page.evaluate(WAIT, [before + step, UNCHANGED_MS]):  # the end of its range, or nothing to repaint
            break
    return [float(time) for time in page.evaluate("() => window.repaints")[before:]]


def measured(name: str, page: Page, address: str, folder: Path) -> list[float]:
    """The times of all sliders of an explorer that can be seen and moved."""
    cell = nbformat.new_code_cell(f"from rankscope.explorers import {name}\n{name}()")
    (folder / f"{name}.ipynb").write_text(nbformat.writes(nbformat.new_notebook(cells=[cell], metadata=METADATA)))
    open_and_run_all(page, address, f"{name}.ipynb")
    page.evaluate(WATCH)
    times: list[float] = []
    for slider in page.locator(".rankscope-explorer .widget-slider:visible").all():
        if not slider.locator("[disabled]").count():
            times += press(page, slider.locator(".noUi-handle").first)
    return times


def main(names: list[str]) -> None:
    print(f"{'slider to picture':<22}{'repaints':>9}{'median ms':>11}{'max ms':>8}", flush=True)
    all_times: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "notebooks"
        folder.mkdir()
        with (
            lab_server(folder, Path(place) / "lab") as address,
            browser_page(Path(place) / "browser", Path(place) / "end.png") as page,
        ):
            for name in names:
                times = measured(name, page, address, folder)
                all_times += times
                print(f"{name:<22}{len(times):>9}{statistics.median(times):>11.0f}{max(times):>8.0f}", flush=True)
    print(f"all: median {statistics.median(all_times):.0f} ms (bar: {BAR_MS} ms)")


if __name__ == "__main__":
    main(sys.argv[1:] or CORE)
