"""The explorer of notebook 06: which algorithm and protocol NCCL chooses at each size, and how long that takes.

Ten times by size on two logarithmic axes would coincide, so each is divided by NCCL's lowest estimate at its size.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ...common.units import bytes_words, parse_bytes, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, Steps, sizes
from ...figures.marks import Drawing
from ...figures.palette import INK
from ...figures.plots import FloatArray, Key, Lines, Plot, Rects, Texts
from ..figures.choices import MEASURED_COLOR, NVLS_COLOR, PROTOCOL_COLORS, PROTOCOL_NAMES, color_of
from ..nccl import GPUS, Model
from ..nccl.public import public

POWERS = range(10, 34)
VERSIONS = ("2.20", "2.22", "2.27", "2.29", "2.30")
PRESETS: dict[str, dict[str, Any]] = {
    "a ring, three protocols": {"gpu": "a100"},
    "without NVLS": {"nvls": False},
    "16 nodes: trees first": {"num_nodes": 16},
    "one network card": {"num_nodes": 4, "nics": 1},
    "over PCIe": {"gpu": "l40s"},
}
_BAND_OPACITY = "26"  # of what NCCL chooses, behind the lines: 15 % in hexadecimal
_COLUMN_FILL = "#22222218"  # of the size that is set
# The drawing has a column for each size. Its vertical unit is a row, of which the lines have this many.
_HEIGHT = 20.0
_HEAD_ROWS = 2.4  # above the lines, for the names of the bands
_ALGORITHM_Y = 0.7  # rows from the top: the first line of a band's name, …
_PROTOCOL_Y = 1.6  # … and the second
_CHANNEL_ROWS = 2.0  # below the lines, for the numbers of channels
_CHANNEL_Y = _HEAD_ROWS + _HEIGHT + 1.1  # rows from the top: the numbers of channels
# The lowest and the highest ratio that are shown, as powers of two, follow from what is drawn, within these limits.
_LEAST_LOW = -3
_MOST_LOW = -1  # half of NCCL's lowest estimate
_LEAST_HIGH = 2
_MOST_HIGH = 6
_TICK_EVERY = 5  # sizes
_SIZE_PX = (560.0, 370.0)
_MARK_PX = 5.0  # the side of a measurement's mark
_SIZES = tuple(1 << power for power in POWERS)
_AT_SIZES = np.arange(len(_SIZES)) + 0.5  # the middles of the columns


@cache
def _model(gpu: str, gpus: int, nodes: int, nics: int, version: str) -> Model:
    numbers = tuple(int(number) for number in version.split("."))
    return Model(gpu, gpus, nodes, version=numbers, nics=nics)


@cache
def _public_s(gpu: str, gpus: int, nodes: int, collective: str) -> dict[str, dict[int, float]]:
    """Return the seconds by size of each public machine with as many of these GPUs and nodes, by name."""
    return {name: profile.native_s(collective) for name, profile in public(Model(gpu, gpus, nodes)).items()}


class ProtocolRow(NamedTuple):
    """An algorithm and a protocol at a size: how many channels, what NCCL expects and what a machine takes."""

    algorithm: str
    protocol: str
    channels: float
    nccl_s: float
    time_s: float


Pair = tuple[str, str]  # an algorithm and a protocol


@cache
def _rows(model: Model, collective: str, nvls: bool) -> dict[Pair, list[ProtocolRow]]:
    """Return a row for each size, by what NCCL may choose; without NVLS, if `nvls` is false."""
    rows = {}
    for (algorithm, protocol), figures in model.compared(collective, _SIZES).items():
        if algorithm.startswith("nvls") and not nvls:
            continue
        of_pair = []
        for channels, nccl_s, time_s in zip(figures.channels, figures.nccl_s, figures.time_s, strict=True):
            of_pair.append(ProtocolRow(algorithm, protocol, channels, nccl_s, time_s))
        rows[algorithm, protocol] = of_pair
    return rows


class _NcclChoices(NamedTuple):
    """The model, its rows by what NCCL may choose, and the row that it chooses at each size."""

    model: Model
    eligible: dict[Pair, list[ProtocolRow]]
    chosen: list[ProtocolRow]


def _choices(now: Now) -> _NcclChoices:
    model = _model(now.gpu, now.gpus_per_node, now.num_nodes, now.nics, now.version)
    eligible = _rows(model, now.collective, now.nvls)
    rows_of_sizes = zip(*eligible.values(), strict=True)  # for each size, the row of every pair
    chosen = [min(rows, key=lambda row: row.nccl_s) for rows in rows_of_sizes]
    return _NcclChoices(model, eligible, chosen)


class _RatioCurve(NamedTuple):
    """A line of the picture, x in columns from the left, y the logarithm to base 2 of a time ÷ NCCL's lowest estimate.

    A curve that `was_measured` is drawn as marks.
    """

    x: FloatArray
    y: FloatArray
    color: str
    is_dashed: bool
    width_px: float
    was_measured: bool = False


def _estimates(choices: _NcclChoices) -> list[_RatioCurve]:
    """Return what NCCL expects of each algorithm and protocol."""
    lowest = np.log2([row.nccl_s for row in choices.chosen])
    curves = []
    for (algorithm, protocol), rows in choices.eligible.items():
        y = np.log2([row.nccl_s for row in rows]) - lowest
        color = color_of(algorithm, protocol)
        curves.append(_RatioCurve(_AT_SIZES, y, color, is_dashed=algorithm == "tree", width_px=1.4))
    return curves


def _times(now: Now, choices: _NcclChoices) -> list[_RatioCurve]:
    """Return the times of the choice as multiples of what NCCL expects: by the model, and on each public machine."""
    expected = np.log2([row.nccl_s for row in choices.chosen])
    model = np.log2([row.time_s for row in choices.chosen]) - expected
    curves = [_RatioCurve(_AT_SIZES, model, INK, is_dashed=False, width_px=2.4)]
    for seconds in _public_s(now.gpu, now.gpus_per_node, now.num_nodes, now.collective).values():
        inside = {size: time_s for size, time_s in seconds.items() if _SIZES[0] <= size <= _SIZES[-1]}
        x = np.array([np.log2(size) - POWERS[0] for size in inside]) + 0.5  # the middle of a column
        y = np.log2(list(inside.values())) - np.interp(x, _AT_SIZES, expected)  # a size may lie between two columns
        curves.append(_RatioCurve(x, y, MEASURED_COLOR, is_dashed=False, width_px=1.6, was_measured=True))
    return curves


class _ChoiceBands(NamedTuple):
    """What NCCL chooses, as ranges of sizes: the first column of each, its number of columns, and the choice."""

    left: FloatArray
    width: FloatArray
    pairs: list[Pair]


def _bands(chosen: list[ProtocolRow]) -> _ChoiceBands:
    pairs = []
    widths = []
    for pair, rows in groupby(chosen, lambda row: (row.algorithm, row.protocol)):
        pairs.append(pair)
        widths.append(len(list(rows)))
    width = np.array(widths)
    left = np.cumsum(width) - width  # the columns before a band
    return _ChoiceBands(left, width, pairs)


def draw(now: Now) -> list[Drawing]:
    """Times divided by NCCL's lowest estimate, by size; behind them what it chooses, below them its channels."""
    choices = _choices(now)
    estimates = _estimates(choices)
    times = _times(now, choices)
    # The axis follows from the times of the choice. Estimates of other algorithms are cut off at its end.
    all_y = np.concatenate([curve.y for curve in times])
    low = np.clip(np.floor(all_y.min()), _LEAST_LOW, _MOST_LOW)
    high = np.clip(np.ceil(all_y.max()), _LEAST_HIGH, _MOST_HIGH)
    bands = _bands(choices.chosen)
    fills = [f"{color_of(*pair)}{_BAND_OPACITY}" for pair in bands.pairs]
    gpus = f"{now.gpus_per_node}"
    if now.num_nodes > 1:
        gpus = f"{now.num_nodes} × {now.gpus_per_node}"
    machine = f"{gpus} {now.gpu.upper().replace('_', ' ')}"
    column = _column(now)
    row = choices.chosen[column]
    choice = f"{row.algorithm} {PROTOCOL_NAMES[row.protocol]}"  # as the picture names it
    height = _HEAD_ROWS + _HEIGHT + _CHANNEL_ROWS
    marks = [_marks(curve, low, high, _SIZE_PX[1] / height) for curve in times if curve.was_measured]
    lines = [_line(curve, low, high) for curve in [*estimates, *times] if not curve.was_measured]
    drawing = Plot(
        title=f"{choice} at {now.message}",
        deck=f"{now.collective} on {machine}, NCCL {now.version}",
        x_label="buffer size; the number of channels is above the axis",
        y_label="time ÷ NCCL's lowest estimate",
        width=len(_SIZES),
        height=height,
        size_px=_SIZE_PX,
        rects=(
            Rects(bands.left, 0, fills, bands.width, _HEAD_ROWS + _HEIGHT),
            Rects([column], [0], [_COLUMN_FILL], 1, height, edge="none"),
            *marks,
        ),
        lines=lines,
        texts=_texts(choices.chosen, bands),
        x_ticks=[(tick + 0.5, bytes_words(_SIZES[tick])) for tick in range(0, len(_SIZES), _TICK_EVERY)],
        y_ticks=[(_y(power, low, high), _ratio_words(power)) for power in np.arange(low, high + 1)],
        legend=_legend(now, choices),
    )
    return [drawing]


