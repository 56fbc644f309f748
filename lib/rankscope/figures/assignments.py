"""Which rank reads which sample: the dataset in its own order, what nobody reads, and a row per rank, in batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from ..common.checks import of_type, one_of
from ..common.words import count_of
from ..sampling.assignment import Assignment
from ..sampling.audit import audit
from ..sampling.epoch_audit import EpochAudit
from .marks import DIGIT_PX, LEFT_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text, row_name
from .palette import ramp, rank_colors

_ROWS_PX = 240.0  # of all ranks together, whatever their number, so that the drawing keeps its height
_CELL_PX = 44.0  # the side of a cell, at most
_MOST_RANKS = 24  # that are shown, as the next three
_MOST_CELLS = 720
_MOST_COLUMNS = 60
_MOST_SAMPLES = 120
_LAST = 8  # of the ranks and reads that are shown, where some are left out
_STRIP_PX = 22.0  # the height of the dataset, and of what nobody reads
_NOBODY_PX = 48.0  # where what nobody reads begins
_TOP_PX = 104.0  # where the ranks begin


def draw_assignment(
    assignment: Assignment, color_by: str = "rank", title: str | None = None, deck: str | None = None
) -> Drawing:
    """Draw the dataset in its own order, and the samples that each rank reads, in the order of reading.

    The colour is that of the rank, or that of the sample's position in the dataset (`color_by` "position"). Repeated
    reads are hatched, and samples that nobody reads are red. Of many reads the first batches and the last are shown,
    and of more than 24 ranks the first 16 and the last 8. Raises ValueError if `color_by` is unknown.
    """
    one_of("color_by", color_by, ("rank", "position"))
    epoch = audit(of_type("assignment", assignment, Assignment)).epochs[0]
    picture = _Picture(assignment, epoch, color_by == "position")
    picture.dataset()
    picture.nobody()
    picture.steps()
    picture.ranks()
    found, arithmetic = _words(assignment, epoch)
    height_px = _TOP_PX + _ROWS_PX + 24
    return Drawing(title or found, picture.marks, height_px, arithmetic if deck is None else deck, picture.tips)


class _Columns(NamedTuple):
    """Where the reads that are shown stand, by their number in a rank's order."""

    x_of: dict[int, float]
    cell_px: float
    steps: dict[int, list[int]]  # the reads of each step


