"""From a key on a slider to the picture changed in the browser: python -m tests.benchmarks.repaint

Every explorer with all of its sliders, and the samplers explorer at 16 ranks × 64 steps against the usual way
(`interact` round a matplotlib figure) with the same slider and grid, in JupyterLab and Chromium. Times are taken in the
page: key down to the frame after the new picture came in. To have some only, name them behind the command.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import nbformat.v4 as nbformat
from playwright.sync_api import Locator, Page

from rankscope.explorers.entries import EXPLORERS
from tests.browser.jupyterlab import browser_page, lab_server, open_and_run_all
from tests.tools.execute_notebooks import METADATA

PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"
NAMES = tuple(EXPLORERS)
STEPS, STEPS_EACH = 20, 5
UNCHANGED_MS = 5_000  # a setting that the picture does not show repaints nothing
BAR_MS = 100
GRID = {
    "samplers, 16 x 64": "from rankscope.explorers import samplers\n"
    "samplers(num_ranks=16, size=1024, color_by='position')",
    "interact, 16 x 64": "from ipywidgets import interact\nimport matplotlib.pyplot as plt\n"
    "from rankscope import figures\n"
    "from rankscope.sampling import assign\n"
    "@interact(seed=(0, 20))\n"
    "def grid(seed=0):\n"
    "    figures.assignment(assign(1024, 16, seed=seed).with_loader(4), color_by='position')\n"
    "    plt.show()",
}
WATCH = """() => {
    window.repaints = [];
    window.next = () => null;
    let pressed = null;
    const wanted = 'svg.rankscope, img';
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


class Slowest(NamedTuple):
    """The slowest repaint of a slider, and which it was."""

    ms: float
    label: str


def press(page: Page, handle: Locator, steps: int) -> list[float]:
    """Milliseconds from each arrow key on a slider to its picture; to the left where it stands at its end."""
    handle.focus()
    at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    before = page.evaluate("() => window.repaints.length")
    for step in range(steps):
        page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
        if not page.evaluate(WAIT, [before + step, UNCHANGED_MS]):  # the end of its range, or nothing to repaint
            break
    return [float(time) for time in page.evaluate("() => window.repaints")[before:]]


def of_grid(page: Page) -> list[float]:
    seed = page.locator(".widget-slider").filter(has=page.get_by_text("seed", exact=True))
    return press(page, seed.locator(".noUi-handle").first, STEPS)


def of_all_sliders(page: Page) -> tuple[list[float], Slowest]:
    times: list[float] = []
    slowest = Slowest(0.0, "")
    for slider in page.locator(".jp-OutputArea .widget-slider").all():
        if slider.locator("[disabled]").count():
            continue
        found = press(page, slider.locator(".noUi-handle").first, STEPS_EACH)
        times += found
        slowest = max(slowest, Slowest(max(found, default=0.0), slider.locator(".widget-label").first.inner_text()))
    return times, slowest


def measured(name: str, code: str, folder: Path) -> tuple[list[float], str]:
    """The times of all sliders, or of the grid's, and the label of the one that was slowest."""
    folder.mkdir()
    notebook = nbformat.new_notebook(cells=[nbformat.new_code_cell(code)], metadata=METADATA)
    (folder / "one.ipynb").write_text(nbformat.writes(notebook))
    with (
        lab_server(folder, folder.with_suffix(".lab")) as address,
        browser_page(folder.with_suffix(".browser"), folder.with_suffix(".png")) as page,
    ):
        open_and_run_all(page, address, "one.ipynb")
        page.evaluate(WATCH)
        if name in GRID:
            return of_grid(page), "seed"
        times, slowest = of_all_sliders(page)
        return times, slowest.label


def main(names: list[str]) -> None:
    codes = {**{name: f"from rankscope import explorers\nexplorers.{name}()" for name in NAMES}, **GRID}
    codes["machine"] = (
        "from rankscope import explorers\nfrom rankscope.box import Profile\n"
        f"explorers.machine({{'slow': Profile.load({str(PROFILE)!r})}})"
    )
    wanted = names or list(codes)
    print(f"{'slider to picture':<22}{'repaints':>9}{'median ms':>11}{'max ms':>8}  slowest slider", flush=True)
    medians = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            times, label = measured(name, codes[name], Path(folder) / str(len(medians)))
            medians[name] = statistics.median(times)
            print(f"{name:<22}{len(times):>9}{medians[name]:>11.0f}{max(times):>8.0f}  {label}", flush=True)
    if explorers := [name for name in wanted if name in NAMES]:
        worst = max(explorers, key=medians.__getitem__)
        print(f"slowest explorer by its median: {worst}, {medians[worst]:.0f} ms (bar: under {BAR_MS} ms)")
    if set(GRID) <= set(wanted):
        ours, theirs = (medians[name] for name in GRID)
        print(f"interact takes {theirs / ours:.1f} times as long")


if __name__ == "__main__":
    main(sys.argv[1:])
