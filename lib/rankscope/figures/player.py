"""A collective on a cluster at one moment, and in motion: chunks travel from rank to rank, under a playhead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..collectives.playback import Playback
from ..collectives.schedule import MOVES
from ..common.units import bytes_words, time_words, times_in_one_unit
from ..common.words import count_of
from .marks import DIGIT_PX, RIGHT_PX, Box, Drawing, Line, Mark, Text
from .movie import movie
from .palette import ADDED, COPIED, rank_colors
from .schedules import shade

_GRID_LEFT_PX = 64.0  # where the chunks begin
_GRID_PX = 270.0  # of all chunks
_TIME_LEFT_PX = 366.0  # where time begins
_HEAD_PX = 52.0  # above the rows of a strip
_ROWS_PX = {1: 300.0, 2: 230.0}  # the height of all rows of a strip, by the number of strips
_LEAST_ROW_PX = 11.0
_MOST_ROW_PX = 40.0
_MOST_FRAMES = 400


def draw_play(plays: Sequence[Playback], at_s: float, title: str | None = None, deck: str | None = None) -> Drawing:
    """Draw one or two collectives on a cluster at one moment, one below the other on the same axis of time.

    To the left, each rank has a row of chunks, and the chunks that are on their way are between the rows. The number on
    a chunk says how many ranks are summed in it, or which rank it comes from. To the right are the messages, from
    sender to receiver: what is still to come is grey, and the upright line is the moment.
    """
    horizon_s = max(play.finish_s for play in plays) or 1.0
    marks: list[Mark] = []
    y = 0.0
    for number, play in enumerate(plays):
        strip = _Strip(play, number, y, _ROWS_PX[len(plays)], horizon_s)
        marks += strip.marks(at_s)
        y = strip.bottom + 20
    if deck is None:
        words = "ranks summed in the chunk"
        if plays[0].schedule.collective in MOVES:
            words = "rank that the chunk is from"
        deck = f"number: {words}; solid: added, dashed: copied"
    return Drawing(title or _finishes(plays), marks, y, deck)


def _finishes(plays: Sequence[Playback]) -> str:
    """Say when each finishes."""
    times = times_in_one_unit(*[play.finish_s for play in plays])
    parts = [f"{play.schedule.algorithm} {time}" for play, time in zip(plays, times, strict=True)]
    if len(parts) == 1:
        return f"{plays[0].schedule.algorithm} {plays[0].schedule.collective} takes {times[0]}"
    return f"{' against '.join(parts)}"


class _Strip:
    """One collective: its chunks to the left, its messages over time to the right."""

    def __init__(self, play: Playback, number: int, top: float, rows_px: float, horizon_s: float) -> None:
        self.play, self.number, self.top, self.horizon_s = play, number, top, horizon_s
        schedule = play.schedule
        self.row_px = min(max(rows_px / schedule.num_ranks, _LEAST_ROW_PX), _MOST_ROW_PX)
        self.cell_px = min(_GRID_PX / schedule.num_chunks, 64.0)
        self.pad = min(3.0, 0.12 * self.cell_px)
        self.rows_top = top + _HEAD_PX
        self.bottom = self.rows_top + schedule.num_ranks * self.row_px + 8
        self.origins = schedule.origins() if schedule.collective in MOVES else None
        self.colors = rank_colors(schedule.num_ranks)

    def x(self, time_s: float) -> float:
        return _TIME_LEFT_PX + time_s / self.horizon_s * (RIGHT_PX - _TIME_LEFT_PX)

    def y(self, rank: float) -> float:
        """The middle of a rank's row."""
        return self.rows_top + (rank + 0.5) * self.row_px

    def marks(self, at_s: float) -> list[Mark]:
        return [*self._head(at_s), *self._messages(at_s), *self._cells(at_s), *self._packets(at_s), *self._now(at_s)]

    def _head(self, at_s: float) -> list[Mark]:
        play, schedule = self.play, self.play.schedule
        name = f"{schedule.algorithm} {schedule.collective} of {bytes_words(play.num_bytes)}"
        done = int(play.finished(at_s).sum())
        wanted = int(schedule.wanted().sum())
        marks: list[Mark] = [Text(8, self.top + 14, name, "deck")]
        progress = f"{done} of {wanted} chunks finished"
        if done == wanted:
            progress = f"finished after {time_words(play.finish_s)}"
        marks.append(Text(8, self.top + 34, progress, "label", "mute"))
        marks.append(Text(_TIME_LEFT_PX, self.top + 34, self._happening(at_s), "label", "mute"))
        every = 1 if self.row_px >= 13 else 2
        for rank in range(0, schedule.num_ranks, every):
            marks.append(Text(_GRID_LEFT_PX - 12, self.y(rank) + 4, f"rank {rank}", "label", "ink", "end"))
        firsts = range(play.gpus_per_node, schedule.num_ranks, play.gpus_per_node)
        for first in firsts if play.gpus_per_node > 1 else ():
            y = self.rows_top + first * self.row_px
            marks.append(Line(((8, y), (RIGHT_PX, y)), "mute"))
        return marks

    def _happening(self, at_s: float) -> str:
        """Which step is under way, and how many messages."""
        flying = self.play.on_the_way(at_s)
        if not flying.size:
            return ""
        step = int(self.play.step[flying].min()) + 1
        return f"step {step} of {self.play.schedule.num_steps}: {count_of(flying.size, 'message')}"

    def _chunk(self, at: Box, shares: int, chunk: int) -> Box:
        """Return a chunk with so many shares, in the colour of its origin or of its sum, and with its number."""
        number = shares if self.origins is None else int(self.origins[chunk])
        fill, look = shade(shares / self.play.schedule.num_ranks), "work"
        if self.origins is not None:
            fill, look = self.colors[number], "tint"
        words = str(number)
        has_room = at.width >= DIGIT_PX * len(words) + 2 and at.height >= 10
        return at._replace(fill=fill, look=look, text=words if has_room else "")

    def _cells(self, at_s: float) -> list[Mark]:
        play = self.play
        height = self.row_px - min(4.0, self.row_px / 5)
        shares, is_final = play.held(at_s), play.finished(at_s)
        are_all_wanted = play.schedule.wanted().all()
        marks: list[Mark] = []
        for rank, chunk in np.ndindex(shares.shape):
            x = _GRID_LEFT_PX + chunk * self.cell_px + self.pad
            key = ("cell", self.number, rank, chunk)
            at = Box(x, self.y(rank) - height / 2, self.cell_px - 2 * self.pad, height, "rule", "hole", key=key)
            if shares[rank, chunk]:
                at = self._chunk(at, int(shares[rank, chunk]), chunk)
                if is_final[rank, chunk] and not are_all_wanted:
                    at = at._replace(edge="ink")
            marks.append(at)
        return marks

    def _progress(self, message: int, at_s: float) -> float:
        """The share of its way that a message has behind it."""
        start_s, end_s = float(self.play.start_s[message]), float(self.play.end_s[message])
        return min(max((at_s - start_s) / ((end_s - start_s) or 1.0), 0.0), 1.0)

    def _packets(self, at_s: float) -> list[Mark]:
        """The chunks of the messages that are on their way; those that two ranks exchange pass each other."""
        play = self.play
        height = 0.6 * self.row_px
        marks: list[Mark] = []
        for row in np.flatnonzero(np.isin(play.message, play.on_the_way(at_s))).tolist():
            message = int(play.message[row])
            chunk = int(play.chunk[row])
            src = int(play.src[message])
            dst = int(play.dst[message])
            y = self.y(src + self._progress(message, at_s) * (dst - src))
            side = 0.6 if dst > src else 0.04  # next to the number of the chunk below
            x = _GRID_LEFT_PX + (chunk + side) * self.cell_px
            key = ("packet", self.number, row)
            at = Box(x, y - height / 2, 0.36 * self.cell_px, height, "", key=key, edge="ink")
            marks.append(at._replace(x=at.x, y=at.y, fill="paper", look="solid", edge="", key=(*key, "ground")))
            marks.append(self._chunk(at, int(play.carries[row]), chunk))
        return marks

    def _messages(self, at_s: float) -> list[Mark]:
        """A line for each message from its sender to its receiver, grey until it begins."""
        play = self.play
        marks: list[Mark] = []
        for rank in range(play.schedule.num_ranks):
            marks.append(Line(((_TIME_LEFT_PX, self.y(rank)), (RIGHT_PX, self.y(rank))), "rule", 0.6))
        for message in range(play.src.size):
            start, end = float(play.start_s[message]), float(play.end_s[message])
            ends = (self.x(start), self.y(int(play.src[message]))), (self.x(end), self.y(int(play.dst[message])))
            tone = "rule"
            if start <= at_s:
                tone = ADDED if play.reduce[message] else COPIED
            marks.append(Line(ends, tone, 1.6, "" if play.reduce[message] else "4 3"))
        return marks

    def _now(self, at_s: float) -> list[Mark]:
        x = self.x(min(at_s, self.horizon_s))
        height = self.bottom - self.rows_top
        return [Box(x - 1, self.rows_top - 4, 2, height, "ink", "solid", key=("now", self.number))]


def play_svg(plays: Sequence[Playback], seconds: float = 12.0, title: str | None = None, buttons: bool = True) -> str:
    """Return one or two collectives as an SVG that moves in the browser, `seconds` long.

    With `buttons`, nothing moves before the first press; without, it plays over and over. Where a person prefers
    reduced motion, it goes from moment to moment, or stands still.
    """
    events = [np.concatenate([play.start_s, play.end_s, play.done_s]) for play in plays]
    after = np.unique(np.concatenate([[0.0], *events]))
    times = np.unique(np.concatenate([after, after[1:] * (1 - 1e-9)]))  # a message is where it is going just before
    if times.size > _MOST_FRAMES:
        times = times[np.linspace(0, times.size - 1, _MOST_FRAMES).astype(int)]
    horizon_s = float(times[-1]) or 1.0
    frames = [(float(time) / horizon_s, draw_play(plays, float(time), title)) for time in times]
    return movie(frames, seconds, buttons)
