"""NCCL's cost model: the algorithm and protocol that it chooses, the time that it expects, and our estimate."""

from __future__ import annotations

from .constants import GPUS, Graph
from .model import Model
from .topology import Topology, read_topology

__all__ = ["GPUS", "Graph", "Model", "Topology", "read_topology"]


def __dir__() -> list[str]:
    return __all__
