"""The public figures of `box`: a call of each view, drawings, and what is refused.

They are for the battery in `tests/figures/test_every_figure.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.transfers.link_facts import stated
from rankscope.drawing.drawing import Drawing

FACTS = stated(4)


def bank_of(*names: str) -> dict[str, Profile]:
    return {name: Profile.load(f"bank:{name}") for name in names}


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Any]] = {
    "copies": lambda **on: figures.copies(FACTS, **on),
    "profile": lambda **on: figures.profile(bank_of("h100_8", "l40s_8", "a100_80gb_8"), **on),
}

DRAWINGS: dict[str, Drawing] = {}

REFUSED: list[tuple[Callable[[], Any], str]] = []  # `tests/box/test_refusals.py` has them
