"""Which rank reads which sample: the dataset in its own order, what nobody reads, and a row per rank, in batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..common.checks import of_type, one_of
from ..common.words import count_of
from ..sampling.assignment import Assignment
from ..sampling.audit import audit
from ..sampling.epoch_audit import EpochAudit
from .marks import DIGIT_PX, LEFT_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text, row_name
from .palette import ALARM, TONES, ramp, rank_colors
from .plots import WIDE_PX, Plot, Rects, Texts, numbers_on, whole_ticks

_ROWS_PX = 240.0  # of all ranks together, whatever their number, so that the drawing keeps its height
_CELL_PX = 44.0  # the side of a cell, at most
_MOST_COLUMNS, _MOST_RANKS, _MOST_SAMPLES = 60, 64, 120  # that are shown
_FEW_RANKS, _LAST = 24, 8  # of more ranks so many are shown, of which so many are the last
_MOST_CELLS = 480  # that answer to the pointer; of more, only those that are read again do
_STRIP_PX = 22.0  # the height of the dataset, and of what nobody reads
_TOP_PX = 104.0  # where the ranks begin, below the dataset, nobody, and the numbers of steps
_HEIGHT_PX = _TOP_PX + _ROWS_PX + 24
_MOST_EPOCH_CELLS = 65_536


def draw_assignment(
    assignment: Assignment, color_by: str = "rank", title: str | None = None, deck: str | None = None
) -> Drawing:
    """Draw the dataset in its own order, and the samples that each rank reads, in the order of reading.

    The colour is that of the rank, or that of the sample's position in the dataset (`color_by` "position"). Repeated
    reads are hatched, and samples that nobody reads are red. Of many reads the first batches and the last are shown,
    and of more than 64 ranks the first 16 and the last 8. Raises ValueError if `color_by` is unknown.
    """
    one_of("color_by", color_by, ("rank", "position"))
    epoch = audit(of_type("assignment", assignment, Assignment)).epochs[0]
    found, arithmetic = _words(assignment, epoch)
    picture = _Picture(assignment, epoch, color_by == "position")
    picture.dataset()
    picture.nobody()
    picture.steps()
    picture.ranks()
    if deck is None:
        deck = arithmetic
    return Drawing(title or found, picture.marks, _HEIGHT_PX, deck, picture.tips)


class _Columns(NamedTuple):
    """Where the reads that are shown stand, by their number in a rank's order."""

    x_of: dict[int, float]
    cell_px: float
    steps: list[tuple[int, list[int]]]  # each step with its reads


