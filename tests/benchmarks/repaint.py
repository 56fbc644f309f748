"""From a key on a slider to the picture changed in the browser: python -m tests.benchmarks.repaint

The samplers explorer at 16 ranks × 64 steps, against the usual way (`interact` round a matplotlib figure) with the same
slider and grid, in the same JupyterLab and Chromium. Times are taken in the page: key down to the frame after the new
picture came in.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import nbformat.v4 as nbformat

from tests.browser.jupyterlab import browser_page, lab_server, open_and_run_all
from tests.tools.execute_notebooks import METADATA

STEPS = 20
NOTEBOOKS = {
    "rankscope": "from rankscope.explorers import samplers\nsamplers(num_ranks=16, size=1024, color_by='position')",
    "interact": (
        "from ipywidgets import interact\nimport matplotlib.pyplot as plt\nfrom rankscope import figures\n"
        "from rankscope.sampling import assign\n"
        "@interact(seed=(0, 20))\n"
        "def grid(seed=0):\n"
        "    figures.assignment(assign(1024, 16, seed=seed).with_loader(4), color_by='position')\n"
        "    plt.show()"
    ),
}
WATCH = """() => {
    window.repaints = [];
    let pressed = null;
    const wanted = 'svg.rankscope, img';
    const isPicture = node => node.nodeType === 1 && (node.matches(wanted) || node.querySelector(wanted));
    document.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    new MutationObserver(changes => {
        if (pressed === null || !changes.some(change => [...change.addedNodes].some(isPicture))) return;
        const start = pressed;
        pressed = null;
        requestAnimationFrame(() => setTimeout(() => window.repaints.push(performance.now() - start)));
    }).observe(document.body, {childList: true, subtree: true});
}"""


def repaints_ms(source: str, folder: Path) -> list[float]:
    """Milliseconds from each of `STEPS` arrow keys on the seed slider to its picture."""
    folder.mkdir()
    notebook = nbformat.new_notebook(cells=[nbformat.new_code_cell(source)], metadata=METADATA)
    (folder / "one.ipynb").write_text(nbformat.writes(notebook))
    with (
        lab_server(folder, folder.with_suffix(".lab")) as address,
        browser_page(folder.with_suffix(".browser"), folder.with_suffix(".png")) as page,
    ):
        open_and_run_all(page, address, "one.ipynb")
        seed = page.locator(".widget-slider").filter(has=page.get_by_text("seed", exact=True))
        seed.locator(".noUi-handle").first.focus()
        page.evaluate(WATCH)
        for step in range(STEPS):
            page.keyboard.press("ArrowRight")
            page.wait_for_function(f"() => window.repaints.length > {step}", timeout=20_000)
        return [float(time) for time in page.evaluate("() => window.repaints")]


def main() -> None:
    print(f"{'slider to picture, 16 x 64, ' + str(STEPS) + ' steps':<40}{'median ms':>10}{'max ms':>10}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        times = {name: repaints_ms(source, Path(folder) / name) for name, source in NOTEBOOKS.items()}
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    for name, measured in times.items():
        print(f"{name:<40}{medians[name]:>10.0f}{max(measured):>10.0f}")
    print(f"{'ratio (bar: median under 100 ms)':<40}{medians['interact'] / medians['rankscope']:>10.1f}")


if __name__ == "__main__":
    main()
