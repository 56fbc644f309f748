"""`read_topology`: what connects the GPUs and network cards of a machine, as ``nvidia-smi topo -m`` prints it."""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import combinations, permutations

import msgspec

from ...common.files import read_bytes, while_reading
from ...common.words import and_joined, count_of, listed, printable

MEANINGS = {  # of the words of topo -m, from the shortest way to the longest
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "PCIe switches",
    "PHB": "a CPU's host bridge",
    "NODE": "host bridges of a CPU",
    "SYS": "from CPU to CPU",
}
WAYS = tuple(MEANINGS)
_DIRECT = ("NV", "PIX", "PXB")  # by default, NCCL uses GPUDirect over no other way (src/graph/paths.cc)
_STYLES = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal, such as underlining
_ROW = re.compile(r"GPU\d+((?:\s+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)\b)+)")


class Topology(msgspec.Struct, frozen=True):
    """How each GPU reaches the other GPUs and then the network cards: a word of topo -m, "X" for itself.

    `ways` has a row for each GPU.
    """

    ways: list[list[str]]
    nics: list[str]

    @property
    def nvlinks(self) -> set[int]:
        """The different numbers of NVLinks from a GPU to another one."""
        ways = [self.ways[one][other] for one, other in permutations(range(len(self.ways)), 2)]
        return {int(way[2:]) if kind_of(way) == "NV" else 0 for way in ways}


def kind_of(way: str) -> str:
    """Return a way without the number of its NVLinks: one of `WAYS`, or X."""
    return way.rstrip("0123456789")


def read_topology(path: str | os.PathLike[str]) -> Topology:
    """Parse the output of ``nvidia-smi topo -m``.

    Raises ValueError if the file has none; OSError if it cannot be opened.
    """
    with while_reading(path, "it is no table of nvidia-smi topo -m"):
        return parsed(read_bytes(path).decode("utf-8-sig", "replace"))


def parsed(text: str) -> Topology:
    """Return the topology of a table with a row and a column per GPU, and a column per network card.

    Raises ValueError if it is none.
    """
    plain = printable(_STYLES.sub("", text), keep="\n\t").partition("\nLegend:")[0]
    table = plain.replace("|", " ").replace("SOC", "SYS")  # SOC until 2018
    header = next((line for line in table.splitlines() if "GPU0" in line), "")
    names = header[header.find("GPU0") :].partition("CPU")[0].split()
    num_gpus = sum(name.startswith("GPU") for name in names)
    ways = [row.split() for row in _ROW.findall(table)][:num_gpus]  # another table may follow
    num_columns = [len(row) for row in ways]
    if not ways or num_columns != [len(names)] * num_gpus:
        raise ValueError(f"its header has {num_gpus} GPUs and {len(names)} columns, and its rows of GPUs {num_columns}")
    return Topology(ways, names[num_gpus:])


def explained(box: Topology) -> list[str]:
    """Return what connects the devices of a box, and what NCCL does by default, in a few sentences."""
    num_gpus = len(box.ways)
    gpus = range(num_gpus)
    pairs = Counter([box.ways[one][other] for one, other in combinations(gpus, 2)])
    counts = [f"{count_of(number, 'pair')} {way}" for way, number in pairs.items()]
    lines = [", ".join([count_of(num_gpus, "GPU"), *counts])]
    for what, kinds in (("NVLink connects", ("X", "NV")), ("Only SYS leads out of each of", ("X", *WAYS[:-1]))):
        groups = {tuple([other for other in gpus if kind_of(box.ways[one][other]) in kinds]) for one in gpus}
        if 1 < len(groups) < num_gpus:
            lines.append(f"{what} {'; '.join(listed('GPU', group) for group in sorted(groups))}.")
    num_indirect = sum(number for way, number in pairs.items() if kind_of(way) not in _DIRECT)
    if num_indirect:
        pairs_words = count_of(num_indirect, "pair")
        lines.append(f"By default, NCCL sends through host memory, or NVLinks of a third GPU, for {pairs_words}.")
    for gpu in gpus:
        ways = box.ways[gpu][num_gpus:]
        nearest = min(ways, key=WAYS.index, default="")
        cards = [name for name, way in zip(box.nics, ways, strict=True) if way == nearest]
        gpu_direct = "" if nearest in _DIRECT else "; without GPUDirect RDMA by default, except on Grace"
        if cards:
            lines.append(f"GPU {gpu}: {nearest} to {and_joined(cards)}{gpu_direct}.")
    return lines
