"""What this machine does: measured, kept as a `Profile`, fitted, predicted, judged in words, compared with another."""

from __future__ import annotations

from .compare import compare
from .fit import LinkFit, fit_link
from .measure_plan import Protocol
from .measure_run import Emulation, profile_machine
from .points import Point
from .profile import Profile
from .profile_file import ProfileError
from .verdict import verdict

__all__ = [
    "Emulation",
    "LinkFit",
    "Point",
    "Profile",
    "ProfileError",
    "Protocol",
    "compare",
    "fit_link",
    "profile_machine",
    "verdict",
]
