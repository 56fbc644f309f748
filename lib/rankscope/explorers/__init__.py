"""Explorers: panels with controls, drawings and a report, which are pure functions of the settings.

Each explorer of `EXPLORERS` is a function, like ``samplers(num_ranks=8)``, that opens its panel.
"""

from __future__ import annotations

from typing import Any

from .entries import EXPLORERS, opener
from .entries import gallery as gallery

__all__ = ["gallery", *EXPLORERS]


def __getattr__(name: str) -> Any:
    if name in EXPLORERS:
        return opener(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
