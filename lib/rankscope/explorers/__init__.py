"""Explorers: panels with sliders, pictures and a report, which are pure functions of the settings.

Each explorer of the catalogue is an attribute, like `explorers.samplers`; it is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

from ..common.extensions import left_out_reasons
from .entries import catalogue
from .entries import gallery as gallery


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__all__":  # Python itself asks for some, also while the catalogue is imported
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    shown = {entry.name: entry.show for entry in catalogue()}
    if name == "__all__":
        return sorted(["gallery", *shown])
    if name not in shown:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_why_left_out(name)}")
    return shown[name]


def _why_left_out(name: str) -> str:
    """The package that the module of this explorer needs, if it was left out for that; else nothing."""
    for module, reason in left_out_reasons().items():
        if module.rpartition(".")[2] == name:
            return f": {reason}"
    return ""


def __dir__() -> list[str]:
    return sorted({*globals(), *[entry.name for entry in catalogue()]})
