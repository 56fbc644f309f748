"""An audit of a training step's gradients on real ranks (`audit`), and the causes of a difference."""

from __future__ import annotations

from ..work import Work
from .audit import audit_step, differing

__all__ = ["Work", "audit_step", "differing"]


def __dir__() -> list[str]:
    return __all__
