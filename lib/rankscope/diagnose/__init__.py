"""Find the rank that holds up a job, and why, from its traces, flight-recorder dumps or logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.extras import when_used
from .hangs.dumps import read_dumps
from .hangs.hangs import explain_hang
from .hangs.logs import read_hang_text, read_logs
from .traces.diagnosis import diagnose
from .traces.kineto import read_traces

if TYPE_CHECKING:
    from .traces.live import watch

__all__ = ["diagnose", "explain_hang", "read_dumps", "read_hang_text", "read_logs", "read_traces", "watch"]


__getattr__, __dir__ = when_used(__name__, watch="traces.live")
