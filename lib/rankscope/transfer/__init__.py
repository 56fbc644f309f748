"""How batches reach the device: prefetched while it computes, or copied in turn.

Modules that need torch are imported on first use; the models need only numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy
from .model import overlap_share, simulate

if TYPE_CHECKING:
    from .prefetch import prefetched

__all__ = [
    "overlap_share",
    "prefetched",
    "simulate",
]

__getattr__, __dir__ = lazy(__name__, {"prefetched": "prefetch"})
