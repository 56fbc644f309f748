"""Drawings of a schedule: what each rank has at a step, the messages, and what it has afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..collectives.schedule import MOVES, Schedule
from ..collectives.steps import Ints, Step
from ..collectives.verify import holdings
from ..common.checks import of_type, optional, whole
from ..common.words import count_of, run_words
from .marks import Drawing, Key, Lines, Rects, Texts, numbers_on, whole_ticks
from .palette import EMPTY, INK, PAPER, ramp, rank_colors

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_MOST_CELLS = 4096
_MOST_STRIPED = 8  # ranks up to which each has a stripe of its own in a cell
_MOST_LISTED = 2  # ranks of which the legend names each: beyond, numbers or places in the cells say which rank it is
_MOST_LIST_CHARACTERS = 7  # of a message's chunks: a longer list takes as much space as "8 chunks"

# one step, in whose drawing x counts pixels and y counts rows
_GRID_PX = 250.0  # the width of a grid of chunks, at most
_STRIP_PX = 160.0  # of the arrows between two grids
_ROW_PX = 27.0
_HEAD = 0.8  # rows above the first rank
_HEAD_TEXT = 0.45 * _HEAD  # rows down to the text there
_TICK_PX = 18  # between the numbers of two chunks, at least
_TALL = 0.8  # a cell's part of its row
_DIGIT_PX = 6.4  # of a number in a cell
_CELL_PX = 40.0  # the width of a cell without stripes, at most
_STRIPED_CELL_PX = 12.0  # the width of a cell with stripes, at most: this, and `_STRIPE_PX` for each of them
_STRIPE_PX = 9.0
_LEAST_STRIPE_PX = 2.0  # where stripes would be narrower, cells have none
_MOST_PAD_PX = 3.0  # to the left and to the right of a cell, at most
_RANK_GAP_PX = 4.0  # between the number of a rank and the second grid
_NODE_COLOR = "#8a8a8a"  # of the lines between nodes

# arrows between two grids, and their labels
_ARROW_START_PX = 6.0  # from the first grid to the arrows
_ARROW_END_PX = 22.0  # from the arrows to the second grid, with the numbers of the ranks
_ARROW_LETTER_PX = 6.2  # the width of a character
_ARROW_LABEL_GAP_PX = 6.0  # between an arrow and its label
_MOST_ARROWS_PER_ROW = 2  # with more in a row, no arrow is labelled
_ARROW_ROWS = 0.44  # between two arrows of a rank, in rows


def draw_schedule(schedule: Schedule, step: int, gpus_per_node: int | None = None, title: str | None = None) -> Drawing:
    """Draw the messages between ranks at one step of a schedule.

    The drawing shows the chunks of each rank before the step, its messages as arrows, and the chunks after it. A row is
    a rank, a column a chunk; lines separate the nodes of `gpus_per_node` ranks. If ranks add up, each cell has a stripe
    for every rank, which is coloured if that rank's share is in the chunk. For more than eight ranks, and if cells are
    too small, a shade stands for the number of shares, paler for more. If ranks only pass chunks on, a cell has the
    colour and the number of the rank that the chunk comes from. Framed cells are sent, and received; arrows are
    labelled with their chunks if a rank has several. Solid arrows add, dashed ones replace. ``step=schedule.num_steps``
    draws the end.

    Raises ValueError if the step does not exist, nodes have no ranks, or there are more than 4,096 cells.
    """
    of_type("schedule", schedule, Schedule)
    optional("gpus_per_node", gpus_per_node, whole, 1)
    return _at_step(schedule, step, gpus_per_node, title)


class Message(NamedTuple):
    """All that one rank sends to one other in a step; `reduce` says that it is added, or some of it is."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    reduce: bool

    def words(self) -> str:
        """Return the chunks as text, or only how many they are if their list is long.

        >>> Message(0, 1, (0, 1, 2, 5), False).words(), Message(0, 1, (1, 3, 5, 7), False).words()
        ('0–2,5', '1,3,5,7')
        >>> Message(0, 1, (1, 3, 5, 7, 9), False).words()
        '5 chunks'
        """
        text = ",".join(run_words(sorted(self.chunks), "–"))
        return text if len(text) <= _MOST_LIST_CHARACTERS else f"{len(self.chunks)} chunks"


