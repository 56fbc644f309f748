"""`make site`: pages of all notebooks, the README, the commands and the API, which need nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests, whose tools read notebooks

from pages.links import elsewhere, problems
from pages.sources import lay_out

ROOT = Path(__file__).parents[1]
SPHINX_S = 900  # it takes half a minute; this only bounds a hang


def build(to: Path, work: Path) -> int:
    """Make the pages in `to`, by way of `work`, both made anew; return Sphinx's exit status, 1 after a warning."""
    for folder in (to, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    lay_out(ROOT, work / "sources")
    settings = ["-c", str(ROOT / "site"), "-d", str(work / "doctrees"), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", "-b", "html", *settings, str(work / "sources"), str(to)]
    status = subprocess.run(command, check=False, timeout=SPHINX_S).returncode
    for path in to.rglob("*.html"):
        path.write_text(with_icons_hidden(path.read_text(encoding="utf-8")), encoding="utf-8")
    return status


def with_icons_hidden(html: str) -> str:
    """A page whose theme's icons, which only adorn buttons that have names, are kept from who listens to it."""
    return re.sub(r"<svg(?![^>]*\b(?:role|aria-\w+)=)", '<svg aria-hidden="true"', html)


def main() -> int:
    to = ROOT / "build" / "site"
    print("site: making the pages (about half a minute)", flush=True)
    if status := build(to, to.with_name("site-work")):
        return status
    found = problems(to)
    for problem in found:
        print(f"site: {problem}", file=sys.stderr)
    outside = elsewhere(to)
    print(f"site: {len(outside)} links lead elsewhere, and were not followed: {', '.join(outside)}")
    print(f"site: {to / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
