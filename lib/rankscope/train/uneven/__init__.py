"""Ranks that run out of batches at different times: predicted, and run for real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...common.extras import naming_extra
from .model import files_epoch, predict, simulate

if TYPE_CHECKING:
    from .run import measure

__all__ = ["files_epoch", "measure", "predict", "simulate"]


@naming_extra()
def __getattr__(name: str) -> Any:
    if name == "measure":
        from .run import measure

        return measure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
