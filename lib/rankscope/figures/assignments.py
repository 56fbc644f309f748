"""Drawings of who reads what: the order of reading, the dataset covered, the labels that each rank gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import count_of, of_type, one_of, whole
from ..sampling.assignment import Assignment
from ..sampling.audit import EpochAudit, audit
from .marks import Drawing, Key, Rects, Texts, numbers_on, whole_ticks
from .palette import ALARM, PAPER, diverging, ramp, rank_colors

_WIDE_PX = 900.0
_MOST_CELLS = 65_536


def draw_assignment(assignment: Assignment, color_by: str = "rank", title: str | None = None) -> Drawing:
    """Draw which rank reads which sample at which step of an epoch.

    A row is a rank, a column a read, the number in a cell the sample's index, where it fits. Colour says which rank
    reads (`color_by` "rank") or where in the dataset the sample lies ("position"). Reads of a sample already read are
    hatched; samples that nobody reads stand in a row of their own; lines separate the batches. Raises ValueError for an
    unknown `color_by` and for more than 65,536 cells.
    """
    one_of("color_by", color_by, ("rank", "position"))
    epoch = audit(of_type("assignment", assignment, Assignment)).epochs[0]
    num_ranks, size = assignment.num_ranks, assignment.size
    steps = max(assignment.num_steps, min(epoch.dropped.size, 24), 1)
    _check_cells(num_ranks * steps)
    unread = epoch.dropped[:steps]
    height = num_ranks + 1.5 if unread.size else num_ranks
    row_px, cell_px = 20.0 if num_ranks <= 32 else 13.0, _cell_px(steps)
    size_px = min(11.0, row_px - 3)

    rank, step = assignment.coordinates()
    sample = np.concatenate(assignment.ranks)
    colors = rank_colors(num_ranks)
    fill = [colors[one] for one in rank.tolist()] if color_by == "rank" else ramp(sample / max(size - 1, 1))
    stray = (sample < 0) | (sample >= size)
    inside = [color for color, strays in zip(fill, stray.tolist(), strict=True) if not strays]
    repeated = np.concatenate(assignment.repeats())[~stray]
    reads = Rects(step[~stray], rank[~stray], inside, hatched=repeated)
    strays = Rects(step[stray], rank[stray], PAPER, hatched=True, edge=ALARM)
    below = Rects(np.arange(unread.size), num_ranks + 0.5, PAPER, edge=ALARM)
    texts: list[Texts] = []
    if cell_px >= 6.4 * len(str(max(size - 1, 0))) + 3:
        texts += numbers_on(reads, sample[~stray], size_px=size_px)
        texts += numbers_on(strays, sample[stray], ALARM, size_px)
        texts += numbers_on(below, unread, ALARM, size_px)
    empty = np.array([one for one, indices in enumerate(assignment.ranks) if size and not indices.size])
    blank = Texts(0.1, empty + 0.5, "reads nothing", ALARM, anchor="start", size_px=size_px)

    batch_size = assignment.loader.batch_size if assignment.loader else 1
    parted = batch_size > 1 and batch_size * cell_px >= 8  # closer lines would hide the cells
    rules = tuple(float(x) for x in range(batch_size, assignment.num_steps, batch_size)) if parted else ()
    return Drawing(
        title=title or reading_title(assignment),
        x_label="read of the epoch [step]",
        y_label="rank",
        width=steps,
        height=height,
        size_px=(cell_px * steps, row_px * height),
        rects=(reads, strays, below),
        texts=(*texts, blank),
        rules=rules,
        rules_to=num_ranks,
        x_ticks=whole_ticks(assignment.num_steps, most=max(1, int(cell_px * steps / 30))),
        y_ticks=whole_ticks(num_ranks, most=32) + (((num_ranks + 1.0, "nobody"),) if unread.size else ()),
        legend=(
            *_reading_legend(assignment, epoch, color_by, unread.size),
            *[Key(f"lines separate batches of {batch_size}", PAPER, line="none")] * bool(rules),
        ),
    )


def draw_coverage(epochs: Sequence[Assignment], title: str | None = None) -> Drawing:
    """Draw which rank reads each sample of the dataset, epoch by epoch.

    A row is an epoch; white with a red edge is read by nobody. The rank is the colour, and the number in the cell where
    it fits. Samples read more than once in an epoch are hatched and take the lowest rank that reads them. The last row
    is grey where any of the epochs read the sample. Raises ValueError for no epochs, for epochs of different datasets
    or world sizes, and for more than 65,536 cells.
    """
    if not isinstance(epochs, Sequence):
        raise ValueError(f"epochs must be a sequence of Assignments, got {epochs!r}")
    report = audit(of_type(f"epochs[{place}]", one, Assignment) for place, one in enumerate(epochs))
    size, num_ranks = max(report.size, 1), report.num_ranks
    _check_cells(size * (len(epochs) + 1))
    colors = rank_colors(num_ranks)
    rects: list[Rects] = []
    texts: list[Texts] = []
    legible = _cell_px(size) >= 6.4 * len(str(num_ranks - 1)) + 3
    for row, assignment in enumerate(epochs):
        reader, reads = _readers(assignment)
        read = np.flatnonzero(reads)
        fill = [colors[rank] for rank in reader[read].tolist()]
        rects.append(Rects(read, row, fill, height=0.92, hatched=reads[read] > 1))
        texts += numbers_on(rects[-1], reader[read]) if legible else ()
        rects.append(Rects(np.flatnonzero(reads == 0), row, PAPER, height=0.92, edge=ALARM))
    last, never = len(epochs) + 0.25, report.never_seen
    rects.append(Rects(np.setdiff1d(np.arange(report.size), never), last, "#777777", height=0.92))
    rects.append(Rects(never, last, PAPER, height=0.92, edge=ALARM))
    shown = range(num_ranks) if num_ranks <= 8 else (0, num_ranks // 2, num_ranks - 1)
    keys = [Key(f"rank {rank}", colors[rank]) for rank in shown]
    if report.duplicates:
        keys.append(Key("read more than once", PAPER, hatched=True))
    if report.dropped:
        keys.append(Key("read by nobody", PAPER, edge=ALARM))
    samples, within = count_of(report.size, "sample"), count_of(len(epochs), "epoch")
    all_read = f"All of {samples} read within {within}"
    labels = [(row + 0.5, str(assignment.epoch)) for row, assignment in enumerate(epochs)]
    return Drawing(
        title=title or (f"{never.size} of {samples} never read in {within}" if never.size else all_read),
        x_label="sample [index in the dataset]",
        y_label="epoch",
        width=size,
        height=last + 1,
        size_px=(_cell_px(size) * size, 22.0 * (last + 1)),
        rects=rects,
        texts=texts,
        x_ticks=whole_ticks(size, most=20),
        y_ticks=(*labels, (last + 0.5, "any")),
        legend=keys,
    )


def draw_label_counts(
    counts: ArrayLike, label_name: str = "label", limits: tuple[int, int] | None = None, title: str | None = None
) -> Drawing:
    """Draw how many samples of each label each rank reads, from `Assignment.count_labels`.

    Blue is fewer than the mean over all ranks and labels, orange is more. `limits` are the counts that the darkest
    shades stand for, the smallest and largest where not given: pass the same to drawings that you compare.
    Raises ValueError unless `counts` is a (num_ranks, num_labels) array of whole numbers, for limits that are not whole
    numbers, and for more than 65,536 cells.
    """
    table = np.asarray(counts)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer) or not table.size:
        raise ValueError(f"counts must be whole numbers, ranks by labels, got {table.dtype} of shape {table.shape}")
    _check_cells(table.size)
    num_ranks, num_labels = table.shape
    if limits is not None and np.shape(limits) != (2,):
        raise ValueError(f"limits must be two whole numbers, got {limits!r}")
    low, high = (whole("limits", limit) for limit in limits or (table.min(), table.max()))
    mean = float(table.mean())
    far = max(high - mean, mean - low) or 1.0
    y, x = np.indices(table.shape)
    rects = Rects(x, y, diverging((table - mean) / far))
    cell_px = max(34.0, 420.0 / num_labels)
    keys = zip((low, mean, high), (count_of(low, "sample"), f"mean {mean:.3g}", count_of(high, "sample")), strict=True)
    return Drawing(
        title=title or f"Each rank reads {table.min()} to {count_of(int(table.max()), 'sample')} of each {label_name}",
        x_label=f"{label_name} [samples read]",
        y_label="rank",
        width=num_labels,
        height=num_ranks,
        size_px=(cell_px * num_labels, 22.0 * num_ranks),
        rects=(rects,),
        texts=numbers_on(rects, table.ravel()),
        x_ticks=whole_ticks(num_labels, most=num_labels),
        y_ticks=whole_ticks(num_ranks, most=32),
        legend=[Key(label, diverging((value - mean) / far)[0]) for value, label in keys],
    )


def _cell_px(columns: int) -> float:
    return min(_WIDE_PX / columns, max(34.0, 420.0 / columns))


def _check_cells(cells: int) -> None:
    if cells > _MOST_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_CELLS} cells, got {cells}: take fewer samples, ranks or epochs")


def _readers(assignment: Assignment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each sample the lowest rank that reads it, and how many reads it gets."""
    ranks, _ = assignment.coordinates()
    flat = np.concatenate(assignment.ranks)
    inside = (flat >= 0) & (flat < assignment.size)
    reader = np.full(assignment.size, assignment.num_ranks)
    np.minimum.at(reader, flat[inside], ranks[inside])
    return reader, np.bincount(flat[inside], minlength=assignment.size)


def reading_title(assignment: Assignment, when: str | None = None) -> str:
    """Return the title of `draw_assignment`; `when` names the epoch, by default by the number that the sampler had."""
    epoch = audit(of_type("assignment", assignment, Assignment)).epochs[0]
    samples = count_of(assignment.size, "sample")
    ranks = count_of(assignment.num_ranks, "rank")
    what = f"{samples} over {ranks}, {when or f'epoch {assignment.epoch}'}"
    if not assignment.size and not epoch.num_reads:
        return f"{what}: nothing to read"
    counts = epoch.num_repeats, epoch.dropped.size, epoch.out_of_range.size
    odd = zip(counts, ("read again", "read by nobody", "out of range"), strict=True)
    return f"{what}: {', '.join(f'{number} {words}' for number, words in odd if number) or 'each read exactly once'}"


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
