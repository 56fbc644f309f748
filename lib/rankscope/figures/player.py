"""A collective at one moment: the chunks of every rank, messages over time, and who is busy, under one playhead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ..collectives.playback import Playback
from ..collectives.schedule import MOVES, Ints
from ..common.checks import count_of, number, of_type, several
from ..common.units import bytes_words, round_ticks, time_unit, time_words, times_in_one_unit
from .marks import Drawing, Key, Lines, Rects, Texts
from .palette import CATEGORIES, EMPTY, FAINT, INK, PAPER, ink_on, ramp, rank_colors
from .schedules import _ADDED, _COPIED

Floats = NDArray[np.floating[Any]]

TIME_PX, _GAP_PX, _BETWEEN_PX, _RIGHT_PX = 480.0, 48.0, 24.0, 24.0
_NAME, _CAPTION, _READ, CHUNKS, _HEAD = 8.0, 25.0, 43.0, 57.0, 66.0  # lines of text, from the top of a strip
_CELL_PX, _ROWS_PX = 44.0, {1: 300.0, 2: 240.0}
_GRID_PX, _ROW_PX = (256.0, 290.0), (9.0, 38.0)  # the least and the most
_PALE, _QUIET = "#d4d4d4", "#5f5f5f"  # what is still to come; words that say how to read it
_COLORS = {True: _ADDED, False: _COPIED}  # of messages that are added, and that replace
_MOST_SHOWN = 2


def shades_of(num_ranks: int) -> tuple[str, ...]:
    """A colour for each number of shares in a chunk, from none to all."""
    return (EMPTY, *ramp(np.arange(num_ranks) / max(1, num_ranks - 1)))


@attrs.frozen(eq=False)
class Strip:
    """One collective in the picture: its chunks to the left, its messages and who is busy to the right, in pixels from
    `top`. `horizon_s` is the time at the right edge, `grid_px` the width of a rank's buffer, and `rows_px` the height
    of all rows where there are many."""

    play: Playback
    top: float
    grid_px: float
    rows_px: float
    horizon_s: float

    @property
    def ranks(self) -> int:
        return self.play.schedule.num_ranks

    @property
    def row_px(self) -> float:
        return float(np.clip(self.rows_px / self.ranks, *_ROW_PX))

    @property
    def bar_px(self) -> float:
        """The height of a rank that is busy."""
        return max(6.0, min(16.0, 0.5 * self.row_px))

    @property
    def cell_px(self) -> float:
        return self.grid_px / self.play.schedule.num_chunks

    @property
    def busy(self) -> float:
        """Where the bars begin."""
        return self.top + _HEAD + self.ranks * self.row_px + 26.0

    @property
    def bottom(self) -> float:
        return self.busy + self.ranks * self.bar_px

    @property
    def left(self) -> float:
        """Where time begins."""
        return self.grid_px + _GAP_PX

    def x(self, time_s: Floats | float) -> Floats:
        return np.asarray(self.left + np.asarray(time_s) / self.horizon_s * TIME_PX)

    def y(self, rank: Ints) -> Floats:
        """The middle of a rank's row."""
        return np.asarray(self.top + _HEAD + (rank + 0.5) * self.row_px)

    # ---- chunks

    @cached_property
    def places(self) -> tuple[Ints, Ints]:
        """The rank and the number of each chunk."""
        rank, chunk = (places.ravel() for places in np.indices((self.ranks, self.play.schedule.num_chunks)))
        return rank, chunk

    @cached_property
    def boxes(self) -> tuple[Floats, Floats, float, float]:
        """Left and top of each chunk, and the width and the height of all."""
        pad, high = min(2.5, 0.12 * self.cell_px), 0.76 * self.row_px
        rank, chunk = self.places
        return chunk * self.cell_px + pad, self.y(rank) - high / 2, self.cell_px - 2 * pad, high

    def looks(self, shares: Ints, chunk: Ints) -> tuple[list[str], list[str]]:
        """The colour of each chunk, and what is written on it: how many shares, or the rank that it comes from."""
        schedule = self.play.schedule
        if schedule.collective in MOVES:
            of_rank, origin = rank_colors(self.ranks), schedule.origins()
            pairs = list(zip(shares.tolist(), origin[chunk].tolist(), strict=True))
            fill = [of_rank[rank] if held else EMPTY for held, rank in pairs]
            words = [str(rank) if held else "" for held, rank in pairs]
        else:
            shades = shades_of(self.ranks)
            fill = [shades[count] for count in shares.tolist()]
            words = [str(count) if count else "" for count in shares.tolist()]
        roomy = self.cell_px >= 7.0 * len(str(self.ranks)) + 4 and self.row_px >= 13
        return fill, words if roomy else [""] * len(words)

    def cells(self, at_s: float) -> list[Rects]:
        """Frames round the chunks that are results, where some are not, and the chunks of all ranks."""
        x, y, w, h = self.boxes
        fill, _ = self.looks(self.play.held(at_s).ravel(), self.places[1])
        framed = self.play.finished(at_s).ravel() & (not self.play.schedule.wanted().all())
        edge = Rects(x[framed] - 2, y[framed] - 2, INK, width=w + 4, height=h + 4, edge=INK)
        return [edge, Rects(x, y, fill, width=w, height=h, joined=True)]

    def numbers(self, at_s: float) -> Texts:
        """What is written on the chunks that nothing passes over."""
        play, (x, y, w, h) = self.play, self.boxes
        fill, words = self.looks(play.held(at_s).ravel(), self.places[1])
        rows = np.flatnonzero(np.isin(play.message, play.on_the_way(at_s)))
        rank = (self.height(at_s)[play.message[rows]] - self.y(np.array(0))) / self.row_px
        for row in (np.floor(rank), np.ceil(rank)):  # those that it lies on
            covered = row * play.schedule.num_chunks + play.chunk[rows]
            for place in covered[abs(rank - row) < 0.55].astype(int).tolist():
                words[place] = ""
        return _written(x + w / 2, y + h / 2, words, fill, self.number_px)

    @property
    def number_px(self) -> float:
        """The size of the numbers on chunks."""
        return min(11.0, 0.62 * self.row_px)

    # ---- what moves

    @property
    def packet_px(self) -> tuple[float, float]:
        return 0.66 * self.cell_px, 0.54 * self.row_px

    @cached_property
    def aside(self) -> Floats:
        """How far from the left of its cell each chunk of a message travels, in pixels: in the middle, and where two
        ranks exchange one chunk, to the left on the way up and to the right on the way down."""
        play, (wide, _) = self.play, self.packet_px
        src, dst = play.src[play.message], play.dst[play.message]
        place = np.stack([play.step[play.message], np.minimum(src, dst), np.maximum(src, dst), play.chunk])
        _, which, often = np.unique(place, axis=1, return_inverse=True, return_counts=True)
        way = np.where(often[which.ravel()] > 1, np.where(dst > src, 0.96, 0.04), 0.5)
        return np.asarray(way * (self.cell_px - wide))

    def progress(self, at_s: float) -> Floats:
        """What share of its way each message has behind it."""
        takes = np.maximum(self.play.end_s - self.play.start_s, 1e-300)
        return np.asarray(np.clip((at_s - self.play.start_s) / takes, 0.0, 1.0))

    def height(self, at_s: float) -> Floats:
        """How far down each message is."""
        y0, y1 = self.y(self.play.src), self.y(self.play.dst)
        return np.asarray(y0 + self.progress(at_s) * (y1 - y0))

    def packets(self, rows: Ints, y: Floats) -> tuple[list[Rects], Texts]:
        """Chunks on their way between the rows of the grid, at these heights, and what is written on them."""
        play, (w, h) = self.play, self.packet_px
        left, edge = play.chunk[rows] * self.cell_px + self.aside[rows], min(2.5, 0.1 * self.cell_px)
        fill, words = self.looks(play.carries[rows], play.chunk[rows])
        color = self.colors[play.message[rows]].tolist()
        frame = Rects(left - edge, y - h / 2 - edge, color, width=w + 2 * edge, height=h + 2 * edge)
        box = Rects(left, y - h / 2, fill, width=w, height=h, edge="none")
        return [frame, box], _written(left + w / 2, y, words, fill, min(10.0, self.number_px))

    def marks(self, messages: Ints, at_s: float) -> Rects:
        """Where messages are on their lines."""
        x = self.x(np.clip(at_s, self.play.start_s[messages], self.play.end_s[messages]))
        y, color = self.height(at_s)[messages], self.colors[messages].tolist()
        return Rects(x - 4, y - 4, color, width=8, height=8)

    # ---- what time reveals

    @cached_property
    def colors(self) -> NDArray[np.str_]:
        return np.where(self.play.reduce, _COLORS[True], _COLORS[False])

    def lines(self, at_s: float) -> tuple[Lines, Lines]:
        """Each message from its sender to its receiver: what is not over, in grey, and what has happened."""
        play, share = self.play, self.progress(at_s)
        x0, x1, y0, y1 = self.x(play.start_s), self.x(play.end_s), self.y(play.src), self.y(play.dst)
        x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
        ahead, behind, dashed = share < 1, share > 0, ~play.reduce
        pale = Lines(x0[ahead], y0[ahead], x1[ahead], y1[ahead], _PALE, dashed=dashed[ahead], joined=True)
        color = self.colors[behind].tolist()
        look: dict[str, Any] = {"dashed": dashed[behind], "width_px": 1.8, "joined": True}
        return pale, Lines(x0[behind], y0[behind], x[behind], y[behind], color, **look)

    def bars(self, at_s: float) -> tuple[Rects, Rects]:
        """Who sends (upper half), and receives and adds (lower half): what is not over, in grey, and what is."""
        play, half = self.play, 0.42 * self.bar_px
        start, stop = np.r_[play.start_s, play.start_s], np.r_[play.end_s, play.done_s]
        y = self.busy + np.r_[play.src, play.dst] * self.bar_px
        y = y + np.repeat([0.04 * self.bar_px, 0.5 * self.bar_px], play.src.size)
        now, fill = np.clip(at_s, start, stop), np.r_[self.colors, self.colors]
        ahead, behind = stop > now, now > start
        x0, x, x1 = self.x(start), self.x(now), self.x(stop)
        pale = Rects(x0[ahead], y[ahead], _PALE, (x1 - x0)[ahead], half, joined=True)
        return pale, Rects(x0[behind], y[behind], fill[behind].tolist(), (x - x0)[behind], half, joined=True)

    # ---- what is said

    @property
    def rails(self) -> Lines:
        """A thin line for each rank, on which its messages begin and end, and a darker one between nodes."""
        y, edge = self.y(np.arange(self.ranks)), self.play.gpus_per_node
        between = self.top + _HEAD + np.arange(edge, self.ranks if edge > 1 else 0, edge) * self.row_px
        left, y = np.r_[y * 0 + self.left, between * 0], np.r_[y, between]
        colors = [FAINT] * self.ranks + [_QUIET] * between.size
        return Lines(left, y, self.left + TIME_PX, y, colors, width_px=0.8)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The numbers of the ranks, as many as there is room for."""
        some = np.arange(0, self.ranks, 1 if self.row_px >= 12 else 2)
        return list(zip(self.y(some).tolist(), map(str, some.tolist()), strict=True))

    @property
    def fixed(self) -> list[Texts]:
        """What stands still: the name, how to read it, and the numbers of chunks and ranks."""
        ranks, schedule = np.arange(self.ranks), self.play.schedule
        size = bytes_words(self.play.num_bytes)
        name = f"{schedule.algorithm} {schedule.collective} of {size} on {count_of(self.ranks, 'rank')}"
        number = "rank it comes from" if schedule.collective in MOVES else "ranks summed in"
        heads = (
            f"each rank's chunks; number: {number}",
            "messages, from sender to receiver",
            "busy ranks: upper half sends, lower half receives and adds",
        )
        places = (0.0, self.left, self.left), (self.top + _READ, self.top + _READ, self.busy - 9.0)
        found = [_line(0.0, self.top + _NAME, name, 13.0), Texts(*places, heads, _QUIET, 10.0, "start")]
        shown = np.arange(0, schedule.num_chunks, max(1, int(np.ceil(20.0 / self.cell_px))))
        words = tuple(map(str, shown.tolist()))
        found.append(Texts((shown + 0.5) * self.cell_px, self.top + CHUNKS, words, _QUIET, 10.0))
        rows = [self.y(ranks)] * (self.row_px >= 12) + [self.busy + (ranks + 0.5) * self.bar_px] * (self.bar_px >= 10)
        return found + [Texts(self.left - 8.0, y, [str(r) for r in ranks], INK, 10.0, "end") for y in rows]

    def said(self, at_s: float) -> tuple[str, str, str]:
        """What happens at this time, how much is finished, and when all was, where there is room for it."""
        play = self.play
        finish, _ = times_in_one_unit(play.finish_s, self.horizon_s)  # as the title has it
        after = f"finished after {finish}"
        count = f"{int(play.finished(at_s).sum())} of {int(play.schedule.wanted().sum())} chunks finished"
        if at_s < play.finish_s:
            return self._happening(at_s), count, ""
        roomy = play.src.size and self._finish_x + 8.0 * len(after) <= self.left + TIME_PX
        return f"F{after[1:]}: {_promise(play)}", count, after if roomy else ""

    @property
    def _finish_x(self) -> float:
        return float(self.x(self.play.finish_s)) + 8.0

    def lettering(self) -> tuple[Texts, Texts, Texts]:
        """Where the three of `said` stand, as texts without words."""
        middle = (self.busy + self.bottom) / 2
        count = _line(0.0, self.busy - 9.0, "")
        return _line(0.0, self.top + _CAPTION, ""), count, _line(self._finish_x, middle, "", 12.0, (PAPER,))

    def done(self, at_s: float) -> Rects:
        """How much is finished, as a bar over its ground."""
        share = self.play.finished(at_s).sum() / max(1, self.play.schedule.wanted().sum())
        fill = (EMPTY, _QUIET if self.play.schedule.collective in MOVES else shades_of(self.ranks)[-1])
        return Rects(0.0, self.busy + 2, fill, width=(self.grid_px, share * self.grid_px), height=8.0, edge="none")

    def _happening(self, at_s: float) -> str:
        play, flying = self.play, self.play.on_the_way(at_s)
        if not flying.size:
            return ""
        first, last = int(play.step[flying].min()) + 1, int(play.step[flying].max()) + 1
        which = f"Step {first}" if first == last else f"Steps {first}–{last}"
        senders = np.unique(play.src[flying]).size
        who = f"{senders} of {self.ranks} ranks send" if senders > 1 else "1 rank sends"
        who = "each rank sends" if senders == self.ranks else who
        chunks = np.bincount(play.message, minlength=play.src.size)[flying]
        most = int(chunks.max())
        what = count_of(most, "chunk") if most == chunks.min() else f"up to {count_of(most, 'chunk')}"
        how = {True: "the receiver adds {} to its own", False: "the receiver keeps a copy"}
        kinds = [how[kind].format("it" if most == 1 else "them") for kind in set(play.reduce[flying].tolist())]
        return f"{which} of {play.schedule.num_steps}: {who} {what}" + (f", {kinds[0]}" if len(kinds) == 1 else "")


def _promise(play: Playback) -> str:
    """What a collective leaves behind."""
    root, ranks = play.schedule.root, play.schedule.num_ranks
    return {
        "allreduce": f"every rank has the sum of all {ranks}",
        "reduce": f"rank {root} has the sum of all {ranks}",
        "reduce_scatter": f"each rank has its own part of the sum of all {ranks}",
        "broadcast": f"every rank has what rank {root} had",
        "scatter": "each rank has its own part",
        "gather": f"rank {root} has the parts of all {ranks}",
        "allgather": f"every rank has the parts of all {ranks}",
        "all_to_all": "each rank has what all others had for it",
    }[play.schedule.collective]


def _line(x: float, y: float, text: str, size_px: float = 11.0, halo: tuple[str, ...] = ()) -> Texts:
    return Texts([x], [y], [text], INK, size_px, "start", halo)


def _written(x: Floats, y: Floats, words: Sequence[str], fill: Sequence[str], size_px: float) -> Texts:
    shown = [place for place, word in enumerate(words) if word]
    return Texts(x[shown], y[shown], [words[one] for one in shown], [ink_on(fill[one]) for one in shown], size_px)


# ---- one moment


def strips(plays: Sequence[Playback]) -> list[Strip]:
    """Lay one collective out, or two, one below the other on one axis of time. Raises ValueError for more."""
    plays = [of_type("plays", play, Playback) for play in several("plays", plays)]
    if not 1 <= len(plays) <= _MOST_SHOWN:
        raise ValueError(f"plays must be one or two, got {len(plays)}")
    horizon_s = max(play.finish_s for play in plays) or 1.0
    grid_px = float(np.clip(_CELL_PX * max(play.schedule.num_chunks for play in plays), *_GRID_PX))
    found: list[Strip] = []
    for play in plays:
        top = found[-1].bottom + _BETWEEN_PX if found else 0.0
        found.append(Strip(play, top, grid_px, _ROWS_PX[len(plays)], horizon_s))
    return found


def finishes(plays: Sequence[Playback]) -> str:
    """When each finishes, as a title says it."""
    alike = len({play.schedule.collective for play in plays}) == 1
    names = [f"{play.schedule.algorithm}{'' if alike else f' {play.schedule.collective}'}" for play in plays]
    ends = [f"after {time}" for time in times_in_one_unit(*[play.finish_s for play in plays])]
    return ", ".join([f"{names[0]} finishes {ends[0]}", *map(" ".join, zip(names[1:], ends[1:], strict=True))])


def draw_play(plays: Sequence[Playback], at_s: float, title: str | None = None) -> Drawing:
    """Draw one or two collectives as they stand at one moment, one below the other on the same axis of time.

    Of each: to the left a row of chunks for each rank, with what is on its way between the rows; to the right its
    messages, from sender to receiver, and below them which ranks are busy. What is not over is grey; the upright line
    is now. Chunks are as wide as their share of a rank's buffer.

    Raises ValueError for a negative time, and for more than two.
    """
    laid, at_s = strips(plays), number("at_s", at_s, 0)
    still = still_parts(laid, title, at_s)
    both: dict[str, Any] = {name: [*getattr(still, name), *more] for name, more in moment_parts(laid, at_s).items()}
    return attrs.evolve(still, **both)


def still_parts(laid: Sequence[Strip], title: str | None, at_s: float) -> Drawing:
    """Title, axes, legend, and what is grey at this time."""
    last, plays = laid[-1], [strip.play for strip in laid]
    scale, unit = time_unit(last.horizon_s)
    width, height = last.left + TIME_PX + _RIGHT_PX, last.bottom + 4
    return Drawing(
        title=title or finishes(plays),
        x_label=f"time [{unit}]",
        y_label="rank",
        width=width,
        height=height,
        size_px=(width, height),
        rects=[strip.bars(at_s)[0] for strip in laid],
        lines=[lines for strip in laid for lines in (strip.rails, strip.lines(at_s)[0])],
        texts=[texts for strip in laid for texts in strip.fixed],
        x_ticks=[(float(last.x(place * scale)), label) for place, label in round_ticks(last.horizon_s / scale)],
        y_ticks=[tick for strip in laid for tick in strip.ticks],
        legend=_legend(plays),
    )


def moment_parts(laid: Sequence[Strip], at_s: float) -> dict[str, Any]:
    """What depends on the moment, over what stands still: rectangles, lines and texts of a drawing."""
    rects, lines, texts = list[Rects](), list[Lines](), list[Texts]()
    now = min(at_s, laid[0].horizon_s)
    for strip in laid:
        play = strip.play
        flying = play.on_the_way(at_s)
        rows = np.flatnonzero(np.isin(play.message, flying))
        packets, carried = strip.packets(rows, strip.height(at_s)[play.message[rows]])
        rects += [*strip.cells(at_s), strip.done(at_s), strip.bars(at_s)[1], *packets, strip.marks(flying, at_s)]
        lines += [strip.lines(at_s)[1], playhead(strip, now)]
        said = zip(strip.lettering(), strip.said(at_s), strict=True)
        texts += [strip.numbers(at_s), carried, *(attrs.evolve(place, text=(words,)) for place, words in said)]
    return {"rects": rects, "lines": lines, "texts": [*texts, _clock(laid[0], now)]}


def playhead(strip: Strip, at_s: float) -> Lines:
    """Return the upright line of a strip that marks a time."""
    now = strip.x(at_s)
    return Lines(now, strip.top + _HEAD - 3, now, strip.bottom + 4, INK, width_px=2.0)


def _clock(strip: Strip, at_s: float) -> Texts:
    return Texts([strip.x(at_s)], [strip.top + CHUNKS], [time_words(at_s)], size_px=10.0, halo=PAPER)


def _legend(plays: Sequence[Playback]) -> tuple[Key, ...]:
    keys: list[Key] = []
    ranks = plays[0].schedule.num_ranks
    sums = [play.schedule.collective not in MOVES for play in plays]
    if any(sums):
        shades = shades_of(ranks)
        counts = range(1, ranks) if ranks <= 4 else (1, ranks // 2)
        keys += [Key(f"{count} summed", shades[count]) for count in counts]
        keys.append(Key(f"all {ranks} summed", shades[ranks]))
    if not all(sums):
        moved = [play.schedule.origins() for play, adds in zip(plays, sums, strict=True) if not adds]
        some = np.unique(np.concatenate(moved)).tolist()
        some = some if len(some) <= len(CATEGORIES) else [some[0], some[len(some) // 2], some[-1]]
        keys += [Key(f"from rank {rank}", rank_colors(ranks)[rank]) for rank in some]
    if not all(play.schedule.wanted().all() for play in plays):
        keys.append(Key("a rank's result", PAPER, edge=INK))
    kinds = {kind for play in plays for kind in play.reduce.tolist()}
    named = ((True, "message: the receiver adds it", "solid"), (False, "message: the receiver copies it", "dashed"))
    return (*keys, *(Key(label, _COLORS[kind], line=line) for kind, label, line in named if kind in kinds))
