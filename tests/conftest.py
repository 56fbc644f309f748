"""Settings of hypothesis: an example may take as long as a busy machine makes it take. And what several folders use."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("any machine", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in what a shell without job control starts with &
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which programs started from here have by default, too


@pytest.fixture(scope="session")
def _skip_without_network() -> None:
    """Skip where no network can be emulated; see tests/box/networks.py."""
    from tests.box.networks import why_not

    if reason := why_not():
        pytest.skip(reason)
