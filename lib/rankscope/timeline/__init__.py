"""Timelines: the spans of each lane of each rank, as models predict them and as measurements record them."""

from __future__ import annotations

from .recorder import Recorder
from .spans import Span
from .tape import Tape
from .timeline import Timeline

__all__ = ["Recorder", "Span", "Tape", "Timeline"]


def __dir__() -> list[str]:
    return __all__
