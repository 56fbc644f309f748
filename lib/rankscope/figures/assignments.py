"""Drawings of which rank reads which sample: the order of reading, and the coverage of the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import of_type, one_of
from ..common.units import percent_words
from ..common.words import count_of
from ..sampling.assignment import Assignment
from ..sampling.audit import Audit, audit
from ..sampling.epoch_audit import EpochAudit
from ..sampling.values import CostFunction, checked_lengths
from ..sampling.work import epoch_work
from .marks import WIDE_PX, Drawing, Key, Rects, Texts, grid_drawing, numbers_on, whole_ticks
from .palette import ALARM, PAPER, WAITING, WORK, ramp, rank_colors

_MOST_UNREAD = 24  # of the samples that nobody reads, at least so many have room, even if each rank reads fewer
_LEAST_BATCH_PX = 8  # closer lines between batches would hide the cells
_MOST_CELLS = 65_536
_MOST_STEPS = 40
_MOST_NUMBERED_RANKS = 32  # more have lower rows, and only some of them have their number at the axis
_ROW_PX = 22.0  # of an epoch
_MOST_RANGES = 20  # of lengths, a row each
_TICK_PX = 30  # between two read numbers below the cells, at least
_DIGIT_PX = 6.4  # the width of a digit in a cell
_LETTER_PX = 11.0  # the size of a number in a cell
_MARGIN_PX = 3  # around a number in a cell, on both sides together
_CELL_PX = 34.0  # the width of a cell where there is room
_FEW_COLUMNS_PX = 420.0  # the width that the cells fill together where there are few
_EPOCH_HEIGHT = 0.92  # of a cell in a row of height 1; the rest separates the epochs
_READ = "#777777"  # a sample that is read in any of the epochs
_BARS_PX = 620.0  # the width of a drawing with bars
_BAR_ROW_PX = 14.0
_LEAST_BARS_PX = 40.0  # the height of a drawing with one bar or two
_WIDTH_WITH_TEXT = 1.08  # times the longest bar: the text behind it needs the rest
_COMPUTE = WORK["compute"].hue


def draw_assignment(assignment: Assignment, color_by: str = "rank", title: str | None = None) -> Drawing:
    """Draw the samples that each rank reads at each step of an epoch.

    Rows are ranks, columns are reads, and the number in a cell is the sample's index, if there is space. The colour
    shows the rank (`color_by` "rank") or the sample's position in the dataset ("position"). Repeated reads of a sample
    are hatched; samples that are never read are in a separate row; lines separate the batches. Raises ValueError if
    `color_by` is unknown or there are more than 65,536 cells.
    """
    one_of("color_by", color_by, ("rank", "position"))
    epoch = audit(of_type("assignment", assignment, Assignment)).epochs[0]
    num_ranks = assignment.num_ranks
    size = assignment.size
    num_unread_columns = min(epoch.dropped.size, _MOST_UNREAD)
    num_columns = max(assignment.num_steps, num_unread_columns, 1)  # a drawing must have some width
    _check_cells(num_ranks * num_columns)
    unread_samples = epoch.dropped[:num_columns]
    row_px = 20.0 if num_ranks <= _MOST_NUMBERED_RANKS else 13.0
    cell_px = _cell_px(num_columns)
    letter_px = min(_LETTER_PX, row_px - _MARGIN_PX)

    groups = _cells(assignment, unread_samples, color_by)
    texts: list[Texts] = []
    if _has_room(cell_px, size - 1):
        for group in groups:
            texts += numbers_on(group.rects, group.samples, color=group.ink, size_px=letter_px)
    if size:  # in an empty dataset there is nothing to read, which the title says
        idle_ranks = np.array([rank for rank, indices in enumerate(assignment.ranks) if not indices.size])
        texts.append(Texts(0.1, idle_ranks + 0.5, "reads nothing", ALARM, anchor="start", size_px=letter_px))

    legend = _reading_legend(assignment, epoch, color_by, unread_samples.size)
    rules = _batch_rules(assignment, cell_px)
    if rules:
        batches = "batches"
        if assignment.loader is not None:
            batches = f"batches of {assignment.loader.batch_size}"
        legend.append(Key(f"lines separate {batches}", PAPER, line="none"))
    height: float = num_ranks
    y_ticks = [*whole_ticks(num_ranks, most=_MOST_NUMBERED_RANKS)]
    if unread_samples.size:
        height += 1.5  # the row of the unread samples, half a row below the ranks
        y_ticks.append((num_ranks + 1.0, "nobody"))  # the middle of that row
    return grid_drawing(
        title=title or reading_title(assignment),
        x_label="read number",
        y_label="rank",
        columns=num_columns,
        rows=height,
        column_px=cell_px,
        row_px=row_px,
        rects=[group.rects for group in groups],
        texts=texts,
        rules=rules,
        rules_to=num_ranks,
        x_ticks=whole_ticks(assignment.num_steps, most=max(1, int(cell_px * num_columns / _TICK_PX))),
        y_ticks=y_ticks,
        legend=legend,
    )


def _batch_rules(assignment: Assignment, cell_px: float) -> list[float]:
    """The reads at which a batch ends, if that is the same on all ranks and the lines would not hide the cells."""
    if assignment.batch_stops is not None:
        stops = assignment.batch_stops[0]
        if not all(np.array_equal(stops, stops_of_rank) for stops_of_rank in assignment.batch_stops):
            return []
        batch_size = int(np.diff(stops, prepend=0).max(initial=0))  # of the largest batch
        inner_stops = stops[:-1].tolist()  # without the end of the last batch, where the reads end anyway
    elif assignment.loader is not None:
        batch_size = assignment.loader.batch_size
        inner_stops = list(range(batch_size, assignment.num_steps, batch_size))
    else:
        return []
    if batch_size == 1 or batch_size * cell_px < _LEAST_BATCH_PX:  # batches of one sample need no lines
        return []
    return [float(stop) for stop in inner_stops]


class _Cells(NamedTuple):
    """Cells, each with the number of a sample."""

    rects: Rects
    samples: NDArray[np.int64]
    ink: str | None  # the colour of the numbers; None for dark or white, whichever is legible on the cell


def _cells(assignment: Assignment, unread: NDArray[np.int64], color_by: str) -> list[_Cells]:
    """Return the reads, the reads of what is not in the dataset, and below the ranks the samples that nobody reads."""
    rank, step = assignment.coordinates()
    sample = np.concatenate(assignment.ranks)
    repeated = np.concatenate(assignment.repeats())
    inside = (sample >= 0) & (sample < assignment.size)
    if color_by == "rank":
        color_of_rank = np.array(rank_colors(assignment.num_ranks))
        fill = color_of_rank[rank[inside]].tolist()
    else:
        last_sample = assignment.size - 1
        fill = ramp(sample[inside] / max(last_sample, 1))  # a single sample has the number 0
    reads = Rects(step[inside], rank[inside], fill, hatched=repeated[inside])
    out_of_range = Rects(step[~inside], rank[~inside], PAPER, hatched=True, edge=ALARM)
    row_of_unread = assignment.num_ranks + 0.5  # half a row below the ranks
    below = Rects(np.arange(unread.size), row_of_unread, PAPER, edge=ALARM)
    return [
        _Cells(reads, sample[inside], ink=None),
        _Cells(out_of_range, sample[~inside], ink=ALARM),
        _Cells(below, unread, ink=ALARM),
    ]


def draw_coverage(epochs: Sequence[Assignment], title: str | None = None) -> Drawing:
    """Draw the rank that reads each sample of the dataset, epoch by epoch.

    Rows are epochs. The colour of a cell shows the rank, and so does its number, if there is space. White cells with a
    red edge are never read. Samples read more than once in an epoch are hatched and have the colour of the
    lowest rank that reads them. In the last row, samples that are read in any of the epochs are grey. Raises ValueError
    if there are no epochs, if epochs have different datasets or world sizes, or if there are more than 65,536 cells.
    """
    if not isinstance(epochs, Sequence):
        raise ValueError(f"epochs must be a sequence of Assignments, got {epochs!r}")
    report = audit(of_type(f"epochs[{index}]", epoch, Assignment) for index, epoch in enumerate(epochs))
    num_columns = max(report.size, 1)  # a drawing must have some width
    _check_cells(num_columns * (len(epochs) + 1))  # with the row of all epochs together
    cell_px = _cell_px(num_columns)
    colors = rank_colors(report.num_ranks)
    has_numbers = _has_room(cell_px, report.num_ranks - 1)
    rects: list[Rects] = []
    texts: list[Texts] = []
    for row, assignment in enumerate(epochs):
        readers = _readers(assignment)
        read = np.flatnonzero(readers.num_reads)
        unread = np.flatnonzero(readers.num_reads == 0)
        ranks = readers.lowest_rank[read]
        fill = [colors[rank] for rank in ranks.tolist()]
        cells = Rects(read, row, fill, height=_EPOCH_HEIGHT, hatched=readers.num_reads[read] > 1)
        rects.append(cells)
        if has_numbers:
            texts += numbers_on(cells, ranks)
        rects.append(Rects(unread, row, PAPER, height=_EPOCH_HEIGHT, edge=ALARM))
    last_row = len(epochs) + 0.25  # that of all epochs together, a little below theirs
    never_read = report.never_seen
    ever_read = np.setdiff1d(np.arange(report.size), never_read)
    rects.append(Rects(ever_read, last_row, _READ, height=_EPOCH_HEIGHT))
    rects.append(Rects(never_read, last_row, PAPER, height=_EPOCH_HEIGHT, edge=ALARM))

    samples = count_of(report.size, "sample")
    within = count_of(len(epochs), "epoch")
    finding = f"All of {samples} read within {within}"
    if never_read.size:
        finding = f"{never_read.size} of {samples} never read in {within}"
    epoch_ticks = [(row + 0.5, str(assignment.epoch)) for row, assignment in enumerate(epochs)]
    return grid_drawing(
        title=title or finding,
        x_label="sample [index in the dataset]",
        y_label="epoch",
        columns=num_columns,
        rows=last_row + 1,
        column_px=cell_px,
        row_px=_ROW_PX,
        rects=rects,
        texts=texts,
        x_ticks=whole_ticks(num_columns, most=20),
        y_ticks=(*epoch_ticks, (last_row + 0.5, "any")),
        legend=_coverage_legend(report, colors),
    )


def _coverage_legend(report: Audit, colors: Sequence[str]) -> list[Key]:
    """The colours of all ranks, or of three if there are many, and the marks of samples read too often or never."""
    last = report.num_ranks - 1
    ranks = range(report.num_ranks) if report.num_ranks <= 4 else (0, report.num_ranks // 2, last)
    keys = [Key(f"rank {rank}", colors[rank]) for rank in ranks]
    if report.duplicates:
        keys.append(Key("read more than once", PAPER, hatched=True))
    if report.dropped:
        keys.append(Key("never read", PAPER, edge=ALARM))
    return keys


def draw_lengths(lengths: ArrayLike, title: str | None = None) -> Drawing:
    """Draw how many samples have which length, and how many of all tokens these have.

    A row is a range of lengths, of equal width, and its bar the number of samples in it. The number next to it is their
    share of all tokens. Raises ValueError for lengths that are not whole numbers of at least 0.
    """
    tokens = checked_lengths(lengths)
    longest = int(tokens.max(initial=0))
    least_width = (longest + 1) / _MOST_RANGES  # there are longest + 1 lengths, because one of them is 0
    range_width = int(_round_step(max(least_width, 1)))
    num_ranges = longest // range_width + 1
    range_of_sample = tokens // range_width
    num_samples = np.bincount(range_of_sample, minlength=num_ranges)
    tokens_in_range = np.bincount(range_of_sample, weights=tokens, minlength=num_ranges)
    shares = tokens_in_range / max(int(tokens.sum()), 1)  # all samples may have 0 tokens
    is_filled = num_samples > 0
    most = int(num_samples.max(initial=0))  # 0 if there are no samples
    width = max(most, 1)
    rows = np.arange(num_ranges)
    labels = [str(first) for first in range(num_ranges)]
    if range_width > 1:
        labels = [f"{first} to {first + range_width - 1}" for first in (rows * range_width).tolist()]
    tick_step = max(int(_round_step(width / 5)), 1)  # about five ticks, at whole numbers of samples
    return Drawing(
        title=title or _lengths_title(tokens),
        x_label="samples",
        y_label="length [tokens]",
        width=_WIDTH_WITH_TEXT * width,
        height=num_ranges,
        size_px=(_BARS_PX, max(_BAR_ROW_PX * num_ranges, _LEAST_BARS_PX)),
        rects=[Rects(0.0, rows + 0.1, _COMPUTE, width=num_samples, height=0.8)],
        texts=[
            Texts(
                num_samples[is_filled] + 0.01 * width,
                rows[is_filled] + 0.5,
                [f"{share:.0%}" for share in shares[is_filled]],
                anchor="start",
                size_px=10.0,
            )
        ],
        x_axis=(0.0, width),
        x_ticks=[(float(tick), f"{tick:,}") for tick in range(0, width + 1, tick_step)],
        y_ticks=[(row + 0.5, label) for row, label in enumerate(labels)],
        legend=[Key("number of samples", _COMPUTE), Key("numbers: share of all tokens", PAPER, line="none")],
    )


def _lengths_title(tokens: NDArray[np.int64]) -> str:
    """Say how long samples are, and what share of the tokens the longest tenth of them has."""
    if not tokens.size:
        return "No samples"
    longest_first = np.sort(tokens)[::-1]
    num_longest = max(round(tokens.size / 10), 1)
    share = longest_first[:num_longest].sum() / max(int(tokens.sum()), 1)  # all samples may have 0 tokens
    median = float(np.median(tokens))
    of_longest = f"the longest tenth has {percent_words(share)} of all tokens"
    return f"Half of the samples have at most {median:.0f} tokens; {of_longest}"


def draw_step_costs(
    assignment: Assignment,
    lengths: ArrayLike | None = None,
    cost: str | CostFunction = "linear",
    title: str | None = None,
) -> Drawing:
    """Draw the cost of each step: the mean over the ranks, and the mean wait for the costliest rank.

    Rows are steps, at most 40; the default title is about all of them. The number next to a bar is the share of
    padding, if each batch is padded to its longest sample, or packs to their number of tokens. `lengths` are those of
    all samples in tokens, by default 1 each, and `cost` is that of `epoch_work`. Raises ValueError if `lengths` are not
    one whole number of at least 0 per sample.
    """
    of_type("assignment", assignment, Assignment)
    if lengths is None:
        lengths = np.ones(assignment.size, dtype=np.int64)
    work = epoch_work(assignment, lengths, cost)
    num_all_steps = work.step_costs.shape[0]
    num_steps = min(num_all_steps, _MOST_STEPS)
    step_costs = work.step_costs[:num_steps]
    means = step_costs.mean(axis=1)
    highest = step_costs.max(axis=1)
    width = float(highest.max(initial=0.0))
    if width == 0:  # there are no steps, or they cost nothing, and a drawing must have some width
        width = 1.0
    rows = np.arange(num_steps)
    words = [f"{share:.0%}" for share in work.step_padding_shares[:num_steps].tolist()]
    waiting = 1 - 1 / work.imbalance  # the mean rank works for 1 / imbalance of the time of the costliest one
    padding = percent_words(work.padding_share)
    finding = f"Ranks wait for {percent_words(waiting)} of the time, and {padding} of the tokens are padding"
    unit = "cost"  # that of a function, whose unit is unknown
    if isinstance(cost, str):
        unit = {"linear": "tokens", "quadratic": "tokens²"}[cost]
    y_label = "step" if num_steps == num_all_steps else f"step, the first {num_steps}"
    ticks = np.arange(0, width * 1.01, _round_step(width / 5))  # 1.01, so that rounding loses no tick at `width`
    return Drawing(
        title=title or finding,
        x_label=f"cost of the step [{unit}]",
        y_label=y_label,
        width=_WIDTH_WITH_TEXT * width,
        height=max(num_steps, 1),
        size_px=(_BARS_PX, max(_BAR_ROW_PX * num_steps, _LEAST_BARS_PX)),
        rects=[
            Rects(0.0, rows + 0.1, _COMPUTE, width=means, height=0.8),
            Rects(means, rows + 0.1, WAITING, width=highest - means, height=0.8, hatched=True),
        ],
        texts=[Texts(highest + 0.01 * width, rows + 0.5, words, anchor="start", size_px=10.0)],
        x_axis=(0.0, width),
        x_ticks=[(float(tick), f"{tick:,.6g}") for tick in ticks],
        y_ticks=whole_ticks(num_steps, most=20),
        legend=[
            Key("mean over the ranks", _COMPUTE),
            Key("wait for the costliest rank", WAITING, hatched=True),
            Key("numbers: padding", PAPER, line="none"),
        ],
    )


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is at least `least`.

    >>> _round_step(333), _round_step(0.15)
    (500.0, 0.2)
    """
    power = 10.0 ** np.floor(np.log10(least))
    for digit in (1, 2, 5):
        if digit * power >= least:
            return float(digit * power)
    return float(10 * power)


