"""Make the pictures that play by themselves: python -m tests.tools.playing_picture.

`animated` plays any collective, or two that race, and `swept` any timeline, as an SVG without scripts.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from rankscope.cluster import Cluster, Link
from rankscope.collectives import build
from rankscope.collectives.playback import Playback, playback
from rankscope.common.checks import number
from rankscope.common.units import three_digits, time_unit
from rankscope.figures.marks import Drawing, Lines, Rects, Texts
from rankscope.figures.palette import INK, ink_on
from rankscope.figures.player import CHUNKS_PX, TIME_PX, Strip, moment_parts, playhead, still_parts, strips
from rankscope.figures.svg import marks, to_svg
from rankscope.figures.timelines import draw_timeline

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TARGET = NOTEBOOKS / "pictures" / "ring_playing.svg"
STEP = NOTEBOOKS / "pictures" / "step_playing.svg"
RECORDED_STEP = NOTEBOOKS / "profiles" / "step_of_two_ranks_run.json"
LEAD_S = 0.7  # before it plays
HOLD_S = 2.5  # after it has played
MOST_SECONDS = 60.0
TELLING = 0.4  # of the time: the moment that is shown if nothing moves
LEAST_READINGS = 60  # of the clock, in steps of 1, 2 or 5 of a unit: at most two and a half times as many
_READING_PX = 20.0  # from one reading to the next, in the column of all
_WINDOW_PX = (90.0, 16.0)  # what is seen of that column


def ring() -> str:
    """Return the README's picture: a ring allreduce on four ranks."""
    play = playback(build("allreduce", "ring", 4), 2**20, Cluster.uniform(4, Link(5e-6, 25e9)))
    title = "Ring allreduce on 4 ranks: each chunk goes around once to be summed, once to be copied"
    return animated([play], 14.0, title) + "\n"


def step() -> str:
    """Return the picture of notebook 00: a recorded step of two ranks under DDP."""
    from rankscope.train.ddp import DDPRun  # here, because the core's own tests have no train

    timeline = DDPRun.load(RECORDED_STEP).timeline()
    waiting_ms = timeline.select(rank=0, kind="wait").busy_s * 1e3
    step_ms = timeline.select(rank=0).makespan_s * 1e3
    title = f"One recorded step: rank 0 waits for the network for {waiting_ms:.0f} of its {step_ms:.0f} ms"
    return swept(draw_timeline(timeline, title), 10.0) + "\n"


def swept(drawing: Drawing, seconds: float) -> str:
    """Return a drawing over time as an SVG in which a line sweeps over it, over and over, `seconds` for each run.

    What is to come is pale. Where nothing moves, because the viewer cannot or its user prefers reduced motion, the
    whole drawing is shown. Raises ValueError for a time that is not above 0 and at most 60 seconds.
    """
    film = Film(1.0, number("seconds", seconds, above=0, high=MOST_SECONDS))
    width_px, height_px = drawing.size_px
    past = marks(drawing)
    clip = f"rankscope-{zlib.crc32(repr((drawing.title, drawing.size_px, film.total_s)).encode()):08x}"
    grows = film.glides("width", 0.0, 1.0, "0", f"{width_px:g}")
    moves = film.glides("", 0.0, 1.0, "0 0", f"{width_px:g} 0", moves=True)
    playing = (
        "<style>@media (prefers-reduced-motion: reduce){.playing{display:none!important}"
        ".paused{display:inline!important}}</style>"
        f'<g class="paused">{film.at_once("display", "none")}{past}</g>'
        f'<g class="playing" display="none">{film.at_once("display", "inline")}'
        f'<g opacity="0.18">{past}</g>'
        f'<clipPath id="{clip}"><rect x="0" y="-4" width="0" height="{height_px + 8:g}">{grows}</rect></clipPath>'
        f'<g clip-path="url(#{clip})">{past}</g>'
        f'<path d="M0 -4V{height_px + 4:g}" stroke="{INK}" stroke-width="2">{moves}</path></g>'
    )
    return to_svg(drawing).replace(past, playing, 1)


