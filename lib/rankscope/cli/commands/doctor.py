"""`rankscope doctor`: what this machine is and what works on it, as tables or as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import attrs
import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ...common.checks import count_of
from ...doctor import Diagnosis, examine, machine
from ..ending import interruptible
from ..registry import command


@command("doctor")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what this machine is, which parts of rankscope work on it, and what to install for the rest."""
    from ..output import print_parts

    with interruptible(), _shown() as report:
        report("the machine")
        about = machine()
        diagnoses = examine(report)
    if as_json:
        print(json.dumps({"machine": about, "diagnoses": [attrs.asdict(one) for one in diagnoses]}, indent=1))
    else:
        print_parts(tables(diagnoses, about))


def tables(diagnoses: Sequence[Diagnosis], about: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the machine, what was found, and what is missing with what to install."""
    table = _table("This machine", "what", "")
    for name, words in about.items():
        table.add_row(name, words)
    yield table
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
            table.add_row(Text(one.name, "yellow"), one.detail)
            table.add_row("", Text(f"for {one.used_by}", "dim"))
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
