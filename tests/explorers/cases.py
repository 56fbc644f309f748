"""Every explorer with what it is opened with, and what tests take of it.

The cases of each room are in its `explorer_cases`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rankscope.drawing.drawing import to_svg
from rankscope.explorers import EXPLORERS, opener
from rankscope.panel.explorer import Explorer
from rankscope.panel.widgets import Panel
from tests.cases import cases_of_rooms


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
    """Return the cases of all rooms, by name.

    An explorer that no table has is a case without inputs, opened at its defaults.
    """
    cases = {name: Case(name) for name in EXPLORERS}
    for room in cases_of_rooms("explorer_cases"):
        cases.update(room.CASES)
    return cases


def report(explorer: Explorer, **settings: Any) -> list[str]:
    """The lines of its report."""
    return explorer.report(explorer.at(**settings))


def svg(explorer: Explorer, **settings: Any) -> str:
    """Its drawings."""
    return "".join(map(to_svg, explorer.draw(explorer.at(**settings))))