def animated(plays: Sequence[Playback], seconds: float = 12.0, title: str | None = None) -> str:
    """Return an SVG that plays by itself, over and over, `seconds` for each run, without scripts.

    Where nothing moves, because the viewer cannot or its user prefers reduced motion, it shows one moment on the way.
    Raises ValueError for a time that is not above 0 and at most 60 seconds.
    """
    laid = strips(plays)
    film = Film(laid[0].horizon_s, number("seconds", seconds, above=0, high=MOST_SECONDS))
    still = still_parts(laid, title, -1.0)
    bare = replace(still, rects=(), lines=(), texts=())
    paused = marks(replace(still, **moment_parts(laid, laid[0].horizon_s * TELLING)._asdict()))
    over = (
        "<style>@media (prefers-reduced-motion: reduce){.playing{display:none!important}"
        ".paused{display:inline!important}}</style>"
        f'<g class="paused">{film.at_once("display", "none")}{paused}</g>'
        f'<g class="playing" display="none">{film.at_once("display", "inline")}'
        f"{''.join(film.layers(laid, bare))}</g>"
    )
    plain = marks(still)
    return to_svg(still).replace(plain, plain + over, 1)


class ClockReading(NamedTuple):
    """What a clock shows from a time on, until its next reading."""

    from_s: float
    words: str


def clock_readings(horizon_s: float) -> list[ClockReading]:
    """Return the readings from 0 to a time: at round numbers of one unit, and at the end itself.

    >>> [reading.words for reading in clock_readings(93.87e-6)][::31]
    ['0 µs', '31 µs', '62 µs', '93 µs']
    >>> clock_readings(93.87e-6)[-1].words
    '93.9 µs'
    """
    scale, unit = time_unit(horizon_s)
    last = horizon_s / scale
    power = 10.0 ** np.floor(np.log10(last / LEAST_READINGS))
    step = max(power * digit for digit in (1, 2, 5) if power * digit <= last / LEAST_READINGS * (1 + 1e-9))
    readings = [ClockReading(0.0, f"0 {unit}")]
    for place in range(1, int(np.ceil(last / step - 1e-9))):
        readings.append(ClockReading((place - 0.5) * step * scale, f"{place * step:.6g} {unit}"))
    middle_s = ((len(readings) - 1) * step * scale + horizon_s) / 2
    readings.append(ClockReading(middle_s, f"{three_digits(last)} {unit}"))
    return readings


