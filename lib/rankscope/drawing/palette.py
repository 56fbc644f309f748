"""One table of colours for all figures.

Fills are a hue at partial opacity over the paper, so that ink is legible on them in both themes. Ranks and kinds of
work share no hue. More than eight ranks go from blue over green to gold; quantities take a ramp of even lightness from
dark violet to pale yellow, after viridis (Smith and van der Walt, 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hls_to_rgb
from functools import cache
from typing import NamedTuple

# tones, by what they are for, on light and on dark paper
TONES = {
    "ink": "#1f2328",
    "mute": "#59636e",
    "rule": "#d1d7de",
    "alarm": "#c2182b",
    "accent": "#b8400a",
    "paper": "#ffffff",
}
DARK = {
    "ink": "#e6e8eb",
    "mute": "#9aa4af",
    "rule": "#3a424c",
    "alarm": "#ff7b7b",
    "accent": "#ff9a5c",
    "paper": "#0d1117",
}
INK = TONES["ink"]
PAPER = TONES["paper"]
OTHER = "#8492a6"  # work of no known kind
WAITING = "#c4cbd3"  # which is a dotted line

RANKS = ("#688ffd", "#f0968c", "#047860", "#b8960a", "#6945be", "#45d4f7", "#9a1a70", "#aad237")

# Kinds of work, and what fills memory, by their hue.
_WORK = {
    "#5b50e0": ("read", "load"),
    "#e3d22b": ("decode", "host"),
    "#a5cf5a": ("collate", "loader"),
    "#59636e": ("pin",),
    "#b87a2a": ("copy", "h2d", "unpack", "copy_in", "copy_out", "memcpy", "staging", "link"),
    "#f7b012": ("forward", "loss"),
    "#b5391a": ("backward",),
    "#b57ed7": ("optimizer", "zero_grad", "weights"),
    "#2fa477": ("step", "compute", "train", "kernel"),
    "#2377ce": ("allreduce", "reduce_scatter", "reduce", "collective"),
    "#8cc8ee": ("allgather", "gather", "recv", "receive", "shadow"),
    "#a04a86": ("broadcast", "scatter", "send", "alltoall"),
    OTHER: ("start", "stop"),
    WAITING: ("wait", "idle", "blocked", "barrier"),
}
_MEMORY = {
    "#8a9af5": ("parameters", "buffers"),
    "#f7b012": ("activations", "inputs"),
    "#b5391a": ("gradients", "buckets"),
    "#b57ed7": ("optimizer_states",),
    "#6a3d9a": ("master_copy",),
    "#2377ce": ("reduce_buffers",),
    "#8cc8ee": ("gathered_parameters", "gather_buffers", "largest_layer"),
}
_MESSAGES = {"#2377ce", "#8cc8ee", "#a04a86"}
# Those that are hatched: buffers of communication.
_HATCHED = {"buckets", "reduce_buffers", "gather_buffers", "largest_layer"}


class WorkLook(NamedTuple):
    """How a kind of work, or a term of memory, looks in every figure."""

    hue: str
    hatched: bool

    @property
    def look(self) -> str:
        """The look of its boxes."""
        return "wait" if self.hue == WAITING else "work"


WORK = {kind: WorkLook(hue, hue in _MESSAGES) for hue, kinds in _WORK.items() for kind in kinds}
MEMORY = {kind: WorkLook(hue, kind in _HATCHED) for hue, kinds in _MEMORY.items() for kind in kinds}
HUES = tuple(hue for hue in _WORK if hue not in (OTHER, WAITING))
ADDED, COPIED = WORK["reduce"].hue, WORK["recv"].hue  # messages that the receiver adds, or keeps
_SHARE_OF_HUE = 0.6  # that the next part of a kind of work keeps, where parts are numbered


def work_look(kind: str) -> WorkLook | None:
    """Return the look of what fills memory or of a kind of work; None if neither it nor its first word is in the table.

    A number after the first word is that of a pipeline's chunk: each is paler than the one before.

    >>> work_look("memcpy d2d") == work_look("copy") == WORK["copy"]
    True
    >>> [look.hue for look in map(work_look, ["forward", "forward 1"]) if look]
    ['#f7b012', '#fad071']
    >>> work_look("mine 1")
    """
    first_word, _, rest = kind.partition(" ")
    look = MEMORY.get(kind.replace(" ", "_")) or WORK.get(kind) or WORK.get(first_word)
    if look is None or not (rest.isdecimal() and len(rest) < 3):
        return look
    share = _SHARE_OF_HUE ** int(rest)
    return WorkLook(mixed(look.hue, PAPER, share), look.hatched)


@cache  # a picture asks for each cell
def rank_colors(num_ranks: int) -> tuple[str, ...]:
    """Return a colour for each rank: distinct hues up to eight, a scale from blue over green to gold beyond.

    >>> rank_colors(2) == RANKS[:2]
    True
    """
    if num_ranks <= len(RANKS):
        return RANKS[:num_ranks]
    return tuple(_hex(hls_to_rgb(0.66 - 0.53 * rank / num_ranks, 0.55, 0.58)) for rank in range(num_ranks))


# ---- lines of charts


# hues of lines, legible on white and on dark paper; those of the curves in `figures.curves` come in this order
LINES = ("#2073d9", "#c25410", "#04856a", "#c4358f", "#8163c8", "#907200", "#59636e", "#1f2328")


# ---- quantities

_RAMP = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")


def ramp(fraction: float) -> str:
    """Return a colour for a number in [0, 1].

    >>> ramp(0), ramp(1)
    ('#440154', '#fde725')
    """
    place = fraction * (len(_RAMP) - 1)
    below = min(int(place), len(_RAMP) - 2)
    return mixed(_RAMP[below + 1], _RAMP[below], place - below)


# ---- mixes


def mixed(color: str, ground: str, share: float) -> str:
    """Return a colour painted over a ground at partial opacity."""
    pairs = zip(_channels(color), _channels(ground), strict=True)
    return _hex([share * above + (1 - share) * below for above, below in pairs])


def _channels(color: str) -> list[float]:
    """Red, green and blue, from 0 to 1."""
    return [byte / 255 for byte in bytes.fromhex(color[1:])]


def _hex(channels: Sequence[float]) -> str:
    return "#" + bytes(round(255 * channel) for channel in channels).hex()
