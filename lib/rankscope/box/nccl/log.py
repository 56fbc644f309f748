"""The reader of NCCL's log: its table of latencies and bandwidths, its paths, ranks, nodes and version."""

from __future__ import annotations

import os
import re
from typing import Any

from ...common.checks import one_line
from ...common.storage import StorageError, read_bytes
from .constants import ALGORITHMS, COLLECTIVES, GPUS, PROTOCOLS, Graph

_MOST_LOG_BYTES = 1 << 26
_LOG_NAMES = {
    **dict(zip(("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"), ALGORITHMS, strict=True)),
    **dict(zip(("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"), COLLECTIVES, strict=True)),
}
_FIGURES = re.compile(r"^\s*[\d.]+/\s*[\d.]+\s*$")  # a cell of the table: latency/bandwidth
_GRAPH = re.compile(r"^(\d), crossNic \d, nChannels (\d+), bw ([\d.]+)/([\d.]+)")  # behind the word Pattern
_SAME_CHANNELS = re.compile(r"sameChannels (\d)")
_SIZE = re.compile(r"n[Rr]anks (\d+) nNodes (\d+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_GPU_NAMES = {name: re.compile(rf"\b{name.replace('_', ' ')}\b", re.IGNORECASE) for name in GPUS}
_PATTERNS = {"1": "tree", "2": "tree", "3": "tree", "4": "ring", "5": "nvls"}


def _printed(text: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """The first table of latencies [µs] and bandwidths [GB/s] in a log, by collective, algorithm and protocol."""
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    algorithms: list[str] = []
    for line in text.splitlines():
        if "|" not in line:
            continue
        head, *cells = line.split("NCCL INFO")[-1].split("|")
        if head.strip() == "Algorithm":
            algorithms = [_LOG_NAMES[cell.strip()] for cell in cells if cell.strip() in _LOG_NAMES]
        collective = _LOG_NAMES.get(head.strip())
        figures = [cell.split("/") for cell in cells if _FIGURES.search(cell)]
        if collective in COLLECTIVES and len(figures) == 3 * len(algorithms):
            pairs = [(algorithm, protocol) for algorithm in algorithms for protocol in PROTOCOLS]
            for pair, (latency, rate) in zip(pairs, figures, strict=True):
                found.setdefault((collective, *pair), (float(latency), float(rate)))
    return found


def _printed_graphs(text: str) -> dict[str, Graph]:
    """Return the paths of each algorithm, from the first line that states them."""
    found: dict[str, Graph] = {}
    for line in text.splitlines():
        for stated in line.split("Pattern ")[1:]:
            graph = _GRAPH.search(stated)
            if graph is None:
                continue
            kind, channels, intra, inter = graph.groups()
            if kind not in _PATTERNS or not (int(channels) and float(intra) and float(inter)):
                continue
            same = _SAME_CHANNELS.search(stated)
            has_same_channels = same is None or same[1] != "0"
            is_plain_tree = kind not in "12"
            graph_of = Graph(int(channels), float(intra), float(inter), is_plain_tree, has_same_channels)
            found.setdefault(_PATTERNS[kind], graph_of)
    return found


def read_log(path: str | os.PathLike[str], gpu: str | None) -> dict[str, Any]:
    """Return what a log says of the fields of `Model`; ValueError for one without a table or without a GPU."""
    try:
        text = read_bytes(path, _MOST_LOG_BYTES).decode("utf-8", "replace")
    except ValueError as error:
        raise StorageError(path, str(error)) from error
    printed = _printed(text)
    if not printed:
        wanted = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING print it"
        raise ValueError(one_line(f"{os.fspath(path)} has no table of latencies and bandwidths; {wanted}"))
    found: dict[str, Any] = {"printed": printed, "graphs": _printed_graphs(text)}
    size, version = _SIZE.search(text), _VERSION.search(text)
    if size:
        ranks, nodes = map(int, size.groups())
        found |= {"num_nodes": nodes, "gpus_per_node": max(ranks // max(nodes, 1), 1)}
    if version:
        found["version"] = version[1]
    names = [name for name, pattern in _GPU_NAMES.items() if pattern.search(text)]
    if gpu is None and len(names) != 1:
        raise ValueError(one_line(f"gpu must be given, {os.fspath(path)} names {' and '.join(names) or 'none'}"))
    return found | {"gpu": gpu or names[0]}
