"""What only the notebooks use: optimizer states after Join, a transformer's step, steps on texts of unequal length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .states import states_after_join
    from .steps import transformer
    from .timed_steps import step_times

__all__ = ["states_after_join", "step_times", "transformer"]

__getattr__, __dir__ = lazy(
    __name__,
    {"states_after_join": "states", "step_times": "timed_steps", "transformer": "steps"},
    submodules=["exercises"],
)
