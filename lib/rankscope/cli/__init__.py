"""The command line: `COMMANDS` of `program`, each imported when it runs."""

from __future__ import annotations

from .program import main

__all__ = ["main"]
