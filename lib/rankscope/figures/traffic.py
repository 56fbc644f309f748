"""Drawings of messages: when each travels from whom to whom, and how much goes over each link."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..collectives import Schedule
from ..timeline import Timeline
from ..values.checks import count_of, of_type
from ..values.units import bytes_unit, bytes_words, round_ticks, three_digits, time_unit, time_words
from .marks import Drawing, Key, Lines, Rects, Texts, numbers_on, whole_ticks
from .messages import Message, messages
from .palette import CATEGORIES, EMPTY, FAINT, INK, PAPER, ramp

_ADDED, _COPIED = CATEGORIES[0], CATEGORIES[5]
_WIDE_PX, _MATRIX_PX = 860.0, 720.0
_MOST_MESSAGES, _MOST_LABELS, _MOST_RANKS, _MOST_WRITTEN = 5000, 150, 256, 16
_PLACES = (0.35, 0.25, 0.45, 0.55, 0.65, 0.75)  # where on its line a message's chunks may stand


def draw_space_time(schedule: Schedule, timeline: Timeline, title: str | None = None) -> Drawing:
    """Draw each message as a line from its sender when it starts to its receiver when it has come.

    A row is a rank, time goes to the right and counts from the first span. Blue solid lines are added on arrival, red
    dashed ones replace; bars on a row are adding. A line names its chunks where there are several and there is room.
    `timeline` is what ``simulate(schedule, …)`` gives, with its messages.

    Raises ValueError for more than 5,000 messages, and for the timeline of another schedule or without messages.
    """
    of_type("timeline", timeline, Timeline)
    sent = [message for step in of_type("schedule", schedule, Schedule).steps() for message in messages(step)]
    if len(sent) > _MOST_MESSAGES:
        raise ValueError(f"a drawing has at most {_MOST_MESSAGES} messages, got {len(sent)}: take fewer ranks")
    start_s, stop_s = _times(sent, timeline)
    scale, unit = time_unit(timeline.makespan_s)
    width = timeline.makespan_s / scale or 1.0
    row_px = max(18.0, min(56.0, 380.0 / schedule.num_ranks))
    src, dst, added = np.array([(m.src, m.dst, m.reduce) for m in sent], dtype=np.int64).reshape(-1, 3).T
    colors = [_ADDED if adds else _COPIED for adds in added.tolist()]
    travels = Lines.of(start_s / scale, src + 0.5, stop_s / scale, dst + 0.5, colors, dashed=added == 0)
    ranks = np.arange(schedule.num_ranks) + 0.5
    rows = Rects.of(0, ranks, FAINT, width=width, height=0.1 / row_px, edge=FAINT)
    bars = _adding(timeline, scale)
    words = [m.words() for m in sent] if schedule.num_chunks > 1 and len(sent) <= _MOST_LABELS else []
    return Drawing(
        title=title or _space_time_title(schedule, len(sent), timeline.makespan_s),
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
        legend=_keys(added > 0, bars),
    )


def draw_link_load(link_bytes: ArrayLike, title: str | None = None) -> Drawing:
    """Draw how much each rank sends to each other, from ``traffic(schedule, num_bytes).link_bytes``; paler is more.

    Up to 16 ranks the numbers stand in the cells; links that carry nothing are grey. Raises ValueError unless it is a
    square matrix of finite numbers from 0 on, and for more than 256 ranks.
    """
    table = np.asarray(link_bytes, dtype=float)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not table.size:
        raise ValueError(f"link_bytes must be a square matrix, senders by receivers, got shape {table.shape}")
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise ValueError("link_bytes must be finite numbers of at least 0")
    num_ranks = table.shape[0]
    if num_ranks > _MOST_RANKS:
        raise ValueError(f"a drawing has at most {_MOST_RANKS} ranks, got {num_ranks}")
    used, most = table.ravel() > 0, float(table.max())
    least = float(table[table > 0].min()) if used.any() else 0.0
    scale, unit = bytes_unit(most)
    shades = ramp(table / (most or 1.0))
    fill = [shade if carries else EMPTY for shade, carries in zip(shades, used.tolist(), strict=True)]
    src, dst = np.indices(table.shape)
    rects = Rects.of(dst, src, fill)
    numbers = np.array([three_digits(value / scale) for value in table.ravel().tolist()])
    cell_px = max(2.0, min(46.0, _MATRIX_PX / num_ranks))
    written = num_ranks <= _MOST_WRITTEN
    ticks = whole_ticks(num_ranks, most=max(1, int(cell_px * num_ranks / 22)))
    return Drawing(
        title=title or _load_title(table),
        x_label=f"receiver [rank{f'; number: {unit}' if written else ''}]",
        y_label="sender [rank]",
        width=num_ranks,
        height=num_ranks,
        size_px=(cell_px * num_ranks, (26.0 if written else cell_px) * num_ranks),
        rects=(rects,),
        texts=numbers_on(rects, numbers, wanted=used) if written else (),
        x_ticks=ticks,
        y_ticks=ticks,
        legend=_load_keys(least, most, used),
    )


def _times(sent: list[Message], timeline: Timeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each message starts and ends, from the start of the timeline."""
    out, into = timeline.select(kind="send"), timeline.select(kind="receive")
    matches = out.rank.tolist() == [m.src for m in sent] and into.rank.tolist() == [m.dst for m in sent]
    if not matches:
        raise ValueError(
            f"timeline must be simulate's of this schedule, with its {len(sent)} messages (detail='messages'), "
            f"got {count_of(len(out), 'send')} and {count_of(len(into), 'receive')} of others"
        )
    return out.start_s - timeline.begin_s, into.stop_s - timeline.begin_s


