"""`read_topology`: a box as NCCL's topology XML or ``nvidia-smi topo -m`` describes it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import permutations, takewhile
from typing import Any, NamedTuple
from xml.parsers import expat

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...common.checks import one_of
from ...common.files import FileError, read_bytes
from ...provenance import topology
from ..pcie import ARCHITECTURE_GENERATIONS, PCIE, nccl_lane_gb_per_s
from .constants import GPUS

# GB/s of a link, one way, as NCCL's src/graph/topo.h counts them: by compute capability, generation, CPU.
NVLINKS = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}
CAPABILITIES = {"volta": 70, "ampere": 80, "hopper": 90, "blackwell": 100}
INTEL = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))  # between two sockets, from this model on
_SKYLAKE = 0x55  # the model that NCCL assumes for an Intel CPU if none is stated
SOCKETS = {"AuthenticAMD": 16.0, "": 10.0}  # "": not stated, as in topo -m: a Skylake's
_OTHER_SOCKETS = 10.0  # of any other CPU
_LEAST_NIC_MBIT = 25000  # slower cards are of a control network
_MBIT_PER_GB = 8000
_WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_GPU_CLASS = "0x03"  # PCI classes begin with these
_NIC_CLASS = "0x02"
_NVSWITCH = "0x0680"
_COLUMN = re.compile(r"\b(?:GPU\d+|NIC\d+|mlx\w+)\b")  # of the table of nvidia-smi topo -m
_NVLINK = re.compile(r"^NV(\d{1,2})$")


class Topology(msgspec.Struct, frozen=True, eq=False):
    """A box: between each pair of GPUs a word, as in topo -m, and GB/s one way; its network cards; notes.

    The word ``ways[src][dst]`` says how GPU `src` reaches GPU `dst`, and ``gb_per_s[src, dst]`` how fast; the diagonals
    are "X" and infinite. `nic_gb_per_s` is None if the file does not state what a card carries.
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


def _pairs(num_gpus: int) -> list[tuple[int, int]]:
    """Return all pairs of different GPUs."""
    return list(permutations(range(num_gpus), 2))


def read_topology(path: str | os.PathLike[str], gpu: str) -> Topology:
    """Parse a box from the file that NCCL_TOPO_DUMP_FILE names, or from the output of ``nvidia-smi topo -m``.

    `gpu` is one of GPUS. Raises ValueError, with the line, if the file is neither of these; OSError if it
    cannot be opened.
    """
    one_of("gpu", gpu, tuple(GPUS))
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise FileError(path, "it is not text in UTF-8") from error
    is_xml = text.lstrip("\ufeff \n\r\t").startswith("<")  # the first character is a byte order mark
    return _of_xml(path, text, gpu) if is_xml else _of_matrix(path, text, gpu)


def _of_matrix(path: Any, text: str, gpu: str) -> Topology:
    """Parse the table of ``nvidia-smi topo -m``: a row and a column per GPU, and more columns, as of network cards."""
    # `topology` drops the legend, the codes of a terminal, and blank lines at the beginning, which errors must count.
    blank_lines = list(takewhile(lambda line: not line.strip(), text.splitlines()))
    lines = [*blank_lines, *topology(text).splitlines()]
    header = next((index for index, line in enumerate(lines) if _is_header(line)), None)
    if header is None:
        raise FileError(path, "it is neither NCCL's topology XML nor the table of nvidia-smi topo -m")
    names = _COLUMN.findall(lines[header])
    num_gpus = sum(name.startswith("GPU") for name in names)
    if num_gpus < 2:
        raise FileError(path, f"line {header + 1}: at least 2 GPUs are needed, got {num_gpus}")
    generation = GPUS[gpu].generation
    ways = []
    rates = np.zeros((num_gpus, num_gpus))
    for row in range(num_gpus):
        index = header + 1 + row
        cells = lines[index].split() if index < len(lines) else []
        if cells[:1] != [f"GPU{row}"] or len(cells) <= num_gpus:
            raise FileError(path, f"line {index + 1}: the row of GPU{row} with {num_gpus} cells is missing")
        words = tuple(cells[1 : num_gpus + 1])
        for column, word in enumerate(words):
            rate = _rate_of_word(word, generation)
            if rate is None:
                raise FileError(path, f"line {index + 1}: {word!r} is not a link of nvidia-smi topo -m")
            rates[row, column] = rate
        ways.append(words)
    nics = len(names) - num_gpus
    notes = ("topo -m does not state the rate of the network cards.",) if nics else ()
    return Topology(gpu, tuple(ways), rates, nics, None, notes)


