"""One step of a schedule: the chunks of each rank before it, its messages as arrows, and the chunks after it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, whole
from ..common.words import count_of
from ..drawing.drawing import Drawing
from ..drawing.marks import LEFT_PX, RIGHT_PX, Box, Line, Mark, Text, every_nth, row_name, with_text
from ..drawing.palette import ADDED, COPIED, PAPER, mixed, rank_colors
from .schedule import MOVES, Schedule
from .verify import holdings

_MOST_CELLS = 4096
_MOST_STRIPED = 8  # ranks up to which each has a stripe of its own in a cell
_TOP_PX = 44.0  # of the ranks, below the heads and the numbers of chunks
_ROWS_PX = 300.0
_LEAST_ROW_PX = 10.0
_MOST_ROW_PX = 40.0
_MOST_CELL_PX = 64.0
_ARROWS_PX = 110.0  # between two grids


def draw_schedule(
    schedule: Schedule,
    step: int,
    title: str | None = None,
) -> Drawing:
    """Draw the messages between ranks at one step of a schedule: `step` counts from 0, and the title from 1.

    A row is a rank, a column a chunk. If up to eight ranks add up, a cell has a stripe in the colour of each rank
    whose share is in the chunk; of more ranks, it is darker the more shares there are, with their number. If ranks only
    pass chunks on, it has the colour and the number of the rank that the chunk comes from. Framed cells are sent, and
    received. Solid arrows add, dashed ones replace. Raises ValueError if the step does not exist, or there are more
    than 4,096 cells.
    """
    of_type("schedule", schedule, Schedule)
    num_ranks = schedule.num_ranks
    num_cells = num_ranks * schedule.num_chunks
    if num_cells > _MOST_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_CELLS} cells, ranks × chunks, got {num_cells}")
    whole("step", step, 0, schedule.num_steps - 1)
    is_added: dict[tuple[int, int], bool] = {}  # by sender and receiver: whether any chunk of the message is
    sent: set[tuple[int, int]] = set()  # ranks with their chunks
    received: set[tuple[int, int]] = set()
    (transfers,) = islice(schedule.steps(), step, step + 1)
    for src, dst, chunk, _, reduce in transfers.by_chunk().rows():
        is_added[src, dst] = is_added.get((src, dst), False) or reduce
        sent.add((src, chunk))
        received.add((dst, chunk))
    width = (RIGHT_PX - LEFT_PX - _ARROWS_PX) / 2
    grid = Grid(schedule, LEFT_PX, _TOP_PX, width, _ROWS_PX)
    marks = [*grid.rows(num_ranks), *_cells(grid, holdings(schedule, step), sent)]
    found = f"{schedule.algorithm}: {count_of(len(is_added), 'message')} in step {step + 1} of {schedule.num_steps}"
    right = RIGHT_PX - grid.cell_px * schedule.num_chunks
    after = Grid(schedule, right, _TOP_PX, width, _ROWS_PX)
    marks += _cells(after, holdings(schedule, step + 1), received)
    marks += [Text(LEFT_PX, 12, "before; framed: sent", "deck"), Text(right, 12, "after; framed: received", "deck")]
    left = LEFT_PX + RIGHT_PX - right
    for (src, dst), is_sum in is_added.items():
        ends = (left + 8, grid.y(src)), (right - 6, grid.y(dst))
        marks.append(message_line(ends, is_sum)._replace(width=2, arrow=True))
    deck = reading_of(schedule)
    if grid.is_striped:
        deck = deck.replace("number: ranks summed in", "stripe: a rank's share is in")
    tips: dict[Hashable, str] = {("chunk", chunk): f"chunk {chunk}" for chunk in range(schedule.num_chunks)}
    return Drawing(title or found, marks, grid.bottom + 8, deck, tips)


class Grid:
    """The chunks of all ranks, a row for each rank: where they are, and how what is in them looks."""

    def __init__(self, schedule: Schedule, left: float, top: float, width: float, rows_px: float) -> None:
        self.num_ranks = schedule.num_ranks
        self.moves = schedule.collective in MOVES
        self.left = left
        self.top = top
        self.row_px = min(max(rows_px / self.num_ranks, _LEAST_ROW_PX), _MOST_ROW_PX)
        self.cell_px = min(width / schedule.num_chunks, _MOST_CELL_PX)
        self.pad = min(4.0, 0.12 * self.cell_px)
        self.bottom = top + self.num_ranks * self.row_px
        self.is_striped = not self.moves and self.num_ranks <= _MOST_STRIPED and self.cell_px >= 5 * self.num_ranks

    def y(self, rank: float) -> float:
        """The middle of a rank's row."""
        return self.top + (rank + 0.5) * self.row_px

    def rows(self, gpus_per_node: int) -> Iterator[Mark]:
        """Yield the names of the ranks, and the lines that part nodes of several ranks."""
        every = every_nth(self.row_px, 13)
        for rank in range(self.num_ranks):
            if rank % every == 0:
                yield row_name(self.y(rank) + 4, f"rank {rank}", left=self.left)
            if rank and rank % gpus_per_node == 0 and gpus_per_node > 1:
                yield Line(((8, self.y(rank - 0.5)), (RIGHT_PX, self.y(rank - 0.5))), "mute")

    def at(self, rank: int, chunk: int) -> Box:
        """Return an empty chunk."""
        height = self.row_px - 2 * min(4.0, self.row_px / 8)
        x = self.left + chunk * self.cell_px + self.pad
        at = x, self.y(rank) - height / 2, self.cell_px - 2 * self.pad, height
        return Box(*at, "mute", "hole", key=("chunk", chunk))

    def copy_of(self, at: Box, origin: int) -> Box:
        """Return the chunk of one rank: in that rank's colour and with its number."""
        return with_text(at._replace(fill=rank_colors(self.num_ranks)[origin], look="tint"), str(origin))

    def sum_of(self, at: Box, shares: int) -> Box:
        """Return a chunk that is a sum: paler for less, and with the number of its shares."""
        fill = mixed(ADDED, PAPER, 0.25 + 0.75 * (shares / self.num_ranks) ** 0.5)
        return with_text(at._replace(fill=fill, look="work"), str(shares))


