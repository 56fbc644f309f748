"""The reader of NCCL's log: its table of latencies and bandwidths, its paths, ranks, nodes and version."""

from __future__ import annotations

import os
import re
from typing import Any

from ...common.files import FileError, read_bytes
from .constants import COLLECTIVES, GPUS, PROTOCOLS, Graph

_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
# By NCCL's names in lower case, such as nvlstree and reducescatter.
_NAMES = {name.replace("_", ""): name for name in (*_ALGORITHMS, *COLLECTIVES)}
_FIGURES = re.compile(r"([\d.]+)/ *([\d.]+)")  # a cell of the table: latency/bandwidth
_GRAPH = re.compile(r"(\d), crossNic \d, nChannels (\d+), bw ([\d.]+)/([\d.]+)")  # follows the word Pattern
_SIZE = re.compile(r"n[Rr]anks (\d+) nNodes (\d+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
# NCCL states the pattern of a graph as a digit. These are the algorithms that use each.
_PATTERNS = {"1": "tree", "2": "tree", "3": "tree", "4": "ring", "5": "nvls"}
_SPLIT_TREES = ("1", "2")  # patterns of trees that are balanced or split between GPUs


def _printed(text: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return the first table of latencies [µs] and bandwidths [GB/s], by collective, algorithm and protocol.

    NCCL prints one for each communicator; the first belongs to the ranks and paths that are read, the first as well.
    Its header names the algorithms. Each row is a collective, with a cell for each algorithm and protocol.
    """
    printed: dict[tuple[str, str, str], tuple[float, float]] = {}
    pairs: list[tuple[str, str]] = []
    for line in text.splitlines():
        row = line.rpartition("NCCL INFO")[2]  # without the host and process in front
        head = row.partition("|")[0].strip().lower()
        cells = row.partition("|")[2]
        if head == "algorithm":
            words = [_NAMES.get(cell.strip().lower()) for cell in cells.split("|")]
            pairs = [(algorithm, protocol) for algorithm in words if algorithm for protocol in PROTOCOLS]
        collective = _NAMES.get(head)
        figures = _FIGURES.findall(cells)
        if collective in COLLECTIVES and len(figures) == len(pairs):
            for pair, (latency, bandwidth) in zip(pairs, figures, strict=True):
                printed.setdefault((collective, *pair), (float(latency), float(bandwidth)))
    return printed


def _printed_graphs(text: str) -> dict[str, Graph]:
    """Return the paths of each algorithm, from the first line that states them.

    Skip lines with another pattern, and lines without channels or bandwidth, which a `Graph` must have.
    """
    graphs: dict[str, Graph] = {}
    for statement in text.split("Pattern ")[1:]:  # lines of several ranks may have run into one
        fields = _GRAPH.match(statement)
        if fields is None or fields[1] not in _PATTERNS:
            continue
        figures = [float(figure) for figure in fields.groups()[1:]]  # channels, and rates within and between nodes
        if all(figures):
            is_plain_tree = fields[1] not in _SPLIT_TREES
            same_channels = "sameChannels 0" not in statement.partition("\n")[0]
            graph = Graph(int(figures[0]), figures[1], figures[2], is_plain_tree, same_channels)
            graphs.setdefault(_PATTERNS[fields[1]], graph)
    return graphs


def read_log(path: str | os.PathLike[str], gpu: str | None) -> dict[str, Any]:
    """Parse a log and return the arguments of `Model` that it states, always with a `gpu`.

    `gpu` is the user's, which overrides the log. Raises FileError, a ValueError, if the log has no tuning table, or if
    `gpu` is None and the log does not name exactly one GPU of GPUS.
    """
    text = read_bytes(path).decode("utf-8", "replace")
    fields: dict[str, Any] = {"printed": _printed(text), "graphs": _printed_graphs(text)}
    if not fields["printed"]:
        wanted = "run the job with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING to print it"
        raise FileError(path, f"it has no table of latencies and bandwidths; {wanted}")
    size = _SIZE.search(text)
    if size:
        fields["num_nodes"] = int(size[2])
        fields["gpus_per_node"] = int(size[1]) // max(int(size[2]), 1)  # `Model` refuses 0 nodes
    version = _VERSION.search(text)
    if version:
        fields["version"] = version[1]
    names = [name for name in GPUS if re.search(rf"\b{name.replace('_', ' ')}\b", text, re.IGNORECASE)]
    if gpu is None and len(names) != 1:
        raise FileError(path, f"gpu must be given, because it names {' and '.join(names) or 'no known GPU'}")
    return {**fields, "gpu": gpu or names[0]}
