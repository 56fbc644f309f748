"""Settings of hypothesis and of terminals, the same on every machine, and what several folders use."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# What terminals and CI services set, and what makes typer and rich colour their help or fold it at 80 columns.
OF_TERMINALS = (
    *("CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "PY_COLORS"),
    *("TERMINAL_WIDTH", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "_TYPER_FORCE_DISABLE_TERMINAL"),
)
for name in OF_TERMINALS:
    os.environ.pop(name, None)

settings.register_profile("any machine", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in what a shell without job control starts with &
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which programs started from here have by default, too


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
