"""Find the rank that holds up a job, and why, from its traces, flight-recorder dumps or logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .diagnosis import diagnose
    from .dumps import read_dumps
    from .hangs import explain_hang
    from .kineto import read_traces
    from .live import watch
    from .logs import read_hang_text, read_logs

__all__ = ["diagnose", "explain_hang", "read_dumps", "read_hang_text", "read_logs", "read_traces", "watch"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "diagnose": "diagnosis",
        "explain_hang": "hangs",
        "read_dumps": "dumps",
        "read_hang_text": "logs",
        "read_logs": "logs",
        "read_traces": "kineto",
        "watch": "live",
    },
)
