"""The performance of a machine: measure it, store it as a `Profile`, fit, predict, explain and compare it."""

from __future__ import annotations

from ..values.lazy import lazy
from .bank import bank
from .claims import claims
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
    "claims",
    "facts_of",
    "fit_link",
    "measure",
    "measure_traps",
    "pcie_bytes_per_s",
    "read_log",
    "recorded",
    "stated",
    "verdict",
]
__getattr__, __dir__ = lazy(__name__, {"measure_traps": "measuring.transfers"})
