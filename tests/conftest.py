"""Settings of hypothesis: an example may take as long as a busy machine makes it take."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
