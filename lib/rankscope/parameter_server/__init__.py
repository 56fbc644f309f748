"""Workers that update one set of parameters, predicted and real: around a server, in a ring, in shared memory.

Also what it costs to pass a tensor to another process, and what memory that several write can lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..values.lazy import lazy
from .model import port_bytes, simulate

if TYPE_CHECKING:
    from .run import measure_calls, train
    from .sharing import count_together, measure_passing

__all__ = ["count_together", "measure_calls", "measure_passing", "port_bytes", "simulate", "train"]

__getattr__, __dir__ = lazy(
    __name__,
    {"count_together": "sharing", "measure_calls": "run", "measure_passing": "sharing", "train": "run"},
)