def _y(power: Any, low: float, high: float) -> Any:
    """Return the height of a ratio, given as its logarithm to base 2, in rows from the top."""
    return _HEAD_ROWS + (high - power) * _HEIGHT / (high - low)


def _ratio_words(power: float) -> str:
    if power < 0:
        return f"1/{2**-power:.0f}"
    return f"{2**power:.0f}"


def _line(curve: _RatioCurve, low: float, high: float) -> Lines:
    """Return the pieces of a line from each point to the next, without what lies below `low` or above `high`."""
    y0 = curve.y[:-1]
    rise = np.diff(curve.y)
    is_level = rise == 0
    divisor = np.where(is_level, 1.0, rise)
    # Where each piece crosses the two limits, as a share of its length: from 0, its beginning, to 1, its end.
    at_low = (low - y0) / divisor
    at_high = (high - y0) / divisor
    enters = np.clip(np.minimum(at_low, at_high), 0, 1)
    leaves = np.clip(np.maximum(at_low, at_high), 0, 1)
    # A level piece is inside or outside as a whole, and the limits are inside.
    is_inside = (low <= y0) & (y0 <= high)
    enters = np.where(is_level, 0.0, enters)
    leaves = np.where(is_level, 1.0, leaves)
    shown = np.where(is_level, is_inside, leaves > enters)
    x0 = curve.x[:-1]
    width = np.diff(curve.x)
    return Lines(
        (x0 + enters * width)[shown],
        _y(y0 + enters * rise, low, high)[shown],
        (x0 + leaves * width)[shown],
        _y(y0 + leaves * rise, low, high)[shown],
        curve.color,
        curve.is_dashed,
        width_px=curve.width_px,
    )


