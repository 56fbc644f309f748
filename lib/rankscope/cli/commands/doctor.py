"""`rankscope doctor`: this machine, and the parts of rankscope that work on it, as tables or as JSON."""

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
from ..output import print_parts
from ..registry import command


@command("doctor")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Describe this machine, list the parts of rankscope that work on it, and what to install for the others."""
    with interruptible(), _shown_progress() as report:
        report("the machine")
        facts = machine()
        diagnoses = examine(report)
    if as_json:
        as_dicts = [attrs.asdict(diagnosis) for diagnosis in diagnoses]
        print(json.dumps({"machine": facts, "diagnoses": as_dicts}, indent=1))
    else:
        print_parts(tables(diagnoses, facts))


def tables(diagnoses: Sequence[Diagnosis], facts: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield tables of the machine, of the parts that were found, and of those to install."""
    table = _table("This machine", "property", "value")
    for name, words in facts.items():
        table.add_row(name, words)
    yield table
    available = [diagnosis for diagnosis in diagnoses if diagnosis.is_installed]
    missing = [diagnosis for diagnosis in diagnoses if not diagnosis.is_installed]
    if available:
        title = f"Found: {len(available)} of {count_of(len(diagnoses), 'part')}"
        table = _table(title, "part", "found", "use")
        for diagnosis in available:
            table.add_row(Text(diagnosis.name, "green"), diagnosis.detail, Text(diagnosis.used_by, "dim"))
        yield table
    if missing:
        table = _table("Missing", "part", "reason, use, and remedy")
        for diagnosis in missing:
            table.add_row(Text(diagnosis.name, "yellow"), diagnosis.detail)
            table.add_row("", Text(f"for {diagnosis.used_by}", "dim"))
            table.add_row("", f"to do: {diagnosis.remedy}")
        yield table


def _table(title: str, *columns: str) -> Table:
    """Return an empty table. Its first column has short names; the others share the rest of the terminal's width."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    first, *others = columns
    table.add_column(first, no_wrap=True, overflow="fold", header_style="dim")
    for name in others:
        table.add_column(name, overflow="fold", header_style="dim", ratio=1)
    return table


@contextlib.contextmanager
def _shown_progress() -> Iterator[Callable[[str], None]]:
    """Return a function that shows the name of the check that is running, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    with Console(stderr=True).status("") as status:
        yield lambda name: status.update(name)
