"""Find the rank that holds up a job, and why, from its traces, flight-recorder dumps or logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
from .diagnosis import diagnose
from .dumps import read_dumps
from .hangs import explain_hang
from .kineto import read_traces
from .logs import read_hang_text, read_logs

if TYPE_CHECKING:
    from .live import watch

__all__ = ["diagnose", "explain_hang", "read_dumps", "read_hang_text", "read_logs", "read_traces", "watch"]


__getattr__ = when_used(__name__, watch="live")


def __dir__() -> list[str]:
    return __all__
