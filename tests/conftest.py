"""Settings of hypothesis: an example may take as long as a busy machine makes it take."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in what a shell without job control starts with &
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which programs started from here have by default, too
