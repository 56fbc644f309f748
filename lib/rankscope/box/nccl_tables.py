"""The output of `rankscope nccl`: by size, NCCL's choice, the time it expects and the times of real machines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ..cli.output import table_of
from ..common.checks import count_of
from ..common.units import bytes_words, cell_words
from .fit import LEAST_SIZES
from .nccl import GPUS, Model, read_topology
from .nccl.public import error_words, public

SIZES = tuple(2**power for power in range(10, 34, 2))


def box_of(text: str) -> tuple[str, int]:
    """Return the GPU and the number of GPUs per node, as in ``h100x8``. Raises ValueError for any other string."""
    found = re.fullmatch(r"([a-z]\w*)x(\d{1,2})", text.strip().lower())
    if not found or found[1] not in GPUS:
        raise ValueError(
            f"BOX must be a GPU and the number of GPUs per node, as in h100x8; known GPUs: {', '.join(GPUS)}"
        )
    return found[1], int(found[2])


def of_topology(path: Path, gpu: str, num_gpus: int, picture: Path | None) -> tuple[list[str], dict[str, Any]]:
    """Read a topology file, draw it if wanted, and return what connects its GPUs, in words and as fields of `Model`.

    Raises ValueError where the file is of another number of GPUs.
    """
    box = read_topology(path, gpu)
    if box.num_gpus != num_gpus:
        raise ValueError(f"BOX must be the box of --topo: {gpu}x{box.num_gpus}, got {gpu}x{num_gpus}")
    if picture is not None:
        from ..figures.svg import save_svg
        from .figures.topology import draw_topology

        save_svg(draw_topology(box), picture)
    pairs = Counter((box.ways[a][b], box.gb_per_s[a, b]) for a in range(num_gpus) for b in range(a))
    links = (f"{count_of(times, 'pair')} {way}, {rate:.4g} GB/s" for (way, rate), times in pairs.most_common())
    each = "of unstated rate" if box.nic_gb_per_s is None else f"of {box.nic_gb_per_s:.4g} GB/s"
    words = [f"{'; '.join(links)}; {count_of(box.nics, 'network card')} {each}", *box.notes]
    more: dict[str, Any] = {"nics": box.nics} if box.nics else {}
    return words, more | ({"nic_bytes_per_s": box.nic_gb_per_s * 1e9} if box.nic_gb_per_s else {})


def choices(model: Model, collective: str, sizes: Sequence[int] = SIZES) -> Iterator[RenderableType]:
    """Yield the table by size, and what the model leaves out."""
    curves, machines = [], public(model)
    for profile in machines.values():
        if len(profile.native_s(collective)) >= LEAST_SIZES:
            curves.append(profile.curve(collective))
    gpus = f"{model.num_nodes} × {model.gpus_per_node}" if model.num_nodes > 1 else f"{model.gpus_per_node}"
    version = ".".join(map(str, model.version)).removesuffix(".99")
    title = f"{collective} on {gpus} {model.gpu.upper().replace('_', ' ')}, NCCL {version}"
    table = table_of(title, "size", "algorithm", "ch", "NCCL", "model", "mostly", "public")
    for size in sizes:
        choice = model.choose(collective, size)
        most_s, mostly = max((seconds, name) for name, seconds in choice.terms_s.items())
        got = sorted(one.seconds(size) for one in curves if one.covers(size))
        low, high = (cell_words(one) for one in (got[0], got[-1])) if got else ("", "")
        table.add_row(
            bytes_words(size),
            f"{choice.algorithm} {choice.protocol}",
            str(choice.channels),
            cell_words(choice.nccl_s),
            cell_words(choice.time_s),
            f"{mostly} {most_s / choice.time_s:.0%}",
            high if low == high else f"{low.removesuffix(f' {high.split()[-1]}')} to {high}",
        )
    got_words = f"public: what {', '.join(machines)} took" if curves else "the bank has no machine like it"
    table.caption = f"NCCL: the time it expects; model: with the terms it lacks, the largest named; {got_words}"
    yield table
    yield Text(error_words(model))
    yield from (Text(note) for note in model.notes)
