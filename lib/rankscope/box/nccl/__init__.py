"""NCCL's own model of what it runs: which algorithm and protocol it chooses, what it expects, what machines take."""

from __future__ import annotations

from .constants import GPUS, Graph
from .model import Model
from .topology import read_topology

__all__ = ["GPUS", "Graph", "Model", "read_topology"]
