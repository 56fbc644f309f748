"""One table of colours for all figures: a record for each meaning, in families.

A figure uses one family, or several that share no hue. Ranks and kinds of work never share one: `RANKS` are hues that
no kind of work has. Everyone can tell the hues of these two families apart, the colour-blind too. Most hues are those
of Okabe and Ito (2008). More than eight ranks, and quantities, take a ramp of even lightness from dark violet to pale
yellow, after viridis (Smith and van der Walt, 2015). Differences take two hues that meet in a light grey.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000")
_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _VERMILLION, _YELLOW, _BLACK = CATEGORIES
INK = "#222222"
PAPER = "#ffffff"
FAINT = "#c9c9c9"
ALARM = "#b00020"
EMPTY = "#ececec"  # a cell with nothing in it
LEGIBLE = 4.5  # the contrast that WCAG 2 asks of text

_RAMP = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")
_DIVERGING = ("#0b4f8a", "#5a9bd0", "#b9d5ea", "#f1f1f1", "#f7cfa0", "#e08a3c", "#a34700")  # below, as expected, above


# ---- the table

OTHER = "#b0b0b0"
WAITING = "#e2e2e2"
_BROWN = "#8f5a2b"
_NAVY = "#283593"
_PLUM = "#604860"
_LIME = "#b4e07a"
_VIOLET = "#8778f0"


class Meaning(NamedTuple):
    """One record of the table: what a hue means in a family, and the words for it, separated by spaces.

    Kinds of work are drawn plain, those that are communication hatched. Memory is drawn as the work that fills it:
    `memory` that lasts plain, `buffers` hatched.
    """

    family: str
    name: str
    hue: str
    kinds: str = ""
    communication: str = ""
    memory: str = ""
    buffers: str = ""


TABLE = (
    Meaning("work", "reading", _NAVY, "read load loader"),
    Meaning("work", "decoding", _YELLOW, "decode host"),
    Meaning("work", "collating", _LIME, "collate"),
    Meaning("work", "pinning", _BLACK, "pin"),
    Meaning("work", "copying", _BROWN, "copy h2d unpack copy_in copy_out memcpy staging link"),
    Meaning("work", "forward", _ORANGE, "forward loss", memory="activations"),
    Meaning("work", "backward", _VERMILLION, "backward", memory="gradients", buffers="buckets"),
    Meaning("work", "the optimizer", _PLUM, "optimizer zero_grad", memory="optimizer_states master_copy"),
    Meaning("work", "computing", _GREEN, "step compute train kernel"),
    Meaning(
        "work",
        "summing over ranks",
        _BLUE,
        communication="allreduce reduce_scatter reduce collective shadow",
        buffers="reduce_buffers",
    ),
    Meaning(
        "work",
        "collecting from ranks",
        _SKY,
        communication="allgather gather recv receive",
        memory="gathered_parameters",
        buffers="gather_buffers largest_layer",
    ),
    Meaning("work", "distributing to ranks", _PINK, communication="broadcast scatter send alltoall"),
    Meaning("work", "parameters", _VIOLET, memory="parameters buffers"),
    Meaning("work", "starting and stopping", OTHER, "start stop"),
    Meaning("work", "waiting", WAITING, "wait blocked", communication="barrier"),
    Meaning("rank", "rank 0", "#9ecbf2"),
    Meaning("rank", "rank 1", "#f2c4c0"),
    Meaning("rank", "rank 2", "#83c17c"),
    Meaning("rank", "rank 3", "#eee7a0"),
    Meaning("rank", "rank 4", "#d3b7d2"),
    Meaning("rank", "rank 5", "#eab89c"),
    Meaning("rank", "rank 6", "#a4a95d"),
    Meaning("rank", "rank 7", "#64a0c4"),
    Meaning("protocol", "LL", _BLUE),
    Meaning("protocol", "LL128", _SKY),
    Meaning("protocol", "Simple", _VERMILLION),
    Meaning("protocol", "NVLS", _GREEN),
    Meaning("protocol", "measured", _PINK),
)


class WorkLook(NamedTuple):
    """How a kind of work, or a term of memory, looks in every figure."""

    hue: str
    hatched: bool


def hues(family: str) -> dict[str, str]:
    """Return the hue of each meaning of a family, by its name.

    >>> hues("protocol")["LL"]
    '#0072b2'
    """
    return {meaning.name: meaning.hue for meaning in TABLE if meaning.family == family}


def _looks_of_work(plain: str, hatched: str) -> dict[str, WorkLook]:
    """Return the look of each word in two fields of the table: `plain` and `hatched` are their names."""
    look_of_word: dict[str, WorkLook] = {}
    for meaning in TABLE:
        for word in getattr(meaning, plain).split():
            look_of_word[word] = WorkLook(meaning.hue, False)
        for word in getattr(meaning, hatched).split():
            look_of_word[word] = WorkLook(meaning.hue, True)
    return look_of_word


WORK = _looks_of_work("kinds", "communication")  # kinds of one meaning look the same
MEMORY = _looks_of_work("memory", "buffers")
_SHARE_OF_HUE = 0.6  # that the next part of a kind of work keeps, where parts are numbered


def work_look(kind: str) -> WorkLook | None:
    """Return the look of a kind of work; None if neither it nor the kind that its first word names is in the table.

    What follows the first word may be a number, such as that of a pipeline's chunk: each is paler than the one before.

    >>> work_look("memcpy d2d") == work_look("copy") == WORK["copy"]
    True
    >>> [look.hue for look in map(work_look, ["forward", "forward 1", "forward 2"]) if look]
    ['#e69f00', '#f0c566', '#f6dca3']
    >>> work_look("mine 1")
    """
    if kind in WORK:
        return WORK[kind]
    first_word, _, rest = kind.partition(" ")
    if first_word not in WORK:
        return None
    look = WORK[first_word]
    share = 1.0
    is_number = rest.isdecimal() and len(rest) < 3  # longer ones do not number parts, and may be too large for a power
    if is_number:
        share = _SHARE_OF_HUE ** int(rest)
    red, green, blue = (round(255 - (255 - channel) * share) for channel in _channels(look.hue))  # the rest is white
    return WorkLook(f"#{red:02x}{green:02x}{blue:02x}", look.hatched)


HUES = tuple(hue for hue in hues("work").values() if hue not in (OTHER, WAITING))
RANKS = tuple(hues("rank").values())
ADDED = WORK["reduce"].hue  # of messages that the receiver adds to its own chunks
COPIED = WORK["recv"].hue  # of those that replace its chunks


# ---- algorithms and ways to copy


class Look(NamedTuple):
    """How an algorithm or a way to copy looks in every figure: hue, marker, dashed lines and hatched areas or not."""

    color: str
    dashed: bool
    marker: str


# Algorithms of one hue are relatives; those that cost the same have different ones, so that both lines show.
_LOOKS = {
    "flat": Look(_BLACK, False, "o"),
    "swing": Look(_BLACK, True, "X"),
    "binomial_tree": Look(_GREEN, False, "^"),
    "double_binary_tree": Look(_GREEN, True, "v"),
    "recursive_doubling": Look(_ORANGE, False, "s"),
    "mesh_2d": Look(_ORANGE, True, "H"),
    "halving_doubling": Look(_VERMILLION, False, "D"),
    "ring": Look(_BLUE, False, ">"),
    "segmented_ring": Look(_BLUE, True, "d"),
    "hierarchical_ring": Look(_SKY, False, "P"),
    "bidirectional_ring": Look(_SKY, True, "*"),
    "torus_2d": Look(_PINK, False, "p"),
    "torus_3d": Look(_PINK, True, "h"),
    "native": Look("#6b6b6b", False, "<"),  # the backend's own
    # of other collectives, where they have the hue of their relatives
    "binomial": Look(_GREEN, False, "^"),
    "scatter_allgather": Look(_VERMILLION, False, "D"),
    "reduce_scatter_gather": Look(_VERMILLION, False, "D"),
    "recursive_halving": Look(_VERMILLION, False, "D"),
    "chain": Look(_BLUE, False, ">"),
    "bruck": Look(_PINK, False, "p"),
    "pat": Look(_GREEN, True, "v"),
    "pairwise": Look(_SKY, False, "P"),
    "dissemination": Look(_ORANGE, False, "s"),
    # ways to copy between host and GPU
    "pinned": Look(_SKY, True, "s"),
    "pinned_non_blocking": Look(_BLUE, False, "o"),
    "pageable": Look(_VERMILLION, False, "^"),
    "pageable_non_blocking": Look(_ORANGE, True, "v"),
    "pin_on_the_fly": Look(_GREEN, False, "D"),
    "pin_on_the_fly_cached": Look(_PINK, True, "d"),
}


def _different_markers() -> list[str]:
    """Return the markers of the table, the round one first."""
    markers = ["o"]
    for look in _LOOKS.values():
        if look.marker not in markers:
            markers.append(look.marker)
    return markers


_MARKERS = _different_markers()


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each algorithm, always the same for those that are known here, unless two of them share one.

    The first of those that share one has it. Others take, in their order, the pairs of a hue and a plain or dashed line
    that are left, with a round marker, and when there are none left all pairs with the next marker, so that more than
    two hundred algorithms look different.

    >>> looks(["ring", "mine"])["ring"] == looks(["other", "ring"])["ring"]
    True
    """
    different_names = list(dict.fromkeys(names))  # in their order
    known: dict[str, Look] = {}
    for name in different_names:
        if name in _LOOKS and _LOOKS[name] not in known.values():
            known[name] = _LOOKS[name]
    used_pairs = {(look.color, look.dashed) for look in known.values()}
    colors = [color for color in reversed(CATEGORIES) if color != _YELLOW]
    pairs = [(color, dashed) for dashed in (False, True) for color in colors]
    pairs += [(_YELLOW, False), (_YELLOW, True)]  # last, because a thin line of it is faint on white
    round_marker, *other_markers = _MARKERS
    candidates = [Look(color, dashed, round_marker) for color, dashed in pairs if (color, dashed) not in used_pairs]
    for marker in other_markers:
        candidates += [Look(color, dashed, marker) for color, dashed in pairs]
    looks_of_others = cycle([look for look in candidates if look not in known.values()])  # again, if there are too few
    look_of: dict[str, Look] = {}
    for name in different_names:
        look_of[name] = known[name] if name in known else next(looks_of_others)
    return look_of


