"""What this machine does: measured, kept as a `Profile`, fitted, predicted, judged in words, compared with another."""

from __future__ import annotations

from ..values.lazy import lazy
from .claims import claims
from .compare import compare
from .fit import fit_link
from .link_facts import facts_of, pcie_bytes_per_s, recorded_transfers, stated
from .measuring.plan import Protocol
from .measuring.run import Emulation, measure
from .profile import Point, Profile
from .verdict import verdict

__all__ = [
    "Emulation",
    "Point",
    "Profile",
    "Protocol",
    "claims",
    "compare",
    "facts_of",
    "fit_link",
    "measure",
    "measure_traps",
    "pcie_bytes_per_s",
    "recorded_transfers",
    "stated",
    "verdict",
]
__getattr__, __dir__ = lazy(__name__, {"measure_traps": "measuring.experiments"})
