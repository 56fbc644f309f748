"""Every explorer with what it is opened with, and what tests take of it.

The cases of each part of the library are in its `explorer_cases`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rankscope.explorers.entries import EXPLORERS, opener
from rankscope.explorers.explorer import Explorer
from rankscope.explorers.panel import Panel
from rankscope.figures.svg import to_svg


class Case(NamedTuple):
    """An explorer's name, its inputs, and settings at which most controls change what is shown."""

    name: str
    inputs: tuple[Any, ...] = ()
    start: Mapping[str, Any] = MappingProxyType({})

    def open(self, **settings: Any) -> Panel:
        return opener(self.name)(*self.inputs, **settings)

    def made(self) -> Explorer:
        return EXPLORERS[self.name].make(*self.inputs)


def all_cases() -> dict[str, Case]:
    """Return the cases of all packages, by name.

    An explorer that no table has is a case without inputs, opened at its defaults.
    """
    cases = {name: Case(name) for name in EXPLORERS}
    from ..box.explorer_cases import CASES as OF_BOX  # these import this module
    from ..train.explorer_cases import CASES as OF_TRAIN
    from .explorer_cases import CASES

    return cases | CASES | OF_BOX | OF_TRAIN


def report(explorer: Explorer, **settings: Any) -> list[str]:
    """The lines of its report."""
    return explorer.report(explorer.at(**settings))


def svg(explorer: Explorer, **settings: Any) -> str:
    """Its drawings."""
    return "".join(map(to_svg, explorer.draw(explorer.at(**settings))))
