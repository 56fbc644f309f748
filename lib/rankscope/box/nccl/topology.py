"""`read_topology`: what connects the GPUs and network cards of a machine, from NCCL's XML or ``nvidia-smi topo -m``."""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import combinations
from xml.etree.ElementTree import Element, ParseError, fromstring

import msgspec

from ...common.files import FileError, read_bytes
from ...common.words import and_joined, count_of, listed
from ...provenance import topology as without_legend

WAYS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")  # the words of topo -m, from the shortest way to the longest
_DIRECT = ("NV", "PIX", "PXB")  # by default, NCCL uses GPUDirect over no other way (src/graph/paths.cc)
_ROW = re.compile(r"GPU\d+((?:\s+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)\b)+)")
# Beginnings of PCI classes.
_GPU = "0x03"
_CARD = "0x02"
_NVSWITCH = "0x0680"
_LEAST_NIC_MBIT = 25000  # slower cards are of a control network
_MBIT_PER_GB = 8000


class Topology(msgspec.Struct, frozen=True):
    """How each GPU reaches the other GPUs and then the network cards: a word of topo -m, "X" for itself.

    `ways` has a row for each GPU. `nic_gb_per_s` is None if the file does not state what a card carries.
    """

    ways: list[list[str]]
    nics: list[str]
    nic_gb_per_s: float | None = None


def kind_of(way: str) -> str:
    """Return a way without the number of its NVLinks: one of `WAYS`, or X."""
    return way.rstrip("0123456789")


def read_topology(path: str | os.PathLike[str]) -> Topology:
    """Parse the file that NCCL_TOPO_DUMP_FILE names, or the output of ``nvidia-smi topo -m``.

    Raises ValueError if the file is neither of these; OSError if it cannot be opened.
    """
    text = read_bytes(path).decode("utf-8-sig", "replace")
    try:
        return _of_xml(text) if text.lstrip().startswith("<") else _of_matrix(text)
    except (ValueError, LookupError, ParseError) as error:
        raise FileError(
            path, f"it is neither NCCL's topology XML nor a table of nvidia-smi topo -m: {error}"
        ) from error


def _of_matrix(text: str) -> Topology:
    """Parse a table with a row and a column per GPU, and a column per network card."""
    table = without_legend(text).replace("|", " ").replace("SOC", "SYS")  # SOC until 2018
    header = next((line for line in table.splitlines() if "GPU0" in line), "")
    names = header[header.find("GPU0") :].partition("CPU")[0].split()
    num_gpus = sum(name.startswith("GPU") for name in names)
    ways = [row.split() for row in _ROW.findall(table)][:num_gpus]  # another table may follow
    num_columns = [len(row) for row in ways]
    if not ways or num_columns != [len(names)] * num_gpus:
        raise ValueError(f"its header has {num_gpus} GPUs and {len(names)} columns, and its rows of GPUs {num_columns}")
    return Topology(ways, names[num_gpus:])


def _of_xml(text: str) -> Topology:
    """Parse nested tags of the system, its CPUs, PCIe bridges and devices, and their NVLinks."""
    system = fromstring(text.lower())
    outer = {inner: tag for tag in system.iter() for inner in tag}

    def around(device: Element) -> list[Element]:
        """Return the tags around a device, the outermost first."""
        tags = [outer[device]]
        while tags[0] in outer:
            tags.insert(0, outer[tags[0]])
        return tags

    gpus = [tag for tag in outer if tag.get("class", "").startswith(_GPU)]
    # A network card is a port that is fast enough, or a PCI device whose ports the file does not state.
    ports = [tag for tag in outer if int(tag.get("speed", 0)) >= _LEAST_NIC_MBIT]
    cards = {}  # with what stands in a bridge or in a CPU
    for port in ports:
        cards[port] = outer[port]
        if outer[outer[port]].tag == "pci":
            cards[port] = outer[outer[port]]
    cards |= {tag: tag for tag in outer if tag.get("class", "").startswith(_CARD) and tag.find(".//net") is None}
    if not gpus:
        raise ValueError("it has no GPU")
    nvlinks = Counter[tuple[str | None, str | None]]()  # from a GPU to another one or to the switches
    for gpu in gpus:
        for link in gpu.iter("nvlink"):
            target = link.get("target")
            if link.get("tclass", "").startswith(_NVSWITCH):
                target = _NVSWITCH
            nvlinks[gpu.get("busid"), target] += int(link.get("count", 0))

    def way(gpu: Element, other: Element) -> str:
        if gpu is other:
            return "X"
        one = gpu.get("busid")
        two = other.get("busid")
        num_nvlinks = nvlinks[one, two] or min(nvlinks[one, _NVSWITCH], nvlinks[two, _NVSWITCH])
        if num_nvlinks:
            return f"NV{num_nvlinks}"
        shared = [tag for tag, theirs in zip(around(gpu), around(other), strict=False) if tag is theirs]
        if shared[-1].tag == "pci":
            return "PIX" if outer[gpu] is outer[other] else "PXB"
        return "PHB" if shared[-1].tag == "cpu" else "SYS"

    return Topology(
        ways=[[way(gpu, other) for other in (*gpus, *cards.values())] for gpu in gpus],
        nics=[card.get("name", card.get("busid", "")) for card in cards],
        nic_gb_per_s=min([int(port.get("speed", 0)) / _MBIT_PER_GB for port in ports], default=None),
    )


def explained(box: Topology) -> list[str]:
    """Return what connects the devices of a box, and what NCCL does by default, in a few sentences."""
    num_gpus = len(box.ways)
    gpus = range(num_gpus)
    pairs = Counter([box.ways[one][other] for one, other in combinations(gpus, 2)])
    counts = [f"{count_of(number, 'pair')} {way}" for way, number in pairs.items()]
    lines = [", ".join([count_of(num_gpus, "GPU"), *counts])]
    for what, kinds in (("NVLink connects", ("X", "NV")), ("Only SYS leads between", ("X", *WAYS[:-1]))):
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
