"""Timelines: the spans of each lane of each rank, as models predict them and as measurements record them."""

from __future__ import annotations

from .recorder import Recorder
from .timeline import Span, Timeline

__all__ = ["Recorder", "Span", "Timeline"]


def __dir__() -> list[str]:
    return __all__
