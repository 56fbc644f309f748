"""N real ranks from a cell or a script: threads of this process with a process group each, or processes."""

from __future__ import annotations

from .errors import RankError
from .launcher import launch
from .threads import in_threads

__all__ = ["RankError", "in_threads", "launch"]


def __dir__() -> list[str]:
    return __all__
