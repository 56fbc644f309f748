"""`calls_table`: the last calls of a group on each rank as a table of a page, and who is missing."""

from __future__ import annotations

from html import escape

from ...common.words import printable
from ...figures.palette import ALARM, PAPER, WAITING
from ..hang_groups import Group, HangFinding
from ..hangs import Hang

_MOST_RANKS = 16
_MOST_CALLS = 4  # of each rank


def calls_table(hang: Hang, finding: HangFinding) -> str:
    """Return a table in HTML of the calls around a finding: a row per rank, a column per call; "" for one from logs.

    The ranks to look at are shown, and others up to 16. Their calls have a colour, and so have calls that wait.
    """
    groups = [group for group in hang.groups if group.name == finding.group]
    if not groups:
        return ""
    group = groups[0]
    numbers = sorted({number for one in group.progress.values() for number in one.calls})
    shown = [number for number in numbers if number <= finding.call + 1][-_MOST_CALLS:]
    by_interest = sorted(group.ranks, key=lambda rank: (rank not in finding.ranks, rank))
    rows = ["<th></th>" + "".join(f"<th>call {number}</th>" for number in shown)]
    for rank in sorted(by_interest[:_MOST_RANKS]):
        cells = [_cell(group, finding, rank, number) for number in shown]
        rows.append(f"<th>rank {rank}</th>{''.join(cells)}")
    caption = f"{len(rows) - 1} of the {len(group.ranks)} ranks of {group}"
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def _cell(group: Group, finding: HangFinding, rank: int, number: int) -> str:
    progress = group.progress.get(rank)
    call = progress.calls.get(number) if progress else None
    label = str(call) if call else ""
    color = PAPER
    if number >= finding.call and call:
        color = WAITING
    if number == finding.call:
        color = ALARM if rank in finding.ranks else color
        label = label or ("no call" if progress else "no dump")
    return f'<td style="background: {color}">{escape(printable(label))}</td>'
