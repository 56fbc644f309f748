"""One step of a schedule: the chunks of each rank before it, its messages as arrows, and the chunks after it."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..collectives.schedule import MOVES, Schedule
from ..collectives.steps import Step
from ..collectives.verify import holdings
from ..common.checks import of_type, optional, whole
from ..common.words import count_of
from .marks import DIGIT_PX, LEFT_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text, row_name
from .palette import ADDED, COPIED, mixed, rank_colors

SHARES = "#2377ce"  # of sums of more than eight ranks: more of it, the more shares
_MOST_CELLS = 4096
_MOST_STRIPED = 8  # ranks up to which each has a stripe of its own in a cell
_TOP_PX = 44.0  # of the ranks, below the heads and the numbers of chunks
_ROWS_PX = 300.0
_LEAST_ROW_PX = 10.0
_MOST_ROW_PX = 40.0
_ARROWS_PX = 110.0  # between two grids


class Message(NamedTuple):
    """All that one rank sends to one other in a step; `reduce` says that it is added, or some of it is."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    reduce: bool


def messages(step: Step) -> list[Message]:
    """Return the messages of a step in the order of their first transfers."""
    chunks_of: dict[tuple[int, int], list[int]] = {}
    is_added: dict[tuple[int, int], bool] = {}
    for src, dst, first, count, reduce in zip(*(column.tolist() for column in step), strict=True):
        chunks_of.setdefault((src, dst), []).extend(range(first, first + count))
        is_added[src, dst] = is_added.get((src, dst), False) or reduce
    return [Message(src, dst, tuple(chunks), is_added[src, dst]) for (src, dst), chunks in chunks_of.items()]


def draw_schedule(
    schedule: Schedule,
    step: int,
    gpus_per_node: int | None = None,
    title: str | None = None,
    deck: str | None = None,
) -> Drawing:
    """Draw the messages between ranks at one step of a schedule; ``step=schedule.num_steps`` draws the end.

    A row is a rank, a column a chunk; lines separate the nodes of `gpus_per_node` ranks. If up to eight ranks add up, a
    cell has a stripe in the colour of each rank whose share is in the chunk; of more ranks, it is darker the more
    shares there are, with their number. If ranks only pass chunks on, it has the colour and the number of the rank that
    the chunk comes from. Framed cells are sent, and received. Solid arrows add, dashed ones replace. Raises ValueError
    if the step does not exist, nodes have no ranks, or there are more than 4,096 cells.
    """
    of_type("schedule", schedule, Schedule)
    optional("gpus_per_node", gpus_per_node, whole, 1)
    num_ranks, num_chunks = schedule.num_ranks, schedule.num_chunks
    if num_ranks * num_chunks > _MOST_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_CELLS} cells, ranks × chunks, got {num_ranks * num_chunks}")
    whole("step", step, 0, schedule.num_steps)
    transfers = next(islice(schedule.steps(), step, None), None)  # None at the end
    sent = [] if transfers is None else messages(transfers)
    row_px = min(max(_ROWS_PX / num_ranks, _LEAST_ROW_PX), _MOST_ROW_PX)
    every = 1 if row_px >= 13 else 2
    names: list[Mark] = []
    for rank in range(0, num_ranks, every):
        names.append(row_name(_TOP_PX + (rank + 0.5) * row_px + 4, f"rank {rank}"))
    width = (RIGHT_PX - LEFT_PX - _ARROWS_PX) / 2
    before = _Grid(schedule, LEFT_PX, width, row_px)
    marks = names + before.cells(holdings(schedule, step), {(one.src, chunk) for one in sent for chunk in one.chunks})
    if transfers is None:
        marks.append(Text(LEFT_PX, 12, "in the end", "deck"))
    else:
        after = _Grid(schedule, RIGHT_PX - before.width, width, row_px)
        received = {(one.dst, chunk) for one in sent for chunk in one.chunks}
        marks += after.cells(holdings(schedule, step + 1), received)
        marks += [Text(LEFT_PX, 12, "before the step", "deck"), Text(after.left, 12, "after it", "deck")]
        marks += _arrows(sent, LEFT_PX + before.width, after.left, row_px)
    for first_of_node in range(gpus_per_node or num_ranks, num_ranks, gpus_per_node or num_ranks):
        y = _TOP_PX + first_of_node * row_px
        marks.append(Line(((8, y), (RIGHT_PX, y)), "mute"))
    if deck is None:
        deck = _deck(schedule, sent, is_striped=before.slot_px > 0)
    tips: dict[Hashable, str] = {("chunk", chunk): f"chunk {chunk}" for chunk in range(num_chunks)}
    found = title or _finding(schedule, step, sent)
    return Drawing(found, marks, _TOP_PX + num_ranks * row_px + 8, deck, tips)


