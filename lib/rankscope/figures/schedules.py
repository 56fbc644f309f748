"""Drawings of a schedule, step by step: who holds whose shares, and what goes where."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..collectives import Schedule
from ..collectives.schedule import MOVES, Ints
from ..collectives.verify import holdings
from ..values.checks import count_of, of_type, whole
from .marks import Drawing, Key, Lines, Rects, Texts, numbers_on, whole_ticks
from .messages import Message, messages
from .palette import EMPTY, INK, PAPER, ramp, rank_colors

Bools = NDArray[np.bool_]

_MOST_CELLS = 4096
_STRIPED = 8  # ranks up to which each has a stripe of its own in a cell
_WIDE_PX, _STRIP_PX, _ROW_PX = 380.0, 200.0, 27.0
_HEAD, _TALL = 0.8, 0.8  # rows above the first rank; a cell's part of its row


def draw_schedule_step(
    schedule: Schedule, step: int, title: str | None = None, gpus_per_node: int | None = None
) -> Drawing:
    """Draw who holds what before a step, its messages as arrows, and who holds what after it.

    A row is a rank, a column a chunk; lines part the nodes of `gpus_per_node` ranks. Where ranks add up, each cell has
    a stripe for every rank, in its colour where its share is in; for more than eight ranks, and for cells too small, a
    shade for the number of shares, paler for more. Where they only pass on, a cell has the colour and the number of
    the rank it comes from. Framed cells are sent, and received; arrows name their chunks where there are several. Solid
    arrows add, dashed ones replace.

    ``step = schedule.num_steps`` draws the end. Raises ValueError for a step that does not exist, for nodes of no rank,
    and for more than 4,096 cells.
    """
    cells = of_type("schedule", schedule, Schedule).num_ranks * schedule.num_chunks
    if cells > _MOST_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_CELLS} cells, ranks × chunks, got {cells}: take fewer")
    if gpus_per_node is not None:
        whole("gpus_per_node", gpus_per_node, 1)
    transfers = next(islice(schedule.steps(), whole("step", step, 0, schedule.num_steps), None), None)
    sent = messages(transfers) if transfers else None
    rects, lines, texts, lefts = _marks(schedule, step, sent)
    wide, height = _cell_px(schedule) * schedule.num_chunks, schedule.num_ranks + _HEAD
    ticks = whole_ticks(schedule.num_chunks, most=max(1, int(wide / 18)))
    return Drawing(
        title=title or _title(schedule, step, sent or []),
        x_label=_x_label(schedule),
        y_label="rank",
        width=lefts[-1] + wide,
        height=height,
        size_px=(lefts[-1] + wide, _ROW_PX * height),
        rects=rects,
        lines=lines + _between_nodes(schedule.num_ranks, gpus_per_node, lefts[-1] + wide),
        texts=texts,
        x_ticks=tuple((left + at * _cell_px(schedule), label) for left in lefts for at, label in ticks),
        y_ticks=tuple((at + _HEAD, label) for at, label in whole_ticks(schedule.num_ranks, most=64)),
        legend=_legend(schedule, sent or []),
    )


def _marks(
    schedule: Schedule, step: int, sent: list[Message] | None
) -> tuple[tuple[Rects, ...], tuple[Lines, ...], tuple[Texts, ...], tuple[float, ...]]:
    """The grid before the step, its arrows and the grid after it, or the grid in the end; and where grids begin."""
    before = holdings(schedule, step)
    y = np.array([_HEAD * 0.45])
    if sent is None:
        rects, texts = _grid(schedule, before, 0.0, [])
        return rects, (), (*texts, _words(0.0, y, ("in the end",))), (0.0,)
    wide = _cell_px(schedule) * schedule.num_chunks
    right = wide + _STRIP_PX
    rects, texts = _grid(schedule, before, 0.0, [(m.src, m.chunks) for m in sent])
    lines, labels = _arrows(schedule, sent, wide)
    after, numbers = _grid(schedule, holdings(schedule, step + 1), right, [(m.dst, m.chunks) for m in sent])
    heads = _words(0.0, y, ("before the step",)), _words(right, y, ("after it",))
    return rects + after, lines, (*texts, *labels, *numbers, _rank_numbers(schedule, right), *heads), (0.0, right)


def _between_nodes(num_ranks: int, gpus_per_node: int | None, width: float) -> tuple[Lines, ...]:
    edges = np.arange(gpus_per_node, num_ranks, gpus_per_node) + _HEAD if gpus_per_node else np.empty(0)
    return (Lines.of(0.0, edges, width, edges, "#8a8a8a", width_px=1.0),) if edges.size else ()


def _striped(schedule: Schedule) -> bool:
    """Whether a cell has a stripe for each rank: at most eight of them, each two pixels wide at least."""
    room = _WIDE_PX / schedule.num_chunks - 6.0
    return _adds(schedule) and schedule.num_ranks <= _STRIPED and room >= 2.0 * schedule.num_ranks


def _adds(schedule: Schedule) -> bool:
    return schedule.collective not in MOVES


def _cell_px(schedule: Schedule) -> float:
    return min(_WIDE_PX / schedule.num_chunks, 12.0 + 9.0 * schedule.num_ranks if _striped(schedule) else 40.0)


def _grid(
    schedule: Schedule, there: Bools, left: float, frames: list[tuple[int, tuple[int, ...]]]
) -> tuple[tuple[Rects, ...], tuple[Texts, ...]]:
    """The cells of all ranks, with frames round these chunks of these ranks."""
    cell_px, num_ranks = _cell_px(schedule), schedule.num_ranks
    pad = min(3.0, 0.18 * cell_px)
    wide, edge = cell_px - 2 * pad, min(2.0, pad)
    rank, chunk = (np.asarray(places) for places in np.indices(there.shape[:2]))
    x, y = left + chunk * cell_px + pad, rank + _HEAD + (1 - _TALL) / 2
    framed = np.zeros(x.shape, dtype=bool)
    for who, chunks in frames:
        framed[who, list(chunks)] = True
    size = {"width": wide + 2 * edge, "height": _TALL + 2 * edge / _ROW_PX}
    frame = Rects.of(x[framed] - edge, y[framed] - edge / _ROW_PX, INK, edge=INK, **size)
    held = there.any(axis=2)
    if _striped(schedule):
        ground = Rects.of(x, y, EMPTY, width=wide, height=_TALL, edge=EMPTY)
        rows, columns, origin = np.nonzero(there)
        stripe = wide / num_ranks
        fill = [rank_colors(num_ranks)[place] for place in origin.tolist()]
        at = x[rows, columns] + origin * stripe
        return (frame, ground, Rects.of(at, y[rows, columns], fill, width=stripe, height=_TALL)), ()
    if _adds(schedule):
        numbers = there.sum(axis=2)
        shades = ramp(np.sqrt(numbers / num_ranks))  # the first shares make the most difference
    else:
        numbers = there.argmax(axis=2)
        shades = tuple(np.array(rank_colors(num_ranks))[numbers.ravel()].tolist())
    fill = [shade if full else EMPTY for shade, full in zip(shades, held.ravel().tolist(), strict=True)]
    cells = Rects.of(x, y, fill, width=wide, height=_TALL)
    legible = wide >= 6.4 * len(str(num_ranks)) + 2
    return (frame, cells), numbers_on(cells, numbers.ravel(), wanted=held.ravel() & legible)


def _arrows(schedule: Schedule, sent: list[Message], wide: float) -> tuple[tuple[Lines, ...], tuple[Texts, ...]]:
    """An arrow for each message, from its sender before to its receiver after, and its chunks at the end that has
    fewer arrows."""
    if not sent:
        return (), ()
    src, dst = (np.array([getattr(message, name) for message in sent]) for name in ("src", "dst"))
    added = np.array([message.reduce for message in sent], dtype=bool)
    x0, x1 = wide + 6.0, wide + _STRIP_PX - 22.0
    y0, y1 = src + _HEAD + 0.5, dst + _HEAD + 0.5
    words = tuple(message.words() for message in sent)
    most_out, most_in = (int(np.bincount(end).max()) for end in (src, dst))
    texts: tuple[Texts, ...] = ()
    if schedule.num_chunks > 1 and min(most_out, most_in) <= 2:
        room = 6.2 * max(map(len, words)) + 6
        at_tail = most_out <= most_in
        place, other = (src, dst) if at_tail else (dst, src)
        y = place + _HEAD + 0.5 + _apart(place, other)
        if at_tail:
            x, x0, y0 = x0, x0 + room, y
        else:
            x, x1, y1 = x1 - room + 6, x1 - room, y
        texts = (_words(x, np.r_[_HEAD * 0.45, y], ("chunk", *words)),)
    return (Lines.of(x0, y0, x1, y1, INK, dashed=~added, arrows=True),), texts


def _apart(place: Ints, other: Ints) -> NDArray[np.float64]:
    """How far from the middle of the row an arrow stands: two at one place do so in the order of their other ends."""
    up = np.zeros(place.size)
    for one in np.unique(place):
        rows = np.flatnonzero(place == one)
        order = rows[np.argsort(other[rows], kind="stable")]
        up[order] = (np.arange(rows.size) - (rows.size - 1) / 2) * 0.44
    return up


def _rank_numbers(schedule: Schedule, right: float) -> Texts:
    """The ranks once more, where the arrows end."""
    ranks = range(schedule.num_ranks)
    return _words(right - 4.0, np.array(ranks) + _HEAD + 0.5, tuple(map(str, ranks)), "end")


def _words(x: ArrayLike, y: NDArray[Any], words: tuple[str, ...], anchor: str = "start") -> Texts:
    places = np.broadcast_to(np.asarray(x, dtype=float), y.shape)
    return Texts(places, y, words, (INK,) * y.size, anchor=anchor)


def _x_label(schedule: Schedule) -> str:
    if not _adds(schedule):
        return "chunk [colour and number: the rank that it comes from]"
    return "chunk [stripes: whose shares are in it]" if _striped(schedule) else "chunk [shade, number: shares in it]"


def _legend(schedule: Schedule, sent: list[Message]) -> tuple[Key, ...]:
    ranks = schedule.num_ranks
    colors = rank_colors(ranks)
    if _striped(schedule) or not _adds(schedule):
        shown = range(ranks) if ranks <= _STRIPED else (0, ranks // 2, ranks - 1)
        keys = [Key(f"rank {rank}", colors[rank]) for rank in shown]
    else:
        keys = [Key(count_of(count, "share"), ramp(np.sqrt(count / ranks))[0]) for count in (1, ranks // 2)]
        keys.append(Key("all shares", ramp(1)[0]))
    if sent:
        keys.append(Key("sent, received", PAPER, edge=INK))
    kinds = {message.reduce for message in sent}
    names = ((True, "is added", "solid"), (False, "replaces", "dashed"))
    return (*keys, *(Key(label, INK, line=line) for kind, label, line in names if kind in kinds))


def _title(schedule: Schedule, step: int, sent: list[Message]) -> str:
    what = f"{schedule.collective} {schedule.algorithm}, {count_of(schedule.num_ranks, 'rank')}"
    if step == schedule.num_steps:
        return f"{what}, after {count_of(step, 'step')}"
    added = sum(message.reduce for message in sent)
    copied = len(sent) - added
    done = f"{added} added, {copied} copied" if added and copied else "added" if added else "copied"
    done = f"{count_of(len(sent), 'message')}, {done}" if sent else "no messages"
    last = schedule.num_steps - 1
    return f"{what}, {f'step {step} of 0–{last}' if last else 'its only step'}: {done}"
