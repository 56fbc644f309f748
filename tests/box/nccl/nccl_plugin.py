"""What NCCL's example tuner plug-in does with its file, written anew from its rules.

Source: NVIDIA/nccl, ext-tuner/example/plugin.c (2.27 and 2.28), later plugins/tuner/example/plugin.c and plugin.cc:
loadConfig, parseCollType, parseAlgorithm, parseProtocol and pluginGetCollInfo.
"""

from __future__ import annotations

import re
from typing import NamedTuple

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
LINE_BYTES = 255  # a longer line is read in pieces, each as a line of its own
LEAST_FIELDS, MOST_FIELDS = 8, 10
ANY = -1


class Rule(NamedTuple):
    """A line of the file, as the plug-in understands it."""

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int
    num_nodes: int
    num_ranks: int
    num_pipe_ops: int
    has_registered_buffers: int

    def matches(
        self, collective: str, num_bytes: int, num_nodes: int, num_ranks: int, pipe_ops: int, buff: int
    ) -> bool:
        return (
            self.collective == collective
            and self.min_bytes <= num_bytes <= self.max_bytes
            and self.num_nodes in (ANY, num_nodes)
            and self.num_ranks in (ANY, num_ranks)
            and self.num_pipe_ops in (ANY, pipe_ops)
            and self.has_registered_buffers in (ANY, buff)
        )


def _number(text: str) -> int:
    """The number at the beginning of a text, as atoi reads it; 0 without one."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return int(found[1]) if found else 0


def _known(text: str, words: tuple[str, ...], otherwise: str) -> str:
    return text if text in words else otherwise


def rules(text: str) -> list[Rule]:
    """Return the rules of a file in their order; what is no rule is passed over in silence."""
    pieces = [
        line[start : start + LINE_BYTES]
        for line in text.splitlines()
        for start in range(0, max(len(line), 1), LINE_BYTES)
    ]
    found = []
    for piece in pieces:
        if not piece or piece.startswith("#"):
            continue
        fields = [field.strip(" \t") for field in piece.split(",")]
        if not LEAST_FIELDS <= len(fields) <= MOST_FIELDS:
            continue
        optional = [_number(field) for field in fields[LEAST_FIELDS:]]
        pipe_ops, buff = [*optional, ANY, ANY][:2]
        found.append(
            Rule(
                _known(fields[0], COLLECTIVES, "allreduce"),
                _number(fields[1]),
                _number(fields[2]),
                _known(fields[3], ALGORITHMS, "ring"),
                _known(fields[4], PROTOCOLS, "simple"),
                *map(_number, fields[5:8]),
                pipe_ops,
                buff,
            )
        )
    return found


class Steered(NamedTuple):
    """What the plug-in tells NCCL: whether a choice was made, and how many channels at most; 0 leaves them to NCCL."""

    algorithm: str
    protocol: str
    channels: int


def steered(
    text: str, collective: str, num_bytes: int, num_nodes: int, num_ranks: int, pipe_ops: int = 1, buff: int = 0
) -> Steered:
    """Return what the plug-in makes of a collective: the first rule that matches wins."""
    for rule in rules(text):
        if rule.matches(collective, num_bytes, num_nodes, num_ranks, pipe_ops, buff):
            return Steered(rule.algorithm, rule.protocol, 1 if rule.channels == ANY else rule.channels)
    return Steered("", "", 1)
