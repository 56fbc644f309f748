"""What rankscope, its notebooks and its tests can use on this machine, and what to install for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..values.checks import one_of
from .diagnosis import Check, Diagnosis
from .probes import CHECKS

__all__ = ["examine", "remedy"]


def examine(
    report: Callable[[str], object] = lambda name: None, checks: Iterable[Check] = CHECKS
) -> tuple[Diagnosis, ...]:
    """Return the diagnosis of each check, in order; `report` is called with the name of each before it starts.

    >>> examine(checks=[Check("abacus", "sums", lambda: "10 rows of beads")])[0].detail
    '10 rows of beads'
    """
    found = []
    for check in checks:
        report(check.name)
        found.append(check.diagnosis())
    return tuple(found)


def remedy(name: str) -> str:
    """Return what to do if the thing that a check looks for is missing.

    >>> remedy("C++ compiler")
    'apt-get install g++'
    >>> remedy("abacus")
    Traceback (most recent call last):
    ValueError: name must be one of 'Python', ..., got 'abacus'
    """
    names = tuple(check.name for check in CHECKS)
    return CHECKS[names.index(one_of("name", name, names))].remedy
