"""Pictures of the README and the guides are what the library draws today, and their links lead somewhere.

Their examples run as doctests.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from pages import gpu_box

from rankscope.box import Profile, verdict
from rankscope.figures.assignments import draw_assignment
from rankscope.figures.svg import marks, to_svg
from rankscope.sampling import assign
from tests.tools.execute_notebooks import every_notebook
from tests.tools.playing_picture import STEP, TARGET, ring, step, swept

ROOT = Path(__file__).parents[1]
AGAIN = (
    "notebooks/pictures/{} is not what the library draws today. "
    "Write it: PYTHONPATH=docs/site python -m tests.test_readme"
)
PICTURE = ROOT / "notebooks" / "pictures" / "who_reads_what.svg"
BOX = PICTURE.with_name("gpu_box.svg")
MOST_BYTES = 150_000
GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "notebooks" / "README.md", *GUIDES]


def picture() -> str:
    return to_svg(draw_assignment(assign(50, 4, seed=0).with_loader(4))) + "\n"


@pytest.mark.parametrize(("path", "draw"), [(TARGET, ring), (STEP, step)], ids=["ring", "step"])
def test_the_picture_that_plays_is_the_one_that_is_drawn_today(path: Path, draw: Callable[[], str]) -> None:
    again = f"{path.name} is not what the library draws today. Write it: python -m tests.tools.playing_picture"
    assert path.read_text(encoding="utf-8") == draw(), again
    num_bytes = path.stat().st_size
    assert num_bytes <= MOST_BYTES, (
        f"{path.name} has {num_bytes} bytes, and may have {MOST_BYTES}, because every reader loads it: "
        "draw fewer steps in tests/tools/playing_picture.py."
    )


def test_a_swept_drawing_is_whole_where_nothing_moves_and_its_line_crosses_all_of_it() -> None:
    drawing = draw_assignment(assign(10, 4, seed=0))
    plain, playing = to_svg(drawing), swept(drawing, 5.0)
    ET.fromstring(playing)
    assert marks(drawing) in plain
    assert playing.count(marks(drawing)) == 3  # standing still, pale, and revealed
    assert f'values="0 0;0 0;{drawing.size_px[0]:g} 0;{drawing.size_px[0]:g} 0"' in playing
    with pytest.raises(ValueError, match="seconds must be a finite number above 0 and of at most 60"):
        swept(drawing, 0.0)


def test_the_picture_of_a_gpu_box_is_the_one_that_is_drawn_today() -> None:
    assert BOX.read_text(encoding="utf-8") == gpu_box.picture(), AGAIN.format(BOX.name)
    assert "14 GB/s against 188" in (ROOT / "README.md").read_text(encoding="utf-8")
    found = verdict(Profile.load(f"bank:{gpu_box.SHOWN}"))[0]
    assert "reaches 13.6 GB/s" in found
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pip_installs_from_the_clone(page: Path) -> None:
    """No index has rankscope, so that installing it by its name fails."""
    commands = re.findall(r"pip install[^`\n]*", page.read_text(encoding="utf-8"))
    wrong = [command for command in commands if not re.fullmatch(r'pip install (\.|"\.\[\w+\]")', command)]
    assert not wrong, (
        f'{page} has {wrong}, but no index has rankscope: write `pip install .` or `pip install ".[torch]"`.'
    )
    assert commands or page.name != "library.md", f"{page} must say how to install from the clone: `pip install .`"


@pytest.mark.parametrize("notebook", every_notebook(), ids=lambda path: path.stem)
def test_every_notebook_is_in_the_tour(notebook: Path) -> None:
    tour = ROOT / "notebooks" / "README.md"
    link = notebook.relative_to(tour.parent).as_posix()
    assert f"({link})" in tour.read_text(encoding="utf-8"), (
        f"notebooks/README.md does not link to {link}: add a row with [{notebook.stem}]({link}) to its table."
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    BOX.write_text(gpu_box.picture(), encoding="utf-8")
