"""How batches reach the device: prefetched while it computes, or copied in turn.

Modules that need torch are imported on first use; the models need only numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .model import overlap_share, simulate

if TYPE_CHECKING:
    from .prefetch import prefetched

__all__ = [
    "overlap_share",
    "prefetched",
    "simulate",
]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name == "prefetched":
        from .prefetch import prefetched

        return prefetched
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