def ramp(fractions: ArrayLike, anchors: tuple[str, ...] = _RAMP) -> tuple[str, ...]:
    """Return a colour for each number in [0, 1].

    >>> ramp([0, 1])
    ('#440154', '#fde725')
    """
    table = _ramp_table(anchors)
    places = np.clip(np.asarray(fractions, dtype=float), 0, 1) * (len(table) - 1)
    return tuple(table[index] for index in np.rint(places).astype(int).ravel().tolist())


def diverging(differences: ArrayLike) -> tuple[str, ...]:
    """Return a colour for each number in [-1, 1]: blue below 0, orange above, pale near it.

    >>> diverging([-1, 1])
    ('#0b4f8a', '#a34700')
    """
    return ramp((np.asarray(differences, dtype=float) + 1) / 2, _DIVERGING)


@lru_cache(maxsize=2)  # for the two ramps
def _ramp_table(colors: tuple[str, ...]) -> tuple[str, ...]:
    """Return 256 colours from the first of these to the last, mixed from the two that are nearest."""
    anchors = np.array([_channels(color) for color in colors])  # colours by red, green and blue
    places = np.linspace(0, len(colors) - 1, 256)  # 1.5 is in the middle between the colours 1 and 2
    mixed = []
    for channel in anchors.T:
        values = np.interp(places, range(len(colors)), channel)
        mixed.append(np.rint(values).astype(int).tolist())
    return tuple(f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in zip(*mixed, strict=True))


