"""N real ranks from a cell or a script: threads of this process with a process group each, or processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .errors import RankError
from .launcher import launch
from .threads import in_threads

if TYPE_CHECKING:
    from .recorder import RankRecorder, Recording, record, recording

__all__ = ["RankError", "RankRecorder", "Recording", "in_threads", "launch", "record", "recording"]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name in __all__:  # what is not there yet: it imports torch
        from . import recorder

        return getattr(recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
