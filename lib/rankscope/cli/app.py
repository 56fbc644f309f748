"""`rankscope`: the command line; each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import __version__
from ..values.checks import one_line, printable
from ..workers.errors import MachineError
from .diagnose import diagnose
from .doctor import doctor
from .profile import profile

EXAMPLES = """\b
Examples:
  rankscope profile -o box.json                measure this machine
  rankscope import all_reduce.log -o box.json  or read logs of other programs
  rankscope show box.json                      what it reaches, and why
  rankscope compare box.json bank:h100_8       against a published machine
  rankscope predict box.json --num-bytes 1MiB  the time of each algorithm
  rankscope nccl h100x8 --nodes 4              what NCCL will choose there
  rankscope diagnose traces/                   which rank the others wait for
"""

app = typer.Typer(epilog=EXAMPLES, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"rankscope {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Measure a machine, show and compare the results, and predict from them."""


app.command()(profile)
app.command()(doctor)
app.command()(diagnose)

ProfilePath = Annotated[
    Path,
    typer.Argument(help="A profile: a file that `rankscope profile` or `import` wrote, or bank:NAME.", metavar="PATH"),
]
Collective = Annotated[str, typer.Option(help="Which collective.")]
Sizes = Annotated[list[str] | None, typer.Option(help="Size of the whole buffer, as in 64KiB. Repeat for more sizes.")]


@app.command()
def show(
    path: ProfilePath,
    num_bytes: Sizes = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write an SVG: this box next to similar machines of the bank.")
    ] = None,
) -> None:
    """Show what a profile contains: its links, the fastest algorithm at each size, and a verdict.

    With --num-bytes: every algorithm at that size, measured and predicted.
    """
    from ..machine import Profile
    from . import tables

    profile = Profile.load(path)
    sizes = _sizes(num_bytes)
    tables.show(tables.at_sizes(profile, sizes) if sizes else tables.overview(profile))
    if picture is not None:
        from ..figures.boxes import draw_beside
        from ..figures.svg import save_svg

        save_svg(draw_beside(profile), picture)
        tables.show([f"{printable(str(picture))} shows {profile.provenance['name']} next to similar machines"])


@app.command()
def bank() -> None:
    """List the published machines: bank:NAME stands for a profile in every command."""
    from ..machine import bank as machines
    from . import tables

    tables.show(tables.machines(machines()))


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Logs of nccl-tests, nvbandwidth, OSU and others.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write everything that was read to this file, as one machine's profile."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="The program that wrote them. Default: recognised from the text.")
    ] = None,
    num_ranks: Annotated[
        int | None,
        typer.Option(
            help="Only tables of so many ranks; a table that does not state its number is taken to be of them."
        ),
    ] = None,
) -> None:
    """Read logs of other programs. Prints one line per table; -o stores all of them as one profile."""
    from ..machine import read_log
    from ..machine.logs import merged
    from . import tables

    found = [profile for path in files for profile in read_log(path, kind, num_ranks)]
    tables.show(tables.imported(found))
    if output is not None:
        merged(found, printable(output.stem)).save(output)
        tables.show([f"{printable(str(output))} holds everything; `rankscope show {printable(str(output))}` shows it"])


