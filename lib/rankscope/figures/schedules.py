"""Drawings of a schedule: who holds what at a step, its messages over time, the bytes over each link."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..collectives.schedule import MOVES, Ints, Schedule, Step
from ..collectives.verify import holdings
from ..common.checks import count_of, of_type, whole
from ..common.frozen import optional
from ..common.units import bytes_unit, bytes_words, round_ticks, time_unit, time_words
from ..common.words import run_words
from ..timeline.timeline import Timeline
from .marks import Drawing, Key, Lines, Rects, Texts, numbers_on, shaded, whole_ticks
from .palette import CATEGORIES, EMPTY, FAINT, INK, PAPER, ramp, rank_colors

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_MOST_CELLS, _MOST_MESSAGES, _MOST_LABELS, _MOST_RANKS = 4096, 5000, 150, 256
_STRIPED = 8  # ranks up to which each has a stripe of its own in a cell
_WRITTEN = 16  # ranks up to which the bytes stand in a link's cell
_GRID_PX, _STRIP_PX, _ROW_PX = 380.0, 200.0, 27.0
_HEAD, _TALL = 0.8, 0.8  # rows above the first rank; a cell's part of its row
_WIDE_PX, _MATRIX_PX = 860.0, 720.0
_ADDED, _COPIED = CATEGORIES[0], CATEGORIES[5]
_PLACES = np.array([0.35, 0.25, 0.45, 0.55, 0.65, 0.75, 0.3, 0.4, 0.2, 0.8, 0.6])  # of its line, for a message's chunks


def draw_schedule(
    schedule: Schedule,
    step: int | None = None,
    timeline: Timeline | None = None,
    gpus_per_node: int | None = None,
    title: str | None = None,
) -> Drawing:
    """Draw which rank sends what, and where to: at one `step` of a schedule, or over the time of a `timeline`.

    With `step`: who holds what before it, its messages as arrows, and who holds what after it. A row is a rank, a
    column a chunk; lines part the nodes of `gpus_per_node` ranks. Where ranks add up, each cell has a stripe for every
    rank, in its colour where its share is in; for more than eight ranks, and for cells too small, a shade for the
    number of shares, paler for more. Where they only pass on, a cell has the colour and the number of the rank it comes
    from. Framed cells are sent, and received; arrows name their chunks where there are several. Solid arrows add,
    dashed ones replace. ``step=schedule.num_steps`` draws the end.

    With `timeline`, which is what ``simulate(schedule, …)`` gives with its messages: each message as a line from its
    sender when it starts to its receiver when it has come. A row is a rank, time goes to the right and counts from the
    first span. Blue solid lines are added on arrival, red dashed ones replace; bars on a row are adding. A line names
    its chunks where there are several and there is room.

    Raises ValueError unless one of the two is given, for a step that does not exist, for nodes of no rank, for more
    than 4,096 cells, for more than 5,000 messages, and for the timeline of another schedule or without messages.
    """
    of_type("schedule", schedule, Schedule)
    if (step is None) is (timeline is None):
        raise ValueError(f"either step or timeline must be given, got {step!r} and {timeline!r}")
    if step is None:
        return _over_time(schedule, of_type("timeline", timeline, Timeline), title)
    optional("gpus_per_node", gpus_per_node, whole, 1)
    return _at_step(schedule, step, gpus_per_node, title)


class Message(NamedTuple):
    """All that one rank sends to one other in a step; `reduce` says that it is added, or some of it is."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    reduce: bool

    def words(self, most: int = 7) -> str:
        """Return the chunks as text, or only how many they are where that takes more than `most` characters.

        >>> Message(0, 1, (0, 1, 2, 5), False).words(), Message(0, 1, (1, 3, 5, 7), False).words()
        ('0–2,5', '1,3,5,7')
        >>> Message(0, 1, (1, 3, 5, 7, 9), False).words()
        '5 chunks'
        """
        text = ",".join(run_words(sorted(self.chunks), "–"))
        return text if len(text) <= most else f"{len(self.chunks)} chunks"