def _cell_px(columns: int) -> float:
    """Return the width of a cell: wide for few columns, but no drawing is wider than `WIDE_PX`."""
    return min(WIDE_PX / columns, max(_CELL_PX, _FEW_COLUMNS_PX / columns))


def _has_room(cell_px: float, largest_number: int) -> bool:
    """Return whether every number from 0 to this one fits in a cell of that width."""
    return cell_px >= _DIGIT_PX * len(str(largest_number)) + _MARGIN_PX


def _check_cells(cells: int) -> None:
    if cells > _MOST_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_CELLS} cells, got {cells}: take fewer samples, ranks or epochs")


class _Readers(NamedTuple):
    """For each sample the lowest rank that reads it, and its number of reads."""

    lowest_rank: NDArray[np.int64]
    num_reads: NDArray[np.int64]


def _readers(assignment: Assignment) -> _Readers:
    rank, _ = assignment.coordinates()
    sample = np.concatenate(assignment.ranks)
    in_dataset = (sample >= 0) & (sample < assignment.size)
    lowest_rank = np.full(assignment.size, assignment.num_ranks)  # above every rank, until the minimum is taken
    np.minimum.at(lowest_rank, sample[in_dataset], rank[in_dataset])
    return _Readers(lowest_rank, np.bincount(sample[in_dataset], minlength=assignment.size))


