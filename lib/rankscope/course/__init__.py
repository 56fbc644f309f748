"""Helpers of the notebooks: a transformer's step, and scripts that run in a process of their own."""

from __future__ import annotations

from . import exercises
from .scripts import run_python
from .steps import transformer

__all__ = ["exercises", "run_python", "transformer"]


def __dir__() -> list[str]:
    return __all__