class _Picture:
    """The marks of an assignment, and what the pointer says of them."""

    def __init__(self, assignment: Assignment, epoch: EpochAudit, by_position: bool) -> None:
        self.assignment, self.epoch = assignment, epoch
        self.size, self.num_ranks = assignment.size, assignment.num_ranks
        self.marks: list[Mark] = []
        self.tips: dict[Hashable, str] = {}
        self.columns = _columns(assignment)
        self.rows = _shown(self.num_ranks, _MOST_RANKS if self.num_ranks <= _MOST_RANKS else _FEW_RANKS)
        is_cut = len(self.rows) < self.num_ranks
        self.row_px = min(_ROWS_PX / (len(self.rows) + is_cut), _CELL_PX)
        self.gap_px = min(2.0, self.row_px / 8, self.columns.cell_px / 6)  # of paper between cells
        self.number_px = DIGIT_PX * len(str(self.size)) + 4
        self.has_cells = len(self.rows) * len(self.columns.x_of) <= _MOST_CELLS
        self.has_numbers = self.has_cells and self.columns.cell_px >= self.number_px and self.row_px >= 14
        colors = rank_colors(self.num_ranks)
        self.hue: Callable[[int, int], str] = lambda rank, sample: colors[rank]
        self.by_position = by_position
        if by_position:
            self.hue = lambda rank, sample: ramp([sample / max(self.size - 1, 1)])[0]

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
            key = ("sample", sample) if self.has_cells else None
            x = LEFT_PX + sample * side
            at = Box(x, 0, side * 0.86, _STRIP_PX, "alarm", "solid", key=key)
            if ranks:
                edge = "ink" if ranks[1:] else ""
                at = at._replace(fill=self.hue(ranks[0], sample), look="tint", hatched=len(ranks) > 1, edge=edge)
            self.marks.append(at)
            is_clear = len(readers) == self.size or sample < len(readers) - 25
            if sample % every == 0 and is_clear:
                self.marks.append(Text(x + 0.43 * side, 36, str(sample), "number", "mute", "middle"))
        if len(readers) < self.size:
            self.marks.append(Text(RIGHT_PX, 36, f"… of {self.size:,}", "number", "mute", "end"))

    def nobody(self) -> None:
        """The samples that no rank reads, as many as there is room for."""
        dropped = self.epoch.dropped
        tone = "alarm" if dropped.size else "mute"
        self.marks.append(row_name(64, "nobody", tone))
        width = max(min(self.columns.cell_px, _CELL_PX), self.number_px)
        x, num_shown = LEFT_PX, int(440 // width)
        for sample in dropped[:num_shown].tolist():
            key = ("sample", sample)
            self.marks.append(Box(x, 48, width - 2, _STRIP_PX, "alarm", "hole", False, str(sample), key, "alarm"))
            self.tip(sample, "no rank reads it in this epoch")
            x += width
        words = "never read" if dropped.size else "every sample is read"
        if dropped.size > num_shown:
            words = f"and {dropped.size - num_shown:,} more"
        self.say(x + 6 if dropped.size else x, 64, words, tone)

    def steps(self) -> None:
        """The number of each step above its batch, where there is room."""
        name = "step" if _batch_size(self.assignment) else "read"
        self.marks.append(row_name(_TOP_PX - 8, name, "mute"))
        free = 0.0
        for step, reads in self.columns.steps:
            left, right = self.columns.x_of[reads[0]], self.columns.x_of[reads[-1]] + self.columns.cell_px
            half = DIGIT_PX / 2 * len(f"{step:,}")
            middle = (left + right - self.gap_px) / 2
            middle = min(middle, RIGHT_PX - 1.32 * half)
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
        if not self.has_cells:
            self._paper_lines(bottom)
        reads = self.assignment.num_steps
        if len(self.rows) < self.num_ranks or len(self.columns.x_of) < reads:
            words = f"{self.num_ranks:,} ranks × {reads:,} reads, in part"
            self.say(LEFT_PX, bottom + 16, words)
        if any(repeated.any() for repeated in repeats):
            right = self.columns.x_of[max(self.columns.x_of)] + self.columns.cell_px
            self.say(max(right, LEFT_PX + 66), bottom + 16, "read again ↑", "ink", "end")

    def _row(self, rank: int, y: float, repeated: list[bool], first_at: dict[int, tuple[float, float]]) -> None:
        indices = self.assignment.ranks[rank]
        x_of, cell_px = self.columns.x_of, self.columns.cell_px
        height = self.row_px - self.gap_px
        shown = [read for read in x_of if read < indices.size]
        if not indices.size:
            self.say(LEFT_PX, y + height / 2 + 4, "reads nothing", "alarm")
        if shown and not self.has_cells:  # one box, which lines of paper divide
            right = x_of[shown[-1]] + cell_px - self.gap_px
            fill = "mute" if self.by_position else self.hue(rank, 0)
            self.marks.append(Box(LEFT_PX, y, right - LEFT_PX, height, fill))
        for step, reads in self.columns.steps:
            for read in reads:
                if read >= indices.size or not (self.has_cells or repeated[read]):
                    continue
                sample, x, is_again = int(indices[read]), x_of[read], repeated[read]
                if is_again and sample in first_at:
                    self._arc(sample, first_at[sample], (x + cell_px / 2, y))
                first_at.setdefault(sample, (x + cell_px / 2, y))
                self._cell(sample, rank, Box(x, y, cell_px - self.gap_px, height, ""), is_again)
                self.tip(sample, f"rank {rank}, step {step}{' (again)' if is_again else ''}")

    def _cell(self, sample: int, rank: int, at: Box, is_again: bool) -> None:
        words = str(sample) if self.has_numbers else ""
        box = at._replace(fill=self.hue(rank, sample), text=words, key=("sample", sample))
        if not 0 <= sample < self.size:
            box = box._replace(fill="alarm", look="hole", hatched=True, edge="alarm")
        elif is_again and self.has_numbers:
            box = box._replace(hatched=True, edge="ink")
        elif is_again:
            box = box._replace(fill="ink", look="solid")
        self.marks.append(box)

    def _arc(self, sample: int, start: tuple[float, float], stop: tuple[float, float]) -> None:
        """Show under the pointer where a sample is read again."""
        above = (start[0] + stop[0]) / 2, min(start[1], stop[1]) - 36
        self.marks.append(Line((start, above, stop), "accent", 1.5, arrow=True, curved=True, key=("sample", sample)))

    def _paper_lines(self, bottom: float) -> None:
        """Divide the boxes of the ranks into cells, and into steps by wider gaps."""
        places = sorted(self.columns.x_of.values())
        for left, right in pairwise(places):
            gap = right - left - self.columns.cell_px + self.gap_px
            x = right - gap / 2
            self.marks.append(Line(((x, _TOP_PX - 1), (x, bottom)), "paper", gap))


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


def _columns(assignment: Assignment) -> _Columns:
    """Place the reads: a step's batch is a group, and what is left out is a wide gap."""
    batch = _batch_size(assignment) or 1
    reads = _shown(assignment.num_steps, _MOST_COLUMNS, batch)
    has_gaps = batch > 1 and batch * (RIGHT_PX - LEFT_PX) >= 14 * len(reads)
    steps: list[tuple[int, list[int]]] = []
    gap_of: dict[int, float] = {}
    gap = 0.0
    for read in reads:
        is_after_cut = read > 0 and read - 1 not in gap_of
        if is_after_cut:
            gap += 26
        elif has_gaps and read > 0 and read % batch == 0:
            gap += 5
        if not steps or is_after_cut or read % batch == 0:
            steps.append((read // batch, []))
        steps[-1][1].append(read)
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


# ---- words


def finding(assignment: Assignment) -> tuple[str, str]:
    """Return the title and the deck of `draw_assignment`: what the epoch does wrong, and the arithmetic behind it."""
    return _words(assignment, audit(of_type("assignment", assignment, Assignment)).epochs[0])


def _words(assignment: Assignment, epoch: EpochAudit) -> tuple[str, str]:
    size, num_ranks = assignment.size, assignment.num_ranks
    samples = count_of(size, "sample") if size < 1000 else f"{size:,} samples"
    ranks = count_of(num_ranks, "rank")
    if not epoch.num_reads:
        return "No rank reads anything", f"{samples} for {ranks}"
    fewest, most = min(map(len, assignment.ranks)), max(map(len, assignment.ranks))
    each = f"{most:,} read{'s' if most > 1 else ''}" if fewest == most else f"{fewest:,} to {most:,} reads"
    reads = f"{ranks} × {each} = {epoch.num_reads:,}"
    lost, again, outside = epoch.dropped.size, epoch.num_repeats, epoch.out_of_range.size
    when = f"; epoch {assignment.epoch}" if assignment.epoch else ""
    if outside:
        return f"{outside} of {epoch.num_reads} reads are *outside the dataset*", f"{reads}, of {samples}{when}"
    if lost and again:
        title = f"{lost:,} of {samples} *never read*, {again:,} read again"
        return title, f"{reads}, of {samples}{when}"
    if lost:
        return f"{lost:,} of {samples} {_be(lost)} *never read*", f"{reads}, {lost:,} left over{when}"
    if again:
        title = f"{epoch.duplicated.size:,} of {samples} {_be(epoch.duplicated.size)} read twice"
        if again > epoch.duplicated.size:
            title = f"{samples} are read {epoch.num_reads:,} times"
        return title, f"{reads}, so {again:,} {_be(again)} read again{when}"
    return f"Each of {samples} is read exactly once", f"{reads}: nothing to repeat, nothing left over{when}"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


# ---- several epochs


def draw_coverage(epochs: Sequence[Assignment], title: str | None = None, deck: str | None = None) -> Drawing:
    """Draw the rank that reads each sample of the dataset, a row an epoch, and a last row for all of them.

    Samples that are read more than once in an epoch are hatched and have the colour of the lowest rank that reads them;
    those that are never read are red. Raises ValueError if there are no epochs, if epochs have different datasets or
    world sizes, or if there are more than 65,536 cells.
    """
    if not isinstance(epochs, Sequence):
        raise ValueError(f"epochs must be a sequence of Assignments, got {epochs!r}")
    report = audit(of_type(f"epochs[{index}]", epoch, Assignment) for index, epoch in enumerate(epochs))
    num_cells = report.size * (len(epochs) + 1)
    if num_cells > _MOST_EPOCH_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_EPOCH_CELLS} cells, got {num_cells}: take fewer samples")
    colors = rank_colors(report.num_ranks)
    rects: list[Rects] = []
    texts: list[Texts] = []
    for row, assignment in enumerate(epochs):
        readers = _readers(assignment, report.size)
        fills = [colors[min(ranks)] if ranks else ALARM for ranks in readers]
        hatched = [len(ranks) > 1 for ranks in readers]
        cells = Rects(np.arange(report.size), row, fills, width=0.94, height=0.86, hatched=hatched)
        words = np.array([str(min(ranks)) if ranks else "" for ranks in readers])
        has_room = WIDE_PX / max(report.size, 1) >= DIGIT_PX * len(str(report.num_ranks)) + 4
        rects.append(cells)
        texts += numbers_on(cells, words, wanted=(words != "") & has_room)
    never = report.never_seen
    last_row = len(epochs) + 0.2
    any_fills = [ALARM if sample in never else TONES["mute"] for sample in range(report.size)]
    rects.append(Rects(np.arange(report.size), last_row, any_fills, width=0.94, height=0.5))
    samples, within = count_of(report.size, "sample"), count_of(len(epochs), "epoch")
    found = f"All of {samples} are read within {within}"
    if never.size:
        found = f"{never.size} of {samples} *never read* in {within}"
    names = [(row + 0.5, f"epoch {assignment.epoch}") for row, assignment in enumerate(epochs)]
    return Plot(
        title=title or found,
        deck=deck or "number: the rank; hatched: read more than once; red: never read",
        x_label="sample",
        width=max(report.size, 1),
        height=last_row + 0.5,
        size_px=(min(WIDE_PX, _CELL_PX * report.size), 24 * (last_row + 0.5)),
        rects=rects,
        texts=texts,
        x_ticks=whole_ticks(report.size, most=20),
        y_ticks=[*names, (last_row + 0.25, "any")],
    )