def reading_of(schedule: Schedule) -> str:
    """Say how to read chunks and messages."""
    if schedule.collective in MOVES:
        return "number: rank that the chunk is from; dashed: copied"
    return "number: ranks summed in the chunk; solid: added, dashed: copied"


def message_line(ends: Sequence[tuple[float, float]], is_added: bool) -> Line:
    """Return the line of a message: solid if the receiver adds it, dashed if it keeps it."""
    return Line(ends, ADDED, 1.6) if is_added else Line(ends, COPIED, 1.6, "4 3")


def _cells(grid: Grid, shares: NDArray[np.bool_], framed: set[tuple[int, int]]) -> Iterator[Mark]:
    """Yield all chunks; ``shares[rank, chunk, origin]`` says whether a rank's chunk has the share of an origin."""
    for chunk in range(0, shares.shape[1], every_nth(grid.cell_px, 18)):
        middle = grid.left + (chunk + 0.5) * grid.cell_px
        words = "chunk 0" if chunk == 0 and grid.cell_px > 50 else str(chunk)
        yield Text(middle, _TOP_PX - 8, words, "label", "mute", "middle")
    for at in (grid.at(*cell) for cell in sorted(framed)):
        wider = at._replace(x=at.x - 2, y=at.y - 2, width=at.width + 4, height=at.height + 4)
        yield wider._replace(fill="paper", edge="ink")
    for rank, chunk in np.ndindex(shares.shape[:2]):
        at = grid.at(rank, chunk)
        origins = np.flatnonzero(shares[rank, chunk]).tolist()
        stripe_px = at.width / grid.num_ranks
        if grid.is_striped or not origins:
            yield at
        if grid.moves:
            yield from (grid.copy_of(at, origin) for origin in origins)
        elif grid.is_striped:
            for origin in origins:
                stripe = at._replace(x=at.x + origin * stripe_px, width=max(stripe_px - 1, 1.5))
                yield grid.copy_of(stripe, origin)
        elif origins:
            yield grid.sum_of(at, len(origins))