def messages(step: Step) -> list[Message]:
    """Return the messages of a step in the order of their first transfers."""
    found: dict[tuple[int, int], tuple[list[int], bool]] = {}
    for src, dst, first, count, reduce in zip(*(column.tolist() for column in step), strict=True):
        chunks, added = found.get((src, dst), ([], False))
        found[src, dst] = [*chunks, *range(first, first + count)], added or reduce
    return [Message(src, dst, tuple(chunks), reduce) for (src, dst), (chunks, reduce) in found.items()]


def _name(schedule: Schedule) -> str:
    return f"{schedule.collective} {schedule.algorithm}, {count_of(schedule.num_ranks, 'rank')}"


# ---- one step


_CELLS = {  # what a cell says of a chunk
    "stripes": "a stripe: this rank's share is in the chunk",
    "shares": "shade and number: how many shares are in the chunk",
    "origin": "colour and number: the rank that the chunk comes from",
}


def _at_step(schedule: Schedule, step: int, gpus_per_node: int | None, title: str | None) -> Drawing:
    ranks, chunks = schedule.num_ranks, schedule.num_chunks
    if ranks * chunks > _MOST_CELLS:
        raise ValueError(f"a drawing has at most {_MOST_CELLS} cells, ranks × chunks, got {ranks * chunks}: take fewer")
    transfers = next(islice(schedule.steps(), whole("step", step, 0, schedule.num_steps), None), None)
    sent = messages(transfers) if transfers else []
    roomy = ranks <= _STRIPED and _GRID_PX / chunks - 6.0 >= 2.0 * ranks  # two pixels for each stripe, at least
    cells = "origin" if schedule.collective in MOVES else "stripes" if roomy else "shares"
    cell_px = min(_GRID_PX / chunks, 12.0 + 9.0 * ranks if cells == "stripes" else 40.0)
    wide, height = cell_px * chunks, ranks + _HEAD
    rects, texts = _grid(holdings(schedule, step), cells, cell_px, 0.0, [(m.src, m.chunks) for m in sent])
    lines: list[Lines] = []
    heads = {0.0: "in the end"}
    if transfers:
        right = wide + _STRIP_PX
        heads = {0.0: "before the step", right: "after it"}
        lines, labels = _arrows(sent, chunks, wide)
        framed = [(m.dst, m.chunks) for m in sent]
        after, numbers = _grid(holdings(schedule, step + 1), cells, cell_px, right, framed)
        names = [str(rank) for rank in range(ranks)]  # once more, where the arrows end
        ends = Texts(right - 4.0, np.arange(ranks) + _HEAD + 0.5, names, anchor="end")
        rects, texts = [*rects, *after], [*texts, *labels, *numbers, ends]
    texts = [*texts, *(Texts(left, _HEAD * 0.45, [head], anchor="start") for left, head in heads.items())]
    width = max(heads) + wide
    if gpus_per_node and gpus_per_node < ranks:
        edges = np.arange(gpus_per_node, ranks, gpus_per_node) + _HEAD
        lines = [*lines, Lines(0.0, edges, width, edges, "#8a8a8a", width_px=1.0)]
    ticks = whole_ticks(chunks, most=max(1, int(wide / 18)))
    return Drawing(
        title=title or f"{_name(schedule)}, {_happening(schedule, step, sent)}",
        x_label="chunk [index]",
        y_label="rank",
        width=width,
        height=height,
        size_px=(width, _ROW_PX * height),
        rects=rects,
        lines=lines,
        texts=texts,
        x_ticks=[(left + at * cell_px, label) for left in heads for at, label in ticks],
        y_ticks=[(at + _HEAD, label) for at, label in whole_ticks(ranks, most=64)],
        legend=(*_step_legend(ranks, cells, sent), Key(_CELLS[cells], PAPER, line="none")),
    )


