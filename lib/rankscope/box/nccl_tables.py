"""The output of `rankscope nccl`: by size, NCCL's choice, the time it expects and the times of real machines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from ..cli.output import table_of
from ..common.checks import count_of
from ..common.units import bytes_words, cell_words
from .fit import LEAST_SIZES
from .nccl import GPUS, Model, read_topology
from .nccl.public import error_words, public

SIZES = tuple(2**power for power in range(10, 34, 2))
_BOX = re.compile(r"([a-z]\w*)x(\d{1,2})")


class GpuBox(NamedTuple):
    """The GPUs of a node."""

    gpu: str
    num_gpus: int


def box_of(text: str) -> GpuBox:
    """Return the GPU and the number of GPUs per node, as in ``h100x8``. Raises ValueError for any other string."""
    match = _BOX.fullmatch(text.strip().lower())
    if match is None or match[1] not in GPUS:
        raise ValueError(
            f"BOX must be a GPU and the number of GPUs per node, as in h100x8, got {text!r}; "
            f"known GPUs: {', '.join(GPUS)}"
        )
    return GpuBox(match[1], int(match[2]))


def of_topology(path: Path, gpu: str, num_gpus: int, picture: Path | None) -> tuple[list[str], dict[str, Any]]:
    """Read a topology file, and draw it if `picture` names a file.

    Return what connects its GPUs, its network cards and its notes, all in words, and the cards as fields of `Model`.
    Raises ValueError if the file is of another number of GPUs.
    """
    box = read_topology(path, gpu)
    if box.num_gpus != num_gpus:
        raise ValueError(f"BOX must be the box of --topo: {gpu}x{box.num_gpus}, got {gpu}x{num_gpus}")
    if picture is not None:
        from ..figures.svg import save_svg
        from .figures.topology import draw_topology

        save_svg(draw_topology(box), picture)
    links: Counter[tuple[str, float]] = Counter()
    for src in range(num_gpus):
        for dst in range(src):  # each pair once
            links[box.ways[src][dst], box.gb_per_s[src, dst]] += 1
    link_words = []
    for (way, rate), num_pairs in links.most_common():
        link_words.append(f"{count_of(num_pairs, 'pair')} {way}, {rate:.4g} GB/s")
    nic_rate = "of unstated rate" if box.nic_gb_per_s is None else f"of {box.nic_gb_per_s:.4g} GB/s"
    words = [f"{'; '.join(link_words)}; {count_of(box.nics, 'network card')} {nic_rate}", *box.notes]
    fields: dict[str, Any] = {}
    if box.nics:
        fields["nics"] = box.nics
    if box.nic_gb_per_s:
        fields["nic_bytes_per_s"] = box.nic_gb_per_s * 1e9
    return words, fields


def choices(model: Model, collective: str, sizes: Sequence[int] = SIZES) -> Iterator[RenderableType]:
    """Yield the table by size, the error to expect, and the limits of the model."""
    machines = public(model)
    curves = {}  # of the machines on which this collective was measured, by name
    for machine, profile in machines.items():
        if len(profile.native_s(collective)) >= LEAST_SIZES:  # fewer make no curve
            curves[machine] = profile.curve(collective)
    gpus = f"{model.gpus_per_node}"
    if model.num_nodes > 1:
        gpus = f"{model.num_nodes} × {model.gpus_per_node}"
    version = ".".join(map(str, model.version)).removesuffix(".99")  # `Model` has 99 if no third number is stated
    title = f"{collective} on {gpus} {model.gpu.upper().replace('_', ' ')}, NCCL {version}"
    table = table_of(title, "size", "algorithm", "ch", "NCCL", "model", "mostly", "public")
    for size in sizes:
        choice = model.choose(collective, size)
        largest_s, largest = max((seconds, name) for name, seconds in choice.terms_s.items())
        measured_s = [curve.seconds(size) for curve in curves.values() if curve.covers(size)]
        table.add_row(
            bytes_words(size),
            f"{choice.algorithm} {choice.protocol}",
            str(choice.channels),
            cell_words(choice.nccl_s),
            cell_words(choice.time_s),
            f"{largest} {largest_s / choice.time_s:.0%}",
            _range_words(measured_s),
        )
    if curves:
        public_words = f"public: times measured on {', '.join(curves)}"
    elif machines:
        public_words = f"the bank has no times of {collective} on a machine like it"
    else:
        public_words = "the bank has no machine like it"
    table.caption = (
        "NCCL: its expected time; model: our estimate, including terms that NCCL omits; mostly: the largest term; "
        f"{public_words}"
    )
    yield table
    yield Text(error_words(model))
    yield from (Text(note) for note in model.notes)


def _range_words(seconds: Sequence[float]) -> str:
    """Return the shortest and the longest of some times, their unit once if it is the same; "" for none."""
    if not seconds:
        return ""
    low = cell_words(min(seconds))
    high = cell_words(max(seconds))
    if low == high:
        return high
    unit = high.split()[-1]
    return f"{low.removesuffix(f' {unit}')} to {high}"
