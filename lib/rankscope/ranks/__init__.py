"""N real ranks from a cell or a script: threads of this process with a process group each, or processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import RankError
from .launch import launch

if TYPE_CHECKING:
    from .threads import in_threads

__all__ = ["RankError", "in_threads", "launch"]


def __getattr__(name: str) -> Any:
    if name == "in_threads":  # it needs torch
        return import_module(".threads", __name__).in_threads
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