def messages(step: Step) -> list[Message]:
    """Return the messages of a step in the order of their first transfers."""
    chunks_of: dict[tuple[int, int], list[int]] = {}
    is_added: dict[tuple[int, int], bool] = {}
    for src, dst, first, count, reduce in zip(*(column.tolist() for column in step), strict=True):
        chunks_of.setdefault((src, dst), []).extend(range(first, first + count))
        is_added[src, dst] = is_added.get((src, dst), False) or reduce
    return [Message(src, dst, tuple(chunks), is_added[src, dst]) for (src, dst), chunks in chunks_of.items()]


def _name(schedule: Schedule) -> str:
    return f"{schedule.collective} {schedule.algorithm}, {count_of(schedule.num_ranks, 'rank')}"


# ---- one step


_CELLS = {  # the ways to show a chunk in a cell, each with its explanation
    "stripes": "a stripe: this rank's share is in the chunk",
    "shares": "shade and number: how many shares are in the chunk",
    "origin": "colour and number: the rank that the chunk comes from",
}


def _at_step(schedule: Schedule, step: int, gpus_per_node: int | None, title: str | None) -> Drawing:
    """Draw the chunks before a step, its messages, and the chunks after it; at the end only the chunks."""
    num_ranks = schedule.num_ranks
    num_chunks = schedule.num_chunks
    if num_ranks * num_chunks > _MOST_CELLS:
        raise ValueError(
            f"a drawing has at most {_MOST_CELLS} cells, ranks × chunks, got {num_ranks * num_chunks}: take fewer"
        )
    whole("step", step, 0, schedule.num_steps)
    transfers = next(islice(schedule.steps(), step, None), None)  # None at the end
    sent: list[Message] = []
    if transfers is not None:
        sent = messages(transfers)
    cells = _kind_of_cells(schedule)
    widest_cell_px = _CELL_PX
    if cells == "stripes":
        widest_cell_px = _STRIPED_CELL_PX + _STRIPE_PX * num_ranks
    cell_px = min(_GRID_PX / num_chunks, widest_cell_px)
    grid_px = cell_px * num_chunks

    shares_before = holdings(schedule, step)
    before = _grid(shares_before, cells, cell_px, 0.0, [(message.src, message.chunks) for message in sent])
    is_origin = shares_before.any(axis=(0, 1))  # for each rank whether any chunk has its share, or comes from it
    rects = [*before.rects]
    texts = [*before.texts]
    lines: list[Lines] = []
    grid_edges = [0.0]  # the left edge of each grid
    heads = ["in the end"]  # the text above each grid
    if transfers is not None:
        right = grid_px + _STRIP_PX
        grid_edges = [0.0, right]
        heads = ["before the step", "after it"]
        arrows = _arrows(sent, num_chunks, grid_px)
        shares_after = holdings(schedule, step + 1)
        after = _grid(shares_after, cells, cell_px, right, [(message.dst, message.chunks) for message in sent])
        is_origin |= shares_after.any(axis=(0, 1))
        rank_names = [str(rank) for rank in range(num_ranks)]  # next to the second grid, where the arrows end
        rects += after.rects
        lines += arrows.lines
        texts += [*arrows.labels, *after.texts]
        texts.append(Texts(right - _RANK_GAP_PX, _middle(np.arange(num_ranks)), rank_names, anchor="end"))
    texts += [Texts(left, _HEAD_TEXT, [head], anchor="start") for left, head in zip(grid_edges, heads, strict=True)]

    width = grid_edges[-1] + grid_px
    height = num_ranks + _HEAD
    if gpus_per_node is not None and gpus_per_node < num_ranks:
        node_edges = np.arange(gpus_per_node, num_ranks, gpus_per_node) + _HEAD
        lines.append(Lines(0.0, node_edges, width, node_edges, _NODE_COLOR, width_px=1.0))
    chunk_ticks = whole_ticks(num_chunks, most=int(grid_px / _TICK_PX))
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
        x_ticks=[(left + chunks * cell_px, label) for left in grid_edges for chunks, label in chunk_ticks],
        # all ranks, because a row of `_ROW_PX` has space for its number, as it has next to the second grid
        y_ticks=[(rows + _HEAD, label) for rows, label in whole_ticks(num_ranks, most=num_ranks)],
        legend=_step_legend(num_ranks, cells, sent, np.flatnonzero(is_origin).tolist()),
    )


