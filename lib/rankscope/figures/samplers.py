"""Drawings of who reads what: the order of reading, the dataset covered, the labels that each rank gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..sampling import Assignment, audit
from ..sampling.audit import Audit, EpochAudit
from ..values.checks import count_of, of_type, one_of, whole
from .marks import Drawing, Key, Rects, Texts, numbers_on, whole_ticks
from .palette import ALARM, PAPER, ramp, rank_colors

_WIDE_PX = 900.0
_MOST_CELLS = 65_536


def draw_assignment(assignment: Assignment, color_by: str = "rank", title: str | None = None) -> Drawing:
    """Draw one epoch as a grid: a row a rank, a column a read, the sample's index in the cell where it fits.

    Colour says which rank reads (`color_by` "rank") or where in the dataset the sample lies ("position"). Reads of a
    sample already read are hatched; samples that nobody reads stand in a row of their own; lines part the batches.
    Raises ValueError for an unknown `color_by` and for more than 65,536 cells.
    """
    one_of("color_by", color_by, ("rank", "position"))
    epoch = audit(of_type("assignment", assignment, Assignment)).epochs[0]
    num_ranks = assignment.num_ranks
    steps = max(assignment.num_steps, min(epoch.dropped.size, 24), 1)
    _check_cells(num_ranks * steps)
    unread = epoch.dropped[:steps]
    height = num_ranks + 1.5 if unread.size else num_ranks
    row_px, cell_px = 20.0 if num_ranks <= 32 else 13.0, _cell_px(steps)
    rects, texts = _reads(assignment, color_by)
    empty = np.flatnonzero([not indices.size for indices in assignment.ranks]) if assignment.size else np.empty(0, int)
    blank = Texts(np.full(empty.size, 0.1), empty + 0.5, ("reads nothing",) * empty.size, (ALARM,) * empty.size,
                  anchor="start")  # fmt: skip
    below = Rects.of(np.arange(unread.size), np.full(unread.size, num_ranks + 0.5), PAPER, edge=ALARM)
    texts = (*texts, *numbers_on(below, unread, ALARM))
    legible = cell_px >= 6.4 * len(str(max(assignment.size - 1, 0))) + 3
    rules = _batch_rules(assignment, cell_px)
    return Drawing(
        title=title or _reading_title(assignment, epoch),
        x_label=f"read of the epoch [step]{_batch_words(rules, assignment)}",
        y_label="rank",
        width=steps,
        height=height,
        size_px=(cell_px * steps, row_px * height),
        rects=(*rects, below),
        texts=tuple(replace(t, size_px=min(11.0, row_px - 3)) for t in ((*texts, blank) if legible else (blank,))),
        rules=rules,
        rules_to=num_ranks,
        x_ticks=whole_ticks(assignment.num_steps, most=max(1, int(cell_px * steps / 30))),
        y_ticks=whole_ticks(num_ranks, most=32) + (((num_ranks + 1.0, "nobody"),) if unread.size else ()),
        legend=_reading_legend(assignment, epoch, color_by, unread.size),
    )


def draw_coverage(epochs: Sequence[Assignment], title: str | None = None) -> Drawing:
    """Draw which rank reads each sample of the dataset, a row an epoch; white with a red edge is read by nobody.

    The rank is the colour, and the number in the cell where it fits. Samples read more than once in an epoch are
    hatched and take the lowest rank that reads them. The last row is grey where any of the epochs read the sample.
    Raises ValueError for no epochs, for epochs of different datasets or world sizes, and for more than 65,536 cells.
    """
    if not isinstance(epochs, Sequence):
        raise ValueError(f"epochs must be a sequence of Assignments, got {epochs!r}")
    report = audit(of_type(f"epochs[{place}]", one, Assignment) for place, one in enumerate(epochs))
    size = max(report.size, 1)
    _check_cells(size * (len(epochs) + 1))
    colors = rank_colors(report.num_ranks)
    rects: list[Rects] = []
    texts: list[Texts] = []
    legible = _cell_px(size) >= 6.4 * len(str(report.num_ranks - 1)) + 3
    for row, assignment in enumerate(epochs):
        reader, reads = _readers(assignment)
        read = np.flatnonzero(reads)
        fill = [colors[rank] for rank in reader[read].tolist()]
        rects.append(_row(read, row, fill, hatched=reads[read] > 1))
        texts += numbers_on(rects[-1], reader[read]) if legible else ()
        rects.append(_row(np.flatnonzero(reads == 0), row, PAPER, edge=ALARM))
    last = len(epochs) + 0.25
    rects.append(_row(np.setdiff1d(np.arange(report.size), report.never_seen), last, "#777777"))
    rects.append(_row(report.never_seen, last, PAPER, edge=ALARM))
    labels = [(row + 0.5, str(assignment.epoch)) for row, assignment in enumerate(epochs)]
    return Drawing(
        title=title or _coverage_title(report),
        x_label="sample [index in the dataset]",
        y_label="epoch",
        width=size,
        height=last + 1,
        size_px=(_cell_px(size) * size, 22.0 * (last + 1)),
        rects=tuple(rects),
        texts=tuple(texts),
        x_ticks=whole_ticks(size, most=20),
        y_ticks=(*labels, (last + 0.5, "any")),
        legend=_coverage_legend(report),
    )


def draw_label_counts(
    counts: ArrayLike, title: str, label_name: str = "label", limits: tuple[int, int] | None = None
) -> Drawing:
    """Draw how many samples of each label each rank reads, from `Assignment.count_labels`: darker is fewer.

    `limits` are the counts of the darkest and the palest shade, the smallest and largest where not given: pass the
    same to drawings that are to be compared. Raises ValueError unless `counts` is a (num_ranks, num_labels) array of
    whole numbers, for limits that are not whole numbers, and for more than 65,536 cells.
    """
    table = np.asarray(counts)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer) or not table.size:
        raise ValueError(f"counts must be whole numbers, ranks by labels, got {table.dtype} of shape {table.shape}")
    _check_cells(table.size)
    num_ranks, num_labels = table.shape
    if limits is not None and np.shape(limits) != (2,):
        raise ValueError(f"limits must be two whole numbers, got {limits!r}")
    low, high = (whole("limits", limit) for limit in limits or (table.min(), table.max()))
    fill = ramp((table - low) / max(high - low, 1))
    y, x = np.indices(table.shape)
    rects = Rects.of(x, y, fill)
    cell_px = max(34.0, 420.0 / num_labels)
    return Drawing(
        title=title,
        x_label=f"{label_name} [number in the cell: samples read]",
        y_label="rank",
        width=num_labels,
        height=num_ranks,
        size_px=(cell_px * num_labels, 22.0 * num_ranks),
        rects=(rects,),
        texts=numbers_on(rects, table.ravel()),
        x_ticks=whole_ticks(num_labels, most=num_labels),
        y_ticks=whole_ticks(num_ranks, most=32),
        legend=(Key(f"{low} samples", ramp(0)[0]), Key(f"{high} samples", ramp(1)[0])),
    )


def _row(x: NDArray[Any], y: float, fill: list[str] | str, **style: Any) -> Rects:
    return Rects.of(x, np.full(x.size, y), fill, height=0.92, **style)


def _cell_px(columns: int) -> float:
    return min(_WIDE_PX / columns, max(34.0, 420.0 / columns))


def _check_cells(cells: int) -> None:
    if cells > _MOST_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_CELLS} cells, got {cells}: take fewer samples, ranks or epochs")


def _reads(assignment: Assignment, color_by: str) -> tuple[tuple[Rects, Rects], tuple[Texts, ...]]:
    """Return the cells of all reads, those of indices that the dataset does not have apart, and their numbers."""
    ranks, steps = assignment.coordinates()
    flat = np.concatenate(assignment.ranks)
    if color_by == "rank":
        colors = rank_colors(assignment.num_ranks)
        fill = tuple(colors[rank] for rank in ranks.tolist())
    else:
        fill = ramp(flat / max(assignment.size - 1, 1))
    stray = (flat < 0) | (flat >= assignment.size)
    repeated = np.concatenate(assignment.repeats())[~stray]
    inside = [color for color, strays in zip(fill, stray.tolist(), strict=True) if not strays]
    real = Rects.of(steps[~stray], ranks[~stray], inside, hatched=repeated)
    strays = Rects.of(steps[stray], ranks[stray], PAPER, hatched=True, edge=ALARM)
    return (real, strays), (*numbers_on(real, flat[~stray]), *numbers_on(strays, flat[stray], ALARM))


def _readers(assignment: Assignment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each sample the lowest rank that reads it, and how many reads it gets."""
    ranks, _ = assignment.coordinates()
    flat = np.concatenate(assignment.ranks)
    inside = (flat >= 0) & (flat < assignment.size)
    reader = np.full(assignment.size, assignment.num_ranks)
    np.minimum.at(reader, flat[inside], ranks[inside])
    return reader, np.bincount(flat[inside], minlength=assignment.size)


