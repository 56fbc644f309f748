"""N real ranks from a cell or a script: threads of this process with a process group each, or processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
from .errors import RankError
from .launcher import launch
from .threads import in_threads

if TYPE_CHECKING:
    from .recorder import RankRecorder, Recording, record, recording

__all__ = ["RankError", "RankRecorder", "Recording", "in_threads", "launch", "record", "recording"]

__getattr__, __dir__ = when_used(
    __name__,
    RankRecorder="recorder",
    Recording="recorder",
    record="recorder",
    recording="recorder",
)