def _kind_of_cells(schedule: Schedule) -> str:
    """Return the key of `_CELLS` for a schedule."""
    if schedule.collective in MOVES:  # ranks only pass chunks on
        return "origin"
    px_for_stripes = _GRID_PX / schedule.num_chunks - 2 * _MOST_PAD_PX
    has_space_for_stripes = px_for_stripes >= _LEAST_STRIPE_PX * schedule.num_ranks
    if schedule.num_ranks <= _MOST_STRIPED and has_space_for_stripes:
        return "stripes"
    return "shares"


def _middle(rank: Ints) -> Floats:
    """How far down the middle of a rank's row is, in rows."""
    return np.asarray(rank + _HEAD + 0.5, dtype=float)


class _Grid(NamedTuple):
    rects: list[Rects]
    texts: Sequence[Texts]


def _grid(shares: Bools, cells: str, cell_px: float, left: float, framed: list[tuple[int, tuple[int, ...]]]) -> _Grid:
    """Return the cells of all ranks, from `left` on, with frames around the chunks in `framed`, ranks with chunks.

    ``shares[rank, chunk, origin]`` says whether a rank's chunk has the share of an origin; `cells` is one of `_CELLS`.
    """
    num_ranks = len(shares)
    pad = min(_MOST_PAD_PX, 0.18 * cell_px)  # to the left and to the right of a cell
    width = cell_px - 2 * pad
    indices = np.indices(shares.shape[:2])
    rank: Ints = indices[0]
    chunk: Ints = indices[1]
    x = left + chunk * cell_px + pad
    y = rank + _HEAD + (1 - _TALL) / 2

    is_framed = np.zeros(x.shape, dtype=bool)
    for framed_rank, chunks in framed:
        is_framed[framed_rank, list(chunks)] = True
    edge_x = min(2.0, pad)  # at most the padding, so that a frame stays off the cells next to it
    edge_y = edge_x / _ROW_PX  # as thick as `edge_x`, but y counts rows
    frames = Rects(x[is_framed] - edge_x, y[is_framed] - edge_y, INK, width + 2 * edge_x, _TALL + 2 * edge_y, edge=INK)
    colors = np.array(rank_colors(num_ranks))
    if cells == "stripes":
        ground = Rects(x, y, EMPTY, width=width, height=_TALL, edge=EMPTY)
        rows, columns, origin = np.nonzero(shares)
        stripe_width = width / num_ranks
        stripe_x = x[rows, columns] + origin * stripe_width
        stripes = Rects(stripe_x, y[rows, columns], colors[origin].tolist(), width=stripe_width, height=_TALL)
        return _Grid([frames, ground, stripes], [])

    if cells == "shares":
        numbers = shares.sum(axis=2)
        shades = ramp(np.sqrt(numbers / num_ranks))  # the root, so that the first shares make the most difference
    else:
        numbers = shares.argmax(axis=2)  # the origin of each chunk
        shades = tuple(colors[numbers.ravel()].tolist())
    has_shares = shares.any(axis=2).ravel()
    fill = [shade if is_there else EMPTY for shade, is_there in zip(shades, has_shares.tolist(), strict=True)]
    rects = Rects(x, y, fill, width=width, height=_TALL)
    is_legible = width >= _DIGIT_PX * len(str(num_ranks)) + 2  # a pixel on either side of the longest number
    return _Grid([frames, rects], numbers_on(rects, numbers.ravel(), wanted=has_shares & is_legible))


class _Arrows(NamedTuple):
    lines: list[Lines]
    labels: list[Texts]


