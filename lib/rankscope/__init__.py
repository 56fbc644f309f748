"""A scope on what each rank of a data-parallel training job does.

Which samples it reads, how its batches arrive, how its gradients meet the others', and what a step then costs:
predicted by a model, executed for real, and shown side by side. Each room is imported by its own name, as in
``from rankscope.sampling import assign``; importing this package alone loads none of them.
`rankscope.watch` is `rankscope.diagnose.watch`, loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "watch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.diagnose"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), "watch"})
