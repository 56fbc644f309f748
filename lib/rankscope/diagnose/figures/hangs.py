"""A drawing of a hang: the last calls of a group on each rank, and who is missing."""

from __future__ import annotations

import numpy as np

from ...common.checks import of_type
from ...figures.marks import Drawing, Key, Rects, numbers_on
from ...figures.palette import ALARM, CATEGORIES, EMPTY, FAINT, PAPER
from ..hangs import Hang, group_words

_MOST_RANKS, _MOST_LETTERS = 16, 24
_LETTER_PX, _ROW_PX = 6.6, 26.0
_ODD, _OPEN = CATEGORIES[1], CATEGORIES[4]
_ABSENT = ("did not come", "no dump")


def draw_hang(hang: Hang, finding: int = 0, title: str | None = None) -> Drawing:
    """Draw the last calls of the group that a finding of `explain_hang` is about: a row per rank, a column per call.

    Hatched: the rank did not make the call at which the group stops. Of more than 16 ranks, those to look at are shown
    and some others. Raises ValueError where there is no such finding.
    """
    if not 0 <= finding < len(of_type("hang", hang, Hang).findings):
        raise ValueError(f"finding must be the place of one of {len(hang.findings)} findings, got {finding}")
    found = hang.findings[finding]
    group = next(one for one in hang.groups if one.name == found.group)
    to_look_at = {*found.ranks}
    chosen = sorted(group.ranks, key=lambda rank: (rank not in to_look_at, rank in group.calls, rank))
    ranks, numbers = sorted(chosen[:_MOST_RANKS]), group.last_calls(found.call, most=4)
    fills, labels, hatched = [], [], []
    for rank in ranks:
        for number in numbers:
            call = next(iter(group.calls.get(rank, {}).get(number, [])), None)
            hatched.append(call is None and number == found.call)
            blamed = number == found.call and rank in to_look_at
            fills.append((_ODD if blamed else _OPEN if number >= found.call else EMPTY) if call else PAPER)
            absent = _ABSENT[rank not in group.calls] if number == found.call else ""
            label = call.label(types=found.cause == "dtype") if call else absent
            labels.append(label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 1]}…")
    y, x = np.divmod(np.arange(len(labels)), len(numbers))
    cells = Rects(x, y, fills, hatched=hatched)
    place = numbers.index(found.call)
    keys = [Key("made alike by all", EMPTY, edge=FAINT), Key("waits", _OPEN), Key(found.cause, _ODD)]
    shown = f" ({len(ranks)} of {len(group.ranks)} shown)" if len(ranks) < len(group.ranks) else ""
    return Drawing(
        title=title or found.words.partition("\n")[0].removesuffix("."),
        x_label=f"collective of {group_words(found.group)}, by number",
        y_label=f"rank{shown}",
        width=len(numbers),
        height=len(ranks),
        size_px=(len(numbers) * max(60.0, 16 + _LETTER_PX * max(map(len, labels))), _ROW_PX * len(ranks)),
        rects=(cells, Rects([place], [0], "none", width=1, height=len(ranks), edge=ALARM)),
        texts=numbers_on(cells, np.array(labels)),
        x_ticks=[(column + 0.5, str(number)) for column, number in enumerate(numbers)],
        y_ticks=[(row + 0.5, str(rank)) for row, rank in enumerate(ranks)],
        legend=(
            *(key for key in keys if key.fill in fills),
            *[Key("did not make it", PAPER, True, FAINT)] * any(hatched),
        ),
    )
