"""What is read from published logs, where their folder stands next to the checkout."""

from __future__ import annotations

from .box import log_cases as cases

__all__ = ["cases"]
