"""`read_topology`: a box as NCCL's topology XML or ``nvidia-smi topo -m`` describes it, and its `Cluster`."""

from __future__ import annotations

import os
import re
from typing import Any
from xml.parsers import expat

import attrs
import numpy as np
from numpy.typing import NDArray

from ...cluster import Cluster, Link
from ...common.checks import one_of
from ...common.storage import StorageError, read_bytes
from ..pcie import ARCHITECTURE_GENERATIONS, PCIE, nccl_lane_gb_per_s
from .constants import GPUS, HOP

# GB/s of a link, one way, as NCCL's src/graph/topo.h counts them: by compute capability, generation, CPU.
NVLINKS = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}
CAPABILITIES = {"volta": 70, "ampere": 80, "hopper": 90, "blackwell": 100}
INTEL = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))  # between two sockets, from this model on
SOCKETS = {"AuthenticAMD": 16.0, "": 10.0}  # "": not stated, as in topo -m: a Skylake's
_MOST_BYTES, _MOST_TAGS, _MOST_GPUS = 1 << 20, 4096, 72
_WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NVSWITCH = "0x0680"
_COLUMN = re.compile(r"\b(?:GPU\d+|NIC\d+|mlx\w+)\b")  # of the table of nvidia-smi topo -m
_NVLINK = re.compile(r"^NV(\d{1,2})$")


@attrs.frozen(eq=False)
class Topology:
    """A box: between each pair of GPUs a word, as in topo -m, and GB/s one way; its network cards; notes.

    `nic_gb_per_s` is None where the file does not state what a card carries.
    """

    gpu: str
    ways: tuple[tuple[str, ...], ...]
    gb_per_s: NDArray[np.float64]
    nics: int
    nic_gb_per_s: float | None
    notes: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        return len(self.ways)

    def cluster(self, num_nodes: int = 1) -> Cluster:
        """Return so many of these boxes as a `Cluster`: a step of LL is the latency, as NCCL counts it.

        Between nodes the GPUs share the cards evenly; where their rate is not stated, it is what such boxes have.
        Raises ValueError for fewer nodes than 1.
        """
        about, links = GPUS[self.gpu], {}
        for src, dst in np.argwhere(~np.eye(self.num_gpus, dtype=bool)).tolist():
            hop = HOP["nvlink" if self.ways[src][dst].startswith("NV") else "pcie"]["ring"][0]
            links[src, dst] = Link(hop * 1e-6, self.gb_per_s[src, dst] * 1e9)
        same = max(set(links.values()), key=list(links.values()).count)
        cards = self.nics / self.num_gpus if self.nics else 1.0
        outside = Link(HOP["net"]["ring"][0] * 1e-6, (self.nic_gb_per_s or about.nic) * cards * 1e9)
        others = {
            (node * self.num_gpus + src, node * self.num_gpus + dst): link
            for (src, dst), link in links.items()
            if link != same
            for node in range(num_nodes)
        }
        return Cluster(num_nodes, self.num_gpus, same, outside, overrides=others)


