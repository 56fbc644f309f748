"""What this machine can do of what rankscope, its notebooks and its tests can use, and what to install for the rest."""

from __future__ import annotations

from collections.abc import Iterable

from .checks import CHECKS
from .diagnosis import Check, Diagnosis, Missing, examine
from .programs import BROWSERS, find_browser

__all__ = ["BROWSERS", "CHECKS", "Check", "Diagnosis", "Missing", "examine", "find_browser", "lacking", "remedy"]


def remedy(name: str) -> str:
    """Return what to do where the thing that a check is about is not here.

    >>> remedy("C++ compiler")
    'apt-get install g++'
    >>> remedy("abacus")
    Traceback (most recent call last):
    ValueError: name must be one of 'Python', ..., got 'abacus'
    """
    from ..values.checks import one_of

    names = tuple(check.name for check in CHECKS)
    return CHECKS[names.index(one_of("name", name, names))].remedy


def lacking(diagnoses: Iterable[Diagnosis]) -> list[str]:
    """Return the names of what is required and not here."""
    return [one.name for one in diagnoses if one.required and not one.found]
