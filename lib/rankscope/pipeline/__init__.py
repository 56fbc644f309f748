"""How a batch arrives: stages, queues and workers, predicted and executed on one timeline.

What needs torch is imported when it is first used; everything else is numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .advice import advise
from .closest import closest
from .cores import Cores
from .loader_model import Handover, simulate_dataloader
from .run import StageError, run
from .service import Lognormal
from .simulate import simulate
from .stages import Pipeline, Stage
from .stored_images import StoredImages

if TYPE_CHECKING:
    from .dataloader import record_dataloader

__all__ = [
    "Cores",
    "Handover",
    "Lognormal",
    "Pipeline",
    "Stage",
    "StageError",
    "StoredImages",
    "advise",
    "closest",
    "record_dataloader",
    "run",
    "simulate",
    "simulate_dataloader",
]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name == "record_dataloader":
        from .dataloader import record_dataloader

        return record_dataloader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
