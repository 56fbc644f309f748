"""`rankscope profile`: parse the command line, show progress, and print the result."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ...cli.ending import interruptible
from ...cli.output import print_parts
from ...common.words import printable
from ..options import show_command

if TYPE_CHECKING:
    from .. import Profile
    from ..measuring.plan import Protocol
    from ..measuring.run import Progress

_OUTPUT = Path("machine.json")
_PLACES = {"in": (True,), "out": (False,), "both": (True, False)}  # the values of `Protocol.in_place`
_LINE_EVERY_S = 5.0  # seconds between lines of progress without a terminal


def profile(
    context: typer.Context,
    output: Annotated[
        Path, Option("-o", "--output", help="The file to write. If it exists, measuring continues where it stopped.")
    ] = _OUTPUT,
    name: Annotated[str, Option(help="Name of the profile. Default: the file's name.")] = "",
    num_ranks: Annotated[int | None, Option(help="Number of ranks. Default: one per GPU with nccl, else 4.")] = None,
    backend: Annotated[str | None, Option(help="gloo or nccl. Default: nccl with two GPUs or more, else gloo.")] = None,
    device: Annotated[
        str | None, Option(help="Device of the buffers: cpu or cuda. nccl needs cuda; gloo accepts both.")
    ] = None,
    collectives: Annotated[str, Option(help="Names of collectives, separated by commas.")] = "allreduce",
    place: Annotated[str, Option(help="Whether allreduce works in place: in, out or both.")] = "in",
    algorithms: Annotated[
        str | None, Option(help="Names, separated by commas; native is the backend's own algorithm. Default: all.")
    ] = None,
    sizes: Annotated[str | None, Option(help="Buffer sizes, as in 1KiB:64MiB (powers of two) or 4KiB,1MiB.")] = None,
    iterations: Annotated[int, Option(help="Maximum number of iterations per point.")] = 60,
    budget: Annotated[
        float, Option(help="Seconds per point. Slow points take longer, because at least six iterations run.")
    ] = 0.4,
    real_time: Annotated[bool, Option("--real-time", help="Run the ranks at real-time priority (needs root).")] = False,
    transfers: Annotated[bool, Option(help="Also measure copies to and from the GPU, if there is one.")] = True,
    fresh: Annotated[bool, Option("--fresh", help="Start again, and replace the file's contents.")] = False,
) -> None:
    """Measure this machine: links, memory, every collective algorithm, and copies to and from a GPU.

    A collective is timed only if its result is correct.
    Under torchrun, its processes are the ranks. After Ctrl-C the same command continues where it stopped.
    """
    from ...ranks import joined
    from ..measuring.run import default_backend, measure, writes

    if backend is None:
        backend = default_backend(num_ranks, device)
    writes_output = writes()
    # Under torchrun a rank may wait inside a collective, which only the default action of a signal ends. A bar hides
    # the cursor, and that action would leave it hidden, so progress is printed in lines.
    is_joined = joined.place() is not None
    reports: list[Progress] = []
    with (
        interruptible(signals=not is_joined, words=lambda: _how_to_continue(reports, output, fresh)),
        _progress_display(writes_output, may_redraw=not is_joined) as show,
    ):

        def report(progress: Progress) -> None:
            reports.append(progress)
            show(progress)

        protocol = _protocol(
            iterations=iterations,
            budget_s=budget,
            real_time=real_time,
            sizes=sizes,
            collectives=collectives,
            algorithms=algorithms,
            place=place,
            transfers=transfers,
        )
        measured = measure(
            output,
            protocol,
            num_ranks=num_ranks,
            backend=backend,
            device=device,
            fresh=fresh,
            name=printable(name or output.stem),
            command=_command(context),
            report=report,
        )
    if writes_output:
        _print_result(measured, reports[-1].left_out, output)  # `measure` reports at least once


def _protocol(
    *,
    iterations: int,
    budget_s: float,
    real_time: bool,
    sizes: str | None,
    collectives: str,
    algorithms: str | None,
    place: str,
    transfers: bool,
) -> Protocol:
    """Return the protocol that the options of the command state."""
    from ...common.checks import one_of
    from ..measuring.plan import Protocol

    return Protocol(
        iterations=iterations,
        budget_s=budget_s,
        real_time=real_time,
        sizes=None if sizes is None else parse_sizes(sizes),
        collectives=_names(collectives),
        algorithms=None if algorithms is None else _names(algorithms),
        in_place=_PLACES[one_of("--place", place, tuple(_PLACES))],
        transfers=transfers,
    )


def _print_result(measured: Profile, left_out: Sequence[int], output: Path) -> None:
    """Print the sizes in bytes that were left out, the tables of a profile, and the command that shows them again."""
    from ...common.units import bytes_words
    from .. import tables

    if left_out:
        print(f"left out for lack of memory: {', '.join(map(bytes_words, left_out))}")
    print_parts(tables.overview(measured))
    print()
    print(f"{printable(str(output))} contains all measurements; {show_command(output)} shows it again")


# ---- words of the command line


def parse_sizes(text: str) -> list[int]:
    """Return the sizes in bytes that a string states.

    >>> parse_sizes("1KiB:4KiB"), parse_sizes("512,1.5MiB")
    ([1024, 2048, 4096], [512, 1572864])
    """
    from ...common.units import parse_bytes
    from ..measuring.plan import powers_of_two

    if ":" not in text:
        return [parse_bytes("--sizes", each) for each in text.split(",")]
    first, last = text.split(":", 1)
    low = parse_bytes("--sizes", first)
    high = parse_bytes("--sizes", last)
    if not 0 < low <= high:
        raise ValueError(f"--sizes must increase from a size above 0, got {text!r}")
    return list(powers_of_two(low, high))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _command(context: typer.Context) -> str:
    """Return the command with the options that were given; paths are reduced to their file names."""
    from ...provenance import command_words

    words = ["rankscope", "profile"]
    for parameter in context.command.params:
        source: Any = context.get_parameter_source(str(parameter.name))
        if source is None or source.name != "COMMANDLINE":  # a default
            continue
        value = context.params[str(parameter.name)]
        # A false flag is written as --no-…, its secondary option.
        options = parameter.secondary_opts if value is False else parameter.opts
        words.append(options[-1])  # the long one, as in -o, --output
        if not isinstance(value, bool):
            words.append(str(value))
    return printable(command_words(words))


# ---- progress

Show = Callable[["Progress"], None]


@contextlib.contextmanager
def _progress_display(writes_output: bool, may_redraw: bool) -> Iterator[Show]:
    """Yield a function that shows progress: as a bar on a terminal, as lines elsewhere, not at all on other ranks."""
    if writes_output and may_redraw and sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _lines(writes_output)


def _lines(writes_output: bool) -> Show:
    """Return a function that prints a line every few seconds, or nothing if this process does not write the file."""
    last_s = -math.inf  # so that the first line is printed at once

    def show(progress: Progress) -> None:
        nonlocal last_s
        has_next_point = progress.num_points > 0 and progress.doing != ""  # not at the start, and not at the end
        if not writes_output or not has_next_point:
            return
        if time.monotonic() - last_s >= _LINE_EVERY_S:
            last_s = time.monotonic()
            print(f"{_state(progress)}: {progress.doing}", file=sys.stderr, flush=True)

    return show


@contextlib.contextmanager
def _bar() -> Iterator[Show]:
    """Show a progress bar and yield a function that updates it; the bar is removed at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[words]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, words="")

        def show(progress: Progress) -> None:
            words = _state(progress) if progress.num_points else ""
            # While the number of points is not known yet, None makes the bar move without a share.
            total = progress.num_points or None
            bar.update(task, description=progress.doing, total=total, completed=progress.num_done, words=words)

        yield show


def _count(progress: Progress) -> str:
    return f"{progress.num_done} of {progress.num_points} points"


def _state(progress: Progress) -> str:
    """Return how many points are done and, if it is known, about how long the others will take."""
    left_s = progress.left_s
    if left_s is None:
        return _count(progress)
    left = f"{left_s:.0f} s"
    if left_s >= 90:
        left = f"{round(left_s / 60)} min"
    return f"{_count(progress)}, about {left} left"


def _how_to_continue(reports: list[Progress], output: Path, fresh: bool) -> str:
    """Return what an interrupted run has stored, and which command continues it."""
    is_interrupted_at_start = not reports or reports[-1].num_points == 0
    if is_interrupted_at_start:
        return "nothing was measured"
    how = "the same command without --fresh" if fresh else "the same command"
    return f"{_count(reports[-1])} are in {printable(str(output))}, and {how} continues from there"