def rank_colors(num_ranks: int) -> tuple[str, ...]:
    """Return a colour for each rank: distinct hues up to eight, shades of the ramp beyond.

    >>> rank_colors(2) == RANKS[:2]
    True
    """
    if num_ranks <= len(RANKS):
        return RANKS[:num_ranks]
    return ramp(np.linspace(0, 1, num_ranks))


@lru_cache(maxsize=1024)
def ink_on(fill: str) -> str:
    """Return the text colour that is legible on `fill`, at a WCAG contrast of 4.5 or more: dark, white, or black.

    >>> ink_on("#f0e442"), ink_on("#00224e"), ink_on("#d55e00")
    ('#222222', '#ffffff', '#000000')
    """
    best = max((INK, PAPER), key=lambda ink: contrast(ink, fill))
    if contrast(best, fill) < LEGIBLE:
        return _BLACK  # a little darker than INK, which is enough on every fill
    return best


def hatch_on(fill: str) -> str:
    """Return the colour of hatching on `fill`, dark or white.

    >>> hatch_on("#d55e00"), hatch_on("#00224e")
    ('#222222', '#ffffff')
    """
    return PAPER if ink_on(fill) == PAPER else INK


def contrast(color: str, other: str) -> float:
    """Return the WCAG 2 contrast ratio of two colours, from 1 to 21.

    >>> round(contrast("#000000", "#ffffff"))
    21
    """
    darker, lighter = sorted((_luminance(color), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)  # 0.05 is WCAG's, for light that a screen reflects


def _luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2, from 0 for black to 1 for white."""
    red, green, blue = (_linear(channel / 255) for channel in _channels(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(share: float) -> float:
    """Return the light that a channel of sRGB stands for, both from 0 to 1."""
    if share <= 0.04045:
        return share / 12.92
    return float(((share + 0.055) / 1.055) ** 2.4)


def _channels(color: str) -> tuple[int, int, int]:
    """Red, green and blue, from 0 to 255."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
