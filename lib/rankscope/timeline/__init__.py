"""What ran when, on which lane of which rank: what models and measurements both give."""

from __future__ import annotations

from .recorder import Recorder
from .timeline import Span, Timeline

__all__ = ["Recorder", "Span", "Timeline"]
