"""The notebooks' exercises: `check` says whether an answer is right, `score` how good a thing is that you built."""

from __future__ import annotations

from . import answers as answers  # the exercises, which register themselves
from .kinds import EXERCISES as EXERCISES
from .kinds import WrongAnswer as WrongAnswer
from .kinds import check, score

__all__ = ["check", "score"]
