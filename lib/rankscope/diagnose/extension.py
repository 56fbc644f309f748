"""What `diagnose` adds to the common tables; see `rankscope.common.extensions`."""

from __future__ import annotations

from ..common.extensions import Extension

EXTENSION = Extension(commands=("rankscope.diagnose.commands",))