def _is_header(line: str) -> bool:
    """Return whether a line names the columns; the row of GPU0 begins as they do, but names no other GPU."""
    return line.split()[:1] == ["GPU0"] and "GPU1" in line


def _rate_of_word(word: str, generation: str) -> float | None:
    """Return the GB/s of a link that topo -m names so, without bound from a GPU to itself; None for an unknown word."""
    if word == "X":
        return np.inf
    if word == "SYS":
        return SOCKETS[""]
    if word in _WAYS:
        return _pcie_gb_per_s(generation)
    links = _NVLINK.search(word)
    if links is None:
        return None
    return int(links[1]) * NVLINKS[CAPABILITIES[generation]]


_WHOLE = re.compile(r"-?\d{1,9}", re.ASCII)


class _Tag(msgspec.Struct, frozen=True, eq=False):
    """A tag of the XML, as expat reads it: its file, attributes, the tags around it (outermost first), and its line."""

    path: Any
    name: str
    attributes: dict[str, str]
    parents: tuple[_Tag, ...]
    line: int

    def text(self, name: str) -> str:
        """Return an attribute; "" if the tag has none of this name."""
        return self.attributes.get(name, "")

    @property
    def bus_id(self) -> str:
        return self.text("busid").lower()

    @property
    def rate(self) -> float:
        """GB/s of a PCIe link; without bound where none is stated, as above bridges of virtual machines."""
        lane = nccl_lane_gb_per_s(self.text("link_speed"))
        width = self.whole("link_width")
        if not lane or not width or width < 0:
            return np.inf
        return lane * width

    def whole(self, name: str) -> int | None:
        """Return a number that the tag states, None if it states none; FileError, with the line, for other text."""
        text = self.text(name).strip()
        if not text:
            return None
        if not _WHOLE.fullmatch(text):
            raise FileError(self.path, f"line {self.line}: {name} must be a whole number, got {text[:80]!r}")
        return int(text)


def _tags(path: Any, text: str) -> list[_Tag]:
    """Parse all tags of an XML text, in their order."""
    tags: list[_Tag] = []
    open_tags: list[_Tag] = []
    parser = expat.ParserCreate("utf-8")

    def start(name: str, attributes: dict[str, str]) -> None:
        tag = _Tag(path, name, attributes, tuple(open_tags), parser.CurrentLineNumber)
        tags.append(tag)
        open_tags.append(tag)

    def end(name: str) -> None:
        open_tags.pop()

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise FileError(path, f"line {error.lineno}: {expat.errors.messages[error.code]}") from error
    return tags


def _of_xml(path: Any, text: str, gpu: str) -> Topology:
    """Parse NCCL's topology XML: nested tags of the system, its CPUs, PCIe bridges and devices, and their NVLinks."""
    tags = _tags(path, text)
    if tags[0].name != "system":
        raise FileError(path, f"line {tags[0].line}: <system> must come first, got <{tags[0].name}>")
    gpus = [tag for tag in tags if tag.name == "pci" and tag.text("class").startswith(_GPU_CLASS)]
    if len(gpus) < 2:
        raise FileError(path, f"at least 2 GPUs are needed, got {len(gpus)}")
    data_sheet = GPUS[gpu]
    gb_per_s_of_nvlink = NVLINKS[CAPABILITIES[data_sheet.generation]]
    num_assumed = None
    notes: tuple[str, ...] = ()
    states_nvlinks = any(tag.name == "gpu" for tag in tags)  # NCCL writes a GPU's nvlink tags into its gpu tag
    if data_sheet.link == "nvlink" and not states_nvlinks:
        num_assumed = round(data_sheet.wire / gb_per_s_of_nvlink)
        notes = (
            "The file states no NVLink, because NCCL detects it at run time. Its figures are those of the GPU's data "
            "sheet.",
        )
    num_nvlinks = _num_nvlinks(path, tags, gpus, num_assumed)
    ways = [["X"] * len(gpus) for _ in gpus]
    rates = np.full((len(gpus), len(gpus)), np.inf)
    for src, dst in _pairs(len(gpus)):
        if num_nvlinks[src, dst]:
            ways[src][dst] = f"NV{num_nvlinks[src, dst]:.0f}"
            rates[src, dst] = num_nvlinks[src, dst] * gb_per_s_of_nvlink
        else:
            path_over_pcie = _over_pcie(gpus[src], gpus[dst], _pcie_gb_per_s(data_sheet.generation))
            ways[src][dst] = path_over_pcie.word
            rates[src, dst] = path_over_pcie.gb_per_s
    rows_of_ways = tuple(tuple(row) for row in ways)
    nics = _nics(tags)
    return Topology(gpu, rows_of_ways, rates, nics.number, nics.gb_per_s, notes)


