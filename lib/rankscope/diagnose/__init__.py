"""Traces or flight-recorder dumps of a real job in; the rank that holds it up and the cause out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy
from .diagnosis import diagnose
from .dumps import read_dumps
from .hangs import explain_hang
from .kineto import read_traces
from .what_if import what_if

if TYPE_CHECKING:
    from .live import watch

__all__ = ["diagnose", "explain_hang", "read_dumps", "read_traces", "watch", "what_if"]

__getattr__, __dir__ = lazy(__name__, {"watch": "live"})