def _grid(
    there: Bools, cells: str, cell_px: float, left: float, framed: list[tuple[int, tuple[int, ...]]]
) -> tuple[list[Rects], Sequence[Texts]]:
    """The cells of all ranks, with frames round these chunks of these ranks."""
    num_ranks = len(there)
    pad = min(3.0, 0.18 * cell_px)
    wide, edge = cell_px - 2 * pad, min(2.0, pad)
    rank, chunk = (np.asarray(places) for places in np.indices(there.shape[:2]))
    x, y = left + chunk * cell_px + pad, rank + _HEAD + (1 - _TALL) / 2
    marked = np.zeros(x.shape, dtype=bool)
    for who, chunks in framed:
        marked[who, list(chunks)] = True
    width, height = wide + 2 * edge, _TALL + 2 * edge / _ROW_PX
    frame = Rects(x[marked] - edge, y[marked] - edge / _ROW_PX, INK, width, height, edge=INK)
    colors = np.array(rank_colors(num_ranks))
    if cells == "stripes":
        ground = Rects(x, y, EMPTY, width=wide, height=_TALL, edge=EMPTY)
        rows, columns, origin = np.nonzero(there)
        stripe = wide / num_ranks
        at = x[rows, columns] + origin * stripe
        fill = colors[origin].tolist()
        return [frame, ground, Rects(at, y[rows, columns], fill, width=stripe, height=_TALL)], []
    if cells == "shares":
        numbers = there.sum(axis=2)
        shades = ramp(np.sqrt(numbers / num_ranks))  # the first shares make the most difference
    else:
        numbers = there.argmax(axis=2)
        shades = tuple(colors[numbers.ravel()].tolist())
    held = there.any(axis=2).ravel()
    fill = [shade if full else EMPTY for shade, full in zip(shades, held.tolist(), strict=True)]
    rects = Rects(x, y, fill, width=wide, height=_TALL)
    legible = wide >= 6.4 * len(str(num_ranks)) + 2
    return [frame, rects], numbers_on(rects, numbers.ravel(), wanted=held & legible)


def _arrows(sent: list[Message], num_chunks: int, wide: float) -> tuple[list[Lines], list[Texts]]:
    """An arrow for each message, from its sender before to its receiver after, and its chunks at the end that has
    fewer arrows."""
    if not sent:
        return [], []
    src, dst, added = np.array([(m.src, m.dst, m.reduce) for m in sent]).T
    x0, x1 = wide + 6.0, wide + _STRIP_PX - 22.0
    y0, y1 = src + _HEAD + 0.5, dst + _HEAD + 0.5
    words = [message.words() for message in sent]
    most_out, most_in = (int(np.bincount(end).max()) for end in (src, dst))
    texts = []
    if num_chunks > 1 and min(most_out, most_in) <= 2:
        room = 6.2 * max(map(len, words)) + 6
        at_tail = most_out <= most_in
        place, other = (src, dst) if at_tail else (dst, src)
        y = place + _HEAD + 0.5 + _spread(place, other)
        if at_tail:
            x, x0, y0 = x0, x0 + room, y
        else:
            x, x1, y1 = x1 - room + 6, x1 - room, y
        texts = [Texts(x, np.r_[_HEAD * 0.45, y], ["chunk", *words], anchor="start")]
    return [Lines(x0, y0, x1, y1, INK, dashed=added == 0, arrows=True)], texts


def _spread(place: Ints, other: Ints) -> Floats:
    """How far from the middle of the row an arrow stands: two at one place do so in the order of their other ends."""
    up = np.zeros(place.size)
    for one in np.unique(place):
        rows = np.flatnonzero(place == one)
        order = rows[np.argsort(other[rows], kind="stable")]
        up[order] = (np.arange(rows.size) - (rows.size - 1) / 2) * 0.44
    return up


