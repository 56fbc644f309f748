"""Helpers of the notebooks: a transformer's step, and scripts that run in a process of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy import lazy

if TYPE_CHECKING:
    from .scripts import run_python
    from .steps import transformer

__all__ = ["run_python", "transformer"]

__getattr__, __dir__ = lazy(
    __name__,
    {"run_python": "scripts", "transformer": "steps"},
    submodules=["exercises"],
)