class _Picture:
    """The marks of an assignment, and what the pointer says of them."""

    def __init__(self, assignment: Assignment, epoch: EpochAudit, by_position: bool) -> None:
        self.assignment = assignment
        self.epoch = epoch
        self.size = assignment.size
        self.num_ranks = assignment.num_ranks
        self.by_position = by_position
        self.colors = rank_colors(self.num_ranks)
        self.marks: list[Mark] = []
        self.tips: dict[Hashable, str] = {}
        self.rows = _shown(self.num_ranks, _MOST_RANKS)
        self.columns = _columns(assignment, _MOST_CELLS // max(len(self.rows), 1))
        is_cut = len(self.rows) < self.num_ranks
        self.row_px = min(_ROWS_PX / (len(self.rows) + is_cut), _CELL_PX)
        self.gap_px = min(2.0, self.row_px / 8, self.columns.cell_px / 6)  # of paper between cells
        self.number_px = DIGIT_PX * len(str(self.size)) + 4
        self.has_numbers = self.columns.cell_px >= self.number_px and self.row_px >= 14

    def hue(self, rank: int, sample: int) -> str:
        if self.by_position:
            return ramp([sample / max(self.size - 1, 1)])[0]
        return self.colors[rank]

    def say(self, x: float, y: float, words: str, tone: str = "mute", anchor: str = "start") -> None:
        self.marks.append(Text(x, y, words, "label", tone, anchor))

    def tip(self, sample: int, words: str) -> None:
        key = ("sample", sample)
        self.tips[key] = f"{self.tips.get(key, f'sample {sample}:')} {words};"

    def dataset(self) -> None:
        """The samples in the order of the dataset, each in the colour of its reader."""
        self.marks.append(row_name(16, "dataset"))
        readers = _readers(self.assignment, min(self.size, _MOST_SAMPLES))
        side = min((RIGHT_PX - LEFT_PX) / max(len(readers), 1), _CELL_PX)
        every = next(every for every in (1, 5, 10) if every * side >= 30 or every == 10)
        for sample, ranks in enumerate(readers):
            x = LEFT_PX + sample * side
            cell = Box(x, 0, side * 0.86, _STRIP_PX, "alarm", "solid", key=("sample", sample))
            if ranks:
                cell = cell._replace(fill=self.hue(ranks[0], sample), look="tint")
            if ranks[1:]:
                cell = cell._replace(hatched=True, edge="ink")
            self.marks.append(cell)
            is_clear = len(readers) == self.size or sample < len(readers) - 25
            if sample % every == 0 and is_clear:
                self.marks.append(Text(x + 0.43 * side, 36, str(sample), "number", "mute", "middle"))
        if len(readers) < self.size:
            self.marks.append(Text(RIGHT_PX, 36, f"… of {self.size:,}", "number", "mute", "end"))

    def nobody(self) -> None:
        """The samples that no rank reads, as many as there is room for."""
        dropped = self.epoch.dropped
        baseline = _NOBODY_PX + 16
        if not dropped.size:
            self.marks.append(row_name(baseline, "nobody", "mute"))
            self.say(LEFT_PX, baseline, "every sample is read")
            return
        self.marks.append(row_name(baseline, "nobody", "alarm"))
        width = max(min(self.columns.cell_px, _CELL_PX), self.number_px)
        num_shown = int(440 // width)
        x = LEFT_PX
        for sample in dropped[:num_shown].tolist():
            cell = Box(x, _NOBODY_PX, width - 2, _STRIP_PX, "alarm", "hole", text=str(sample), edge="alarm")
            self.marks.append(cell._replace(key=("sample", sample)))
            self.tip(sample, "no rank reads it in this epoch")
            x += width
        words = "never read"
        if dropped.size > num_shown:
            words = f"and {dropped.size - num_shown:,} more"
        self.say(x + 6, baseline, words, "alarm")

    def steps(self) -> None:
        """The number of each step above its batch, where there is room."""
        name = "step" if _batch_size(self.assignment) else "read"
        self.marks.append(row_name(_TOP_PX - 8, name, "mute"))
        free = 0.0
        for step, reads in self.columns.steps.items():
            half = DIGIT_PX / 2 * len(f"{step:,}")
            stop = self.columns.x_of[reads[-1]] + self.columns.cell_px - self.gap_px
            middle = min((self.columns.x_of[reads[0]] + stop) / 2, RIGHT_PX - 1.32 * half)
            if middle - half >= free:
                self.say(middle, _TOP_PX - 8, f"{step:,}", "mute", "middle")
                free = middle + half + 8

    def ranks(self) -> None:
        """A row for each rank that is shown; below them, what is left out."""
        every = next(every for every in (1, 2, 4, 8) if every * self.row_px >= 16 or every == 8)
        repeats = self.assignment.repeats()
        first_at: dict[int, tuple[float, float]] = {}  # where each sample is read first
        bottom = _TOP_PX
        for row, rank in enumerate(self.rows):
            y = _TOP_PX + (row + (rank > row)) * self.row_px
            bottom = y + self.row_px
            if row % every == 0:
                self.marks.append(row_name(y + max(self.row_px - self.gap_px, 12) / 2 + 4, f"rank {rank}"))
            self._row(rank, y, repeats[rank].tolist(), first_at)
        num_reads = self.assignment.num_steps
        if len(self.rows) < self.num_ranks or len(self.columns.x_of) < num_reads:
            self.say(LEFT_PX, bottom + 16, f"{self.num_ranks:,} ranks × {num_reads:,} reads, in part")
        if any(repeated.any() for repeated in repeats):
            right = self.columns.x_of[max(self.columns.x_of)] + self.columns.cell_px
            self.say(max(right, LEFT_PX + 66), bottom + 16, "read again ↑", "ink", "end")

    def _row(self, rank: int, y: float, repeated: list[bool], first_at: dict[int, tuple[float, float]]) -> None:
        indices = self.assignment.ranks[rank].tolist()
        cell_px = self.columns.cell_px
        height = self.row_px - self.gap_px
        if not indices:
            self.say(LEFT_PX, y + height / 2 + 4, "reads nothing", "alarm")
        for step, reads in self.columns.steps.items():
            for read in reads:
                if read >= len(indices):
                    continue
                sample = indices[read]
                x = self.columns.x_of[read]
                cell = Box(x, y, cell_px - self.gap_px, height, self.hue(rank, sample), key=("sample", sample))
                middle = x + cell_px / 2, y
                self.marks.append(self._cell(cell, sample, repeated[read]))
                if repeated[read] and sample in first_at:
                    self._arc(sample, first_at[sample], middle)
                first_at.setdefault(sample, middle)
                self.tip(sample, f"rank {rank}, step {step}{' (again)' if repeated[read] else ''}")

    def _cell(self, cell: Box, sample: int, is_again: bool) -> Box:
        if self.has_numbers:
            cell = cell._replace(text=str(sample))
        if not 0 <= sample < self.size:
            return cell._replace(fill="alarm", look="hole", hatched=True, edge="alarm")
        if is_again and self.has_numbers:
            return cell._replace(hatched=True, edge="ink")
        if is_again:
            return cell._replace(fill="ink", look="solid")
        return cell

    def _arc(self, sample: int, start: tuple[float, float], stop: tuple[float, float]) -> None:
        """Show under the pointer where a sample is read again."""
        above = (start[0] + stop[0]) / 2, min(start[1], stop[1]) - 36
        self.marks.append(Line((start, above, stop), "accent", 1.5, arrow=True, curved=True, key=("sample", sample)))


def _batch_size(assignment: Assignment) -> int:
    """The samples of a batch, if all ranks have the same batches; else 0."""
    if assignment.loader is not None:
        return assignment.loader.batch_size
    if assignment.batch_stops is None or not assignment.num_steps:
        return 0
    stops = assignment.batch_stops[0]
    is_even = (np.diff(stops[:-1], prepend=0) == stops[0]).all()
    is_same = all(np.array_equal(stops, other) for other in assignment.batch_stops)
    return int(stops[0]) if is_even and is_same else 0


def _shown(count: int, most: int, batch: int = 1) -> Sequence[int]:
    """The numbers that are shown: all, or whole batches of the first and of the last, where things go wrong."""
    if count <= most:
        return range(count)
    start = count - _LAST
    if batch < most // 3:
        start -= start % batch
    num_first = most - (count - start)
    return [*range(num_first - num_first % batch or num_first), *range(start, count)]


def _columns(assignment: Assignment, most: int) -> _Columns:
    """Place the reads: a step's batch is a group, and what is left out is a wide gap."""
    batch = _batch_size(assignment) or 1
    reads = _shown(assignment.num_steps, min(most, _MOST_COLUMNS), batch)
    has_gaps = batch > 1 and batch * (RIGHT_PX - LEFT_PX) >= 14 * len(reads)
    steps: dict[int, list[int]] = {}
    gap_of: dict[int, float] = {}
    gap = 0.0
    for read in reads:
        if read > 0 and read - 1 not in gap_of:
            gap += 26
        elif has_gaps and read > 0 and read % batch == 0:
            gap += 5
        steps.setdefault(read // batch, []).append(read)
        gap_of[read] = gap
    cell_px = min((RIGHT_PX - LEFT_PX - gap) / max(len(reads), 1), _CELL_PX)
    x_of = {read: LEFT_PX + place * cell_px + gap_of[read] for place, read in enumerate(reads)}
    return _Columns(x_of, cell_px, steps)


def _readers(assignment: Assignment, count: int) -> list[list[int]]:
    """The ranks that read each of the first samples, one entry a read."""
    readers: list[list[int]] = [[] for _ in range(count)]
    for rank, indices in enumerate(assignment.ranks):
        for sample in indices[(indices >= 0) & (indices < count)].tolist():
            readers[sample].append(rank)
    return readers


def _words(assignment: Assignment, epoch: EpochAudit) -> tuple[str, str]:
    """Return what the epoch does wrong, and the arithmetic behind it."""
    size = assignment.size
    samples = f"{size:,} samples"
    if size == 1:
        samples = "1 sample"
    ranks = count_of(assignment.num_ranks, "rank")
    if not epoch.num_reads:
        return "No rank reads anything", f"{samples} for {ranks}"
    fewest = min(map(len, assignment.ranks))
    most = max(map(len, assignment.ranks))
    each = f"{fewest:,} to {most:,} reads"
    if fewest == most:
        each = f"{most:,} read{'s' if most > 1 else ''}"
    reads = f"{ranks} × {each} = {epoch.num_reads:,}"
    lost = epoch.dropped.size
    again = epoch.num_repeats
    title = f"Each of {samples} is read exactly once"
    arithmetic = f"{reads}: nothing to repeat, nothing left over"
    if epoch.out_of_range.size:
        title = f"{epoch.out_of_range.size} of {epoch.num_reads} reads are *outside the dataset*"
        arithmetic = f"{reads}, of {samples}"
    elif lost and again:
        title = f"{lost:,} of {samples} *never read*, {again:,} read again"
        arithmetic = f"{reads}, of {samples}"
    elif lost:
        title = f"{lost:,} of {samples} {_be(lost)} *never read*"
        arithmetic = f"{reads}, {lost:,} left over"
    elif again:
        title = f"{again:,} of {samples} {_be(again)} read twice"
        arithmetic = f"{reads}, so {again:,} {_be(again)} read again"
        if again > epoch.duplicated.size:
            title = f"{samples} are read {epoch.num_reads:,} times"
    if assignment.epoch:
        arithmetic += f"; epoch {assignment.epoch}"
    return title, arithmetic


def _be(number: int) -> str:
    return "is" if number == 1 else "are"