def _step_legend(ranks: int, cells: str, sent: list[Message]) -> tuple[Key, ...]:
    if cells == "shares":
        keys = [Key(count_of(count, "share"), ramp(np.sqrt(count / ranks))[0]) for count in (1, ranks // 2)]
        keys.append(Key("all shares", ramp(1)[0]))
    else:
        shown = range(ranks) if ranks <= _STRIPED else (0, ranks // 2, ranks - 1)
        keys = [Key(f"rank {rank}", rank_colors(ranks)[rank]) for rank in shown]
    if sent:
        keys.append(Key("sent, received", PAPER, edge=INK))
    kinds = {message.reduce for message in sent}
    names = ((True, "is added", "solid"), (False, "replaces", "dashed"))
    return (*keys, *(Key(label, INK, line=line) for kind, label, line in names if kind in kinds))


def _happening(schedule: Schedule, step: int, sent: list[Message]) -> str:
    if step == schedule.num_steps:
        return f"after {count_of(step, 'step')}"
    added = sum(message.reduce for message in sent)
    copied = len(sent) - added
    done = f"{added} added, {copied} copied" if added and copied else "added" if added else "copied"
    done = f"{count_of(len(sent), 'message')}, {done}" if sent else "no messages"
    last = schedule.num_steps - 1
    return f"{f'step {step} of 0–{last}' if last else 'its only step'}: {done}"


# ---- messages over time


def _over_time(schedule: Schedule, timeline: Timeline, title: str | None) -> Drawing:
    sent = [message for step in schedule.steps() for message in messages(step)]
    if len(sent) > _MOST_MESSAGES:
        raise ValueError(f"a drawing has at most {_MOST_MESSAGES} messages, got {len(sent)}: take fewer ranks")
    out, into = timeline.select(kind="send"), timeline.select(kind="receive")
    if out.rank.tolist() != [m.src for m in sent] or into.rank.tolist() != [m.dst for m in sent]:
        raise ValueError(
            f"timeline must be simulate's of this schedule, with its {len(sent)} messages (detail='messages'), "
            f"got {count_of(len(out), 'send')} and {count_of(len(into), 'receive')} of others"
        )
    begin_s, (scale, unit) = timeline.begin_s, time_unit(timeline.makespan_s)
    width = timeline.makespan_s / scale or 1.0
    row_px = max(18.0, min(56.0, 380.0 / schedule.num_ranks))
    src, dst, reduce = np.array([(m.src, m.dst, m.reduce) for m in sent], dtype=np.int64).reshape(-1, 3).T
    added = reduce > 0
    colors = np.where(added, _ADDED, _COPIED).tolist()
    start, stop = (out.start_s - begin_s) / scale, (into.stop_s - begin_s) / scale
    travels = Lines(start, src + 0.5, stop, dst + 0.5, colors, dashed=~added)
    ranks = np.arange(schedule.num_ranks) + 0.5
    rows = Rects(0, ranks, FAINT, width=width, height=0.1 / row_px, edge=FAINT)
    adding = timeline.select(kind="reduce")
    length = (adding.stop_s - adding.start_s) / scale
    bars = Rects((adding.start_s - begin_s) / scale, adding.rank + 0.4, _ADDED, width=length, height=0.2)
    words = [m.words() for m in sent] if schedule.num_chunks > 1 and len(sent) <= _MOST_LABELS else []
    keys = [Key("message, is added", _ADDED, line="solid")] if added.any() else []
    keys += [Key("message, replaces", _COPIED, line="dashed")] if not added.all() else []
    keys += [Key("adding", _ADDED)] if bars.x.size else []
    happened = f"{count_of(len(sent), 'message')} in {time_words(timeline.makespan_s)}"
    return Drawing(
        title=title or f"{_name(schedule)}: {happened}",
        x_label=f"time [{unit}]",
        y_label="rank",
        width=width,
        height=schedule.num_ranks,
        size_px=(_WIDE_PX, row_px * schedule.num_ranks),
        rects=(rows, bars),
        lines=(travels,),
        texts=_labels(travels, words, _WIDE_PX / width, row_px),
        x_ticks=round_ticks(width),
        y_ticks=whole_ticks(schedule.num_ranks, most=32),
        legend=keys,
    )


def _labels(lines: Lines, words: Sequence[str], across: float, down: float) -> tuple[Texts, ...]:
    """The words on their lines, each where other lines are furthest away; those without such a place are left out."""
    ends = np.stack([lines.x0 * across, lines.y0 * down, lines.x1 * across, lines.y1 * down], axis=1)
    start, way = ends[:, :2], ends[:, 2:] - ends[:, :2]
    long = np.maximum((way**2).sum(axis=1), 1e-9)
    taken: list[tuple[float, float, float, str]] = []
    for line, text in enumerate(words):
        wide = 6.4 * len(text) + 4
        if np.sqrt(long[line]) < wide + 10 or way[line, 0] < 0.6 * wide:
            continue
        at = start[line] + _PLACES[:, None] * way[line]
        along = np.clip(((at[:, None] - start) * way).sum(axis=2) / long, 0, 1)
        apart = np.linalg.norm(at[:, None] - start - along[:, :, None] * way, axis=2)
        apart[:, line] = np.inf
        for place in np.argsort(-np.minimum(apart.min(axis=1), wide), kind="stable").tolist():
            x, y = at[place].tolist()
            free = all(abs(x - a) > (wide + w) / 2 or abs(y - b) > 12 for a, b, w, _ in taken)
            if free and apart[place].min() > wide / 2 + 4:
                taken.append((x, y, wide, text))
                break
    if not taken:
        return ()
    x_px, y_px, _, shown = zip(*taken, strict=True)
    return (Texts(np.array(x_px) / across, np.array(y_px) / down, shown, size_px=10.0, halo=PAPER),)


# ---- bytes over links


def draw_link_load(link_bytes: ArrayLike, title: str | None = None) -> Drawing:
    """Draw how many bytes each rank sends to each other; paler is more.

    `link_bytes` are those of ``schedule.traffic(num_bytes)``. Up to 16 ranks the numbers stand in the cells; links
    that carry nothing are grey. Raises ValueError unless it is a square matrix of finite numbers of at least 0, and for
    more than 256 ranks.
    """
    table = np.asarray(link_bytes, dtype=float)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not table.size:
        raise ValueError(f"link_bytes must be a square matrix, senders by receivers, got shape {table.shape}")
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise ValueError("link_bytes must be finite numbers of at least 0")
    num_ranks = table.shape[0]
    if num_ranks > _MOST_RANKS:
        raise ValueError(f"a drawing has at most {_MOST_RANKS} ranks, got {num_ranks}")
    used, most = table > 0, float(table.max())
    least = float(table[table > 0].min()) if used.any() else 0.0
    scale, unit = bytes_unit(most)
    cells, numbers = shaded(table, scale)
    cell_px = max(2.0, min(46.0, _MATRIX_PX / num_ranks))
    written = num_ranks <= _WRITTEN
    ticks = whole_ticks(num_ranks, most=max(1, int(cell_px * num_ranks / 22)))
    keys = [Key(bytes_words(value), ramp(value / most)[0]) for value in sorted({least, most}) if value]
    if not used.all():
        keys.append(Key("nothing", EMPTY))
    keys += [Key(f"numbers: {unit}", PAPER, line="none")] * written
    alike = np.allclose(table[table > 0], most, rtol=1e-9)
    over = f"{bytes_words(most)} over each" if alike else f"at most {bytes_words(most)} over one"
    finding = f"{int(used.sum())} of {count_of(table.size - num_ranks, 'link')} in use, {over}"
    return Drawing(
        title=title or (finding if most else "no link carries anything"),
        x_label="receiver [rank]",
        y_label="sender [rank]",
        width=num_ranks,
        height=num_ranks,
        size_px=(cell_px * num_ranks, (26.0 if written else cell_px) * num_ranks),
        rects=(cells,),
        texts=numbers if written else (),
        x_ticks=ticks,
        y_ticks=ticks,
        legend=keys,
    )