def reading_title(assignment: Assignment, when: str | None = None) -> str:
    """Return the title of `draw_assignment`; `when` names the epoch, by default by the number that the sampler had."""
    epoch = audit(of_type("assignment", assignment, Assignment)).epochs[0]
    samples = count_of(assignment.size, "sample")
    ranks = count_of(assignment.num_ranks, "rank")
    when = when or f"epoch {assignment.epoch}"
    subject = f"{samples} over {ranks}, {when}"
    if not assignment.size and not epoch.num_reads:
        return f"{subject}: nothing to read"
    findings = []
    if epoch.num_repeats:
        findings.append(f"{epoch.num_repeats} read again")
    if epoch.dropped.size:
        findings.append(f"{epoch.dropped.size} never read")
    if epoch.out_of_range.size:
        findings.append(f"{epoch.out_of_range.size} out of range")
    return f"{subject}: {', '.join(findings) or 'each read exactly once'}"


def _reading_legend(assignment: Assignment, epoch: EpochAudit, color_by: str, num_shown: int) -> list[Key]:
    """The legend of an assignment; `num_shown` of the samples that nobody reads are drawn."""
    keys = []
    if color_by == "position":
        last = max(assignment.size - 1, 0)
        samples = np.unique([0, last // 2, last])  # fewer than three in a dataset of one or two samples
        colors = ramp(samples / max(last, 1))  # a single sample has the number 0
        keys = [Key(f"sample {sample}", color) for sample, color in zip(samples, colors, strict=True)]
    if epoch.num_repeats:
        keys.append(Key("read again", PAPER, hatched=True))
    if epoch.out_of_range.size:
        keys.append(Key("not in the dataset", PAPER, hatched=True, edge=ALARM))
    if num_shown:
        label = "never read"
        if num_shown < epoch.dropped.size:
            label = f"never read (first {num_shown} of {epoch.dropped.size})"
        keys.append(Key(label, PAPER, edge=ALARM))
    return keys
