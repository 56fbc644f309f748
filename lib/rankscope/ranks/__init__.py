"""N real ranks from a cell or a script: threads of this process with a process group each, or processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .errors import RankError
from .launch import launch

if TYPE_CHECKING:
    from .threads import in_threads

__all__ = ["RankError", "in_threads", "launch"]

__getattr__, __dir__ = lazy(__name__, {"in_threads": "threads"})  # it needs torch
