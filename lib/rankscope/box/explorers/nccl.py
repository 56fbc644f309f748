"""The explorer of notebook 06: which algorithm and protocol NCCL takes at each size, and what that takes."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from ...common.units import bytes_words, parse_bytes, times_in_one_unit
from ...explorers.explorer import ALL, Explorer, Now, Setting, Steps, sizes
from ...explorers.opening import shows
from ...figures.marks import Drawing, FloatArray, Key, Lines, Rects, Texts
from ...figures.palette import INK
from ..nccl import GPUS, Model
from ..nccl.public import public

POWERS = range(10, 34)
VERSIONS = ("2.20", "2.22", "2.27", "2.29", "2.30")
SETTINGS = (
    Setting("gpu", "h100", tuple((name.upper().replace("_", " "), name) for name in GPUS), "GPU"),
    Setting("gpus_per_node", 8, Steps((2, 4, 8)), "GPUs per node"),
    Setting("num_nodes", 1, Steps((1, 2, 4, 8, 16, 32, 64)), "nodes"),
    Setting("nics", 8, Steps((1, 2, 4, 8)), "network cards of a node"),
    Setting("collective", "allreduce", ("allreduce", "allgather", "reduce_scatter", "broadcast"), "collective"),
    Setting("version", "2.30", VERSIONS, "NCCL"),
    Setting("nvls", True, (False, True), "NVLS"),
    Setting("message", "1 MiB", sizes(POWERS[0], POWERS[-1]), "message"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "a ring, three protocols": {"gpu": "a100"},
    "without NVLS": {"nvls": False},
    "16 nodes: trees first": {"num_nodes": 16},
    "one network card": {"num_nodes": 4, "nics": 1},
    "over PCIe": {"gpu": "l40s"},
}
_COLORS = {"ll": "#0072b2", "ll128": "#3d9be0", "simple": "#b34700"}
_NVLS_COLOR = "#00805a"
_PUBLIC_COLOR = "#7a3e9d"
_BAND_OPACITY = "26"  # of what NCCL chooses, behind the lines: 15 % in hexadecimal
_HEIGHT = 20.0  # of the lines, in rows
_CHANNEL_ROWS = 2.0  # below them
_SIZES = tuple(1 << power for power in POWERS)


def _color(algorithm: str, protocol: str) -> str:
    return _NVLS_COLOR if algorithm.startswith("nvls") else _COLORS[protocol]


@cache
def _model(gpu: str, gpus: int, nodes: int, nics: int, version: str) -> Model:
    return Model(gpu, gpus, nodes, tuple(map(int, version.split("."))), nics=nics if nodes > 1 else None)


@cache
def _public_s(gpu: str, gpus: int, nodes: int, collective: str) -> dict[str, dict[int, float]]:
    """Return the seconds by size of public machines like it, by name."""
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
    rows = {}
    for (algorithm, protocol), columns in model.compared(collective, _SIZES).items():
        if nvls or not algorithm.startswith("nvls"):
            by_size = zip(*columns, strict=True)
            rows[algorithm, protocol] = [ProtocolRow(algorithm, protocol, *figures) for figures in by_size]
    return rows


class _NcclChoices(NamedTuple):
    """The model, its rows by what NCCL may choose, and the row that it chooses at each size."""

    model: Model
    eligible: dict[Pair, list[ProtocolRow]]
    chosen: list[ProtocolRow]


def _choices(now: Now) -> _NcclChoices:
    model = _model(now.gpu, now.gpus_per_node, now.num_nodes, now.nics, now.version)
    eligible = _rows(model, now.collective, now.nvls)
    chosen = [min(rows, key=lambda row: row.nccl_s) for rows in zip(*eligible.values(), strict=True)]
    return _NcclChoices(model, eligible, chosen)


class _ChoiceCurve(NamedTuple):
    """A line of the picture: x in sizes from the left, y the logarithm of seconds."""

    x: FloatArray
    y: FloatArray
    color: str
    is_dashed: bool
    width_px: float


def _curves(now: Now, choices: _NcclChoices) -> list[_ChoiceCurve]:
    """Return a line for each algorithm and protocol, one for what the model expects, and one per public machine."""
    at_sizes = np.arange(len(_SIZES)) + 0.5
    curves = []
    for (algorithm, protocol), rows in choices.eligible.items():
        y = np.log10([row.nccl_s for row in rows])
        curves.append(_ChoiceCurve(at_sizes, y, _color(algorithm, protocol), algorithm == "tree", 1.2))
    curves.append(_ChoiceCurve(at_sizes, np.log10([row.time_s for row in choices.chosen]), INK, False, 2.2))
    for seconds in _public_s(now.gpu, now.gpus_per_node, now.num_nodes, now.collective).values():
        inside = {size: time_s for size, time_s in seconds.items() if _SIZES[0] <= size <= _SIZES[-1]}
        x = np.array([np.log2(size) - POWERS[0] for size in inside]) + 0.5
        curves.append(_ChoiceCurve(x, np.log10(list(inside.values())), _PUBLIC_COLOR, True, 1.6))
    return curves


class _ChoiceBands(NamedTuple):
    """What NCCL chooses, as ranges of sizes: where they begin, how wide they are, and what they stand for."""

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
    return _ChoiceBands(np.cumsum(width) - width, width, pairs)


def picture(now: Now) -> Drawing:
    """Time by size of all that NCCL compares; behind it what it chooses, below it the channels of that."""
    choices = _choices(now)
    curves = _curves(now, choices)
    low = np.floor(min(curve.y.min() for curve in curves if len(curve.y)))
    high = np.ceil(max(curve.y.max() for curve in curves if len(curve.y)))
    scale = _HEIGHT / (high - low)
    drawn = []
    for curve in curves:
        if len(curve.x) > 1:
            x = curve.x
            y = (high - curve.y) * scale
            width_px = curve.width_px
            line = Lines(x[:-1], y[:-1], x[1:], y[1:], curve.color, curve.is_dashed, width_px=width_px, joined=True)
            drawn.append(line)
    bands = _bands(choices.chosen)
    fills = [f"{_color(*pair)}{_BAND_OPACITY}" for pair in bands.pairs]
    gpus = f"{now.gpus_per_node}"
    if now.num_nodes > 1:
        gpus = f"{now.num_nodes} × {now.gpus_per_node}"
    machine = f"{gpus} {now.gpu.upper().replace('_', ' ')}"
    row = choices.chosen[_place(now)]
    return Drawing(
        f"{now.collective} on {machine}, NCCL {now.version}: {row.algorithm} {row.protocol} at {now.message}",
        "size of the buffer; above it the channels that are used",
        "time",
        len(_SIZES),
        _HEIGHT + _CHANNEL_ROWS,
        (560.0, 340.0),
        rects=(
            Rects(bands.left, 0, fills, bands.width, _HEIGHT),
            Rects([_place(now)], [0], ["#22222218"], 1, _HEIGHT + _CHANNEL_ROWS, edge="none"),
        ),
        lines=drawn,
        texts=_texts(choices.chosen, bands),
        x_ticks=[(k + 0.5, bytes_words(_SIZES[k])) for k in range(0, len(_SIZES), 5)],
        y_ticks=[((high - k) * scale, *times_in_one_unit(10.0**k)) for k in np.arange(low, high + 1)],
        legend=_legend(now, choices),
    )


def _texts(chosen: list[ProtocolRow], bands: _ChoiceBands) -> tuple[Texts, ...]:
    """Return the channels at each size, and the names of the bands that are wide enough."""
    numbers = [f"{row.channels:.0f}" for row in chosen]
    channels = Texts(np.arange(len(_SIZES)) + 0.5, _HEIGHT + 1.1, numbers, INK, 10.0)
    is_named = bands.width > 1
    named = [pair for pair, width in zip(bands.pairs, bands.width, strict=True) if width > 1]
    middles = (bands.left + bands.width / 2)[is_named]
    algorithms = Texts(middles, 0.7, [algorithm for algorithm, _ in named], INK, 11.0)
    protocols = Texts(middles, 1.5, [protocol for _, protocol in named], INK, 11.0)
    return channels, algorithms, protocols


def _legend(now: Now, choices: _NcclChoices) -> list[Key]:
    algorithms = {algorithm for algorithm, _ in choices.eligible}
    keys = [Key(f"NCCL expects, {name}", color, line="solid") for name, color in _COLORS.items()]
    if "tree" in algorithms:
        keys.append(Key("of a tree", _COLORS["ll"], line="dashed"))
    if any(algorithm.startswith("nvls") for algorithm in algorithms):
        keys.append(Key("with NVLS", _NVLS_COLOR, line="solid"))
    keys.append(Key("a machine, by the model", INK, line="solid"))
    if any(_public_s(now.gpu, now.gpus_per_node, now.num_nodes, now.collective).values()):
        keys.append(Key("public machines", _PUBLIC_COLOR, line="dashed"))
    return keys


def _place(now: Now) -> int:
    return _SIZES.index(parse_bytes("message", now.message))


def without_effect(now: Now) -> dict[str, str]:
    """The network's cards within a node, and NVLS if NCCL has none."""
    model = _choices(now).model
    reasons = {}
    if now.num_nodes == 1:
        reasons["nics"] = "nothing leaves the node"
    why_not_nvls = model.why_not(now.collective, "nvls", "simple")
    why_not_tree = model.why_not(now.collective, "nvls_tree", "simple")
    if why_not_nvls and why_not_tree:
        reasons["nvls"] = why_not_tree if now.num_nodes > 1 else why_not_nvls
    return reasons


