"""A scope on what each rank of a data-parallel training job does.

Which samples it reads, how its batches arrive, how its gradients are combined, and what a step costs: predicted by a
model, executed for real, and shown side by side. A package is imported when it is first used, as in
``rankscope.sampling.assign`` or ``from rankscope.sampling import assign``. `rankscope.watch` is
`rankscope.diagnose.watch`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "box",
    "cluster",
    "collectives",
    "diagnose",
    "explorers",
    "figures",
    "pipeline",
    "ranks",
    "sampling",
    "timeline",
    "train",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name == "watch":
        return import_module(f"{__name__}.diagnose").watch
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
