"""A drawing of a hang: the last calls of a group on each rank, and who is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...common.checks import of_type
from ...figures.palette import ALARM, FAINT, PAPER, WAITING
from ...figures.plots import Key, Plot, Rects, numbers_on
from ..hangs import Group, Hang, group_words
from ..log_findings import HangFinding

_MOST_RANKS = 16
_MOST_CALLS = 4  # of each rank
_MOST_LETTERS = 24  # in a cell
_LETTER_PX = 6.6  # the width of a letter
_MARGIN_PX = 16.0  # of a cell, next to its label
_LEAST_COLUMN_PX = 60.0  # the width of a column whose labels are short
_ROW_PX = 26.0
_WORDS_OF_CAUSE = {"collective": "other collective", "size": "other size", "dtype": "other dtype"}
_NO_CALL = "no call"  # in a cell, if the rank left a dump without this call
_NO_DUMP = "no dump"
_NO_MORE = "nothing more"  # if calls share a number, and the rank has made fewer of them


class _HangCell(NamedTuple):
    """The call of one rank at one number; hatched if the rank did not make the call at which the group stops.

    `cause` is what a finding says of the rank at this call, else empty.
    """

    fill: str
    label: str
    hatched: bool = False
    cause: str = ""


def draw_hang(hang: Hang, finding: int = 0, title: str | None = None) -> Plot:
    """Draw the last calls of the group that a finding of `explain_hang` is about: a row per rank, a column per call.

    A cell is hatched if the rank did not make the call at which the group stops. Ranks that other findings name at this
    call are marked, too. Of more than 16 ranks, 16 are shown: some of each cause, and others if these are fewer. Raises
    ValueError if there is no such finding.
    """
    if not 0 <= finding < len(of_type("hang", hang, Hang).findings):
        raise ValueError(f"finding must be the place of one of {len(hang.findings)} findings, got {finding}")
    shown = hang.findings[finding]
    if not is_drawable(hang, shown):
        raise ValueError(f"finding must be one from dumps, and finding {finding} comes from logs")
    group = next(group for group in hang.groups if group.name == shown.group)
    cause_of = _causes_at_the_stop(hang, shown)
    ranks = _ranks_to_show(group, cause_of)
    numbers = group.last_calls(shown.call, most=_MOST_CALLS)
    came = [rank for rank, calls in group.calls.items() if shown.call in calls]
    place_of = {shown.call: group.first_odd_place(shown.call, came)}
    cells = [_cell(group, shown, cause_of, place_of, rank, number) for rank in ranks for number in numbers]

    labels = [cell.label for cell in cells]
    cell_rows, cell_columns = np.divmod(np.arange(len(cells)), len(numbers))
    rects = Rects(cell_columns, cell_rows, [cell.fill for cell in cells], hatched=[cell.hatched for cell in cells])
    # around the column of the call at which the group stops
    frame = Rects([numbers.index(shown.call)], [0], "none", width=1, height=len(ranks), edge=ALARM)
    longest_label = max(len(label) for label in labels)
    column_px = max(_LEAST_COLUMN_PX, _LETTER_PX * longest_label + _MARGIN_PX)
    y_label = "rank"
    if len(ranks) < len(group.ranks):
        y_label = f"rank ({len(ranks)} of {len(group.ranks)} shown)"
    first_sentence = shown.words.partition("\n")[0].removesuffix(".")
    return Plot(
        title=title or first_sentence,
        x_label=f"collective of {group_words(shown.group)}, by number",
        y_label=y_label,
        width=len(numbers),
        height=len(ranks),
        size_px=(len(numbers) * column_px, _ROW_PX * len(ranks)),
        rects=(rects, frame),
        texts=numbers_on(rects, np.array(labels)),
        x_ticks=[(column + 0.5, str(number)) for column, number in enumerate(numbers)],  # in the middle of each column
        y_ticks=[(row + 0.5, str(rank)) for row, rank in enumerate(ranks)],
        legend=_legend(cells),
    )


def is_drawable(hang: Hang, finding: HangFinding) -> bool:
    """Whether there are the calls of the group that a finding is about: logs do not have them."""
    for group in hang.groups:
        if group.name == finding.group:
            return any(finding.call in calls for calls in group.calls.values())
    return False


def _ranks_to_show(group: Group, cause_of: dict[int, str]) -> list[int]:
    """Return at most 16 ranks in their order: those with a cause, then those without a dump, then the lowest ones.

    Of those with a cause, the first of each cause come first, then the second of each. One rank without a cause is
    always shown, to compare them with.
    """
    to_look_at = sorted({*group.ranks} & {*cause_of})
    num_before = Counter[str]()  # by cause
    place: dict[int, int] = {}  # among the ranks of the same cause
    for rank in to_look_at:
        place[rank] = num_before[cause_of[rank]]
        num_before[cause_of[rank]] += 1
    to_look_at.sort(key=lambda rank: place[rank])
    others = {*group.ranks} - {*to_look_at}
    without_dump = sorted(others - {*group.calls})
    with_dump = sorted(others & {*group.calls})
    most = _MOST_RANKS - 1
    by_interest = [*to_look_at[:most], *with_dump[:1], *to_look_at[most:], *without_dump, *with_dump[1:]]
    return sorted(by_interest[:_MOST_RANKS])


def _causes_at_the_stop(hang: Hang, shown: HangFinding) -> dict[int, str]:
    """Return what the findings about the same call say of ranks, by rank; the one that is drawn counts first."""
    cause_of = dict.fromkeys(shown.ranks, shown.cause)
    for finding in hang.findings:
        if (finding.group, finding.call) == (shown.group, shown.call):
            for rank in finding.ranks:
                cause_of.setdefault(rank, finding.cause)
    return cause_of


def _cell(
    group: Group, finding: HangFinding, cause_of: dict[int, str], place_of: dict[int, int], rank: int, number: int
) -> _HangCell:
    """Return the cell of a rank at the call with this number.

    `cause_of` is by rank, at the call of the finding. `place_of` says, by number, which of the calls that share it to
    show; by default it is the first.
    """
    is_stop = number == finding.call
    calls = group.calls.get(rank, {}).get(number)
    if not calls:
        if not is_stop:
            return _HangCell(PAPER, "")
        absence = _NO_CALL if rank in group.calls else _NO_DUMP
        return _HangCell(PAPER, absence, hatched=True)

    label = _NO_MORE
    place = place_of.get(number, 0)
    if place < len(calls):
        # The types of tensors take room, so they are shown only if they differ.
        label = calls[place].label(types="dtype" in cause_of.values())
    if len(label) > _MOST_LETTERS:
        label = f"{label[: _MOST_LETTERS - 1]}…"
    if is_stop and rank in cause_of:
        return _HangCell(ALARM, label, cause=cause_of[rank])
    if number >= finding.call:  # a call that is queued behind the stop waits, too
        return _HangCell(WAITING, label)
    return _HangCell(PAPER, label)


def _legend(cells: Sequence[_HangCell]) -> list[Key]:
    """Return a key for each kind of cell that the drawing has."""
    causes = [_WORDS_OF_CAUSE.get(cause, cause) for cause in dict.fromkeys(cell.cause for cell in cells if cell.cause)]
    cause_words = " or ".join([", ".join(causes[:-1]), causes[-1]] if len(causes) > 1 else causes)
    keys = [Key("same call on all ranks", PAPER, edge=FAINT), Key("waits", WAITING), Key(cause_words, ALARM)]
    fills = {cell.fill for cell in cells if cell.label and not cell.hatched}  # of the calls that were made
    shown = [key for key in keys if key.fill in fills]
    absences = {cell.label for cell in cells if cell.hatched}
    absence_words = []
    if _NO_CALL in absences:
        absence_words.append("did not call it")
    if _NO_DUMP in absences:
        absence_words.append("left no dump")
    if absence_words:
        shown.append(Key(" or ".join(absence_words), PAPER, hatched=True, edge=FAINT))
    return shown
