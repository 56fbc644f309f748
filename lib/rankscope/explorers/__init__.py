"""Explorers: move a slider, see the prediction change; widgets over pure functions."""

from __future__ import annotations

from .allreduce import allreduce
from .boxes import boxes
from .catalogue import gallery
from .data_parallel import data_parallel
from .ddp import ddp
from .machine import machine
from .nccl import nccl
from .parts import parts
from .pipeline import pipeline
from .pipeline_parallel import pipeline_parallel
from .player import player
from .samplers import samplers
from .transfers import transfers
from .uneven import uneven
from .zero import zero

__all__ = [
    "allreduce",
    "boxes",
    "data_parallel",
    "ddp",
    "gallery",
    "machine",
    "nccl",
    "parts",
    "pipeline",
    "pipeline_parallel",
    "player",
    "samplers",
    "transfers",
    "uneven",
    "zero",
]
