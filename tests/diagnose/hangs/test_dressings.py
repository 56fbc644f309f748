"""What stands around the lines of a paste changes no answer: each text of the suite, with one or two such dressings."""

from __future__ import annotations

import html
import random
from collections.abc import Callable, Iterable
from itertools import permutations

import pytest

from rankscope.diagnose import explain_hang, read_hang_text

from .hang_inputs import made, recorded
from .pastes import PASTES
from .public import PUBLIC
from .reports import REPORTS

_WIDTH = 100  # of a terminal
_TEXTS_A_PAIR = 12


def _each(dress: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(dress(line) for line in text.splitlines())


def _numbered(form: str) -> Callable[[str], str]:
    return lambda text: "\n".join(form.format(number, line) for number, line in enumerate(text.splitlines(), 1))


def _wrapped(line: str) -> str:
    return "\n".join(line[at : at + _WIDTH] for at in range(0, len(line), _WIDTH))


def _cut(text: str) -> str:
    """Return a text without a part of the first line's tag."""
    return text[3:] if text.startswith("[rank") else text


DRESSINGS: dict[str, Callable[[str], str]] = {
    "blanks": _each(lambda line: f"    {line}"),
    "tab": _each(lambda line: f"\t{line}"),
    "quote": _each(lambda line: f"> {line}"),
    "table": _each(lambda line: f"| {line} |"),
    "list": _each(lambda line: f"- {line}"),
    "numbers with colons": _numbered("{}: {}"),
    "numbers with tabs": _numbered("{:>6}\t{}"),
    "time": _each(lambda line: f"【2026-02-25 14:27:49】{line}"),
    "colours": _each(lambda line: f"\x1b[31m{line}\x1b[0m"),
    "terminal": _each(_wrapped),
    "entities": html.escape,
    "cut": _cut,
}
TEXTS = [paste.text for paste in PASTES + REPORTS + PUBLIC]
TEXTS += [text for job in recorded() + made() if (text := "\n".join(job.mixed(random.Random(3)))).strip()]


def answer(text: str) -> object:
    """Return what an answer states, without the lines that it quotes."""
    hang = explain_hang(logs=read_hang_text(text))
    return sorted(hang.culprits), sorted({finding.cause for finding in hang.findings})


ANSWERS = [answer(text) for text in TEXTS]


def check(names: Iterable[str], places: Iterable[int]) -> None:
    for place in places:
        dressed = TEXTS[place]
        for name in names:
            dressed = DRESSINGS[name](dressed)
        assert answer(dressed) == ANSWERS[place], dressed


@pytest.mark.parametrize("name", DRESSINGS)
def test_a_dressing_changes_no_answer(name: str) -> None:
    check([name], range(len(TEXTS)))


def test_two_dressings_change_no_answer() -> None:
    draw = random.Random(1)
    for names in permutations(DRESSINGS, 2):
        check(names, draw.sample(range(len(TEXTS)), _TEXTS_A_PAIR))


def test_the_check_notices_another_answer() -> None:
    place = next(place for place, found in enumerate(ANSWERS) if found[0])
    assert answer(TEXTS[place].replace("ank", "ink")) != ANSWERS[place]
