"""`rankscope`: the command line; each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from typing import Annotated

import typer

from .. import __version__
from ..common.checks import one_line
from ..ranks.errors import MachineError
from .registry import commands, reasons_of_left_out_commands

# In the order in which they are used. The help shows those whose command is installed.
_EXAMPLES = (
    ("rankscope profile -o box.json", "measure this machine"),
    ("rankscope import all_reduce.log -o box.json", "or read other programs' logs"),
    ("rankscope show box.json", "show its rates, explain slow ones"),
    ("rankscope compare box.json bank:h100_8", "compare it with a public one"),
    ("rankscope nccl h100x8 --nodes 4", "show what NCCL chooses"),
    ("rankscope diagnose traces/", "find the rank that is late"),
)


def _examples(names: Collection[str]) -> str:
    """Return the examples of these commands as the end of the help, "" if they have none."""
    width = max(len(example) for example, _ in _EXAMPLES)
    lines = []
    for example, purpose in _EXAMPLES:
        _, name, *_ = example.split()  # rankscope, and the command
        if name in names:
            lines.append(f"  {example:<{width}}  {purpose}")
    if not lines:
        return ""
    return "\n".join(["\b", "Examples:", *lines])  # \b keeps typer from joining the lines


EXAMPLES = _examples(commands())

app = typer.Typer(epilog=EXAMPLES or None, add_completion=False, pretty_exceptions_enable=False)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"rankscope {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Measure and compare machines, show what NCCL chooses, and diagnose slow or hung jobs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _name, _function in commands().items():
    app.command(_name)(_function)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. It is 2 after an error that the user can fix, with one line on stderr.

    Such errors are bad input, files, memory, a missing package, and limits of the machine (MachineError). Any other
    exception is a bug in rankscope and keeps its traceback. The code is 130 after Ctrl-C, and 1 if the program that
    reads the output has ended.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a stream that replaces one of these may lack it, as in a notebook
            stream.reconfigure(errors="replace")  # for a terminal without letters such as α and µ
    try:
        # Not standalone: typer returns the exit code, or None after a command that ends normally, and raises errors.
        exit_code = app(list(arguments), prog_name="rankscope", standalone_mode=False)
        return int(exit_code or 0)
    except BrokenPipeError:  # the reader has closed the pipe; it is an OSError, so it comes first
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for output that will still be flushed
        return 1
    except (KeyboardInterrupt, typer.Abort):
        print("rankscope: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except MemoryError as error:
        message = f"there is not enough memory: {error}".removesuffix(": ")  # the error may have no text
    except ValueError as error:
        message = str(error)
    except MachineError as error:
        message = str(error).partition("\n")[0]  # the rank's traceback follows
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rankscope"):  # a bug, not a package that the user lacks
            raise
        message = _install_hint(error)
    except Exception as error:
        # An error about an argument is a ClickException, of click or of the copy of click that newer typers bring.
        if not hasattr(error, "format_message"):
            raise
        message = str(error.format_message())
        if message.startswith("No such command"):
            message += _left_out_hint()
    message_in_one_line = " ".join(message.split())  # without the indents of further lines
    print(f"rankscope: {one_line(message_in_one_line)}", file=sys.stderr)
    return 2


def _install_hint(error: ModuleNotFoundError) -> str:
    """Return the message of an error about a missing package. It says how to install one that an extra brings."""
    from ..common.extras import naming_extras

    try:
        with naming_extras("this command"):  # replaces such an error by one that names the extra
            raise error
    except ModuleNotFoundError as named:
        return str(named)


def _left_out_hint() -> str:
    """Return which modules of commands are left out for a missing package; "" if all are there."""
    reasons = reasons_of_left_out_commands()
    if not reasons:
        return ""
    return f" Commands of these modules are left out: {'; '.join(reasons)}."
