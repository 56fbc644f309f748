"""`read_log`: read measurements from the output of other benchmark programs."""

from __future__ import annotations

from .read import merged, read_log, read_log_text
from .table import FAULT

__all__ = ["FAULT", "merged", "read_log", "read_log_text"]