def read_topology(path: str | os.PathLike[str], gpu: str) -> Topology:
    """Return the box of a file: what NCCL_TOPO_DUMP_FILE wrote, or the output of ``nvidia-smi topo -m``.

    `gpu` is one of GPUS. Raises ValueError with the line for anything else, and for what is too large; OSError where
    it cannot be opened. XML with a document type or entities is refused.
    """
    one_of("gpu", gpu, tuple(GPUS))
    try:
        text = read_bytes(path, _MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise StorageError(path, "it is not text in UTF-8") from error
    except ValueError as error:
        raise StorageError(path, str(error)) from error
    return _of_xml(path, text, gpu) if text.lstrip("\ufeff \n\r\t").startswith("<") else _of_matrix(path, text, gpu)


def _of_matrix(path: Any, text: str, gpu: str) -> Topology:
    from ...provenance import topology

    lines = topology(text).splitlines()
    at = next((k for k, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "GPU1" in line), None)
    if at is None:
        raise StorageError(path, "it is neither NCCL's topology XML nor the table of nvidia-smi topo -m")
    names = _COLUMN.findall(lines[at])
    count = sum(name.startswith("GPU") for name in names)
    if not 2 <= count <= _MOST_GPUS:
        raise StorageError(path, f"line {at + 1}: 2 to {_MOST_GPUS} GPUs are needed, got {count}")
    about, ways, rates = GPUS[gpu], [], np.zeros((count, count))
    nvlink, pcie = NVLINKS[CAPABILITIES[about.generation]], _pcie_gb_per_s(about.generation)
    for row in range(count):
        line = at + 1 + row
        cells = lines[line].split() if line < len(lines) else []
        if cells[:1] != [f"GPU{row}"] or len(cells) <= count:
            raise StorageError(path, f"line {line + 1}: the row of GPU{row} with {count} cells is missing")
        for column, word in enumerate(cells[1 : count + 1]):
            links = _NVLINK.search(word)
            if not links and word not in (*_WAYS, "X"):
                raise StorageError(path, f"line {line + 1}: {word!r} is no link of nvidia-smi topo -m")
            slow = SOCKETS[""] if word == "SYS" else pcie
            rates[row, column] = np.inf if word == "X" else int(links[1]) * nvlink if links else slow
        ways.append(tuple(cells[1 : count + 1]))
    notes = ("topo -m does not state what a network card carries.",) if len(names) > count else ()
    return Topology(gpu, tuple(ways), rates, len(names) - count, None, notes)


_WHOLE = re.compile(r"-?\d{1,9}", re.ASCII)


@attrs.frozen(eq=False)
class _Tag:
    path: Any
    name: str
    said: dict[str, str]
    parents: tuple[_Tag, ...]
    line: int

    @property
    def rate(self) -> float:
        """GB/s of a PCIe link; without bound where none is stated, as above bridges of virtual machines."""
        lane = nccl_lane_gb_per_s(self.said.get("link_speed", ""))
        width = self.whole("link_width")
        return lane * width if lane and width is not None and 0 < width <= 32 else np.inf

    def whole(self, name: str) -> int | None:
        """A number that the tag states, None where it states none; StorageError, with the line, for another text."""
        text = self.said.get(name, "").strip()
        if not text:
            return None
        if not _WHOLE.fullmatch(text):
            raise StorageError(self.path, f"line {self.line}: {name} must be a whole number, got {text[:80]!r}")
        return int(text)


def _tags(path: Any, text: str) -> list[_Tag]:
    found: list[_Tag] = []
    within: list[_Tag] = []
    parser = expat.ParserCreate("utf-8")

    def start(name: str, said: dict[str, str]) -> None:
        found.append(_Tag(path, name, said, tuple(within), parser.CurrentLineNumber))
        within.append(found[-1])
        if len(found) > _MOST_TAGS or len(within) > 64:
            raise StorageError(path, f"line {parser.CurrentLineNumber}: more than {_MOST_TAGS} tags, or 64 deep")

    def refuse(*_: Any) -> None:
        raise StorageError(path, f"line {parser.CurrentLineNumber}: a document type and entities are refused")

    parser.StartElementHandler, parser.EndElementHandler = start, lambda _: within.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise StorageError(path, f"line {error.lineno}: {expat.errors.messages[error.code]}") from error
    return found


def _of_xml(path: Any, text: str, gpu: str) -> Topology:
    tags = _tags(path, text)
    if tags[0].name != "system":
        raise StorageError(path, f"line {tags[0].line}: <system> must come first, got <{tags[0].name}>"[:120])
    gpus = [one for one in tags if one.name == "pci" and one.said.get("class", "").startswith("0x03")]
    if not 2 <= len(gpus) <= _MOST_GPUS:
        raise StorageError(path, f"2 to {_MOST_GPUS} GPUs are needed, got {len(gpus)}")
    place = {one.said.get("busid", "").lower(): k for k, one in enumerate(gpus)}
    direct, switched = np.zeros((len(gpus), len(gpus))), np.zeros(len(gpus))
    for tag in (one for one in tags if one.name == "nvlink"):
        owner = next((place[up.said.get("busid", "").lower()] for up in tag.parents if up in gpus), None)
        count, target = tag.whole("count") or 0, tag.said.get("target", "").lower()
        if owner is None or not 0 < count <= 72:
            raise StorageError(path, f"line {tag.line}: an nvlink is of a GPU and has a count of 1 to 72")
        if tag.said.get("tclass", "").startswith(_NVSWITCH):
            switched[owner] += count
        elif target in place:
            direct[owner, place[target]] += count
    notes, nvlink = [], NVLINKS[CAPABILITIES[GPUS[gpu].generation]]
    if not any(one.name == "gpu" for one in tags) and GPUS[gpu].link == "nvlink":
        switched[:] = round(GPUS[gpu].wire / nvlink)
        notes.append("The file states no NVLink: NCCL finds it when it runs. Here it is that of the GPU's data sheet.")
    links = np.maximum(direct, np.minimum.outer(switched, switched))
    ways, rates = [["X"] * len(gpus) for _ in gpus], np.full((len(gpus), len(gpus)), np.inf)
    for src, dst in np.argwhere(~np.eye(len(gpus), dtype=bool)).tolist():
        if links[src, dst]:
            ways[src][dst], rates[src, dst] = f"NV{links[src, dst]:.0f}", links[src, dst] * nvlink
        else:
            ways[src][dst], rates[src, dst] = _over_pcie(gpus[src], gpus[dst], _pcie_gb_per_s(GPUS[gpu].generation))
    cards = [one.whole("speed") or 0 for one in tags if one.name == "net"]  # a card's ports count each
    speeds = [speed / 8000 for speed in cards if speed >= 25000]  # no control network
    seen = [one for one in tags if one.name == "pci" and one.said.get("class", "").startswith("0x02")]
    nics, rate = (len(speeds), min(speeds)) if speeds else (len(seen), None)
    return Topology(gpu, tuple(map(tuple, ways)), rates, nics, rate, tuple(notes))


def _pcie_gb_per_s(architecture: str) -> float:
    """GB/s of the 16 lanes that a GPU of this architecture has, where a file states none."""
    return 16 * PCIE[ARCHITECTURE_GENERATIONS[architecture]].nccl_gb_per_s


def _over_pcie(one: _Tag, other: _Tag, otherwise: float) -> tuple[str, float]:
    """The word and the rate of the way over PCIe: one bridge, several, the host's, another socket."""
    shared = sum(a is b for a, b in zip(one.parents, other.parents, strict=False))
    meets, apart = one.parents[shared - 1], (*one.parents[shared:], one, *other.parents[shared:], other)
    rate = min(*(tag.rate for tag in apart if tag.name == "pci"), otherwise)
    if meets.name == "pci":
        return ("PIX" if one.parents[-1] is other.parents[-1] else "PXB"), rate
    if meets.name == "cpu":
        return "PHB", rate
    if len(one.parents) < 2:
        return "SYS", min(rate, SOCKETS.get("", 10.0))
    cpu = one.parents[1]
    vendor, model = cpu.said.get("vendor", ""), cpu.whole("modelid")
    if vendor != "GenuineIntel":
        return "SYS", min(rate, SOCKETS.get(vendor, 10.0))
    known = 0x55 if model is None else model
    return "SYS", min(rate, next((rate for least, rate in INTEL if known >= least), 10.0))