def _batch_rules(assignment: Assignment, cell_px: float) -> tuple[float, ...]:
    """Return where one batch ends and the next begins, unless the lines would hide the cells."""
    size = assignment.loader.batch_size if assignment.loader else 1
    if size == 1 or size * cell_px < 8:
        return ()
    return tuple(float(x) for x in range(size, assignment.num_steps, size))


def _batch_words(rules: tuple[float, ...], assignment: Assignment) -> str:
    return f"; lines part the batches of {assignment.loader.batch_size}" if rules and assignment.loader else ""


def _coverage_legend(report: Audit) -> tuple[Key, ...]:
    colors = rank_colors(report.num_ranks)
    shown = range(report.num_ranks) if report.num_ranks <= 8 else (0, report.num_ranks // 2, report.num_ranks - 1)
    keys = [Key(f"rank {rank}", colors[rank]) for rank in shown]
    if report.duplicates:
        keys.append(Key("read more than once", PAPER, hatched=True))
    if report.dropped:
        keys.append(Key("read by nobody", PAPER, edge=ALARM))
    return tuple(keys)


def _coverage_title(report: Audit) -> str:
    within = count_of(len(report.epochs), "epoch")
    if not report.never_seen.size:
        return f"All of {count_of(report.size, 'sample')} read within {within}"
    return f"{report.never_seen.size} of {count_of(report.size, 'sample')} never read in {within}"


def _reading_title(assignment: Assignment, epoch: EpochAudit) -> str:
    over = count_of(assignment.num_ranks, "rank")
    what = f"{count_of(assignment.size, 'sample')} over {over}, epoch {assignment.epoch}"
    if not assignment.size and not epoch.num_reads:
        return f"{what}: nothing to read"
    odd = [
        f"{number} {words}"
        for number, words in (
            (epoch.num_repeats, "read again"),
            (epoch.dropped.size, "read by nobody"),
            (epoch.out_of_range.size, "out of range"),
        )
        if number
    ]
    return f"{what}: {', '.join(odd) or 'each read exactly once'}"


def _reading_legend(assignment: Assignment, epoch: EpochAudit, color_by: str, num_shown: int) -> tuple[Key, ...]:
    keys = []
    if color_by == "position":
        last = max(assignment.size - 1, 0)
        samples = sorted({0, last // 2, last})
        keys = [Key(f"sample {sample}", ramp(sample / max(last, 1))[0]) for sample in samples]
    if epoch.num_repeats:
        keys.append(Key("read again", PAPER, hatched=True))
    if epoch.out_of_range.size:
        keys.append(Key("not in the dataset", PAPER, hatched=True, edge=ALARM))
    if num_shown:
        some = "" if num_shown == epoch.dropped.size else f" (first {num_shown} of {epoch.dropped.size})"
        keys.append(Key(f"read by nobody{some}", PAPER, edge=ALARM))
    return tuple(keys)
