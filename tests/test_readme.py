"""Pictures of the README and the guides are what the library draws today, and their links lead somewhere.

Their examples run as doctests.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankscope.box import Profile, verdict
from rankscope.box.judging.picture import draw_with_peers
from rankscope.drawing.drawing import to_svg
from rankscope.sampling import assign
from rankscope.sampling.picture import draw_assignment
from tests.tools.execute_notebooks import every_notebook
from tests.tools.playing_picture import PICTURES

ROOT = Path(__file__).parents[1]
AGAIN = "notebooks/pictures/{} is not what the library draws today. Write it: python -m tests.test_readme"
PICTURE = ROOT / "notebooks" / "pictures" / "who_reads_what.svg"
BOX = PICTURE.with_name("gpu_box.svg")
SHOWN = "bank:runpod_a100_2_no_p2p"  # what stands for your box in its picture
MOST_BYTES = 150_000
GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "notebooks" / "README.md", *GUIDES]


def picture() -> str:
    return to_svg(draw_assignment(assign(50, 4, seed=0).with_loader(4))) + "\n"


def box_picture() -> str:
    """What `rankscope show --picture` draws."""
    return to_svg(draw_with_peers(Profile.load(SHOWN))) + "\n"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_plays_is_the_one_that_is_drawn_today(name: str) -> None:
    content = PICTURE.with_name(name).read_text(encoding="utf-8")
    assert content == PICTURES[name](), f"{name} is another one. Write it: python -m tests.tools.playing_picture"
    assert len(content) <= MOST_BYTES  # every reader loads it


def test_the_picture_of_a_gpu_box_shows_what_the_verdict_says() -> None:
    assert BOX.read_text(encoding="utf-8") == box_picture(), AGAIN.format(BOX.name)
    assert "14 GB/s against 188" in (ROOT / "README.md").read_text(encoding="utf-8")
    found = " ".join(verdict(Profile.load(SHOWN)))
    assert "reaches 13.7 GB/s" in found
    assert "Unset NCCL_P2P_DISABLE" in found


def dead_links(text: str, folder: Path = ROOT) -> list[str]:
    """Return the links of a page to files of this repository that are not there, each with its line."""
    dead = []
    for number, line in enumerate(text.splitlines(), start=1):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", line):
            if not (folder / link).exists():
                dead.append(f"line {number}: {link}")
    return dead


def test_the_picture_is_the_one_that_is_drawn_today() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(), AGAIN.format(PICTURE.name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = dead_links(page.read_text(encoding="utf-8"), page.parent)
    assert not dead, f"{page} links to files that are not there: {dead}. A path starts at the folder of the page."


def test_a_dead_link_is_found() -> None:
    assert dead_links("[a](README.md) and\n[b](nowhere.md#part)") == ["line 2: nowhere.md"]


@pytest.mark.parametrize("notebook", every_notebook(), ids=lambda path: path.stem)
def test_every_notebook_is_in_the_tour(notebook: Path) -> None:
    tour = ROOT / "notebooks" / "README.md"
    link = notebook.relative_to(tour.parent).as_posix()
    assert f"({link})" in tour.read_text(encoding="utf-8"), (
        f"notebooks/README.md does not link to {link}: add a row with [{notebook.stem}]({link}) to its table."
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    BOX.write_text(box_picture(), encoding="utf-8")
