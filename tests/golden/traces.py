"""The verdicts on published traces, where their folder stands next to the checkout."""

from __future__ import annotations

from .diagnose import trace_cases as cases

__all__ = ["cases"]
