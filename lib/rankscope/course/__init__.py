"""What only the notebooks use: buffers and optimizer states after Join on real ranks, and a transformer's step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .states import states_after_join
    from .steps import transformer

__all__ = ["states_after_join", "transformer"]

__getattr__, __dir__ = lazy(
    __name__,
    {"states_after_join": "states", "transformer": "steps"},
    submodules=["exercises"],
)
