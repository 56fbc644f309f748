"""The page of the command line: the help of each command."""

from __future__ import annotations

import inspect
import re

import typer

from rankscope.cli.program import COMMANDS, program

_HEAD = """# Command line

`make setup` installs `rankscope` in `.venv/bin`. This page shows the same as `--help`.
"""


def page() -> str:
    """Return the page as Markdown: for each command its usage, what it does, and a table of its arguments, if any."""
    return _HEAD + "".join(_section(name) for name in COMMANDS)


def _section(name: str) -> str:
    group = typer.main.get_command(program(name))
    top = typer.Context(group, info_name="rankscope")
    command = group.get_command(top, name)  # type: ignore[attr-defined]
    context = typer.Context(command, info_name=name, parent=top)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [record for record in records if record is not None]
    section = f"\n## rankscope {name}\n\n```text\n{usage}\n```\n\n{_as_code(inspect.cleandoc(command.help))}\n"
    if not rows:
        return section
    lines = "".join(f"* - {_in_pieces(names)}\n  - {_escaped(what)}\n" for names, what in rows)
    settings = ":class: arguments\n:align: left\n:header-rows: 1\n:widths: 35 65\n"
    head = "* - Argument\n  - Meaning\n"
    return f"{section}\n```{{list-table}}\n{settings}\n{head}{lines}```\n"


def _in_pieces(names: str) -> str:
    """Names of an argument and its type as pieces of code; a narrow page breaks lines between them, not within one.

    >>> _in_pieces("-o, --output <path>"), _in_pieces("--all / --not-all")
    ('`-o, --output` `<path>`', '`--all` `/ --not-all`')
    """
    return " ".join(f"`{piece}`" for piece in re.split(r" (?=[</])", names))


def _escaped(text: str) -> str:
    """Text whose brackets, which hold defaults, are no links."""
    return _as_code(" ".join(text.split()).replace("[", r"\["))


def _as_code(text: str) -> str:
    """Text with its options in code, where two dashes stay two."""
    return re.sub(r"(?<![`\w-])--[a-z-]+", r"`\g<0>`", text)
