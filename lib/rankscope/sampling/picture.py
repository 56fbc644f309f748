"""Which rank reads which sample: the dataset in its own order, what nobody reads, and a row per rank, in batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, one_of
from ..common.words import is_are
from ..drawing.drawing import Drawing
from ..drawing.marks import LEFT_PX, LETTER_PX, RIGHT_PX, Box, Line, Mark, Text, every_nth, row_name
from ..drawing.palette import ramp, rank_colors
from .assignment import Assignment

_ROWS_PX = 240.0  # of all ranks together, whatever their number, so that the drawing keeps its height
_CELL_PX = 44.0  # the side of a cell, at most
_MOST_RANKS = 24  # that are shown
_MOST_CELLS = 720
_MOST_COLUMNS = 60
_MOST_SAMPLES = 120
_LAST = 8  # of the ranks and reads that are shown, where some are left out
_STRIP_PX = 22.0  # the height of the dataset, and of what nobody reads
_NOBODY_PX = 48.0  # where what nobody reads begins
_TOP_PX = 104.0  # where the ranks begin

_Hue = Callable[[int, int], str]  # of a rank and a sample


def draw_assignment(
    assignment: Assignment, color_by: str = "rank", title: str | None = None, deck: str = ""
) -> Drawing:
    """Draw the dataset in its own order, and the samples that each rank reads, in the order of reading.

    The colour is that of the rank, or that of the sample's position in the dataset (`color_by` "position"). Repeated
    reads are hatched, and samples that nobody reads are red. Of many reads the first batches and the last are shown,
    and of more than 24 ranks the first 16 and the last 8. Raises ValueError if `color_by` is unknown.
    """
    one_of("color_by", color_by, ("rank", "position"))
    reads = np.concatenate(of_type("assignment", assignment, Assignment).ranks)
    reads_inside = reads[(reads >= 0) & (reads < assignment.size)]
    counts = np.bincount(np.intp(reads_inside), minlength=assignment.size)  # the reads of each sample
    colors = rank_colors(assignment.num_ranks)
    positions = max(assignment.size - 1, 1)

    def hue(rank: int, sample: int) -> str:
        return colors[rank] if color_by == "rank" else ramp(sample / positions)

    grid = _grid(assignment)
    tips: dict[Hashable, str] = {}
    marks = [
        *_dataset(assignment, hue),
        *_nobody(np.flatnonzero(counts == 0), grid, tips),
        *_names(assignment, grid),
        *_cells(assignment, grid, hue, tips),
    ]
    found, arithmetic = _words(assignment, counts)
    return Drawing(title or found, marks, _TOP_PX + _ROWS_PX + 24, deck or arithmetic, tips)


class _Grid(NamedTuple):
    """Where the ranks and the reads stand that are shown."""

    y_of: dict[int, float]  # of each rank
    x_of: dict[int, float]  # of each read, by its number in a rank's order
    unit: str  # what is numbered: a "step" of so many reads, or a "read"
    batch: int
    row_px: float
    cell_px: float
    number_px: float  # what a number needs

    @property
    def gap_px(self) -> float:
        """The paper between cells."""
        return min(2.0, self.row_px / 8, self.cell_px / 6)

    @property
    def has_numbers(self) -> bool:
        return self.cell_px >= self.number_px and self.row_px >= 14


def _shown(count: int, most: int, batch: int = 1) -> Sequence[int]:
    """The numbers that are shown: all, or whole batches of the first and of the last, where things go wrong."""
    if count <= most:
        return range(count)
    start = count - _LAST
    if batch < most // 3:
        start -= start % batch
    num_first = most - (count - start)
    return [*range(num_first - num_first % batch or num_first), *range(start, count)]


def _grid(assignment: Assignment) -> _Grid:
    """Place ranks and reads: a step's batch is a group, and what is left out is a wide gap."""
    ranks = _shown(assignment.num_ranks, _MOST_RANKS)
    is_cut = len(ranks) < assignment.num_ranks
    row_px = min(_ROWS_PX / (len(ranks) + is_cut), _CELL_PX)
    batch = 1
    unit = "read"
    if assignment.loader is not None or assignment.batch_stops is not None:
        sizes = [np.diff(assignment.stops(rank), prepend=0) for rank in range(assignment.num_ranks)]
        largest = max(size.max(initial=0) for size in sizes)
        if largest and all((size[:-1] == largest).all() for size in sizes):  # but for the last one of each rank
            batch = int(largest)
            unit = "step"
    reads = _shown(assignment.num_steps, min(_MOST_CELLS // len(ranks), _MOST_COLUMNS), batch)
    has_gaps = batch > 1 and batch * (RIGHT_PX - LEFT_PX) >= 14 * len(reads)
    gaps: list[float] = []  # in front of each read, together
    gap = 0.0
    for place, read in enumerate(reads):
        if place > 0 and read - 1 != reads[place - 1]:
            gap += 26
        elif has_gaps and place > 0 and read % batch == 0:
            gap += 5
        gaps.append(gap)
    cell_px = min((RIGHT_PX - LEFT_PX - gap) / max(len(reads), 1), _CELL_PX)
    return _Grid(
        y_of={rank: _TOP_PX + (row + (rank > row)) * row_px for row, rank in enumerate(ranks)},
        x_of={read: LEFT_PX + place * cell_px + gaps[place] for place, read in enumerate(reads)},
        unit=unit,
        batch=batch,
        row_px=row_px,
        cell_px=cell_px,
        number_px=LETTER_PX * len(str(assignment.size)) + 4,
    )


def _cells(assignment: Assignment, grid: _Grid, hue: _Hue, tips: dict[Hashable, str]) -> Iterator[Mark]:
    """A cell for each read; under the pointer, an arc leads to where its sample is read again."""
    repeats = assignment.repeats()
    first_at: dict[int, tuple[float, float]] = {}
    for (rank, y), (read, x) in product(grid.y_of.items(), grid.x_of.items()):
        if read >= assignment.ranks[rank].size:
            continue
        sample = int(assignment.ranks[rank][read])
        is_again = bool(repeats[rank][read])
        key = "sample", sample
        cell = Box(x, y, grid.cell_px - grid.gap_px, grid.row_px - grid.gap_px, "alarm", "hole", key=key)
        if grid.has_numbers:
            cell = cell._replace(text=str(sample))
        if not 0 <= sample < assignment.size:
            cell = cell._replace(hatched=True, edge="alarm")
        elif is_again and not grid.has_numbers:
            cell = cell._replace(fill="ink", look="solid")
        else:
            cell = cell._replace(fill=hue(rank, sample), look="tint", hatched=is_again, edge="ink" if is_again else "")
        yield cell
        stop = x + grid.cell_px / 2, y
        start = first_at.setdefault(sample, stop)
        if is_again and start != stop:
            above = (start[0] + stop[0]) / 2, min(start[1], stop[1]) - 36
            yield Line((start, above, stop), "accent", 1.5, arrow=True, curved=True, key=key)
        again = " (again)" if is_again else ""
        tips[key] = f"{tips.get(key, f'sample {sample}:')} rank {rank}, {grid.unit} {read // grid.batch}{again};"


def _dataset(assignment: Assignment, hue: _Hue) -> Iterator[Mark]:
    """The samples in the order of the dataset, each in the colour of its reader."""
    yield row_name(16, "dataset")
    num_shown = min(assignment.size, _MOST_SAMPLES)
    side = min((RIGHT_PX - LEFT_PX) / max(num_shown, 1), _CELL_PX)
    readers: list[list[int]] = [[] for _ in range(num_shown)]  # of each sample, one entry a read
    for rank, indices in enumerate(assignment.ranks):
        for sample in indices[(indices >= 0) & (indices < num_shown)].tolist():
            readers[sample].append(rank)
    num_named = num_shown
    if num_shown < assignment.size:
        num_named -= 25
        yield Text(RIGHT_PX, 36, f"… of {assignment.size:,}", "number", "mute", "end")
    every = min(every_nth(side, 30), 10)
    for sample, ranks in enumerate(readers):
        x = LEFT_PX + sample * side
        cell = Box(x, 0, side * 0.86, _STRIP_PX, "alarm", "solid", key=("sample", sample))
        if ranks:
            cell = cell._replace(fill=hue(ranks[0], sample), look="tint")
        if len(ranks) > 1:
            cell = cell._replace(hatched=True, edge="ink")
        yield cell
        if sample % every == 0 and sample < num_named:
            yield Text(x + 0.43 * side, 36, str(sample), "number", "mute", "middle")


def _nobody(dropped: NDArray[np.int64], grid: _Grid, tips: dict[Hashable, str]) -> Iterator[Mark]:
    """The samples that no rank reads, as many as there is room for."""
    y = _NOBODY_PX + 16
    if not dropped.size:
        return
    yield row_name(y, "nobody", "alarm")
    width = max(grid.cell_px, grid.number_px)
    shown = dropped[: int(440 // width)].tolist()
    for place, sample in enumerate(shown):
        key = "sample", sample
        at = LEFT_PX + place * width, _NOBODY_PX, width - 2, _STRIP_PX
        yield Box(*at, "alarm", "hole", text=str(sample), edge="alarm", key=key)
        tips[key] = f"sample {sample}: no rank reads it in this epoch"
    words = "never read"
    if dropped.size > len(shown):
        words = f"and {dropped.size - len(shown):,} more"
    yield Text(LEFT_PX + len(shown) * width + 6, y, words, "label", "alarm")


def _names(assignment: Assignment, grid: _Grid) -> Iterator[Mark]:
    """The number of each step above its batch, where there is room, and the names of the ranks.

    Below them is what is left out, and what is hatched.
    """
    yield row_name(_TOP_PX - 8, grid.unit, "mute")
    free = 0.0
    for step, reads in groupby(grid.x_of, lambda read: read // grid.batch):
        places = [grid.x_of[read] for read in reads]
        half = LETTER_PX / 2 * len(f"{step:,}")
        middle = min((places[0] + places[-1] + grid.cell_px - grid.gap_px) / 2, RIGHT_PX - 1.32 * half)
        if middle - half >= free:
            yield Text(middle, _TOP_PX - 8, f"{step:,}", "label", "mute", "middle")
            free = middle + half + 8
    every = every_nth(grid.row_px, 16)
    height = grid.row_px - grid.gap_px
    for row, (rank, y) in enumerate(grid.y_of.items()):
        if row % every == 0:
            yield row_name(y + max(height, 12) / 2 + 4, f"rank {rank}")
    bottom = max(grid.y_of.values()) + grid.row_px + 16
    is_cut = len(grid.y_of) < assignment.num_ranks or len(grid.x_of) < assignment.num_steps
    if is_cut:
        yield Text(LEFT_PX, bottom, "shown in part", "label", "mute")
    if any(repeated.any() for repeated in assignment.repeats()):
        right = max(grid.x_of.values()) + grid.cell_px
        yield Text(max(right, LEFT_PX + (200 if is_cut else 66)), bottom, "read again ↑", "label", "ink", "end")


def _words(assignment: Assignment, counts: NDArray[np.int64]) -> tuple[str, str]:
    """Return what the epoch does wrong, and the arithmetic behind it, from the number of reads of each sample."""
    num_reads = sum(indices.size for indices in assignment.ranks)
    outside = num_reads - int(counts.sum())
    lost = int(np.count_nonzero(counts == 0))
    again = int(np.maximum(counts - 1, 0).sum())
    samples = _count(assignment.size, "sample")
    ranks = _count(assignment.num_ranks, "rank")
    if not num_reads:
        return "No rank reads anything", f"{samples} for {ranks}"
    fewest = min(map(len, assignment.ranks))
    each = _count(assignment.num_steps, "read")
    if fewest < assignment.num_steps:
        each = f"{fewest:,} to {each}"
    arithmetic = f"{ranks} × {each} = {num_reads:,}, of {samples}"
    if assignment.epoch:
        arithmetic += f"; epoch {assignment.epoch}"
    title = f"Each of {samples} is read exactly once"
    if fewest < assignment.num_steps:
        title = f"Ranks read *unequally*: {fewest:,} to {assignment.num_steps:,} of {samples}"
    if outside:
        title = f"{outside:,} of {_count(num_reads, 'read')} {is_are(outside)} *outside the dataset*"
    elif lost and again:
        title = f"{lost:,} of {samples} *never read*, {again:,} read again"
    elif lost:
        title = f"{lost:,} of {samples} {is_are(lost)} *never read*"
    elif again and counts.max() > 2:
        title = f"{samples} get {num_reads:,} reads in total"
    elif again:
        title = f"{again:,} of {samples} {is_are(again)} read twice"
    return title, arithmetic


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