def _adding(timeline: Timeline, scale: float) -> Rects:
    spans = timeline.select(kind="reduce")
    start, length = (spans.start_s - timeline.begin_s) / scale, (spans.stop_s - spans.start_s) / scale
    return Rects.of(start, spans.rank + 0.4, _ADDED, width=length, height=0.2)


def _labels(lines: Lines, words: list[str], across: float, down: float) -> tuple[Texts, ...]:
    """The words on their lines, in the first place that is free, those without one left out."""
    x0, y0, x1, y1 = lines.x0 * across, lines.y0 * down, lines.x1 * across, lines.y1 * down
    taken: list[tuple[float, float, float]] = []
    shown: list[tuple[float, float, str]] = []
    for ends, text in zip(zip(*(end.tolist() for end in (x0, y0, x1, y1)), strict=True), words, strict=False):
        wide = 6.4 * len(text) + 4
        if np.hypot(ends[2] - ends[0], ends[3] - ends[1]) < wide + 10 or ends[2] - ends[0] < 0.6 * wide:
            continue
        for part in _PLACES:
            x, y = ends[0] + part * (ends[2] - ends[0]), ends[1] + part * (ends[3] - ends[1])
            if all(abs(x - a) > (wide + w) / 2 or abs(y - b) > 12 for a, b, w in taken):
                taken.append((x, y, wide))
                shown.append((x / across, y / down, text))
                break
    if not shown:
        return ()
    x_at, y_at, texts = zip(*shown, strict=True)
    ink, halo = (INK,) * len(texts), (PAPER,) * len(texts)
    return (Texts(np.array(x_at), np.array(y_at), texts, ink, size_px=10.0, halo=halo),)


def _keys(added: NDArray[np.bool_], bars: Rects) -> tuple[Key, ...]:
    keys = [Key("message, is added", _ADDED, line="solid")] if added.any() else []
    keys += [Key("message, replaces", _COPIED, line="dashed")] if not added.all() else []
    return (*keys, Key("adding", _ADDED)) if bars.x.size else tuple(keys)


def _load_keys(least: float, most: float, used: NDArray[np.bool_]) -> tuple[Key, ...]:
    keys = [Key(bytes_words(value), ramp(value / most)[0]) for value in sorted({least, most}) if value]
    return (*keys, Key("nothing", EMPTY)) if not used.all() else tuple(keys)


def _space_time_title(schedule: Schedule, num_messages: int, seconds: float) -> str:
    what = f"{schedule.collective} {schedule.algorithm}, {count_of(schedule.num_ranks, 'rank')}"
    return f"{what}: {count_of(num_messages, 'message')} in {time_words(seconds)}"


def _load_title(table: NDArray[np.float64]) -> str:
    used = int((table > 0).sum())
    if not used:
        return "no link carries anything"
    most = bytes_words(float(table.max()))
    over = f"{most} over each" if np.allclose(table[table > 0], table.max(), rtol=1e-9) else f"at most {most} over one"
    return f"{used} of {count_of(table.size - len(table), 'link')} in use, {over}"
