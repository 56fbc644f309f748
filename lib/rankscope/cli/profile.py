"""`rankscope profile`: the words of the command line, progress while it runs, and what it found."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..machine.measuring.run import Emulation, Progress

Report = Callable[["Progress"], None]
_PLACES = {"in": (True,), "out": (False,), "both": (True, False)}
_BITS = {"k": 1e3, "M": 1e6, "G": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_A_LINE_S = 5.0  # where there is no terminal


Output = Annotated[Path, typer.Option("-o", "--output", help="The file; gone on with where it is there.")]
NumRanks = Annotated[int | None, typer.Option(help="By default the GPUs with nccl, which may be one, else 4.")]
Backend = Annotated[str, typer.Option(help="gloo, nccl or mpi.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda, where buffers are; nccl has cuda, gloo takes both.")]
Collectives = Annotated[str, typer.Option(help="Names with commas between them.")]
Algorithms = Annotated[str | None, typer.Option(help="Names with commas, native among them; by default all.")]
Sizes = Annotated[str | None, typer.Option(help="As in 1KiB:64MiB (powers of two) or 4KiB,1MiB.")]
Place = Annotated[str, typer.Option(help="allreduce in place, out of place or both: in, out, both.")]
Iterations = Annotated[int, typer.Option(help="Of each point, at most.")]
Budget = Annotated[float, typer.Option(help="Seconds for a point; long ones take more, for six iterations.")]
RealTime = Annotated[bool, typer.Option("--real-time", help="Before all else that runs here (root).")]
Emulate = Annotated[
    str | None, typer.Option(help="On a network made for it, a rank a host, as in 100Mbit/s,5ms (root).")
]
Transfers = Annotated[bool, typer.Option(help="Copies to and from the GPU, where there is one.")]
Name = Annotated[str, typer.Option(help="What to call it; by default as the file.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace what the file holds.")]


def profile(
    context: typer.Context, output: Output = Path("machine.json"), name: Name = "", num_ranks: NumRanks = None,
    backend: Backend = "gloo", device: Device = None, collectives: Collectives = "allreduce", place: Place = "in",
    algorithms: Algorithms = None, sizes: Sizes = None, iterations: Iterations = 60, budget: Budget = 0.4,
    real_time: RealTime = False, emulate: Emulate = None, transfers: Transfers = True, fresh: Fresh = False,
) -> None:  # fmt: skip
    """Measure this machine: links, memory, every collective algorithm, copies to and from a GPU, each checked first.

    Under torchrun its processes are the ranks. Ctrl-C loses nothing that was finished: the same command goes on.
    """
    from ..machine.measuring.plan import Protocol
    from ..machine.measuring.run import measure, writes
    from ..values.checks import one_of

    last: list[Progress] = []
    try:
        with _reporting(last, writes(backend)) as report:
            found = measure(
                output,
                num_ranks=num_ranks,
                backend=backend,
                device=device,
                sizes=None if sizes is None else parse_sizes(sizes),
                collectives=_names(collectives),
                algorithms=None if algorithms is None else _names(algorithms),
                in_place=_PLACES[one_of("--place", place, tuple(_PLACES))],
                protocol=Protocol(iterations=iterations, budget_s=budget, real_time=real_time),
                emulate=None if emulate is None else parse_network(emulate),
                transfers=transfers,
                fresh=fresh,
                name=name or output.stem,
                command=_command(context),
                report=report,
            )
    except KeyboardInterrupt:
        print(f"rankscope: interrupted; {_how_to_go_on(last, output, fresh)}", file=sys.stderr)
        raise typer.Exit(130) from None
    if writes(backend):
        _show(found, output, last[-1].left_out)


def parse_sizes(text: str) -> list[int]:
    """Return the sizes in bytes that a text states.

    >>> parse_sizes("1KiB:4KiB"), parse_sizes("512,1.5MiB")
    ([1024, 2048, 4096], [512, 1572864])
    """
    from ..machine.measuring.plan import powers_of_two
    from ..values.units import parse_bytes

    if ":" not in text:
        return [parse_bytes("--sizes", each) for each in text.split(",")]
    low, high = (parse_bytes("--sizes", each) for each in text.split(":", 1))
    if not 0 < low <= high:
        raise ValueError(f"--sizes must go up from a size above 0, got {text!r}")
    return list(powers_of_two(low, high))


def parse_network(text: str) -> Emulation:
    """Return the network that a text states.

    >>> parse_network("100Mbit/s,5ms")
    Emulation(bytes_per_s=12500000.0, latency_s=0.005)
    >>> parse_network("fast")
    Traceback (most recent call last):
    ValueError: --emulate must be a rate and a latency like 100Mbit/s,5ms or 1Gbit/s alone, got 'fast'
    """
    from ..machine.measuring.run import Emulation

    number = r"(\d+(?:\.\d+)?) ?"
    found = re.fullmatch(rf"{number}([kMG])bit/s(?:, ?{number}(us|ms|s))?", text.strip())
    if found is None:
        raise ValueError(f"--emulate must be a rate and a latency like 100Mbit/s,5ms or 1Gbit/s alone, got {text!r}")
    latency_s = float(found[3]) * _SECONDS[found[4]] if found[3] else 0.0
    return Emulation(float(found[1]) * _BITS[found[2]] / 8, latency_s)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _command(context: typer.Context) -> str:
    """The command as it was given, its file without the folder."""
    from ..machine.provenance import command_words

    words = ["rankscope", "profile"]
    for parameter in context.command.params:
        source: Any = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[str(parameter.name)]
            options = parameter.secondary_opts if value is False else parameter.opts
            words += [options[-1], *([] if isinstance(value, bool) else [str(value)])]
    return command_words(words)


@contextlib.contextmanager
def _reporting(last: list[Progress], shows: bool) -> Iterator[Report]:
    """Show how far a run has come, as a bar that is drawn anew or a line now and then; keep the last word in `last`."""
    with contextlib.ExitStack() as stack:
        shown: Report = lambda progress: None  # noqa: E731
        if shows:
            shown = _bar(stack) if sys.stderr.isatty() else _lines()

        def report(progress: Progress) -> None:
            last[:] = [progress]
            shown(progress)

        yield report


def _lines() -> Report:
    told = [-_A_LINE_S]

    def report(progress: Progress) -> None:
        if progress.doing and progress.num_points and time.monotonic() - told[0] >= _A_LINE_S:
            told[0] = time.monotonic()
            print(f"{_count(progress)}{_left(progress.left_s)}: {progress.doing}", file=sys.stderr, flush=True)

    return report


def _bar(stack: contextlib.ExitStack) -> Report:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    bar = stack.enter_context(Bar(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("", total=None, told="")

    def report(progress: Progress) -> None:
        told = f"{_count(progress)}{_left(progress.left_s)}" if progress.num_points else ""
        total = progress.num_points or None
        bar.update(task, description=progress.doing, total=total, completed=progress.num_done, told=told)

    return report


def _count(progress: Progress) -> str:
    return f"{progress.num_done} of {progress.num_points} points"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", about {max(1, round(seconds / 60))} min left" if seconds >= 90 else f", about {seconds:.0f} s left"


def _how_to_go_on(last: list[Progress], output: Path, fresh: bool) -> str:
    if not last or not last[-1].num_points:
        return "nothing was measured"
    how = "the same command without --fresh" if fresh else "the same command"
    return f"{_count(last[-1])} are in {output}, and {how} goes on from there"


def _show(found: Any, output: Path, left_out: tuple[int, ...]) -> None:
    from ..values.units import bytes_words
    from . import tables

    if left_out:
        print(f"left out, for want of memory: {', '.join(map(bytes_words, left_out))}")
    tables.show(*tables.overview(found))
    print(f"\n{output} holds all of it; `rankscope show {output}` shows it again")
