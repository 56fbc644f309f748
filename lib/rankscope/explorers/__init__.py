"""Explorers: panels with sliders, pictures and a report, which are pure functions of the settings.

Each explorer of `EXPLORERS` is an attribute, like `explorers.samplers`; it is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

from .entries import EXPLORERS
from .entries import gallery as gallery

__all__ = ["gallery", *EXPLORERS]


def __getattr__(name: str) -> Any:
    if name in EXPLORERS:
        return EXPLORERS[name].show
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