def report(now: Now) -> list[str]:
    """What NCCL takes at this size, what it expects, what the model and public machines say, and what is not known."""
    choices = _choices(now)
    place = _place(now)
    size = _SIZES[place]
    row = choices.chosen[place]
    ranked = sorted((rows[place] for rows in choices.eligible.values()), key=lambda row: row.nccl_s)
    runners_up = ranked[1:2]
    machines = _public_s(now.gpu, now.gpus_per_node, now.num_nodes, now.collective)
    measured = {name: seconds[size] for name, seconds in machines.items() if size in seconds}
    all_s = [row.nccl_s, row.time_s, *[runner_up.nccl_s for runner_up in runners_up], *measured.values()]
    expected, taken, *others = times_in_one_unit(*all_s)
    num_channels = choices.model.num_channels
    lines = [
        f"{now.message}: {row.algorithm} {row.protocol} on {row.channels:.0f} of {num_channels} channels",
        f"NCCL expects {expected}; with launch, hops and tails a machine takes {taken}",
    ]
    for runner_up in runners_up:
        lines.append(f"next: {runner_up.algorithm} {runner_up.protocol}, {others.pop(0)}")
    lines += [f"{name}: {time}" for name, time in zip(measured, others, strict=True)]
    return [*lines, *choices.model.notes]


ON_THE_SITE = {
    "gpu": ("a100", "h100", "b200", "l40s"),
    "gpus_per_node": (2, 4, 8),
    "num_nodes": (1, 2, 4, 8, 16),
    "collective": ("allreduce", "allgather"),
    "nvls": ALL,
    "message": ("1 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"),
}


@shows(SETTINGS, title="What NCCL chooses, and what it takes", notebook="06_what_nccl_chooses", on_the_site=ON_THE_SITE)
def nccl() -> Explorer:
    """Return controls over NCCL's choice by size, what it expects, and what machines take."""
    return Explorer(SETTINGS, {"picture": picture}, report, PRESETS, without_effect)