def _arrows(sent: list[Message], num_chunks: int, left: float) -> _Arrows:
    """Return an arrow for each message, from its sender before the step to its receiver after it.

    The chunks are written at senders or at receivers, whichever have fewer arrows each, if these have at most two.
    """
    if not sent:  # some steps have no messages
        return _Arrows([], [])
    src = np.array([message.src for message in sent])
    dst = np.array([message.dst for message in sent])
    dashed = [not message.reduce for message in sent]
    x0 = left + _ARROW_START_PX
    x1 = left + _STRIP_PX - _ARROW_END_PX
    y0 = _middle(src)
    y1 = _middle(dst)
    most_sent = int(np.bincount(src).max())
    most_received = int(np.bincount(dst).max())
    # A single chunk needs no label, and many arrows in a row have no room for theirs.
    if num_chunks == 1 or min(most_sent, most_received) > _MOST_ARROWS_PER_ROW:
        return _Arrows([Lines(x0, y0, x1, y1, INK, dashed=dashed, arrows=True)], [])

    words = [message.words() for message in sent]
    label_px = _ARROW_LETTER_PX * max(map(len, words))  # the width of the column of labels
    if most_sent <= most_received:
        y0 += _spread(src, dst)
        label_x = x0
        label_y = y0
        x0 = label_x + label_px + _ARROW_LABEL_GAP_PX
    else:
        y1 += _spread(dst, src)
        label_x = x1 - label_px
        label_y = y1
        x1 = label_x - _ARROW_LABEL_GAP_PX
    # The word "chunk" heads the column of labels.
    labels = Texts(label_x, np.r_[_HEAD_TEXT, label_y], ["chunk", *words], anchor="start")
    return _Arrows([Lines(x0, y0, x1, y1, INK, dashed=dashed, arrows=True)], [labels])


def _spread(rank: Ints, peer: Ints) -> Floats:
    """Return how far below the middle of its rank's row each arrow stands, in rows.

    Several arrows of a rank stand around the middle, in the order of their peers.
    """
    offset = np.zeros(rank.size)
    for row in np.unique(rank):
        arrows = np.flatnonzero(rank == row)
        arrows = arrows[np.argsort(peer[arrows])]
        offset[arrows] = (np.arange(arrows.size) - (arrows.size - 1) / 2) * _ARROW_ROWS
    return offset


def _step_legend(num_ranks: int, cells: str, sent: list[Message], origins: list[int]) -> list[Key]:
    """Return the legend's entries for what there is; `origins` are the ranks whose chunks or shares can be seen."""
    explanation = _CELLS[cells]
    if cells == "shares":
        # One share, and half of them, if that is another number and less than all.
        counts = sorted({count for count in (1, num_ranks // 2) if 1 <= count < num_ranks})
        # The shades are those of `_grid`, which takes the root, too.
        keys = [Key(count_of(count, "share"), ramp(np.sqrt(count / num_ranks))[0]) for count in counts]
        keys.append(Key("all shares", ramp(1)[0]))
    else:
        listed = origins
        if len(origins) > _MOST_LISTED:
            listed = [origins[0], origins[-1]]
            if cells == "stripes":
                explanation = "a stripe: this rank's share is in the chunk; rank 0 at the left"
        keys = [Key(f"rank {rank}", rank_colors(num_ranks)[rank]) for rank in listed]
    if sent:
        keys.append(Key("sent, received", PAPER, edge=INK))
    if any(message.reduce for message in sent):
        keys.append(Key("message: the receiver adds it", INK, line="solid"))
    if not all(message.reduce for message in sent):
        keys.append(Key("message: the receiver copies it", INK, line="dashed"))
    return [*keys, Key(explanation, PAPER, line="none")]


def _happening(schedule: Schedule, step: int, sent: list[Message]) -> str:
    """Say for the title which step it is, how many messages are sent, and whether they are added or copied."""
    if step == schedule.num_steps:
        return f"after {count_of(step, 'step')}"
    last = schedule.num_steps - 1
    words = f"step {step} of 0–{last}" if last else "its only step"
    if not sent:
        return f"{words}: no messages"
    num_added = sum(message.reduce for message in sent)
    num_copied = len(sent) - num_added
    if num_added and num_copied:
        effect = f"{num_added} added, {num_copied} copied"
    else:
        effect = "added" if num_added else "copied"
    return f"{words}: {count_of(len(sent), 'message')}, {effect}"
