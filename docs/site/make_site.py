"""`make site`: pages of all notebooks, the README, the commands and the API, which need nothing from elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # tests, whose tools read notebooks

from pages.inline import inlined
from pages.links import elsewhere, problems
from pages.sources import lay_out
from pages.states import FOLDER, LEAST_STATES, MOST_BYTES, Grid, Store, stored_at

ROOT = Path(__file__).parents[2]
SPHINX_S = 900  # it takes half a minute; this only bounds a hang


def build(
    to: Path, work: Path, only_ends: Collection[str] = (), say: Callable[[Store, int], None] = lambda store, total: None
) -> int:
    """Make the pages in `to`, by way of `work`, both made anew; return Sphinx's exit status, 1 after a warning.

    Other processes draw the states of explorers while Sphinx runs. An explorer named in `only_ends` gets two values of
    each setting. `say` is called with each explorer that is drawn, and with the number of all states.
    """
    for folder in (to, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    grids = lay_out(ROOT, work / "sources", only_ends)
    settings = ["-c", str(ROOT / "docs" / "site"), "-d", str(work / "doctrees"), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", "-b", "html", *settings, str(work / "sources"), str(to)]
    with subprocess.Popen(command) as sphinx:
        scripts = drawn_scripts(grids, only_ends, say)
        status = sphinx.wait(SPHINX_S)
    for path in to.rglob("*.html"):
        html = with_icons_hidden(path.read_text(encoding="utf-8"))
        path.write_text(inlined(html, path.parent), encoding="utf-8")
    (to / "_static" / FOLDER).mkdir()
    for key, script in scripts.items():
        (to / "_static" / FOLDER / f"{key}.js").write_text(script, encoding="utf-8")
    return status


def drawn_scripts(grids: list[Grid], only_ends: Collection[str], say: Callable[[Store, int], None]) -> dict[str, str]:
    """Draw all states of each grid, one grid per process at a time, and return the scripts that hold them by key."""
    largest_first = sorted(grids, key=lambda grid: grid.num_states, reverse=True)
    total = sum(grid.num_states for grid in grids)
    scripts = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=spawn) as pool:
        pending = [pool.submit(stored_at, grid.shown, grid.shown.name in only_ends) for grid in largest_first]
        for future in as_completed(pending):
            store = future.result()
            scripts[store.key] = store.script
            say(store, total)
    return scripts


class Progress:
    """Prints how far the drawing is, with an estimate of the time that is left."""

    def __init__(self) -> None:
        self.stores: list[Store] = []
        self.start_s = time.monotonic()

    def say(self, store: Store, total: int) -> None:
        self.stores.append(store)
        num_states = sum(drawn.num_states for drawn in self.stores)
        elapsed_s = time.monotonic() - self.start_s
        print(f"site: {progress_line(elapsed_s, num_states, total)}; {store}", flush=True)


def progress_line(elapsed_s: float, num_states: int, total: int) -> str:
    """Return how far the drawing is. The estimate takes each state that is left to be as long as those before it.

    >>> progress_line(40, 10_000, 50_000), progress_line(170, 50_000, 50_000)
    ('40 s, 10,000 of 50,000 states drawn, about 160 s left', '170 s, 50,000 of 50,000 states drawn')
    """
    line = f"{elapsed_s:.0f} s, {num_states:,} of {total:,} states drawn"
    left_s = elapsed_s * (total - num_states) / num_states
    return f"{line}, about {left_s:.0f} s left" if num_states < total else line


def with_icons_hidden(html: str) -> str:
    """A page whose theme's icons, which only adorn buttons that have names, are kept from who listens to it."""
    return re.sub(r"<svg(?![^>]*\b(?:role|aria-\w+)=)", '<svg aria-hidden="true"', html)


def main() -> int:
    to = ROOT / "build" / "site"
    progress = Progress()
    print(
        "site: making the pages and drawing every state of the explorers (two to three minutes on 2 cores)", flush=True
    )
    if status := build(to, to.with_name("site-work"), say=progress.say):
        return status
    faults = problems(to)
    faults += [
        f"{store.key} has fewer than {LEAST_STATES} states"
        for store in progress.stores
        if store.num_states < LEAST_STATES
    ]
    faults += [
        f"{store.key} has more than {MOST_BYTES:,} bytes" for store in progress.stores if len(store.script) > MOST_BYTES
    ]
    for fault in faults:
        print(f"site: {fault}", file=sys.stderr)
    outside = elsewhere(to)
    print(f"site: {len(outside)} links lead elsewhere, and were not followed: {', '.join(outside)}")
    print(f"site: {to / 'index.html'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
