"""`make site`: pages of all notebooks, the README, the commands and the API, which need nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests, whose tools read notebooks

from pages.links import elsewhere, problems
from pages.sources import lay_out
from pages.states import FOLDER, LEAST_STATES, MOST_BYTES, Store, stored

ROOT = Path(__file__).parents[1]
SPHINX_S = 900  # it takes half a minute; this only bounds a hang


def build(
    to: Path, work: Path, only_ends: Collection[str] = (), say: Callable[[Store], None] = lambda store: None
) -> int:
    """Make the pages in `to`, by way of `work`, both made anew; return Sphinx's exit status, 1 after a warning.

    The states of explorers are drawn while Sphinx runs, for those named in `only_ends` just a few, and each explorer's
    are handed to `say`.
    """
    for folder in (to, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    grids = lay_out(ROOT, work / "sources", only_ends)
    settings = ["-c", str(ROOT / "site"), "-d", str(work / "doctrees"), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", "-b", "html", *settings, str(work / "sources"), str(to)]
    with subprocess.Popen(command) as sphinx:
        scripts = {}
        for grid in grids:
            store = stored(grid)
            scripts[store.key] = store.script
            say(store)
        status = sphinx.wait(SPHINX_S)
    for path in to.rglob("*.html"):
        path.write_text(with_icons_hidden(path.read_text(encoding="utf-8")), encoding="utf-8")
    (to / "_static" / FOLDER).mkdir()
    for key, script in scripts.items():
        (to / "_static" / FOLDER / f"{key}.js").write_text(script, encoding="utf-8")
    return status


def with_icons_hidden(html: str) -> str:
    """A page whose theme's icons, which only adorn buttons that have names, are kept from who listens to it."""
    return re.sub(r"<svg(?![^>]*\b(?:role|aria-\w+)=)", '<svg aria-hidden="true"', html)


def main() -> int:
    to = ROOT / "build" / "site"
    stores: list[Store] = []

    def say(store: Store) -> None:
        stores.append(store)
        print(f"site: explorer {store}", flush=True)

    print("site: making the pages (about a minute)", flush=True)
    if status := build(to, to.with_name("site-work"), say=say):
        return status
    found = problems(to)
    found += [f"{one.key} has fewer than {LEAST_STATES} states" for one in stores if one.num_states < LEAST_STATES]
    found += [f"{one.key} has more than {MOST_BYTES:,} bytes" for one in stores if len(one.script) > MOST_BYTES]
    for problem in found:
        print(f"site: {problem}", file=sys.stderr)
    outside = elsewhere(to)
    print(f"site: {len(outside)} links lead elsewhere, and were not followed: {', '.join(outside)}")
    print(f"site: {to / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
