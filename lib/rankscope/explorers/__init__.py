"""Explorers: move a slider, see the prediction change; widgets over pure functions."""

from __future__ import annotations

from ..box.explorers.boxes import boxes
from ..box.explorers.machine import machine
from ..box.explorers.nccl import nccl
from ..box.explorers.transfers import transfers
from ..train.explorers.data_parallel import data_parallel
from ..train.explorers.ddp import ddp
from ..train.explorers.pipeline_parallel import pipeline_parallel
from ..train.explorers.uneven import uneven
from ..train.explorers.zero import zero
from .allreduce import allreduce
from .catalogue import gallery
from .parts import parts
from .pipeline import pipeline
from .player import player
from .samplers import samplers

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
