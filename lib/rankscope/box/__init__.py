"""The performance of a machine: measure it, store it as a `Profile`, fit, predict, explain and compare it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .fit import fit_link
    from .link_facts import facts_of, recorded, stated
    from .logs import read_log
    from .machines import bank
    from .measuring.plan import Protocol
    from .measuring.run import measure
    from .pcie import pcie_bytes_per_s
    from .profile import Profile
    from .sentences import verdict

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Profile": "profile",
        "Protocol": "measuring.plan",
        "bank": "machines",
        "facts_of": "link_facts",
        "fit_link": "fit",
        "measure": "measuring.run",
        "pcie_bytes_per_s": "pcie",
        "read_log": "logs",
        "recorded": "link_facts",
        "stated": "link_facts",
        "verdict": "sentences",
    },
    submodules=["nccl"],
)