@app.command()
def nccl(
    box: Annotated[str, typer.Argument(help="The GPU and the number of GPUs per node, as in h100x8.", metavar="BOX")],
    nodes: Annotated[int | None, typer.Option(help="Number of nodes. Default: 1, or what the log states.")] = None,
    version: Annotated[str, typer.Option(help="NCCL's version, as in 2.29.2.")] = "2.30",
    collective: Collective = "allreduce",
    num_bytes: Sizes = None,
    log: Annotated[
        Path | None, typer.Option(help="A log of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING.")
    ] = None,
    topo: Annotated[
        Path | None,
        typer.Option(help="NCCL's topology XML (NCCL_TOPO_DUMP_FILE), or the output of nvidia-smi topo -m."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a drawing of --topo, an SVG.")] = None,
    profile: Annotated[str | None, typer.Option(help="A measured profile of the box: a file or bank:NAME.")] = None,
    tuner_csv: Annotated[
        Path | None,
        typer.Option(
            help="Write a file for NCCL's example tuner: choices that should be faster than the measured ones."
        ),
    ] = None,
) -> None:
    """Show which algorithm and protocol NCCL chooses by size, the time it expects, and the time machines take."""
    from ..machine import Profile
    from ..nccl import Model
    from ..nccl.tuner import num_choices
    from ..nccl.tuner import tuner_csv as tuner_lines
    from ..values.checks import count_of
    from ..values.storage import write_atomically
    from . import tables
    from .nccl import SIZES, box_of, choices, of_topology

    gpu, gpus_per_node = box_of(box)
    more: dict[str, Any] = {"gpus_per_node": gpus_per_node} | ({} if nodes is None else {"num_nodes": nodes})
    if picture is not None and topo is None:
        raise ValueError("--picture needs --topo, the topology that it draws")
    if topo is not None:
        words, of_box = of_topology(topo, gpu, gpus_per_node, picture)
        tables.show(words)
        more |= of_box
    model = Model.from_log(log, gpu, **more) if log else Model(**{"gpu": gpu, "version": version, **more})
    lines = ""
    if profile is not None:
        measured = Profile.load(profile)
        lines, model = tuner_lines(model, measured), model.with_readings(measured)
    elif tuner_csv is not None:
        raise ValueError("--tuner-csv needs --profile, the measured profile of the box")
    tables.show(choices(model, collective, _sizes(num_bytes) or SIZES))
    if tuner_csv is not None:
        write_atomically(tuner_csv, lambda file: file.write(lines.encode()))
        ranges = count_of(num_choices(lines), "range")
        words = [f"{printable(str(tuner_csv))}: {ranges} of sizes where another choice should be faster"]
        if num_choices(lines):
            words.append("Read the file's comments before you use it: the plug-in slows down what no line matches.")
        tables.show(words)


@app.command()
def predict(
    path: ProfilePath,
    collective: Collective = "allreduce",
    algorithm: Annotated[
        list[str] | None, typer.Option(help="Name of an algorithm. Repeat for more. Default: all.")
    ] = None,
    num_bytes: Sizes = None,
) -> None:
    """Predict the time of each algorithm on the machine of a profile, the fastest first, with the lower bound."""
    from ..machine import Profile
    from . import tables

    profile = Profile.load(path)
    sizes = _sizes(num_bytes or ["1KiB", "64KiB", "1MiB", "64MiB"])
    tables.show(tables.predictions(profile, collective, algorithm, sizes))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A profile.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="The profile to compare it with.", metavar="B")],
    everything: Annotated[bool, typer.Option("--all", help="Also show differences within the noise.")] = False,
) -> None:
    """Show what is slower or faster in profile B than in profile A, by more than the noise; the verdict comes first."""
    from ..machine import Profile
    from . import tables

    tables.show(tables.comparison(Profile.load(before), Profile.load(after), everything))


@app.command()
def trace(
    path: ProfilePath,
    algorithm: Annotated[str, typer.Option(help="Which algorithm.")],
    num_bytes: Annotated[str, typer.Option(help="Size of the whole buffer, as in 64KiB.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write; gzipped if it ends in .gz.")],
    collective: Collective = "allreduce",
) -> None:
    """Write when each rank would send, receive and add, as a trace for Perfetto and chrome://tracing."""
    from ..machine import Profile
    from ..values.checks import count_of
    from ..values.storage import check_file
    from ..values.units import bytes_words, time_words
    from . import tables

    profile = Profile.load(path)
    (size,) = _sizes([num_bytes])
    timeline = tables.predicted(profile, collective, algorithm, size)
    check_file("--output", output)
    timeline.to_chrome_trace(output)
    what = f"{collective} by {algorithm} of {bytes_words(size)}, {count_of(len(timeline), 'span')}"
    tables.show([f"{printable(str(output))}: {what}, {time_words(timeline.makespan_s)}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 after an error that the user can fix, stated in one line on stderr.

    Such errors are bad input, files, memory, a missing package, and what the machine cannot do (MachineError). Any
    other exception is a bug of ours and keeps its traceback.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # α and µ on a terminal that has no such letters
    try:
        return int(app(words or ["--help"], prog_name="rankscope", standalone_mode=False) or 0)
    except BrokenPipeError:  # the reader has closed the pipe
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for what is still to be flushed
        return 1
    except (KeyboardInterrupt, typer.Abort):
        print("rankscope: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except MemoryError as error:
        message = f"there is not enough memory: {error}".removesuffix(": ")
    except ValueError as error:
        message = str(error)
    except MachineError as error:
        message = str(error).partition("\n")[0]  # the rank's traceback follows
    except ModuleNotFoundError as error:
        if (error.name or "rankscope").startswith("rankscope"):
            raise
        message = _install_hint(error)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's error about an argument
            raise
        message = str(error.format_message())
    print(f"rankscope: {one_line(' '.join(message.split()))}", file=sys.stderr)
    return 2


def _install_hint(error: ModuleNotFoundError) -> str:
    """Return the message of an error about a missing package. It says how to install one that an extra brings."""
    from ..values.extras import naming_extras

    try:
        with naming_extras("this command"):
            raise error
    except ModuleNotFoundError as named:
        return str(named)


def _sizes(texts: Sequence[str] | None) -> list[int]:
    from ..machine.measuring.plan import MOST_BYTES
    from ..values.checks import whole
    from ..values.units import parse_bytes

    return [whole("--num-bytes", parse_bytes("--num-bytes", text), 1, MOST_BYTES) for text in texts or ()]