class Film:
    """Times of a collective as those of an animation, and what changes in it, as SVG."""

    def __init__(self, horizon_s: float, seconds: float) -> None:
        self.horizon_s, self.seconds = horizon_s, seconds
        self.total_s = LEAD_S + seconds + HOLD_S

    def key(self, at_s: float) -> str:
        """When something happens, as a share of the whole animation."""
        share = (LEAD_S + at_s / self.horizon_s * self.seconds) / self.total_s
        return f"{share:.5f}".rstrip("0").rstrip(".")

    @staticmethod
    def at_once(name: str, value: str) -> str:
        return f'<set attributeName="{name}" to="{value}"/>'

    def jumps(self, name: str, changes: Iterable[tuple[float, str]]) -> str:
        """An attribute that has one value after the other, the first from the beginning on."""
        kept: list[tuple[str, str]] = []
        for at_s, value in changes:
            key = self.key(at_s) if kept else "0"
            if kept and kept[-1][0] == key:
                kept.pop()
            if not kept or kept[-1][1] != value:
                kept.append((key, value))
        if len(kept) < 2:
            return ""
        keys, values = zip(*kept, strict=True)
        return self._animate("animate", f'attributeName="{name}" calcMode="discrete"', values, keys)

    def glides(self, name: str, start_s: float, end_s: float, first: str, last: str, moves: bool = False) -> str:
        """An attribute, or a shift, that changes evenly between two times."""
        what = 'attributeName="transform" type="translate"' if moves else f'attributeName="{name}"'
        keys = ("0", self.key(start_s), self.key(end_s), "1")
        return self._animate("animateTransform" if moves else "animate", what, (first, first, last, last), keys)

    def _animate(self, tag: str, what: str, values: Sequence[str], keys: Sequence[str]) -> str:
        return (
            f'<{tag} {what} values="{";".join(values)}" keyTimes="{";".join(keys)}" dur="{self.total_s:g}s" '
            'repeatCount="indefinite"/>'
        )

    def shown(self, inside: str, from_s: float, to_s: float | None = None, more: str = "") -> str:
        """Something that is there from one time to another; from the beginning on, for a time below 0."""
        changes = [(0.0, "visible" if from_s < 0 else "hidden"), (max(from_s, 0.0), "visible")]
        changes += [] if to_s is None else [(to_s, "hidden")]
        visible = self.jumps("visibility", changes)
        return f'<g visibility="hidden">{visible}{more}{inside}</g>' if visible else f"<g>{inside}</g>"

    def layers(self, laid: Sequence[Strip], bare: Drawing) -> Iterator[str]:
        """All that moves, from the bottom up."""

        def painted(*rects: Rects, lines: Sequence[Lines] = (), texts: Sequence[Texts] = ()) -> str:
            return marks(replace(bare, rects=rects, lines=lines, texts=texts))

        end_s, left = self.horizon_s, laid[0].left
        past = self.glides("width", 0.0, end_s, "0", f"{TIME_PX:g}")
        clip = f"rankscope-{zlib.crc32(repr((bare.title, bare.size_px, self.total_s)).encode()):08x}"
        yield f'<clipPath id="{clip}"><rect x="{left:g}" y="0" width="0" height="{bare.height:g}">{past}</rect>'
        yield f'</clipPath><g clip-path="url(#{clip})">'
        for strip in laid:
            yield painted(strip.bars(end_s).past, lines=[strip.lines(end_s).past])
        yield "</g>"
        for strip in laid:
            yield from self._cells(strip)
            yield from self._packets(strip, painted)
            yield from self._done(strip, painted)
            yield from self._captions(strip, painted)
        move = self.glides("", 0.0, end_s, "0 0", f"{TIME_PX:g} 0", moves=True)
        yield f"<g>{move}{painted(lines=[playhead(strip, 0.0) for strip in laid])}"
        yield from self._clock(left, laid[0].top + CHUNKS_PX, clip)
        yield "</g>"

    def _clock(self, x: float, y: float, clip: str) -> Iterator[str]:
        """The time at the playhead: a column of all readings moves up behind a window, which shows the one that holds.

        A reading holds until the time is nearer to the next one. This takes a tenth of the bytes that a text of its own
        for each reading would take, so there can be enough of them for the clock to follow the line.
        """
        readings = clock_readings(self.horizon_s)
        wide, high = _WINDOW_PX
        lines = []
        changes = []
        for place, reading in enumerate(readings):
            lines.append(f'<text x="{x:g}" y="{y + place * _READING_PX:g}">{reading.words}</text>')
            changes.append((reading.from_s, f"0 {-place * _READING_PX:g}"))
        keys = ["0", *(self.key(from_s) for from_s, _ in changes[1:])]
        what = 'attributeName="transform" type="translate" calcMode="discrete"'
        moves = self._animate("animateTransform", what, [shift for _, shift in changes], keys)
        yield f'<clipPath id="{clip}-clock"><rect x="{x - wide / 2:g}" y="{y - high / 2:g}" '
        yield f'width="{wide:g}" height="{high:g}"/></clipPath><g clip-path="url(#{clip}-clock)">'
        yield '<g class="clock" text-anchor="middle" font-size="10" stroke="#ffffff" stroke-width="4" '
        yield f'paint-order="stroke" dominant-baseline="central">{moves}{"".join(lines)}</g></g>'

    def _cells(self, strip: Strip) -> Iterator[str]:
        """Every chunk with all that is ever in it."""
        play, (x, y, w, h) = strip.play, strip.boxes
        history = [[(-1.0, count)] for count in play.held(-1.0).ravel().tolist()]
        to = play.dst[play.message] * play.schedule.num_chunks + play.chunk
        done_s = play.done_s[play.message]
        for place, at_s, count in zip(to.tolist(), done_s.tolist(), play.leaves.tolist(), strict=True):
            history[place].append((at_s, count))
        wanted = play.schedule.wanted()
        framed = wanted.ravel() & (not wanted.all())
        boxes, outlines, letters = (defaultdict[Any, list[str]](list) for _ in range(3))  # by how they change
        for place, changes in enumerate(history):
            times, shares = zip(*changes, strict=True)
            fills, words = strip.looks(np.array(shares), np.full(len(shares), strip.places[1][place]))
            box = f'<rect x="{x[place]:.5g}" y="{y[place]:.5g}" width="{w:.5g}" height="{h:.5g}"/>'
            boxes[f'<g fill="{fills[0]}">{self.jumps("fill", zip(times, fills, strict=True))}'].append(box)
            done = [at_s for at_s, count in changes if count == play.all_shares]
            if framed[place] and done:
                outlines[done[-1]].append(box)
            for at_s, until_s, word, fill in zip(times, (*times[1:], None), words, fills, strict=True):
                if word:
                    at = f'x="{x[place] + w / 2:.5g}" y="{y[place] + h / 2:.5g}"'
                    letters[at_s, until_s].append(f'<text {at} fill="{ink_on(fill)}">{word}</text>')
        for at_s, rects in outlines.items():
            yield self.shown(f'<g fill="none" stroke="{INK}" stroke-width="5">{"".join(rects)}</g>', at_s)
        for change, rects in boxes.items():
            yield f"{change}{''.join(rects)}</g>"
        shown = "".join(self.shown("".join(texts), *times) for times, texts in letters.items())
        style = f'text-anchor="middle" dominant-baseline="central" font-size="{strip.number_px:g}"'
        yield f"<g {style}>{shown}</g>"

    def _done(self, strip: Strip, painted: Callable[..., str]) -> Iterator[str]:
        """The bar of what is finished."""
        times = [-1.0, *np.unique(strip.play.done_s).tolist()]
        bars = [strip.done(at_s) for at_s in times]
        grows = self.jumps("width", zip(times, (f"{bar.width[1]:.5g}" for bar in bars), strict=True))
        ground, bar = bars[0], bars[-1]
        yield painted(replace(ground, width=(ground.width[0], 0.0)))
        yield f'<rect x="0" y="{bar.y[1]:.5g}" width="0" height="{bar.height[1]:g}" fill="{bar.fill[1]}">{grows}</rect>'

    def _packets(self, strip: Strip, painted: Callable[..., str]) -> Iterator[str]:
        """Every message, in the grid and on its line; those that move alike together."""
        play = strip.play
        dx, dy = strip.x(play.end_s) - strip.x(play.start_s), strip.y(play.dst) - strip.y(play.src)
        columns = np.stack([play.start_s, play.end_s, play.done_s, dx, dy])
        alike = defaultdict[tuple[float, ...], list[int]](list)
        for nth, column in enumerate(columns.T.tolist()):
            alike[tuple(column)].append(nth)
        for (start_s, end_s, done_s, right, down), messages in alike.items():
            rows = np.flatnonzero(np.isin(play.message, messages))
            boxes, words = strip.packets(rows, strip.y(play.src[play.message[rows]]))
            marked = painted(strip.marks(np.array(messages), start_s))
            for where, to_right in ((painted(*boxes, texts=[words]), 0.0), (marked, right)):
                move = self.glides("", start_s, end_s, "0 0", f"{to_right:.5g} {down:.5g}", moves=True)
                yield self.shown(where, start_s or -1.0, done_s, move)

    def _captions(self, strip: Strip, painted: Callable[..., str]) -> Iterator[str]:
        """Every sentence, from when it holds to the next."""
        times = np.unique(np.r_[0.0, strip.play.start_s, strip.play.done_s]).tolist()
        for place, words in zip(strip.caption_places(), zip(*map(strip.captions, times), strict=True), strict=True):
            firsts = [nth for nth in range(len(times)) if not nth or words[nth] != words[nth - 1]]
            for nth, after in zip(firsts, [*firsts[1:], None], strict=True):
                until_s = None if after is None else times[after]
                if words[nth]:
                    text = painted(texts=[replace(place, text=(words[nth],))])
                    yield self.shown(text, times[nth] if nth else -1.0, until_s)


if __name__ == "__main__":
    TARGET.write_text(ring(), encoding="utf-8")
    STEP.write_text(step(), encoding="utf-8")
