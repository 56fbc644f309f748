"""The reader of NCCL's log: its table of latencies and bandwidths, its paths, ranks, nodes and version."""

from __future__ import annotations

import os
import re
from typing import Any

from ...common.files import read_bytes
from ...common.words import one_line
from .constants import COLLECTIVES, GPUS, PROTOCOLS, Graph

_LOG_NAMES = {
    "Tree": "tree",
    "Ring": "ring",
    "CollNetDirect": "collnet_direct",
    "CollNetChain": "collnet_chain",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "allgather",
    "ReduceScatter": "reduce_scatter",
    "AllReduce": "allreduce",
}
_FIGURES = re.compile(r"^\s*[\d.]+/\s*[\d.]+\s*$")  # a cell of the table: latency/bandwidth
_GRAPH = re.compile(r"^(\d), crossNic \d, nChannels (\d+), bw ([\d.]+)/([\d.]+)")  # follows the word Pattern
_SAME_CHANNELS = re.compile(r"sameChannels (\d)")
_SIZE = re.compile(r"n[Rr]anks (\d+) nNodes (\d+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_GPU_NAMES = {name: re.compile(rf"\b{name.replace('_', ' ')}\b", re.IGNORECASE) for name in GPUS}
# NCCL states the pattern of a graph as a digit. These are the algorithms that use each.
_PATTERNS = {"1": "tree", "2": "tree", "3": "tree", "4": "ring", "5": "nvls"}
_SPLIT_TREES = ("1", "2")  # patterns of trees that are balanced or split between GPUs


def _printed(text: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return the first table of latencies [µs] and bandwidths [GB/s], by collective, algorithm and protocol.

    NCCL prints one for each communicator; the first belongs to the ranks and paths that are read, the first as well.
    Its header names the algorithms. Each row is a collective, with a cell for each algorithm and protocol.
    """
    printed: dict[tuple[str, str, str], tuple[float, float]] = {}
    algorithms: list[str] = []
    for line in text.splitlines():
        if "|" not in line:
            continue
        row = line.split("NCCL INFO")[-1]  # without the host and process in front
        head, *cells = row.split("|")
        if head.strip() == "Algorithm":
            algorithms = [_LOG_NAMES[cell.strip()] for cell in cells if cell.strip() in _LOG_NAMES]
        collective = _LOG_NAMES.get(head.strip())
        figures = [cell.split("/") for cell in cells if _FIGURES.search(cell)]
        pairs = [(algorithm, protocol) for algorithm in algorithms for protocol in PROTOCOLS]
        if collective not in COLLECTIVES or len(figures) != len(pairs):  # a header, or a line of something else
            continue
        for (algorithm, protocol), (latency, bandwidth) in zip(pairs, figures, strict=True):
            printed.setdefault((collective, algorithm, protocol), (float(latency), float(bandwidth)))
    return printed


def _printed_graphs(text: str) -> dict[str, Graph]:
    """Return the paths of each algorithm, from the first line that states them.

    Skip lines with another pattern, and lines without channels or bandwidth, which a `Graph` must have.
    """
    graphs: dict[str, Graph] = {}
    # Ranks write to one stream, so that lines of several may have run into one.
    statements = [statement for line in text.splitlines() for statement in line.split("Pattern ")[1:]]
    for statement in statements:
        fields = _GRAPH.search(statement)
        if fields is None:
            continue
        pattern, num_channels, intra, inter = fields.groups()
        if pattern not in _PATTERNS:
            continue
        has_paths = int(num_channels) > 0 and float(intra) > 0 and float(inter) > 0
        if not has_paths:
            continue
        same_channels = _SAME_CHANNELS.search(statement)
        graph = Graph(
            num_channels=int(num_channels),
            intra=float(intra),
            inter=float(inter),
            is_plain_tree=pattern not in _SPLIT_TREES,
            same_channels=same_channels is None or same_channels[1] != "0",  # None if the line is cut off before it
        )
        graphs.setdefault(_PATTERNS[pattern], graph)
    return graphs


def read_log(path: str | os.PathLike[str], gpu: str | None) -> dict[str, Any]:
    """Parse a log and return the arguments of `Model` that it states, always with a `gpu`.

    `gpu` is the user's, which overrides the log. Raises ValueError if the log has no tuning table, or if `gpu` is None
    and the log does not name exactly one GPU of GPUS.
    """
    text = read_bytes(path).decode("utf-8", "replace")
    printed = _printed(text)
    if not printed:
        wanted = "run the job with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING to print it"
        raise ValueError(one_line(f"{os.fspath(path)} has no table of latencies and bandwidths; {wanted}"))
    fields: dict[str, Any] = {"printed": printed, "graphs": _printed_graphs(text)}
    size = _SIZE.search(text)
    if size:
        num_ranks = int(size[1])
        num_nodes = int(size[2])
        fields["num_nodes"] = num_nodes
        fields["gpus_per_node"] = num_ranks // max(num_nodes, 1)  # 0 nodes, in a damaged log, are for `Model` to refuse
    version = _VERSION.search(text)
    if version:
        fields["version"] = version[1]
    names = [name for name, pattern in _GPU_NAMES.items() if pattern.search(text)]
    if gpu is None and len(names) != 1:
        stated = f"{os.fspath(path)} names {' and '.join(names) or 'no known GPU'}"
        raise ValueError(one_line(f"gpu must be given, because {stated}"))
    fields["gpu"] = names[0] if gpu is None else gpu
    return fields
