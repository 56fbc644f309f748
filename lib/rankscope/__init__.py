"""A scope on what each rank of a data-parallel training job does.

Which samples it reads, how its batches arrive, how its gradients are combined, and what a step costs: predicted by a
model, executed for real, and shown side by side. Each package is imported by its own name, as in
``from rankscope.sampling import assign``; importing this package alone loads none of them.
`rankscope.watch` is `rankscope.diagnose.watch`, loaded when it is first used, if `diagnose` is installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "watch" or not _has_diagnose():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.diagnose"), name)


def __dir__() -> list[str]:
    names = set(globals())
    if _has_diagnose():
        names.add("watch")
    return sorted(names)


def _has_diagnose() -> bool:
    spec = find_spec(f"{__name__}.diagnose")
    return spec is not None and spec.origin is not None  # a folder without files is a namespace, and has no origin
