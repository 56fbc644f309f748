"""`rankscope profile`: parse the command line, show progress, and print the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ...cli.ending import interruptible
from ...cli.output import print_parts
from ...common.words import printable
from ..options import Force, check_profile_output, names_of, parse_sizes, show_command

if TYPE_CHECKING:
    from ..measuring.run import Progress

_LINE_EVERY_S = 5.0  # seconds between lines of progress without a terminal


def profile(
    output: Annotated[
        Path, Option("-o", "--output", help="The file to write. If it exists, measuring continues where it stopped.")
    ] = Path("machine.json"),
    name: Annotated[str, Option(help="Name of the profile. Default: the file's name.")] = "",
    thorough: Annotated[
        bool, Option("--thorough/--quick", help="All algorithms and powers of two, or what takes about a minute.")
    ] = False,
    num_ranks: Annotated[int | None, Option(help="Number of ranks. Default: one per GPU with nccl, else 4.")] = None,
    backend: Annotated[str | None, Option(help="gloo or nccl. Default: nccl with two GPUs or more, else gloo.")] = None,
    collectives: Annotated[str, Option(help="Names of collectives, separated by commas.")] = "allreduce",
    algorithms: Annotated[
        str | None, Option(help="Names, separated by commas; native is the backend's own algorithm.")
    ] = None,
    sizes: Annotated[str | None, Option(help="Buffer sizes, as in 1KiB:64MiB (powers of two) or 4KiB,1MiB.")] = None,
    iterations: Annotated[int, Option(help="Maximum number of iterations per point.")] = 40,
    budget: Annotated[
        float, Option(help="Seconds per point. Slow points take longer, because at least six iterations run.")
    ] = 0.3,
    real_time: Annotated[bool, Option("--real-time", help="Run the ranks at real-time priority (needs root).")] = False,
    transfers: Annotated[bool, Option(help="Also measure copies to and from the GPU, if there is one.")] = True,
    fresh: Annotated[bool, Option("--fresh", help="Start again, and replace the profile in the file.")] = False,
    force: Force = False,
) -> None:
    """Measure this machine: links, collectives and copies to and from a GPU.

    A collective is timed only if its result is correct. The backend's own allreduce runs in place and out of place.
    Under torchrun, its processes are the ranks. After Ctrl-C the same command continues where it stopped.

    At the end it prints what `rankscope show` prints; the help of that command explains the columns.
    """
    from ...provenance import command_words
    from ...ranks import joined
    from .. import Protocol, measure, tables
    from ..measuring.run import writes

    protocol = Protocol(
        thorough=thorough,
        iterations=iterations,
        budget_s=budget,
        real_time=real_time,
        sizes=None if sizes is None else parse_sizes(sizes),
        collectives=names_of(collectives),
        algorithms=None if algorithms is None else names_of(algorithms),
        transfers=transfers,
    )
    check_profile_output(output, force)
    reports: list[Progress] = []
    show = _display() if writes() else reports.append

    def report(progress: Progress) -> None:
        reports.append(progress)
        show(progress)

    # Under torchrun a rank may wait inside a collective, which only the default action of a signal ends.
    with interruptible(signals=joined.place() is None, words=lambda: _how_to_continue(reports, output)):
        measured = measure(
            output,
            protocol,
            num_ranks=num_ranks,
            backend=backend,
            fresh=fresh or force,
            name=printable(name or output.stem),
            command=printable(command_words(["rankscope", *sys.argv[1:]])),
            report=report,
        )
    if writes():
        print_parts(tables.overview(measured))
        print_parts([f"{printable(str(output))} contains this profile; {show_command(output)} shows it again"])


def _display() -> Callable[[Progress], None]:
    """Return a function that shows progress on stderr: in one line of a terminal, elsewhere in a line now and then.

    The first line says how long everything will take.
    """
    is_terminal = sys.stderr.isatty()
    next_s = 0.0

    def show(progress: Progress) -> None:
        nonlocal next_s
        line = f"{_count(progress)}, about {progress.left_s:.0f} s left: {progress.doing}"
        if is_terminal:
            print(f"\r{line if progress.doing else ''}\x1b[K", end="", file=sys.stderr, flush=True)
        elif progress.doing and time.monotonic() >= next_s:
            print(line, file=sys.stderr, flush=True)
            next_s = time.monotonic() + _LINE_EVERY_S

    return show


def _count(progress: Progress) -> str:
    return f"{progress.num_done} of {progress.num_points} points"


def _how_to_continue(reports: list[Progress], output: Path) -> str:
    """Return what an interrupted run has stored, and which command continues it."""
    if not reports:
        return "nothing was measured"
    file = printable(str(output))
    return f"{_count(reports[-1])} are in {file}, and the same command without --fresh continues from there"
