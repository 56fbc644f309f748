"""Helpers of the notebooks: optimizer states after Join, a transformer's step, texts of unequal length, scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .scripts import run_python
    from .states import states_after_join
    from .steps import transformer
    from .timed_steps import step_times

__all__ = ["run_python", "states_after_join", "step_times", "transformer"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "run_python": "scripts",
        "states_after_join": "states",
        "step_times": "timed_steps",
        "transformer": "steps",
    },
    submodules=["exercises"],
)
