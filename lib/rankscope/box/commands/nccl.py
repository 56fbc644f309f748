"""`rankscope nccl`: what NCCL will choose on a machine, and what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...cli.output import print_parts
from ...cli.registry import command
from ...common.checks import printable
from ..options import Collective, Sizes, sizes_of


@command("nccl")
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
    tuner_csv: Annotated[
        Path | None,
        typer.Option(help="Write a file for NCCL's example tuner: choices that should be faster than NCCL's."),
    ] = None,
) -> None:
    """Show, for each size, the algorithm and protocol that NCCL chooses, the time it expects, and our estimate."""
    from ...common.checks import count_of
    from ...common.storage import check_output, write_atomically
    from .. import Profile
    from ..nccl import Model
    from ..nccl.tuner import num_choices
    from ..nccl.tuner import tuner_csv as tuner_csv_of
    from ..nccl_tables import SIZES, box_of, choices, of_topology

    gpu, gpus_per_node = box_of(box)
    fields: dict[str, Any] = {"gpus_per_node": gpus_per_node}
    if nodes is not None:
        fields["num_nodes"] = nodes
    if picture is not None and topo is None:
        raise ValueError("--picture requires --topo, the topology that it draws")
    if tuner_csv is not None and profile is None:
        raise ValueError("--tuner-csv requires --profile, the measured profile of the box")
    inputs = [path for path in (topo, log, profile) if path is not None]
    if picture is not None:
        check_output("--picture", picture, inputs, (".svg",))
    if tuner_csv is not None:
        check_output("--tuner-csv", tuner_csv, inputs)
    if topo is not None:
        words_of_topology, fields_of_topology = of_topology(topo, gpu, gpus_per_node, picture)
        print_parts(words_of_topology)
        fields |= fields_of_topology
    if log is None:
        fields["version"] = version  # a log states its own
        model = Model(gpu, **fields)
    else:
        model = Model.from_log(log, gpu, **fields)
    tuner_text = ""
    if profile is not None:
        measured = Profile.load(profile)
        # The tuner file is of the model as it is before the readings. They may set a minimum, a time that no choice
        # goes below, and then no other choice would be faster at small sizes.
        tuner_text = tuner_csv_of(model, measured)
        model = model.with_readings(measured)
    print_parts(choices(model, collective, sizes_of(num_bytes) or SIZES))
    if tuner_csv is not None:
        write_atomically(tuner_csv, lambda file: file.write(tuner_text.encode()))
        num_ranges = num_choices(tuner_text)
        ranges = count_of(num_ranges, "range")
        words = [f"{printable(str(tuner_csv))}: {ranges} of sizes where another choice should be faster"]
        if num_ranges:
            caution = "the plug-in slows down collectives that no line matches"
            words.append(f"Read the file's comments before you use it: {caution}.")
        print_parts(words)
