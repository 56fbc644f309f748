"""The performance of a machine: measure it, store it as a `Profile`, fit, predict, explain and compare it."""

from __future__ import annotations

from . import nccl
from .fit import fit_link
from .judging.verdict import verdict
from .logs import read_log
from .machines import bank
from .measuring.plan import Protocol
from .measuring.run import measure
from .pcie import pcie_bytes_per_s
from .profile import Profile
from .transfers.link_facts import stated

__all__ = [
    "Profile",
    "Protocol",
    "bank",
    "fit_link",
    "measure",
    "nccl",
    "pcie_bytes_per_s",
    "read_log",
    "stated",
    "verdict",
]


def __dir__() -> list[str]:
    return __all__
