"""`rankscope`: the command line. The module of a command is imported when the command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Annotated, NamedTuple

import typer

from .. import __version__
from ..common.extras import naming_extra
from ..common.words import one_line


class Command(NamedTuple):
    """The function of a command, as "module:name", and what the list of all commands says of it.

    The function's type hints say what the command takes; its docstring is the command's own help.
    """

    function: str
    summary: str


COMMANDS = {
    "profile": Command("rankscope.cli.profile:profile", "Measure this machine."),
    "import": Command("rankscope.cli.logs:import_", "Read the logs of other programs."),
    "show": Command("rankscope.cli.machines:show", "Show what a profile contains, and a verdict on it."),
    "compare": Command("rankscope.cli.machines:compare", "Show where one profile is slower than another."),
    "bank": Command("rankscope.cli.machines:bank", "List the public machines."),
    "nccl": Command("rankscope.cli.nccl:nccl", "Show what NCCL chooses, and how long it takes."),
    "diagnose": Command("rankscope.cli.diagnose:diagnose", "Find the rank that is late or stuck."),
}
EXAMPLES = """\b
Examples:
  rankscope profile -o box.json                measure this machine
  rankscope import all_reduce.log -o box.json  or read other programs' logs
  rankscope show box.json                      show its rates, explain slow ones
  rankscope compare box.json bank:h100_8       compare it with a public one
  rankscope bank                               list the public machines
  rankscope nccl h100x8 --nodes 4              show what NCCL chooses
  rankscope diagnose traces/                   find the rank that is late"""  # \b keeps typer from joining the lines


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"rankscope {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Measure and compare machines, show what NCCL chooses, and diagnose slow or hung jobs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def program(name: str) -> typer.Typer:
    """Return the program with one command that can run, or none; of the others it has only the summaries."""
    app = typer.Typer(epilog=EXAMPLES, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(options)
    for other, command in COMMANDS.items():
        if other == name:
            app.command(name)(resolve_name(command.function))
        else:
            app.command(other, help=command.summary)(lambda: None)
    return app


def _example(arguments: Sequence[str]) -> str:
    """Return the example of the command that is meant, or how to get the list of all commands."""
    examples = [line.split("  ")[1] for line in EXAMPLES.splitlines() if line.startswith("  rankscope")]
    meant = [example for example in examples if example.split()[1] in arguments[:1]]
    return meant[0] if meant else "rankscope --help"


def _completed_words() -> list[str]:
    """Return the words after "rankscope" on the command line that a shell wants completed, as bash or others pass it.

    Its command must be there for its options to be known.
    """
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return line.split()[1:]


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
        with naming_extra():
            words = _completed_words() or arguments
            app = program("".join(words[:1]))
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
        message = str(error) or "there is not enough memory"
    except ValueError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        if not hasattr(error, "__notes__"):  # a bug, and no package of an extra
            raise
        message = "; ".join([str(error), *error.__notes__])
    except Exception as error:
        from ..ranks.errors import MachineError  # here, because its package takes longer to import than the help does

        if isinstance(error, MachineError):
            message = str(error).partition("\n")[0]  # the rank's traceback follows
        # An error about an argument is a ClickException, of click or of the copy of click that newer typers bring.
        elif hasattr(error, "format_message"):
            message = f"{error.format_message()} (for example: {_example(arguments)})"
        else:
            raise
    message_in_one_line = " ".join(message.split())  # without the indents of further lines
    print(f"rankscope: {one_line(message_in_one_line)}", file=sys.stderr)
    return 2
