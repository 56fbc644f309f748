"""A collective on a cluster at one moment, and in motion: chunks travel from rank to rank, under a playhead.

Each mark has a life: when it is there, and where it goes meanwhile. A moment is the marks that live at it, and the
picture that plays animates each life in the browser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...common.units import bytes_words, time_words
from ...common.words import count_of
from ...drawing.drawing import Drawing, frame_svg, page
from ...drawing.marks import RIGHT_PX, WIDTH_PX, Box, Line, Mark, Text, time_axis
from ...drawing.svg import mark_svg
from ..picture import Grid, message_line, reading_of
from .model import Playback

_GRID_LEFT_PX = 64.0  # where the chunks begin
_GRID_PX = 270.0  # of all chunks
_TIME_LEFT_PX = 366.0  # where time begins
_HEAD_PX = 52.0  # above the rows of a strip
_ROWS_PX = 230.0  # of all rows of a strip, at most
_LEAD_S = 0.7  # before it plays
_PLAY_S = 12.0
_HOLD_S = 2.5  # after it has played
_BUTTONS_PX = 28.0

# Play starts all animations at the first press; step lets it play until the next event, or jumps there.
_SCRIPT = (
    "const s=this.ownerSVGElement,T=[{times}],still=matchMedia('(prefers-reduced-motion:reduce)').matches;"
    "if(!s.dataset.on){{s.dataset.on=1;s.setCurrentTime(0);"
    "s.querySelectorAll('animate,animateTransform').forEach(a=>a.beginElement())}}"
    "const t=s.getCurrentTime()%T.at(-1),n=T.find(x=>x>t+.02)??0;clearTimeout(s.timer);"
    "const stop=()=>{{s.pauseAnimations();s.setCurrentTime(n)}};"
)
_ACTIONS = {
    "▶ play": "still?stop():s.unpauseAnimations()",
    "❚❚ pause": "s.pauseAnimations()",
    "» step": "if(still)stop();else{s.unpauseAnimations();s.timer=setTimeout(stop,(n-t)*1e3)}",
}
_BY_KEY = """onkeydown="if(event.key==' '||event.key=='Enter')this.dispatchEvent(new Event('click'))\""""


class _Life(NamedTuple):
    """A mark that is there from `start_s` until just before `stop_s`; a box moves by `dx` and `dy` until `there_s`."""

    mark: Mark
    start_s: float = 0.0
    stop_s: float = math.inf
    dx: float = 0.0
    dy: float = 0.0
    there_s: float = 0.0

    def at(self, at_s: float) -> Mark:
        """Return the mark where it is at this moment."""
        if not isinstance(self.mark, Box):
            return self.mark
        share = min((at_s - self.start_s) / ((self.there_s - self.start_s) or 1.0), 1.0)
        return self.mark._replace(x=self.mark.x + share * self.dx, y=self.mark.y + share * self.dy)


def draw_play(plays: Sequence[Playback], at_s: float, title: str) -> Drawing:
    """Draw one or two collectives on a cluster at one moment, one below the other on the same axis of time.

    To the left, each rank has a row of chunks, and the chunks that are on their way are between the rows. The number on
    a chunk says how many ranks are summed in it, or which rank it comes from. To the right are the messages, from
    sender to receiver: what is still to come is grey, and the upright line is the moment.
    """
    lives, height_px = _lives(tuple(plays))
    marks = [life.at(at_s) for life in lives if life.start_s <= at_s < life.stop_s]
    return Drawing(title, marks, height_px, reading_of(plays[0].schedule))


