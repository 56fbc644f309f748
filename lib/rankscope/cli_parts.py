"""What all tables of the command line are made of."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

WRAPPED = ("what", "claim")  # columns whose words may go on in the next line


def table_of(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    made.caption_justify, made.caption_style = "left", "dim"
    for name in columns:
        words = name in ("algorithm", "quickest", *WRAPPED, "")
        made.add_column(name, justify="left" if words else "right", no_wrap=name not in WRAPPED, header_style="dim")
    return made


def marked(lines: Iterable[tuple[str, str]]) -> Table:
    """Texts beside their marks, so that what does not fit into a line goes on below its beginning."""
    table = Table.grid(padding=(0, 1))
    for mark, text in lines:
        table.add_row(Text(mark, "dim"), Text(text))
    return table


def heading(text: str) -> Text:
    return Text(f"\n{text}", "bold")
