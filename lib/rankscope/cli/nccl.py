"""`rankscope nccl`: what NCCL will choose on a machine, and what it takes."""

from __future__ import annotations

import math
import re
from typing import Annotated

import typer

from .options import TopologyPath
from .output import print_parts, table_of

_GPUS_PER_NODE = 8  # of most machines
_BOX = re.compile(r"(\w+)x(\d{1,2})")
_SIZES = [2**power for power in range(10, 34, 2)]


def nccl(
    box: Annotated[str, typer.Argument(help="The GPU and the number of GPUs per node, as in h100x8.", metavar="BOX")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    version: Annotated[str, typer.Option(help="NCCL's version, as in 2.29.2.")] = "2.30",
    collective: Annotated[str, typer.Option(help="Collective to use.")] = "allreduce",
    num_bytes: Annotated[
        list[str] | None,
        typer.Option(help="Size of the whole buffer, as in 64K or 64KiB. Repeat for more.", metavar="SIZE"),
    ] = None,
    topo: TopologyPath = None,
) -> None:
    """Show, for each size, the algorithm and protocol that NCCL chooses, the time it expects, and our estimate."""
    from ..box.nccl import GPUS, Model
    from ..box.nccl.topology import explained, read_topology
    from ..common.units import bytes_words, cell_words, parse_bytes

    match = _BOX.fullmatch(box.strip().lower())
    if match is None:
        raise ValueError(f"BOX must be a GPU and the number of GPUs per node, as in h100x8, got {box!r}")
    gpu = match[1]
    num_gpus = int(match[2])
    num_cards = None  # by default
    if topo is not None:
        topology = read_topology(topo)
        print_parts(explained(topology))
        if gpu not in GPUS:
            print_parts([f"NCCL's choices are not shown, because its model has no constants of the GPU {gpu!r}."])
            return
        num_cards = len(topology.nics) or None
    model = Model(gpu, num_gpus, nodes, version, nics=num_cards)
    title = f"{collective} on {nodes} × {num_gpus} {gpu.upper()}, NCCL {version}"
    table = table_of(title, "size", "algorithm", "channels", "NCCL's estimate", "our model")
    for size in [parse_bytes("--num-bytes", text) for text in num_bytes or ()] or _SIZES:
        choice = model.choose(collective, size)
        table.add_row(
            bytes_words(size),
            choice.words,
            str(choice.channels),
            cell_words(choice.nccl_s),
            cell_words(choice.time_s),
        )
    print_parts([table, *model.notes])
    if num_gpus > _GPUS_PER_NODE:
        other = f"rankscope nccl {gpu}x{_GPUS_PER_NODE} --nodes {nodes * math.ceil(num_gpus / _GPUS_PER_NODE)}"
        print_parts([f"This is for {num_gpus} GPUs in one node; for nodes of {_GPUS_PER_NODE}, use `{other}`."])