def _marks(curve: _RatioCurve, low: float, high: float, row_px: float) -> Rects:
    """Return a small square for each measurement between `low` and `high`."""
    shown = (curve.y >= low) & (curve.y <= high)
    column_px = _SIZE_PX[0] / len(_SIZES)
    width = _MARK_PX / column_px
    height = _MARK_PX / row_px
    x = curve.x[shown] - width / 2
    y = _y(curve.y[shown], low, high) - height / 2
    return Rects(x, y, curve.color, width=width, height=height, edge="none")


def _texts(chosen: list[ProtocolRow], bands: _ChoiceBands) -> tuple[Texts, ...]:
    """Return the channels at each size, and the names of the bands that are wide enough."""
    numbers = [f"{row.channels:.0f}" for row in chosen]
    channels = Texts(_AT_SIZES, _CHANNEL_Y, numbers, INK)
    is_named = bands.width > 1  # a single column is too narrow for a name
    middles = (bands.left + bands.width / 2)[is_named]
    named = [pair for pair, has_name in zip(bands.pairs, is_named, strict=True) if has_name]
    algorithms = Texts(middles, _ALGORITHM_Y, [algorithm for algorithm, _ in named], INK)
    protocols = Texts(middles, _PROTOCOL_Y, [PROTOCOL_NAMES[protocol] for _, protocol in named], INK)
    return channels, algorithms, protocols


