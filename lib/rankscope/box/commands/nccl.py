"""`rankscope nccl`: what NCCL will choose on a machine, and what it takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cli.output import print_parts, table_of
from ..options import Collective, Sizes, sizes_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..nccl import Model
    from ..nccl.topology import Topology

_BOX = re.compile(r"([a-z]\w*)x(\d{1,2})")
_SIZES = tuple(2**power for power in range(10, 34, 2))


def nccl(
    box: Annotated[str, typer.Argument(help="The GPU and the number of GPUs per node, as in h100x8.", metavar="BOX")],
    nodes: Annotated[int | None, typer.Option(help="Number of nodes. Default: 1, or the number in the log.")] = None,
    version: Annotated[str, typer.Option(help="NCCL's version, as in 2.29.2. A log states its own.")] = "2.30",
    collective: Collective = "allreduce",
    num_bytes: Sizes = None,
    log: Annotated[
        Path | None, typer.Option(help="A log of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING.")
    ] = None,
    topo: Annotated[
        Path | None,
        typer.Option(help="NCCL's topology XML (NCCL_TOPO_DUMP_FILE), or the output of nvidia-smi topo -m."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write an SVG of the topology given by --topo.")] = None,
    profile: Annotated[str | None, typer.Option(help="A measured profile of the box: a file or bank:NAME.")] = None,
) -> None:
    """Show, for each size, the algorithm and protocol that NCCL chooses, the time it expects, and our estimate."""
    from ...common.files import check_output
    from .. import Profile
    from ..nccl import GPUS, Model, read_topology

    match = _BOX.fullmatch(box.strip().lower())
    if match is None or match[1] not in GPUS:
        raise ValueError(
            f"BOX must be a GPU and the number of GPUs per node, as in h100x8, got {box!r}; "
            f"known GPUs: {', '.join(GPUS)}"
        )
    gpu = match[1]
    gpus_per_node = int(match[2])
    fields: dict[str, Any] = {"gpus_per_node": gpus_per_node}
    if nodes is not None:
        fields["num_nodes"] = nodes
    if picture is not None:
        if topo is None:
            raise ValueError("--picture requires --topo, the topology that it draws")
        check_output("--picture", picture, [path for path in (topo, log, profile) if path is not None], (".svg",))
    if topo is not None:
        topology = read_topology(topo, gpu)
        if topology.num_gpus != gpus_per_node:
            raise ValueError(f"BOX must be the box of --topo: {gpu}x{topology.num_gpus}, got {gpu}x{gpus_per_node}")
        if picture is not None:
            from ...figures.svg import save_svg
            from ..figures.topology import draw_topology

            save_svg(draw_topology(topology), picture)
        print_parts(_topology_words(topology))
        if topology.nics:
            fields["nics"] = topology.nics
        if topology.nic_gb_per_s:
            fields["nic_bytes_per_s"] = topology.nic_gb_per_s * 1e9
    if log is None:
        fields["version"] = version  # a log states its own
        model = Model(gpu, **fields)
    else:
        model = Model.from_log(log, gpu, **fields)
    if profile is not None:
        model = model.with_readings(Profile.load(profile))
    print_parts(_choices(model, collective, sizes_of(num_bytes) or _SIZES))


def _topology_words(topology: Topology) -> list[str]:
    """Return what connects the GPUs, the network cards, and the notes of a topology."""
    from ...common.words import count_of

    links: Counter[tuple[str, float]] = Counter()
    for src in range(topology.num_gpus):
        for dst in range(src):  # each pair once
            links[topology.ways[src][dst], topology.gb_per_s[src, dst]] += 1
    link_words = []
    for (way, rate), num_pairs in links.most_common():
        link_words.append(f"{count_of(num_pairs, 'pair')} {way}, {rate:.4g} GB/s")
    nic_rate = "of unstated rate" if topology.nic_gb_per_s is None else f"of {topology.nic_gb_per_s:.4g} GB/s"
    cards = f"{count_of(topology.nics, 'network card')} {nic_rate}"
    return [f"{'; '.join(link_words)}; {cards}", *topology.notes]


def _choices(model: Model, collective: str, sizes: Sequence[int]) -> Iterator[RenderableType]:
    """Yield NCCL's choice at each size as a table, the error to expect, and the limits of the model."""
    from rich.text import Text

    from ...common.units import bytes_words, cell_words
    from ..nccl.public import error_words

    gpus = f"{model.gpus_per_node}"
    if model.num_nodes > 1:
        gpus = f"{model.num_nodes} × {model.gpus_per_node}"
    version = ".".join(map(str, model.version)).removesuffix(".99")  # `Model` has 99 if no third number is stated
    title = f"{collective} on {gpus} {model.gpu.upper().replace('_', ' ')}, NCCL {version}"
    table = table_of(title, "size", "algorithm", "ch", "NCCL", "model", "mostly")
    table.caption = "NCCL: its expected time; model: our estimate, including terms that NCCL omits; mostly: the largest"
    for size in sizes:
        choice = model.choose(collective, size)
        largest_s, largest = max((seconds, name) for name, seconds in choice.terms_s.items())
        table.add_row(
            bytes_words(size),
            f"{choice.algorithm} {choice.protocol}",
            str(choice.channels),
            cell_words(choice.nccl_s),
            cell_words(choice.time_s),
            f"{largest} {largest_s / choice.time_s:.0%}",
        )
    yield table
    yield Text(error_words(model))
    yield from (Text(note) for note in model.notes)