def play_svg(plays: Sequence[Playback], title: str) -> str:
    """Return one or two collectives as an SVG that moves in the browser, over and over.

    Nothing moves before a button is pressed. Where a person prefers reduced motion, it goes from moment to moment.
    """
    total_s = _LEAD_S + _PLAY_S + _HOLD_S
    end_s = horizon_s(plays)

    def share(time_s: float) -> float:
        """Return the share of the whole that has played at a moment of the collectives."""
        return (_LEAD_S + time_s / end_s * _PLAY_S) / total_s

    timing = f'dur="{total_s:g}s" begin="indefinite" repeatCount="indefinite"'
    lives, height_px = _lives(tuple(plays))
    inside = "".join(_animated(life, share, timing) for life in lives)
    events = sorted({event for play in plays for event in _events(play)})
    times = [f"{share(event) * total_s:.3f}" for event in events[1:]]
    inside += _buttons(height_px, _SCRIPT.format(times=",".join([*times, f"{total_s:.3f}"])))
    whole = Drawing(title, height_px=height_px + _BUTTONS_PX, deck=reading_of(plays[0].schedule))
    return frame_svg(whole, inside, page(whole).height_px)


def _animated(life: _Life, share: Callable[[float], float], timing: str) -> str:
    """Return a mark that comes, moves and goes."""
    svg = mark_svg(life.mark)
    if life.dx or life.dy:
        there = f"{life.dx:.1f} {life.dy:.1f}"
        times = f"0;{share(life.start_s):.5f};{share(life.there_s):.5f};1"
        what = f'attributeName="transform" type="translate" values="0 0;0 0;{there};{there}"'
        svg = f'<g><animateTransform {what} keyTimes="{times}" {timing}/>{svg}</g>'
    if life.start_s == 0 and life.stop_s == math.inf:
        return svg
    hidden = ' visibility="hidden"' if life.start_s else ""
    start = share(life.start_s) if life.start_s else 0
    stop = 1.0 if life.stop_s == math.inf else share(life.stop_s)
    values = f'values="hidden;visible;hidden" keyTimes="0;{start:.5f};{stop:.5f}"'
    shown = f'<animate attributeName="visibility" calcMode="discrete" {values} {timing}/>'
    return f"<g{hidden}>{shown}{svg}</g>"


def _buttons(y: float, script: str) -> str:
    return "".join(
        f'<text x="{WIDTH_PX - 270 + 90 * number:g}" y="{y + 16:g}" class="label f-ink" font-size="12" '
        f'role="button" tabindex="0" style="cursor:pointer" onclick="{script}{action}" {_BY_KEY}>{label}</text>'
        for number, (label, action) in enumerate(_ACTIONS.items())
    )


def horizon_s(plays: Sequence[Playback]) -> float:
    """Return when the last one finishes, where the axis of time ends."""
    return max(play.finish_s for play in plays) or 1.0


def _events(play: Playback) -> list[float]:
    """Return when something changes, from 0 on."""
    return sorted({0.0, *play.start_s.tolist(), *play.done_s.tolist()})


@lru_cache(maxsize=1)  # for the picture that plays and the one that does not
def _lives(plays: tuple[Playback, ...]) -> tuple[list[_Life], float]:
    """Return all marks in the order of painting, and how high they are."""
    y = 0.0
    lives: list[_Life] = []
    for play in plays:
        strip = _Strip(play, y, horizon_s(plays))
        lives += strip.lives()
        y = strip.grid.bottom + 36
    return lives, y


