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

from pages.html import inlined, problems
from pages.sources import lay_out
from pages.states import Place

from rankscope.drawing.svg import STYLE

ROOT = Path(__file__).parents[2]


def build(to: Path, work: Path, most_states: int = 800) -> int:
    """Make the pages in `to`, by way of `work`, both made anew; return Sphinx's exit status, 1 after a warning.

    Other processes draw at most so many states of each explorer while Sphinx runs.
    """
    for folder in (to, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    # torch takes a step for each state of FSDP's explorer, so it has fewer of them, and begins first.
    places = sorted(lay_out(work / "sources"), key=lambda place: "fsdp(" not in place.source)
    numbers = [most_states // 6 if "fsdp(" in place.source else most_states for place in places]
    settings = ["-c", str(ROOT / "docs" / "site"), "-d", str(work / "doctrees"), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", "-b", "html", *settings, str(work / "sources"), str(to)]
    spawn = multiprocessing.get_context("spawn")
    with (
        subprocess.Popen(command) as sphinx,
        ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=spawn) as pool,
    ):
        scripts = list(pool.map(Place.script, places, numbers))
        status = sphinx.wait()
    (to / "_static" / "drawings.css").write_text(STYLE, encoding="utf-8")
    (to / "_static" / "explorers").mkdir()
    for place, script in zip(places, scripts, strict=True):
        (to / "_static" / "explorers" / f"{place.key}.js").write_text(script, encoding="utf-8")
        print(f"site: {place.key}: {len(script) / 1e6:.2f} MB")
    for path in to.rglob("*.html"):
        path.write_text(inlined(path.read_text(encoding="utf-8"), path.parent), encoding="utf-8")
    return status


def main() -> int:
    to = ROOT / "build" / "site"
    print("site: making the pages and drawing every state of the explorers (about two minutes on 2 cores)", flush=True)
    status = build(to, to.with_name("site-work"))
    faults = problems(to)
    for fault in faults:
        print(f"site: {fault}", file=sys.stderr)
    print(f"site: {to / 'index.html'}")
    return status or bool(faults)


if __name__ == "__main__":
    sys.exit(main())
