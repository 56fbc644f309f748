"""The performance of a machine: measure it, store it as a `Profile`, fit, predict, explain and compare it."""

from __future__ import annotations

from .bank import bank
from .fit import fit_link
from .link_facts import facts_of, pcie_bytes_per_s, recorded, stated
from .logs import read_log
from .measuring.plan import Protocol
from .measuring.run import measure
from .profile import Profile
from .verdict import verdict

__all__ = [
    "Profile",
    "Protocol",
    "bank",
    "facts_of",
    "fit_link",
    "measure",
    "pcie_bytes_per_s",
    "read_log",
    "recorded",
    "stated",
    "verdict",
]
