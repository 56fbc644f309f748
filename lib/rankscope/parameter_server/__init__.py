"""Workers around a parameter server, predicted and real; what it costs to pass a tensor on; Hogwild."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .model import allreduce_bytes, server_bytes, simulate

if TYPE_CHECKING:
    from .hogwild import count_together, train_hogwild
    from .run import measure_calls, train, train_alone
    from .sharing import measure_passing

__all__ = [
    "allreduce_bytes",
    "count_together",
    "measure_calls",
    "measure_passing",
    "server_bytes",
    "simulate",
    "train",
    "train_alone",
    "train_hogwild",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "count_together": "hogwild",
        "measure_calls": "run",
        "measure_passing": "sharing",
        "train": "run",
        "train_alone": "run",
        "train_hogwild": "hogwild",
    },
)
