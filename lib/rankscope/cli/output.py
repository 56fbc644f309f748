"""Tables and sentences on the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

_WRAPPED = "what"  # the column of words that may wrap
_WORDS = ("algorithm", "fastest", _WRAPPED)  # columns of words; the others are of numbers
_PIPE_WIDTH = 100_000  # characters: more than any line has


def table_of(title: str, *columns: str) -> Table:
    """Return an empty table with right-aligned numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        justify: JustifyMethod = "left" if name in _WORDS else "right"
        table.add_column(name, justify=justify, no_wrap=name != _WRAPPED, header_style="dim")
    return table


def marked(lines: Iterable[tuple[str, str]]) -> Table:
    """Return labels next to their texts; the lines of a long text are aligned."""
    table = Table.grid(padding=(0, 1))
    for mark, text in lines:
        table.add_row(Text(mark, "dim"), Text(text))
    return table


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print parts as they come, one below the other; outside a terminal, no line is wrapped."""
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH  # so that a path in a file or a pipe can be copied, and a sentence searched
    for index, part in enumerate(parts):
        is_titled_table = isinstance(part, Table) and bool(part.title)
        if index > 0 and is_titled_table:
            console.print()
        console.print(part)