class _Grid:
    """The chunks of all ranks, from `left` on."""

    def __init__(self, schedule: Schedule, left: float, width: float, row_px: float) -> None:
        self.schedule, self.left, self.row_px = schedule, left, row_px
        self.cell_px = min(width / schedule.num_chunks, 56.0)
        self.width = self.cell_px * schedule.num_chunks
        self.pad = min(4.0, 0.12 * self.cell_px)
        self.colors = rank_colors(schedule.num_ranks)
        slot_px = (self.cell_px - 2 * self.pad) / schedule.num_ranks
        is_striped = schedule.num_ranks <= _MOST_STRIPED and slot_px >= 4
        self.slot_px = slot_px if is_striped else 0.0

    def cells(self, shares: NDArray[np.bool_], framed: set[tuple[int, int]]) -> list[Mark]:
        """``shares[rank, chunk, origin]`` says whether a rank's chunk has the share of an origin."""
        marks: list[Mark] = []
        every = next(every for every in (1, 2, 5, 10, 20, 50, 100, 500) if every * self.cell_px >= 18)
        for chunk in range(0, shares.shape[1], every):
            words = str(chunk)
            if chunk == 0 and self.cell_px > 50:
                words = "chunk 0"
            middle = self.left + (chunk + 0.5) * self.cell_px
            marks.append(Text(middle, _TOP_PX - 8, words, "label", "mute", "middle"))
        for rank, chunk in np.ndindex(shares.shape[:2]):
            x = self.left + chunk * self.cell_px + self.pad
            y = _TOP_PX + rank * self.row_px + min(4.0, self.row_px / 8)
            width, height = self.cell_px - 2 * self.pad, self.row_px - 2 * min(4.0, self.row_px / 8)
            key = ("chunk", chunk)
            origins = np.flatnonzero(shares[rank, chunk]).tolist()
            marks.append(Box(x, y, width, height, "mute", "hole", key=key))
            marks += self._contents(Box(x, y, width, height, "", key=key), origins)
            if (rank, chunk) in framed:
                at = Box(x - 2, y - 2, width + 4, height + 4, "paper", "hole", key=key, edge="ink")
                marks.insert(0, at)
        return marks

    def _contents(self, at: Box, origins: list[int]) -> list[Mark]:
        if not origins:
            return []
        if self.schedule.collective in MOVES:
            words = str(origins[0])
            return [at._replace(fill=self.colors[origins[0]], text=self._fitting(words, at))]
        if self.slot_px:
            slots: list[Mark] = []
            for origin in origins:
                slot = at._replace(x=at.x + origin * self.slot_px, width=max(self.slot_px - 1, 1.5))
                slots.append(slot._replace(fill=self.colors[origin], text=self._fitting(str(origin), slot)))
            return slots
        share = len(origins) / self.schedule.num_ranks
        return [at._replace(fill=shade(share), look="work", text=self._fitting(str(len(origins)), at))]

    @staticmethod
    def _fitting(words: str, at: Box) -> str:
        has_room = at.width >= DIGIT_PX * len(words) + 3 and at.height >= 11
        return words if has_room else ""


@cache  # a film has thousands of chunks, of few shares
def shade(share: float) -> str:
    """Return the colour of a chunk with a share of all that it will have: paler for less, and never nothing."""
    return mixed(SHARES, "#ffffff", 0.25 + 0.75 * share**0.5)


def _arrows(sent: list[Message], left: float, right: float, row_px: float) -> list[Mark]:
    """An arrow for each message, from its sender before the step to its receiver after it."""
    marks: list[Mark] = []
    for message in sent:
        start = left + 8, _TOP_PX + (message.src + 0.5) * row_px
        stop = right - 6, _TOP_PX + (message.dst + 0.5) * row_px
        dash = "" if message.reduce else "4 3"
        marks.append(Line((start, stop), ADDED if message.reduce else COPIED, 2, dash, arrow=True))
    return marks


def _finding(schedule: Schedule, step: int, sent: list[Message]) -> str:
    if step == schedule.num_steps:
        return f"{schedule.algorithm} {schedule.collective} after {count_of(step, 'step')}"
    return f"{schedule.algorithm}: {count_of(len(sent), 'message')} at step {step} of {schedule.num_steps}"


def _deck(schedule: Schedule, sent: list[Message], is_striped: bool) -> str:
    """How to read the cells and the arrows."""
    words = "number: how many shares are in the chunk"
    if schedule.collective in MOVES:
        words = "number: the rank that the chunk comes from"
    elif is_striped:
        words = "a stripe: this rank's share is in the chunk"
    effects = []
    if any(message.reduce for message in sent):
        effects.append("solid: added")
    if not all(message.reduce for message in sent):
        effects.append("dashed: copied")
    return "; ".join([words, *effects])
