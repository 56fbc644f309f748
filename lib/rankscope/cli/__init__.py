"""The command line: `rankscope profile`, `show`, `predict`, `compare`, `trace` and `doctor`."""

from __future__ import annotations

from .app import app as app
from .app import main as main
