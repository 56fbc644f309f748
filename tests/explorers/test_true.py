"""What explorers say is true: numbers of their titles and reports, at a dozen settings, worked out another way.

Each room's `explorer_truths` has, by explorer, the settings that its other way requires, and a function that returns
lines with `#` for each number, each with these numbers in seconds, bytes or shares.
"""

from __future__ import annotations

import random
import re

import pytest

from rankscope.explorers import EXPLORERS
from rankscope.panel.explorer import Explorer, Now
from tests.cases import cases_of_rooms

from .cases import Case

TRUTHS = {name: truth for room in cases_of_rooms("explorer_truths") for name, truth in room.TRUTHS.items()}
NUM_SETTINGS = 12
UNITS = {"": 1.0, "%": 0.01, "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "B": 1.0}
UNITS |= {f"{prefix}B": 10.0**power for prefix, power in (("k", 3), ("M", 6), ("G", 9), ("T", 12))}
UNITS |= {f"{prefix}iB": 2.0**power for prefix, power in (("K", 10), ("M", 20), ("G", 30))}
NUMBER = rf"([\d,]*\d(?:\.\d+)?) ?({'|'.join(sorted(UNITS, key=len, reverse=True))}|(?=\D|$))(?![a-zA-Z])"


def said(explorer: Explorer, now: Now) -> str:
    drawings = explorer.draw(now)
    return "\n".join([*(f"{drawing.title}\n{drawing.deck}" for drawing in drawings), *explorer.report(now)])


def differences(text: str, truths: list[tuple[str, *tuple[float, ...]]]) -> list[str]:
    """The lines that the text does not have with these numbers, rounded as it rounds them."""
    wrong = []
    for line, *expected in truths:
        found = re.search(line.replace("#", NUMBER), text)
        if found is None:
            wrong.append(f"{line}: not said")
            continue
        words = found.groups()
        for number, unit, value in zip(words[::2], words[1::2], expected, strict=True):
            decimals = len(number.partition(".")[2])
            if abs(float(number.replace(",", "")) * UNITS[unit] - value) > 0.501 * 10.0**-decimals * UNITS[unit]:
                wrong.append(f"{line}: {number} {unit}, expected {value}")
    return wrong


def test_every_explorer_has_truths() -> None:
    assert {*TRUTHS} == {*EXPLORERS}


@pytest.mark.parametrize("name", TRUTHS)
def test_what_an_explorer_says_is_true(name: str) -> None:
    fixed, truths = TRUTHS[name]
    explorer = Case(name).made()
    chance = random.Random(1)
    num_checked = 0
    while num_checked < NUM_SETTINGS:
        values = {one.name: chance.choice(one.values) for one in explorer.settings if chance.random() < 0.7}
        now = explorer.at(**values | fixed)
        try:
            text = said(explorer, now)
        except ValueError:  # for example, an algorithm that does not exist for so many ranks
            continue
        lines = truths(now)
        assert differences(text, lines) == [], f"{now}\n{text}"
        num_checked += bool(lines)


def test_the_comparison_sees_what_is_wrong() -> None:
    text = "Ranks wait for 17 % of 1.25 ms"
    assert differences(text, [("for # of #", 0.174, 1.249e-3)]) == []
    assert len(differences(text, [("for # of #", 0.18, 1.26e-3), ("half", 1.0)])) == 3
