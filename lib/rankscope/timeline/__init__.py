"""What ran when, on which lane of which rank: the common currency of models and measurements."""

from __future__ import annotations

from .recorder import Recorder
from .timeline import Span, Timeline, TimelineError

__all__ = ["Recorder", "Span", "Timeline", "TimelineError"]