class _Nics(NamedTuple):
    """The network cards of a box: how many, and the GB/s of each, None if the file does not state it."""

    number: int
    gb_per_s: float | None


def _nics(tags: Sequence[_Tag]) -> _Nics:
    """Return the network cards that the tags state; of several speeds, the lowest."""
    speeds_mbit = [tag.whole("speed") or 0 for tag in tags if tag.name == "net"]  # each port of a card counts
    fast_mbit = [speed for speed in speeds_mbit if speed >= _LEAST_NIC_MBIT]
    if fast_mbit:
        return _Nics(len(fast_mbit), min(fast_mbit) / _MBIT_PER_GB)
    # Without speeds, the PCI class shows which devices are network cards.
    cards = [tag for tag in tags if tag.name == "pci" and tag.text("class").startswith(_NIC_CLASS)]
    return _Nics(len(cards), None)


def _num_nvlinks(path: Any, tags: Sequence[_Tag], gpus: Sequence[_Tag], num_assumed: int | None) -> NDArray[np.float64]:
    """Return the number of NVLinks between each pair of GPUs: direct ones, or those that both have to the switch.

    `num_assumed` is each GPU's number of links to the switch if the file states none; None if it states them.
    """
    index_of = {gpu.bus_id: index for index, gpu in enumerate(gpus)}
    direct = np.zeros((len(gpus), len(gpus)))
    to_switch = np.zeros(len(gpus))
    for tag in tags:
        if tag.name != "nvlink":
            continue
        owner = next((index_of[parent.bus_id] for parent in tag.parents if parent in gpus), None)
        count = tag.whole("count") or 0
        target = tag.text("target").lower()
        if owner is None or count < 1:
            raise FileError(path, f"line {tag.line}: an nvlink must belong to a GPU and have a count above 0")
        if tag.text("tclass").startswith(_NVSWITCH):  # the PCI class of the target
            to_switch[owner] += count
        elif target in index_of:  # and not a CPU
            direct[owner, index_of[target]] += count
    if num_assumed is not None:
        to_switch[:] = num_assumed
    through_switch = np.minimum.outer(to_switch, to_switch)  # of each pair, as many as the GPU with fewer links has
    return np.maximum(direct, through_switch)


def _pcie_gb_per_s(architecture: str) -> float:
    """Return the GB/s of the 16 lanes that a GPU of this architecture has, where a file states none."""
    return 16 * PCIE[ARCHITECTURE_GENERATIONS[architecture]].nccl_gb_per_s


class _PciePath(NamedTuple):
    """What connects two GPUs: a word of topo -m, and its rate."""

    word: str
    gb_per_s: float


def _over_pcie(src: _Tag, dst: _Tag, most_gb_per_s: float) -> _PciePath:
    """Return the path over PCIe between two GPUs: through one bridge, several, the CPU's, or another socket.

    Its rate is that of the slowest link on it, and at most `most_gb_per_s`.
    """
    # Both paths lead up to the lowest tag that is around both GPUs. Parents of both come first, from the outermost.
    num_shared = sum(own is other for own, other in zip(src.parents, dst.parents, strict=False))
    meeting = src.parents[num_shared - 1]
    between = (*src.parents[num_shared:], src, *dst.parents[num_shared:], dst)
    rate = min(*(tag.rate for tag in between if tag.name == "pci"), most_gb_per_s)
    if meeting.name == "pci":
        has_one_bridge = src.parents[-1] is dst.parents[-1]
        return _PciePath("PIX" if has_one_bridge else "PXB", rate)
    if meeting.name == "cpu":
        return _PciePath("PHB", rate)
    return _PciePath("SYS", min(rate, _socket_gb_per_s(src)))


def _socket_gb_per_s(gpu: _Tag) -> float:
    """Return the GB/s between the sockets of a box, by the CPU that the GPU is connected to."""
    if len(gpu.parents) < 2:  # the outermost is the system, and the tag of the CPU is missing
        return SOCKETS[""]
    cpu = gpu.parents[1]
    vendor = cpu.text("vendor")
    if vendor != "GenuineIntel":
        return SOCKETS.get(vendor, _OTHER_SOCKETS)
    model = cpu.whole("modelid")
    if model is None:
        model = _SKYLAKE
    # The last of INTEL begins at model 0, so the default is for a negative number, as a file may state.
    return next((rate for least, rate in INTEL if model >= least), _OTHER_SOCKETS)
