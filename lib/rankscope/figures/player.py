"""A collective at one moment: the chunks of every rank, messages over time, and who is busy, under one playhead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ..collectives.playback import Playback
from ..collectives.schedule import MOVES
from ..collectives.steps import Ints
from ..common.units import bytes_words, round_ticks, time_unit, time_words, times_in_one_unit
from ..common.words import count_of
from .marks import Drawing, FloatArray, Key, Lines, Rects, Texts
from .palette import ADDED, COPIED, EMPTY, FAINT, INK, PAPER, RANKS, ink_on, ramp, rank_colors

TIME_PX = 360.0  # the width of the area that shows time
_GAP_PX = 48.0  # between the chunks and that area
_RIGHT_PX = 24.0  # to the right of it
_BETWEEN_PX = 24.0  # between two strips
_PLAYHEAD_ABOVE_PX = 3  # the line at the moment begins so far above the rows of the ranks
_PLAYHEAD_BELOW_PX = 4  # and ends so far below the bars

# where the lines of text stand, from the top of a strip, and where the rows of the ranks begin
_NAME_PX = 8.0
_CAPTION_PX = 25.0
_READ_PX = 43.0
CHUNKS_PX = 57.0
_HEAD_PX = 66.0
_BARS_HEAD_PX = 26.0  # between the rows of the ranks and the bars below them
_LEGEND_OF_BARS_PX = 9.0  # the text above the bars is so far above them

_CELL_PX = 44.0  # the width of a chunk, as far as `_GRID_PX` allows
_ROWS_PX = {1: 300.0, 2: 240.0}  # the height of all rows of a strip, by the number of strips
_GRID_PX = (256.0, 290.0)  # the width of a rank's buffer, at least and at most
_ROW_PX = (9.0, 38.0)  # the height of a row, at least and at most
_BAR_PX = (6.0, 16.0)  # the height of a bar, at least and at most
_NUMBERED_ROW_PX = 12  # rows of at least this height each have the number of their rank
_NUMBERED_BAR_PX = 10  # and bars of at least this height

_LETTER_PX = 8.0  # the width of a letter of a caption
_DIGIT_PX = 7.0  # of a digit on a chunk
_DIGITS_MARGIN_PX = 4  # around the digits on a chunk, on both sides together
_CHUNK_NUMBER_PX = 20.0  # between two numbers of chunks, at least
_LEGIBLE_ROW_PX = 13  # the height of a row whose chunks have numbers, at least
_FRAME_PX = 2  # the width of the frame around a result
_MARK_PX = 8  # the width and the height of a message on its line
_DONE_PX = 8.0  # the height of the bar of how much is finished
_DIGIT_HEIGHT = 0.73  # of the size of a number
_PALE = "#d4d4d4"  # lines and bars of what is still to come
_QUIET = "#5f5f5f"  # text that says how to read the picture


def shades_of(num_ranks: int) -> tuple[str, ...]:
    """A colour for each number of shares in a chunk, from none to all."""
    last = num_ranks - 1
    return (EMPTY, *ramp(np.arange(num_ranks) / max(1, last)))  # `last` is 0 for a single rank


class ChunkBoxes(NamedTuple):
    """The left and the top edge of each chunk, and the width and the height of all."""

    left: FloatArray
    top: FloatArray
    width: float
    height: float


class Captions(NamedTuple):
    """The sentences of a strip: what happens, how many chunks are finished, and when all of them were."""

    happening: str
    progress: str
    finished: str  # empty until then, and where there is no room


class MessageLines(NamedTuple):
    """The lines of messages: grey ones for what is to come, and coloured ones for the past."""

    to_come: Lines
    past: Lines


class BusyBars(NamedTuple):
    """The bars of busy ranks: grey ones for what is to come, and coloured ones for the past."""

    to_come: Rects
    past: Rects


class Strip(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One collective in the picture: its chunks to the left, its messages and the busy ranks to the right.

    All is in pixels, from `top` on. `horizon_s` is the time at the right edge, `grid_px` the width of a rank's buffer,
    and `rows_px` the height of all rows if there are many.
    """

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
        """The height of the bar of a rank that is busy."""
        return float(np.clip(0.5 * self.row_px, *_BAR_PX))

    @property
    def cell_px(self) -> float:
        return self.grid_px / self.play.schedule.num_chunks

    @property
    def busy(self) -> float:
        """Where the bars begin."""
        return self.top + _HEAD_PX + self.ranks * self.row_px + _BARS_HEAD_PX

    @property
    def bottom(self) -> float:
        return self.busy + self.ranks * self.bar_px

    @property
    def left(self) -> float:
        """Where time begins."""
        return self.grid_px + _GAP_PX

    def x(self, time_s: FloatArray | float) -> FloatArray:
        return np.asarray(self.left + np.asarray(time_s) / self.horizon_s * TIME_PX)

    def y(self, rank: Ints) -> FloatArray:
        """The middle of a rank's row."""
        return np.asarray(self.top + _HEAD_PX + (rank + 0.5) * self.row_px)

    # ---- chunks

    @cached_property
    def places(self) -> tuple[Ints, Ints]:
        """The rank and the number of each chunk."""
        rank, chunk = np.indices((self.ranks, self.play.schedule.num_chunks))
        return rank.ravel(), chunk.ravel()

    @cached_property
    def boxes(self) -> ChunkBoxes:
        pad_px = min(2.5, 0.12 * self.cell_px)  # to the left and to the right of a chunk
        height = 0.76 * self.row_px  # the rest separates the rows
        rank, chunk = self.places
        left = chunk * self.cell_px + pad_px
        return ChunkBoxes(left, self.y(rank) - height / 2, self.cell_px - 2 * pad_px, height)

    def looks(self, shares: Ints, chunk: Ints) -> tuple[list[str], list[str]]:
        """Return the colour of each chunk, and the text on it: its number of shares, or the rank that it comes from.

        `chunk` are the numbers of the chunks in a rank's buffer, and `shares` how many shares each of them has.
        """
        if self.play.schedule.collective in MOVES:
            fill, words = self._looks_by_origin(shares, chunk)
        else:
            shades = shades_of(self.ranks)
            fill = [shades[count] for count in shares.tolist()]
            words = [str(count) if count else "" for count in shares.tolist()]
        longest = str(self.ranks)
        is_wide_enough = self.cell_px >= _DIGIT_PX * len(longest) + _DIGITS_MARGIN_PX
        if not is_wide_enough or self.row_px < _LEGIBLE_ROW_PX:
            words = [""] * len(words)
        return fill, words

    def _looks_by_origin(self, shares: Ints, chunk: Ints) -> tuple[list[str], list[str]]:
        """Return the colour and the number of the rank that each chunk comes from, "" for a chunk that is not there.

        `shares` and `chunk` are those of `looks`, with an entry per drawn chunk.
        """
        color_of_rank = rank_colors(self.ranks)
        origins = self.play.schedule.origins()[chunk]
        fill = []
        words = []
        for num_shares, origin in zip(shares.tolist(), origins.tolist(), strict=True):
            is_there = num_shares > 0
            fill.append(color_of_rank[origin] if is_there else EMPTY)
            words.append(str(origin) if is_there else "")
        return fill, words

    def cells(self, at_s: float) -> list[Rects]:
        """Return the chunks of all ranks, and below them frames around results, if not all chunks become results."""
        left, top, width, height = self.boxes
        _, chunk = self.places
        fill, _ = self.looks(self.play.held(at_s).ravel(), chunk)
        is_framed = np.zeros(left.size, dtype=bool)
        if not self.play.schedule.wanted().all():
            is_framed = self.play.finished(at_s).ravel()
        frames = Rects(
            left[is_framed] - _FRAME_PX,
            top[is_framed] - _FRAME_PX,
            INK,
            width=width + 2 * _FRAME_PX,
            height=height + 2 * _FRAME_PX,
            edge=INK,
        )
        return [frames, Rects(left, top, fill, width=width, height=height, joined=True)]

    def numbers(self, at_s: float) -> Texts:
        """Return the texts on the chunks that no message passes over."""
        play = self.play
        left, top, width, height = self.boxes
        _, chunk = self.places
        fill, words = self.looks(play.held(at_s).ravel(), chunk)
        is_moving = np.isin(play.message, play.on_the_way(at_s))  # of each chunk of a message
        moving_y = self.height(at_s)[play.message[is_moving]]
        y_of_rank_0 = self.y(np.array(0))
        moving_row = (moving_y - y_of_rank_0) / self.row_px  # 2.5 is between the rows of ranks 2 and 3
        _, message_px = self.packet_px
        heights_px = message_px + 2 * self.packet_frame_px + _DIGIT_HEIGHT * self.number_px
        touching_rows = heights_px / 2 / self.row_px  # between the middles of a message and of a number
        # A message between two rows may cover its chunk in the upper one, in the lower one, or in both.
        for row in (np.floor(moving_row), np.ceil(moving_row)):
            is_covered = abs(moving_row - row) < touching_rows
            indices = row * play.schedule.num_chunks + play.chunk[is_moving]  # of the chunks, as in `places`
            for index in indices[is_covered].astype(int).tolist():
                words[index] = ""
        return _texts_on(left + width / 2, top + height / 2, words, fill, self.number_px)

    @property
    def number_px(self) -> float:
        """The size of the numbers on chunks."""
        return min(11.0, 0.62 * self.row_px)

    # ---- what moves

    @property
    def packet_px(self) -> tuple[float, float]:
        """The width and the height of a chunk on its way."""
        return 0.66 * self.cell_px, 0.54 * self.row_px

    @property
    def packet_frame_px(self) -> float:
        """The width of the frame around a chunk on its way, in the colour of its message."""
        return min(2.5, 0.1 * self.cell_px)

    @cached_property
    def packet_left(self) -> FloatArray:
        """How far from the left of its cell each chunk of a message travels, in pixels.

        It travels in the middle. If two ranks exchange a chunk, so that it moves both ways, it travels to the left on
        the way up, and to the right on the way down.
        """
        play = self.play
        width, _ = self.packet_px
        src = play.src[play.message]
        dst = play.dst[play.message]
        # The same for both directions, so that an exchange is two equal columns.
        exchange = np.stack([play.step[play.message], np.minimum(src, dst), np.maximum(src, dst), play.chunk])
        _, group, num_in_group = np.unique(exchange, axis=1, return_inverse=True, return_counts=True)
        group = group.ravel()  # numpy 2.0 returns it with two axes
        is_exchanged = num_in_group[group] > 1
        is_on_the_way_down = dst > src
        side = np.where(is_on_the_way_down, 0.96, 0.04)  # not quite at the edges of the cell
        share = np.where(is_exchanged, side, 0.5)  # of the room to the left and to the right of the chunk
        return np.asarray(share * (self.cell_px - width))

    def progress(self, at_s: float) -> FloatArray:
        """The share of its way that each message has behind it."""
        takes_s = np.maximum(self.play.end_s - self.play.start_s, 1e-300)  # not 0, by which one cannot divide
        return np.asarray(np.clip((at_s - self.play.start_s) / takes_s, 0.0, 1.0))

    def height(self, at_s: float) -> FloatArray:
        """How far down each message is."""
        y0 = self.y(self.play.src)
        y1 = self.y(self.play.dst)
        return np.asarray(y0 + self.progress(at_s) * (y1 - y0))

    def packets(self, rows: Ints, y: FloatArray) -> tuple[list[Rects], Texts]:
        """Return chunks on their way between the rows of the grid, and the texts on them.

        `rows` are rows of the playback's columns from `message` on, and `y` the height of each.
        """
        play = self.play
        width, height = self.packet_px
        left = play.chunk[rows] * self.cell_px + self.packet_left[rows]
        edge = self.packet_frame_px
        fill, words = self.looks(play.carries[rows], play.chunk[rows])
        color = self.colors[play.message[rows]].tolist()
        frame = Rects(left - edge, y - height / 2 - edge, color, width=width + 2 * edge, height=height + 2 * edge)
        box = Rects(left, y - height / 2, fill, width=width, height=height, edge="none")
        return [frame, box], _texts_on(left + width / 2, y, words, fill, min(10.0, self.number_px))

    def marks(self, messages: Ints, at_s: float) -> Rects:
        """Where messages are on their lines."""
        x = self.x(np.clip(at_s, self.play.start_s[messages], self.play.end_s[messages]))
        y = self.height(at_s)[messages]
        colors = self.colors[messages].tolist()
        return Rects(x - _MARK_PX / 2, y - _MARK_PX / 2, colors, width=_MARK_PX, height=_MARK_PX)

    # ---- what time reveals

    @cached_property
    def colors(self) -> NDArray[np.str_]:
        """The colour of each message."""
        return np.where(self.play.reduce, ADDED, COPIED)

    def lines(self, at_s: float) -> MessageLines:
        """Return lines from the sender of each message to its receiver."""
        play = self.play
        x0 = self.x(play.start_s)
        x1 = self.x(play.end_s)
        y0 = self.y(play.src)
        y1 = self.y(play.dst)
        share = self.progress(at_s)
        x = x0 + share * (x1 - x0)
        y = y0 + share * (y1 - y0)
        dashed = ~play.reduce  # those that the receiver copies
        is_to_come = share < 1
        to_come = Lines(
            x0[is_to_come],
            y0[is_to_come],
            x1[is_to_come],
            y1[is_to_come],
            _PALE,
            dashed=dashed[is_to_come],
            joined=True,
        )
        has_begun = share > 0
        past = Lines(
            x0[has_begun],
            y0[has_begun],
            x[has_begun],
            y[has_begun],
            self.colors[has_begun].tolist(),
            dashed=dashed[has_begun],
            width_px=1.8,
            joined=True,
        )
        return MessageLines(to_come, past)

    def bars(self, at_s: float) -> BusyBars:
        """Return bars of when ranks send (in the upper half of their row), and receive and add (in the lower half).

        Columns have first the sending of each message, then its receiving.
        """
        play = self.play
        height = 0.42 * self.bar_px  # not quite half a row, so that a gap separates the halves
        start_s = np.r_[play.start_s, play.start_s]
        stop_s = np.r_[play.end_s, play.done_s]
        fill = np.r_[self.colors, self.colors]
        top_of_half = np.repeat([0.04 * self.bar_px, 0.5 * self.bar_px], play.src.size)
        y = self.busy + np.r_[play.src, play.dst] * self.bar_px + top_of_half
        now_s = np.clip(at_s, start_s, stop_s)
        x0 = self.x(start_s)
        x = self.x(now_s)
        x1 = self.x(stop_s)
        is_to_come = stop_s > now_s
        to_come = Rects(x0[is_to_come], y[is_to_come], _PALE, (x1 - x0)[is_to_come], height, joined=True)
        has_begun = now_s > start_s
        past = Rects(x0[has_begun], y[has_begun], fill[has_begun].tolist(), (x - x0)[has_begun], height, joined=True)
        return BusyBars(to_come, past)

    # ---- what stands still

    @property
    def rails(self) -> Lines:
        """A thin line for each rank, on which its messages begin and end, and a darker one between nodes."""
        y_of_ranks = self.y(np.arange(self.ranks))
        gpus_per_node = self.play.gpus_per_node
        first_of_nodes = np.arange(0)  # the first rank of each node but the first node
        if gpus_per_node > 1:  # else a line would be between any two ranks
            first_of_nodes = np.arange(gpus_per_node, self.ranks, gpus_per_node)
        y_between_nodes = self.top + _HEAD_PX + first_of_nodes * self.row_px
        # zeros for the lines between nodes: those go through the chunks, too
        left = np.r_[np.full(self.ranks, self.left), np.zeros(first_of_nodes.size)]
        y = np.r_[y_of_ranks, y_between_nodes]
        colors = [FAINT] * self.ranks + [_QUIET] * first_of_nodes.size
        return Lines(left, y, self.left + TIME_PX, y, colors, width_px=0.8)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The numbers of the ranks, as many as there is room for."""
        every = 1 if self.row_px >= _NUMBERED_ROW_PX else 2  # two rows of the least height have room for a number
        ranks = np.arange(0, self.ranks, every)
        return [(y, str(rank)) for y, rank in zip(self.y(ranks).tolist(), ranks.tolist(), strict=True)]

    @property
    def fixed(self) -> list[Texts]:
        """The texts that stand still: the name, how to read the picture, and the numbers of chunks and ranks."""
        return [self._name(), self._explanations(), self._numbers_of_chunks(), *self._numbers_of_ranks()]

    def _name(self) -> Texts:
        schedule = self.play.schedule
        size = bytes_words(self.play.num_bytes)
        name = f"{schedule.algorithm} {schedule.collective} of {size} on {count_of(self.ranks, 'rank')}"
        return _line(0.0, self.top + _NAME_PX, name, size_px=13.0)

    def _explanations(self) -> Texts:
        """Return the texts above the chunks, the messages and the bars that say how to read them."""
        number = "ranks summed in"
        receiving = "receives and adds"
        if self.play.schedule.collective in MOVES:
            number = "rank it comes from"
            receiving = "receives"
        words = (
            f"each rank's chunks; number: {number}",
            "messages, from sender to receiver",
            f"busy ranks: upper half sends, lower half {receiving}",
        )
        x = (0.0, self.left, self.left)
        y = (self.top + _READ_PX, self.top + _READ_PX, self.busy - _LEGEND_OF_BARS_PX)
        # with a halo, because the playhead passes behind the text above the bars
        return Texts(x, y, words, _QUIET, size_px=10.0, anchor="start", halo=PAPER)

    def _numbers_of_chunks(self) -> Texts:
        every = max(1, int(np.ceil(_CHUNK_NUMBER_PX / self.cell_px)))
        chunks = np.arange(0, self.play.schedule.num_chunks, every)
        words = [str(chunk) for chunk in chunks.tolist()]
        return Texts((chunks + 0.5) * self.cell_px, self.top + CHUNKS_PX, words, _QUIET, size_px=10.0)

    def _numbers_of_ranks(self) -> list[Texts]:
        """The numbers at the rows and at the bars, each if these are tall enough."""
        ranks = np.arange(self.ranks)
        columns = []
        if self.row_px >= _NUMBERED_ROW_PX:
            columns.append(self.y(ranks))
        if self.bar_px >= _NUMBERED_BAR_PX:
            columns.append(self.busy + (ranks + 0.5) * self.bar_px)
        words = [str(rank) for rank in ranks]
        return [Texts(self.left - 8.0, y, words, INK, size_px=10.0, anchor="end") for y in columns]

    # ---- captions

    def captions(self, at_s: float) -> Captions:
        """Return the sentences at this time."""
        play = self.play
        num_finished = int(play.finished(at_s).sum())
        count = f"{num_finished} of {int(play.schedule.wanted().sum())} chunks finished"
        if at_s < play.finish_s:
            return Captions(self._happening(at_s), count, finished="")
        finish, _ = times_in_one_unit(play.finish_s, self.horizon_s)  # in the unit of the title
        finished = f"finished after {finish}"
        happening = f"Finished after {finish}: {_result(play)}"
        has_room = self._finish_x + _LETTER_PX * len(finished) <= self.left + TIME_PX
        has_messages = play.src.size > 0  # without any, there is no last line that this text could be next to
        if not has_messages or not has_room:
            finished = ""
        return Captions(happening, count, finished)

    @property
    def _finish_x(self) -> float:
        """Where the text begins that says when the collective finished: a little to the right of that time."""
        return float(self.x(self.play.finish_s)) + 8.0

    def caption_places(self) -> tuple[Texts, Texts, Texts]:
        """Where the three `captions` stand, as texts without words."""
        happening = _line(0.0, self.top + _CAPTION_PX, "")
        count = _line(0.0, self.busy - _LEGEND_OF_BARS_PX, "")
        finished = _line(self._finish_x, (self.busy + self.bottom) / 2, "", size_px=12.0, halo=(PAPER,))
        return happening, count, finished

    def done(self, at_s: float) -> Rects:
        """How much is finished, as a bar over its ground."""
        share = self.play.finished(at_s).sum() / self.play.schedule.wanted().sum()
        color = shades_of(self.ranks)[-1]  # that of a chunk with the shares of all ranks
        if self.play.schedule.collective in MOVES:
            color = _QUIET
        width = (self.grid_px, share * self.grid_px)
        return Rects(0.0, self.busy + 2, (EMPTY, color), width=width, height=_DONE_PX, edge="none")

    def _happening(self, at_s: float) -> str:
        """Which step is under way, who sends, and what the receivers do; "" while no message is on its way."""
        play = self.play
        flying = play.on_the_way(at_s)
        if not flying.size:
            return ""
        first = int(play.step[flying].min()) + 1
        last = int(play.step[flying].max()) + 1
        steps = f"Step {first}" if first == last else f"Steps {first}–{last}"
        num_chunks = np.bincount(play.message, minlength=play.src.size)[flying]  # of each message
        most = int(num_chunks.max())
        sent = count_of(most, "chunk")
        if most > num_chunks.min():
            sent = f"up to {sent}"
        sentence = f"{steps} of {play.schedule.num_steps}: {self._senders(flying)} {sent}"
        if play.reduce[flying].all():
            return f"{sentence}, the receiver adds {'it' if most == 1 else 'them'} to its own"
        if not play.reduce[flying].any():
            return f"{sentence}, the receiver keeps a copy"
        return sentence  # some receivers add, and others keep a copy

    def _senders(self, messages: Ints) -> str:
        num_senders = np.unique(self.play.src[messages]).size
        if num_senders == self.ranks:
            return "each rank sends"
        if num_senders == 1:
            return "1 rank sends"
        return f"{num_senders} of {self.ranks} ranks send"


def _result(play: Playback) -> str:
    """What a collective leaves behind. There is no playback of a barrier."""
    root = play.schedule.root
    ranks = play.schedule.num_ranks
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
    return Texts([x], [y], [text], INK, size_px=size_px, anchor="start", halo=halo)


def _texts_on(x: FloatArray, y: FloatArray, words: Sequence[str], fill: Sequence[str], size_px: float) -> Texts:
    """Return the words that are not empty, each legible on its fill."""
    shown = [index for index, word in enumerate(words) if word]
    words_shown = [words[index] for index in shown]
    ink = [ink_on(fill[index]) for index in shown]
    return Texts(x[shown], y[shown], words_shown, ink, size_px=size_px)


# ---- one moment


def strips(plays: Sequence[Playback]) -> list[Strip]:
    """Lay one collective out, or two, one below the other on one axis of time."""
    horizon_s = max(play.finish_s for play in plays)
    if horizon_s == 0:  # no message takes any time, and an axis must have some width
        horizon_s = 1.0
    most_chunks = max(play.schedule.num_chunks for play in plays)
    grid_px = float(np.clip(_CELL_PX * most_chunks, *_GRID_PX))
    laid: list[Strip] = []
    top = 0.0
    for play in plays:
        strip = Strip(play, top, grid_px, _ROWS_PX[len(plays)], horizon_s)
        laid.append(strip)
        top = strip.bottom + _BETWEEN_PX
    return laid


def finishes(plays: Sequence[Playback]) -> str:
    """Return when each finishes, in the words of a title."""
    schedules = [play.schedule for play in plays]
    names = [schedule.algorithm for schedule in schedules]
    if len({schedule.collective for schedule in schedules}) > 1:
        names = [f"{schedule.algorithm} {schedule.collective}" for schedule in schedules]
    times = times_in_one_unit(*[play.finish_s for play in plays])
    first = f"{names[0]} finishes after {times[0]}"
    others = [f"{name} after {time}" for name, time in zip(names[1:], times[1:], strict=True)]
    return ", ".join([first, *others])


def draw_play(plays: Sequence[Playback], at_s: float, title: str | None = None) -> Drawing:
    """Draw one or two collectives on a cluster at one moment, one below the other on the same axis of time.

    To the left, each rank has a row of chunks, with the chunks that are on their way between the rows. To the right are
    the messages, from sender to receiver, and below them the busy ranks. What is still to come is grey; the vertical
    line is the moment. The width of a chunk is its share of a rank's buffer.
    """
    laid = strips(plays)
    still = still_parts(laid, title, at_s)
    moment = moment_parts(laid, at_s)
    return replace(
        still,
        rects=[*still.rects, *moment.rects],
        lines=[*still.lines, *moment.lines],
        texts=[*still.texts, *moment.texts],
    )


def still_parts(laid: Sequence[Strip], title: str | None, at_s: float) -> Drawing:
    """Return the title, axes and legend, and what is still to come at this time, which is grey."""
    last = laid[-1]
    plays = [strip.play for strip in laid]
    scale, unit = time_unit(last.horizon_s)
    width = last.left + TIME_PX + _RIGHT_PX
    height = last.bottom + _PLAYHEAD_BELOW_PX
    lines = []
    for strip in laid:
        lines += [strip.rails, strip.lines(at_s).to_come]
    return Drawing(
        title=title or finishes(plays),
        x_label=f"time [{unit}]",
        y_label="rank",
        width=width,
        height=height,
        size_px=(width, height),
        rects=[strip.bars(at_s).to_come for strip in laid],
        lines=lines,
        texts=[texts for strip in laid for texts in strip.fixed],
        x_axis=(last.left, last.left + TIME_PX),
        x_ticks=[(float(last.x(time * scale)), label) for time, label in round_ticks(last.horizon_s / scale)],
        y_ticks=[tick for strip in laid for tick in strip.ticks],
        legend=_legend(plays),
    )


class MomentParts(NamedTuple):
    """The parts of a drawing that depend on the moment, and lie over those that stand still."""

    rects: list[Rects]
    lines: list[Lines]
    texts: list[Texts]


def moment_parts(laid: Sequence[Strip], at_s: float) -> MomentParts:
    """Return what depends on the moment."""
    parts = MomentParts([], [], [])
    now_s = min(at_s, laid[0].horizon_s)  # the playhead stops at the right edge
    for strip in laid:
        play = strip.play
        flying = play.on_the_way(at_s)
        rows = np.flatnonzero(np.isin(play.message, flying))  # of the columns with a row per chunk of a message
        packets, words_on_packets = strip.packets(rows, strip.height(at_s)[play.message[rows]])
        past_bars = strip.bars(at_s).past
        past_lines = strip.lines(at_s).past
        parts.rects.extend([*strip.cells(at_s), strip.done(at_s), past_bars, *packets, strip.marks(flying, at_s)])
        parts.lines.extend([past_lines, playhead(strip, now_s)])
        parts.texts.extend([strip.numbers(at_s), words_on_packets])
        for empty_text, words in zip(strip.caption_places(), strip.captions(at_s), strict=True):
            parts.texts.append(replace(empty_text, text=(words,)))
    parts.texts.append(_clock(laid[0], now_s))
    return parts


def playhead(strip: Strip, at_s: float) -> Lines:
    """Return the vertical line of a strip that marks a time."""
    x = strip.x(at_s)
    top = strip.top + _HEAD_PX - _PLAYHEAD_ABOVE_PX
    bottom = strip.bottom + _PLAYHEAD_BELOW_PX
    return Lines(x, top, x, bottom, INK, width_px=2.0)


def _clock(strip: Strip, at_s: float) -> Texts:
    return Texts([strip.x(at_s)], [strip.top + CHUNKS_PX], [time_words(at_s)], size_px=10.0, halo=PAPER)


def _legend(plays: Sequence[Playback]) -> list[Key]:
    keys = _sum_keys(plays) + _origin_keys(plays)
    if not all(play.schedule.wanted().all() for play in plays):
        keys.append(Key("a rank's result", PAPER, edge=INK))
    if any(play.reduce.any() for play in plays):
        keys.append(Key("message: the receiver adds it", ADDED, line="solid"))
    if not all(play.reduce.all() for play in plays):
        keys.append(Key("message: the receiver copies it", COPIED, line="dashed"))
    return keys


def _sum_keys(plays: Sequence[Playback]) -> list[Key]:
    """The shades of the collectives that add up, if there are any."""
    if all(play.schedule.collective in MOVES for play in plays):
        return []
    ranks = plays[0].schedule.num_ranks  # all are on one cluster
    shades = shades_of(ranks)
    counts = range(1, ranks) if ranks <= 4 else (1, ranks // 2)
    keys = [Key(f"{count} summed", shades[count]) for count in counts]
    return [*keys, Key(f"all {ranks} summed", shades[ranks])]


def _origin_keys(plays: Sequence[Playback]) -> list[Key]:
    """The colours of the collectives that only move chunks, if there are any; of many ranks three."""
    moving = [play.schedule for play in plays if play.schedule.collective in MOVES]
    if not moving:
        return []
    origins = np.unique(np.concatenate([schedule.origins() for schedule in moving])).tolist()
    if len(origins) > len(RANKS):
        origins = [origins[0], origins[len(origins) // 2], origins[-1]]
    colors = rank_colors(plays[0].schedule.num_ranks)  # all are on one cluster
    return [Key(f"from rank {rank}", colors[rank]) for rank in origins]
