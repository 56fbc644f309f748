"""What ran when, on which lane of which rank: the common currency of models and measurements."""

from __future__ import annotations

from .critical_path import critical_path
from .recorder import Recorder
from .spans import WAITS, Span, Timeline, TimelineError

__all__ = ["WAITS", "Recorder", "Span", "Timeline", "TimelineError", "critical_path"]
