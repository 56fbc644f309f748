"""The notebooks' exercises: `check` says whether an answer is right, and `score` how good your construction is."""

from __future__ import annotations

from . import answers as answers  # its exercises register themselves
from .kinds import EXERCISES as EXERCISES
from .kinds import WrongAnswer as WrongAnswer
from .kinds import check, score

__all__ = ["check", "score"]


def __dir__() -> list[str]:
    return __all__
