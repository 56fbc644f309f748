"""N real ranks from a cell or a script: threads of this process with a process group each, or processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy
from .errors import RankError

if TYPE_CHECKING:
    from .launcher import launch
    from .recorder import RankRecorder, Recording, record, recording
    from .threads import in_threads

__all__ = ["RankError", "RankRecorder", "Recording", "in_threads", "launch", "record", "recording"]

_RECORDER = dict.fromkeys(["RankRecorder", "Recording", "record", "recording"], "recorder")
__getattr__, __dir__ = lazy(__name__, {"in_threads": "threads", "launch": "launcher", **_RECORDER})
