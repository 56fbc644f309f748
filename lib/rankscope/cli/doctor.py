"""`rankscope doctor`: what this machine can do, as tables or as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import attrs
import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..doctor import Diagnosis, examine
from ..values.checks import count_of
from .ending import interruptible


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what this machine can do, what it is for, and what to install for the rest.

    Everything is tried, not just looked up. The exit code is 1 if something required is missing.
    """
    from .tables import show

    with interruptible(), _shown() as report:
        diagnoses = examine(report)
    short = [one.name for one in diagnoses if one.required and not one.found]
    if as_json:
        print(json.dumps({"usable": not short, "diagnoses": [attrs.asdict(one) for one in diagnoses]}, indent=1))
    else:
        show(tables(diagnoses))
    if short:
        print(f"rankscope: required, but missing: {', '.join(short)}", file=sys.stderr)
        raise typer.Exit(1)


def tables(diagnoses: Sequence[Diagnosis]) -> Iterator[RenderableType]:
    """Yield what was found, and what is missing with what to install."""
    here = [one for one in diagnoses if one.found]
    gone = [one for one in diagnoses if not one.found]
    if here:
        table = _table(f"Here: {len(here)} of {count_of(len(diagnoses), 'thing')}", "what", "found", "what it is for")
        for one in here:
            table.add_row(Text(one.name, "green"), one.detail, Text(one.used_by, "dim"))
        yield table
    if gone:
        table = _table("Not here", "what", "why, what it is for, and what to do")
        for one in gone:
            table.add_row(Text(one.name, "bold red" if one.required else "yellow"), one.detail)
            table.add_row("", Text(f"for {one.used_by}", "dim"))
            if one.remedy:
                table.add_row("", f"to do: {one.remedy}")
        yield table


def _table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(columns):
        made.add_column(name, no_wrap=place == 0, overflow="fold", header_style="dim", ratio=None if place == 0 else 1)
    return made


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """Show which check is running, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    with Console(stderr=True).status("") as status:
        yield lambda name: status.update(name)
