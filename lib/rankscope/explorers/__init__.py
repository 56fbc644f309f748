"""Explorers: panels with sliders, pictures and a report, which are pure functions of the settings.

Each explorer of the catalogue is an attribute, like `explorers.samplers`; it is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

from .entries import catalogue
from .entries import gallery as gallery


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":  # Python itself asks for some, also while the catalogue is imported
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    shown = {entry.name: entry.show for entry in catalogue()}
    if name == "__all__":
        return sorted(["gallery", *shown])
    if name not in shown:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return shown[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *[entry.name for entry in catalogue()]})
