"""Every explorer with what it is opened with, and what tests take of a panel.

The cases of each part of the library are in its `explorer_cases`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rankscope import explorers
from rankscope.explorers.entries import EXPLORERS
from rankscope.explorers.explorer import Explorer, Setting, explorer_of
from rankscope.explorers.panel import Panel


class Case(NamedTuple):
    """An explorer's name, its inputs, and settings at which most controls change what is shown."""

    name: str
    inputs: tuple[Any, ...] = ()
    start: Mapping[str, Any] = MappingProxyType({})

    def open(self, **settings: Any) -> Panel:
        return getattr(explorers, self.name)(*self.inputs, **settings)

    def made(self) -> Explorer:
        return explorer_of(getattr(explorers, self.name), *self.inputs)


def all_cases() -> dict[str, Case]:
    """Return the cases of all packages, by name.

    An explorer that no table has is a case without inputs, opened at its defaults.
    """
    cases = {name: Case(name) for name in EXPLORERS}
    from ..box.explorer_cases import CASES as OF_BOX  # these import this module
    from ..train.explorer_cases import CASES as OF_TRAIN
    from .explorer_cases import CASES

    return cases | CASES | OF_BOX | OF_TRAIN


def controls(box: Panel) -> dict[str, Any]:
    """A panel's controls, by the names of their settings."""
    return dict(box.controls)


def shown(box: Panel) -> tuple[str, str]:
    """A panel's pictures and its report, as HTML."""
    return box.pictures.value, box.report.value


def another(setting: Setting, now: Any) -> Any:
    """A value that the control offers, other than this one."""
    values = setting.values
    return next(value for value in (values[len(values) // 3], values[-1], values[0]) if value != now)


def report(explorer: Explorer, **settings: Any) -> list[str]:
    """The lines of its report."""
    return explorer.report(explorer.at(**settings))


def svg(explorer: Explorer, picture: str = "picture", **settings: Any) -> str:
    """One of its pictures."""
    return explorer.svg(picture, explorer.at(**settings))
