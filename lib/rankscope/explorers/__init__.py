"""Explorers: move a slider, see the prediction change. One per notebook; widgets over pure functions."""

from __future__ import annotations

from .allreduce import allreduce
from .ddp import ddp
from .gallery import gallery
from .machine import machine
from .parts import parts
from .pipeline import pipeline
from .samplers import samplers
from .transfers import transfers
from .zero import zero

__all__ = ["allreduce", "ddp", "gallery", "machine", "parts", "pipeline", "samplers", "transfers", "zero"]
