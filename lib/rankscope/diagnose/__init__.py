"""Traces of a real job in; the late rank, its cause and what it costs out."""

from __future__ import annotations

from .trace import read_traces

__all__ = ["read_traces"]
