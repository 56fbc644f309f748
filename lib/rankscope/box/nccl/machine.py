"""`Machine`: the GPUs, nodes, network and version of NCCL that a model is of, and the constants that follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from ...common.checks import check_field, number, optional, whole
from .constants import GPUS, VERSIONS, Generation, Gpu, Graph, Row, Terms, Version

_VERSION = re.compile(r"2\.(\d{1,2})(?:\.(\d{1,2}))?")
UNSTATED_PATCH = 99  # of a version without its third number: the latest


def _version(name: str, value: Any) -> tuple[int, int, int]:
    """Return a version of NCCL, a text or numbers, as three numbers."""
    text = value if isinstance(value, str) else ".".join(map(str, value))
    match = _VERSION.fullmatch(text)
    if match is None or int(match[1]) < 19:
        raise ValueError(f"{name} must be from NCCL 2.19 to 2.99, as in (2, 29) or '2.29.2', got {value!r}")
    return 2, int(match[1]), int(match[2] or UNSTATED_PATCH)


class Machine(msgspec.Struct, frozen=True, dict=True, eq=False):
    """The arguments of `Model`, which explains them. Raises ValueError if one is out of range or unknown."""

    gpu: str = "h100"
    gpus_per_node: int = 8
    num_nodes: int = 1
    version: Any = (2, 30)  # a text or numbers, kept as three numbers
    nics: int | None = None
    nic_bytes_per_s: float | None = None
    graphs: Mapping[str, Graph] = {}
    terms: Terms | None = None

    def __post_init__(self) -> None:
        if self.gpu not in GPUS:
            raise ValueError(f"gpu must be one of {', '.join(GPUS)}, got {self.gpu!r}")
        check_field(self, "gpus_per_node", whole, 1, 72)
        check_field(self, "num_nodes", whole, 1, 4096)
        check_field(self, "version", _version)
        check_field(self, "nics", optional, whole, 1, 64)
        check_field(self, "nic_bytes_per_s", optional, number, above=0)
        if self.num_ranks < 2:
            raise ValueError("gpus_per_node must be at least 2 on one node, got 1")

    @property
    def num_ranks(self) -> int:
        return self.gpus_per_node * self.num_nodes

    @property
    def facts(self) -> Gpu:
        """What is known of the GPU."""
        return GPUS[self.gpu]

    @property
    def is_on_nvlink(self) -> bool:
        """Whether NVLink connects the GPUs of a node."""
        return self.facts.link == "nvlink"

    @cached_property
    def rules(self) -> Version:
        """What is particular to the version of NCCL."""
        return next(version for version in VERSIONS if version.since <= self.version)

    @property
    def generation(self) -> Generation:
        """The constants of the GPU's generation in this version of NCCL."""
        return self.rules.generations[self.facts.generation]

    def by_nodes(self, row: Row) -> float:
        """Return the constant of a row that is of one node, two nodes, and more."""
        return row[min(self.num_nodes, 3) - 1]
