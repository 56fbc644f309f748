"""`make site`: pages of all notebooks, the README, the commands and the API, which need nothing from elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # tests, whose tools read notebooks

from pages import python
from pages.html import inlined, problems
from pages.sources import lay_out
from pages.states import Place

from rankscope.drawing.svg import STYLE

ROOT = Path(__file__).parents[2]
MOST_STATES = {"samplers": 800, "fsdp": 16}  # of one explorer; torch takes a step for each state of FSDP's
MOST_STATES_OF_OTHERS = 120


def build(to: Path, work: Path, most_states: int = 800, inputs: Path | None = None) -> int:
    """Make the pages in `to`, by way of `work`, both made anew; return Sphinx's exit status, 1 after a warning.

    Other processes draw states of each explorer, at most `most_states`, while Sphinx runs. With a folder of `inputs`,
    which `python.fetch` has filled, pages compute all other states themselves.
    """
    for folder in (to, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    places = lay_out(work / "sources", inputs is not None)
    numbers = [min(most_states, MOST_STATES.get(place.name, MOST_STATES_OF_OTHERS)) for place in places]
    settings = ["-c", str(ROOT / "docs" / "site"), "-d", str(work / "doctrees"), "-W", "--keep-going", "-q"]
    if inputs:
        settings += ["-t", "live"]
    command = [sys.executable, "-m", "sphinx", "-b", "html", *settings, str(work / "sources"), str(to)]
    spawn = multiprocessing.get_context("spawn")
    with (
        subprocess.Popen(command) as sphinx,
        ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=spawn) as pool,
    ):
        packing = pool.submit(python.pack, inputs, work / "python") if inputs else None
        scripts = list(pool.map(Place.script, places, numbers))
        status = sphinx.wait()
    static = to / "_static"
    if packing:
        packing.result()
        shutil.move(work / "python", static / "python")
    (static / "drawings.css").write_text(STYLE, encoding="utf-8")
    (static / "explorers").mkdir()
    for place, script in zip(places, scripts, strict=True):
        (static / "explorers" / f"{place.key}.js").write_text(script, encoding="utf-8")
        print(f"site: {place.key}: {len(script) / 1e6:.2f} MB")
    for path in to.rglob("*.html"):
        path.write_text(inlined(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
    return status


def main() -> int:
    to = ROOT / "build" / "site"
    inputs = None
    if os.environ.get("LIVE"):
        inputs = ROOT / "build" / "live-inputs"
        try:
            python.fetch(inputs)
        except ValueError as error:
            print(f"site: {error}. The pages are made without live explorers.", file=sys.stderr)
            inputs = None
    print("site: making the pages and drawing states of the explorers (about a minute on 2 cores)", flush=True)
    status = build(to, to.with_name("site-work"), inputs=inputs)
    faults = problems(to)
    for fault in faults:
        print(f"site: {fault}", file=sys.stderr)
    print(f"site: {to / 'index.html'}")
    return status or bool(faults)


if __name__ == "__main__":
    sys.exit(main())
