"""Pipeline parallelism: schedules written down, verified, simulated and run on real ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...common.extras import naming_extra
from .model import simulate, simulated_bubble, traffic
from .schedule import PipelineError, PipelineSchedule, bubble_share, build, verify

if TYPE_CHECKING:
    from .run import make_model, measure

__all__ = [
    "PipelineError",
    "PipelineSchedule",
    "bubble_share",
    "build",
    "make_model",
    "measure",
    "simulate",
    "simulated_bubble",
    "traffic",
    "verify",
]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name in ("make_model", "measure"):
        from . import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
