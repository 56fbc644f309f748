"""`rankscope profile`: parse the command line, show progress, and print the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from .output import print_parts

if TYPE_CHECKING:
    from ..box.measuring.run import Progress


def profile(
    output: Annotated[Path, Option("-o", "--output", help="The file to write.")] = Path("machine.json"),
    thorough: Annotated[
        bool, Option("--thorough/--quick", help="All algorithms and powers of two, or what takes about a minute.")
    ] = False,
    num_ranks: Annotated[int | None, Option(help="Number of ranks. Default: one per GPU with nccl, else 4.")] = None,
    backend: Annotated[str | None, Option(help="gloo or nccl. Default: nccl with two GPUs or more, else gloo.")] = None,
    collectives: Annotated[str, Option(help="Names of collectives, separated by commas.")] = "allreduce",
    algorithms: Annotated[
        str | None, Option(help="Names, separated by commas; native is the backend's own algorithm.")
    ] = None,
    sizes: Annotated[str | None, Option(help="Buffer sizes, separated by commas, as in 4KiB,1MiB.")] = None,
    iterations: Annotated[int, Option(help="Maximum number of iterations per point.")] = 40,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Measure this machine: links, collectives and copies to and from a GPU.

    A collective is timed only if its result is correct. The backend's own allreduce runs in place and out of place.
    Under torchrun, its processes are the ranks. What is measured before Ctrl-C is in the file.

    At the end it prints what `rankscope show` prints; the help of that command explains the columns.
    """
    from ..box import Protocol, measure
    from ..box.measuring.run import writes
    from ..common.units import parse_bytes
    from ..provenance import command_words
    from . import tables

    protocol = Protocol(
        iterations=iterations,
        thorough=thorough,
        sizes=None if sizes is None else [parse_bytes("--sizes", size) for size in sizes.split(",")],
        collectives=collectives.split(","),
        algorithms=None if algorithms is None else algorithms.split(","),
    )

    def report(progress: Progress) -> None:
        """Say how far measuring is, and how long it will take."""
        points = f"{progress.num_done} of {progress.num_points} points"
        if writes():
            print(f"{points}, about {progress.left_s:.0f} s left: {progress.doing}", file=sys.stderr, flush=True)

    measured = measure(
        output,
        protocol,
        num_ranks=num_ranks,
        backend=backend,
        fresh=force,
        name=output.stem,
        command=command_words(["rankscope", *sys.argv[1:]]),
        report=report,
    )
    if writes():
        print_parts(tables.overview(measured))
        print_parts([f"{output} contains this profile; `rankscope show` shows it again"])
