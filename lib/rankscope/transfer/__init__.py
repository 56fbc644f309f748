"""How batches reach the device: prefetched, prepared there or on workers.

Modules that need torch are imported on first use; the models need only numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy
from .model import overlap_share, preprocess_pipeline, simulate

if TYPE_CHECKING:
    from .prefetch import prefetched
    from .preprocess import preprocessed, random_crops

__all__ = [
    "overlap_share",
    "prefetched",
    "preprocess_pipeline",
    "preprocessed",
    "random_crops",
    "simulate",
]

__getattr__, __dir__ = lazy(
    __name__,
    {"prefetched": "prefetch", "preprocessed": "preprocess", "random_crops": "preprocess"},
)