def _legend(now: Now, choices: _NcclChoices) -> list[Key]:
    """Return the keys: a colour per protocol, where LL also explains whose estimates the colours are."""
    algorithms = {algorithm for algorithm, _ in choices.eligible}
    keys = []
    for protocol, color in PROTOCOL_COLORS.items():
        label = PROTOCOL_NAMES[protocol]
        if protocol == "ll":
            trees = " (trees are dashed)" if "tree" in algorithms else ""
            label = f"NCCL's estimate: {label}{trees}"
        keys.append(Key(label, color, line="solid"))
    if any(algorithm.startswith("nvls") for algorithm in algorithms):
        keys.append(Key("NVLS", NVLS_COLOR, line="solid"))
    keys.append(Key("our model of the choice", INK, line="solid"))
    if any(_public_s(now.gpu, now.gpus_per_node, now.num_nodes, now.collective).values()):
        keys.append(Key("measured on public machines", MEASURED_COLOR))
    return keys


def _column(now: Now) -> int:
    """Return the column of the size that is set."""
    return _SIZES.index(parse_bytes("message", now.message))


def _may_have_nvls(now: Now) -> bool:
    """Return whether NVLS, which is for one node, or NVLSTree, which is for several, can be used."""
    model = _choices(now).model
    return not all(model.why_not(now.collective, name, "simple") for name in ("nvls", "nvls_tree"))


def report(now: Now) -> list[str]:
    """What NCCL takes at this size, what it expects, what the model and public machines say, and what is not known."""
    choices = _choices(now)
    column = _column(now)
    size = _SIZES[column]
    row = choices.chosen[column]
    ranked = sorted((rows[column] for rows in choices.eligible.values()), key=lambda row: row.nccl_s)
    others_s: dict[str, float] = {}  # by the words that come before the time
    if len(ranked) > 1:
        runner_up = ranked[1]
        others_s[f"next: {runner_up.algorithm} {runner_up.protocol},"] = runner_up.nccl_s
    for name, seconds in _public_s(now.gpu, now.gpus_per_node, now.num_nodes, now.collective).items():
        if size in seconds:
            others_s[f"{name}:"] = seconds[size]
    expected, modelled, *others = times_in_one_unit(row.nccl_s, row.time_s, *others_s.values())
    num_channels = choices.model.num_channels
    lines = [
        f"{now.message}: {row.algorithm} {row.protocol} on {row.channels:.0f} of {num_channels} channels",
        f"NCCL expects {expected}; our estimate, which includes launch, hops and tails, is {modelled}",
    ]
    lines += [f"{label} {time}" for label, time in zip(others_s, others, strict=True)]
    return [*lines, *choices.model.notes]


def nccl() -> Explorer:
    """Return controls over NCCL's choice by size, the time that it expects, our estimate, and measured times."""
    gpus = tuple((name.upper().replace("_", " "), name) for name in GPUS)
    settings = (
        Setting("gpu", "h100", gpus, "GPU"),
        Setting("gpus_per_node", 8, Steps((2, 4, 8)), "GPUs per node"),
        Setting("num_nodes", 1, Steps((1, 2, 4, 8, 16, 32, 64)), "nodes"),
        Setting("collective", "allreduce", ("allreduce", "allgather", "reduce_scatter", "broadcast"), "collective"),
        Setting("message", "1 MiB", sizes(POWERS[0], POWERS[-1]), "message"),
        Setting("nvls", True, (), "NVLS", _may_have_nvls),
        Setting("nics", 8, Steps((1, 2, 4, 8)), "network cards per node", lambda now: now.num_nodes > 1),
        Setting("version", "2.30", VERSIONS, "NCCL"),
    )
    return Explorer(settings, draw, report, PRESETS)
