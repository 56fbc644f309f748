"""A demonstration that only the notebooks use: buffers and optimizer states after Join on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .states import states_after_join

__all__ = ["states_after_join"]

__getattr__, __dir__ = lazy(__name__, {"states_after_join": "states"}, submodules=["exercises"])