class _Strip:
    """One collective: its chunks to the left, its messages over time to the right."""

    def __init__(self, play: Playback, top: float, horizon_s: float) -> None:
        self.play = play
        self.schedule = play.schedule
        self.top = top
        self.horizon_s = horizon_s
        self.grid = Grid(play.schedule, _GRID_LEFT_PX, top + _HEAD_PX, _GRID_PX, _ROWS_PX)
        self.events = _events(play)
        columns = play.src, play.dst, play.start_s, play.end_s, play.done_s, play.reduce
        self.sent = list(zip(*[column.tolist() for column in columns], strict=True))

    def lives(self) -> Iterator[_Life]:
        """Yield all marks, in the order of painting."""
        yield from self.head()
        yield from map(_Life, self.grid.rows(self.play.gpus_per_node))
        yield from self.messages()
        yield from self.cells()
        yield from self.packets()
        height = self.grid.bottom - self.grid.top + 12
        yield from map(_Life, time_axis(self.grid.bottom + 8, _TIME_LEFT_PX, self.horizon_s))
        now = Box(_TIME_LEFT_PX - 1, self.grid.top - 4, 2, height, "ink", "solid")
        yield _Life(now, dx=RIGHT_PX - _TIME_LEFT_PX, there_s=self.horizon_s)

    def x(self, time_s: float) -> float:
        return _TIME_LEFT_PX + time_s / self.horizon_s * (RIGHT_PX - _TIME_LEFT_PX)

    def while_same(self, values: Sequence[Any]) -> Iterator[tuple[Any, float, float]]:
        """Yield what is at each event while it stays the same, with when that begins and ends."""
        changes = [number for number in range(len(values)) if not number or values[number] != values[number - 1]]
        for number, after in pairwise([*changes, len(values)]):
            yield values[number], self.events[number], [*self.events, math.inf][after]

    def head(self) -> Iterator[_Life]:
        name = f"{self.schedule.algorithm} {self.schedule.collective} of {bytes_words(self.play.num_bytes)}"
        chunks = count_of(self.schedule.num_chunks, "chunk")
        yield _Life(Text(8, self.top + 14, f"{name} in {chunks}", "deck"))
        for words, start_s, stop_s in self.while_same([self.progress(at_s) for at_s in self.events]):
            yield _Life(Text(8, self.top + 34, words, "label", "mute"), start_s, stop_s)

    def progress(self, at_s: float) -> str:
        """Which step is under way with how many messages, or when all has finished."""
        if at_s >= self.play.finish_s:
            return f"finished after {time_words(self.play.finish_s)}"
        flying = self.play.on_the_way(at_s)
        if not flying.size:
            return ""
        step = int(self.play.step[flying].min()) + 1
        return f"step {step} of {self.schedule.num_steps}: {count_of(flying.size, 'message')}"

    def messages(self) -> Iterator[_Life]:
        """A line for each message from its sender to its receiver, grey until it begins."""
        for rank in range(self.schedule.num_ranks):
            yield _Life(Line(((_TIME_LEFT_PX, self.grid.y(rank)), (RIGHT_PX, self.grid.y(rank))), "rule", 0.6))
        for src, dst, start_s, end_s, _, is_added in self.sent:
            ends = (self.x(start_s), self.grid.y(src)), (self.x(end_s), self.grid.y(dst))
            line = message_line(ends, is_added)
            yield _Life(line._replace(tone="rule"))
            yield _Life(line, start_s)

    def chunk(self, at: Box, shares: int, chunk: int) -> Box:
        """Return a chunk with so many shares."""
        if self.grid.moves:
            return self.grid.copy_of(at, int(self.schedule.origins()[chunk]))
        return self.grid.sum_of(at, shares)

    def cells(self) -> Iterator[_Life]:
        held = np.stack([self.play.held(at_s) for at_s in self.events], axis=-1)
        for rank, chunk in np.ndindex(held.shape[:2]):
            for shares, start_s, stop_s in self.while_same(held[rank, chunk].tolist()):
                cell = self.grid.at(rank, chunk)._replace(key=None)
                if shares:
                    cell = self.chunk(cell, shares, chunk)
                yield _Life(cell, start_s, stop_s)

    def packets(self) -> Iterator[_Life]:
        """The chunks of the messages while they are on their way; those that two ranks exchange pass each other."""
        play = self.play
        for message, chunk, shares in zip(
            play.message.tolist(), play.chunk.tolist(), play.carries.tolist(), strict=True
        ):
            src, dst, start_s, end_s, done_s, _ = self.sent[message]
            at = self.grid.at(src, chunk)
            x = at.x + (0.66 * self.grid.cell_px if dst > src else -4)  # next to the numbers of chunks
            height = 0.6 * self.grid.row_px
            y = self.grid.y(src) - height / 2
            ground = Box(x, y, 0.32 * self.grid.cell_px, height, "paper", "solid")
            way = start_s, done_s, 0.0, self.grid.y(dst) - self.grid.y(src), end_s
            yield _Life(ground, *way)
            yield _Life(self.chunk(ground._replace(edge="ink"), shares, chunk), *way)
