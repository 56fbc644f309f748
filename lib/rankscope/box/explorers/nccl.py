"""The explorer of notebook 17: which algorithm and protocol NCCL takes at each size, and what that takes."""

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
    Setting("num_nodes", 1, Steps((1, 2, 4, 16, 64)), "nodes"),
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
_GREEN, _PUBLIC = "#00805a", "#7a3e9d"
_HIGH, _ROWS, _SIZES = 20.0, 2.0, tuple(1 << power for power in POWERS)


def _color(algorithm: str, protocol: str) -> str:
    return _GREEN if algorithm.startswith("nvls") else _COLORS[protocol]


@cache
def _model(gpu: str, gpus: int, nodes: int, nics: int, version: str) -> Model:
    return Model(gpu, gpus, nodes, tuple(map(int, version.split("."))), nics=nics if nodes > 1 else None)


@cache
def _found(gpu: str, gpus: int, nodes: int, collective: str) -> dict[str, dict[int, float]]:
    return {name: one.native_s(collective) for name, one in public(Model(gpu, gpus, nodes)).items()}


class ProtocolRow(NamedTuple):
    """An algorithm and a protocol at a size: how many channels, what NCCL expects and what a machine takes."""

    algorithm: str
    protocol: str
    channels: float
    nccl_s: float
    time_s: float


@cache
def _rows(model: Model, collective: str, nvls: bool) -> dict[tuple[str, str], list[ProtocolRow]]:
    return {
        pair: [ProtocolRow(*pair, *one) for one in zip(*columns, strict=True)]
        for pair, columns in model.compared(collective, _SIZES).items()
        if nvls or not pair[0].startswith("nvls")
    }


def _shown(now: Now) -> tuple[Model, dict[tuple[str, str], list[ProtocolRow]], list[ProtocolRow]]:
    """The model, its rows of the collective by what NCCL may choose, and those that it does, by size."""
    model = _model(now.gpu, now.gpus_per_node, now.num_nodes, now.nics, now.version)
    can = _rows(model, now.collective, now.nvls)
    return model, can, [min(rows, key=lambda row: row.nccl_s) for rows in zip(*can.values(), strict=True)]


def picture(now: Now) -> Drawing:
    """Time by size of all that NCCL compares; behind it what it chooses, below it the channels of that."""
    _, can, chosen = _shown(now)
    found = _found(now.gpu, now.gpus_per_node, now.num_nodes, now.collective).values()
    lines = [(*_line([one.nccl_s for one in can[pair]]), _color(*pair), pair[0] == "tree", 1.2) for pair in can]
    lines.append((*_line([one.time_s for one in chosen]), INK, False, 2.2))
    for points in found:
        at = {np.log2(size) - POWERS[0]: s for size, s in points.items() if _SIZES[0] <= size <= _SIZES[-1]}
        lines.append((np.array(list(at)) + 0.5, np.log10(list(at.values())), _PUBLIC, True, 1.6))
    low = np.floor(min(y.min() for _, y, *_ in lines if len(y)))
    high = np.ceil(max(y.max() for _, y, *_ in lines if len(y)))
    scale = _HIGH / (high - low)
    drawn = [
        Lines(x[:-1], (high - y[:-1]) * scale, x[1:], (high - y[1:]) * scale, color, dashed, width_px=px, joined=True)
        for x, y, color, dashed, px in lines
        if len(x) > 1
    ]
    bands = [(pair, len(list(rows))) for pair, rows in groupby(one[:2] for one in chosen)]
    wide = np.array([count for _, count in bands])
    left = np.cumsum(wide) - wide
    fills = [f"{_color(*pair)}26" for pair, _ in bands]
    roomy = [pair for pair, count in bands if count > 1]
    middles = (left + wide / 2)[wide > 1]
    channels = Texts(np.arange(len(_SIZES)) + 0.5, _HIGH + 1.1, [f"{one.channels:.0f}" for one in chosen], INK, 10.0)
    names = [Texts(middles, 0.7 + 0.8 * k, [pair[k] for pair in roomy], INK, 11.0) for k in (0, 1)]
    gpus = f"{now.num_nodes} × {now.gpus_per_node}" if now.num_nodes > 1 else f"{now.gpus_per_node}"
    keys = [
        *[Key(f"NCCL expects, {name}", color, line="solid") for name, color in _COLORS.items()],
        *[Key("of a tree", _COLORS["ll"], line="dashed")] * any(name == "tree" for name, _ in can),
        *[Key("with NVLS", _GREEN, line="solid")] * any(name.startswith("nvls") for name, _ in can),
        Key("a machine, by the model", INK, line="solid"),
        *[Key("public machines", _PUBLIC, line="dashed")] * any(found),
    ]
    return Drawing(
        f"{now.collective} on {gpus} {now.gpu.upper().replace('_', ' ')}, NCCL {now.version}: {_said(now, chosen)}",
        "size of the buffer; above it the channels that are used",
        "time",
        len(_SIZES),
        _HIGH + _ROWS,
        (560.0, 340.0),
        rects=(
            Rects(left, 0, fills, wide, _HIGH),
            Rects([_place(now)], [0], ["#22222218"], 1, _HIGH + _ROWS, edge="none"),
        ),
        lines=drawn,
        texts=(channels, *names),
        x_ticks=[(k + 0.5, bytes_words(_SIZES[k])) for k in range(0, len(_SIZES), 5)],
        y_ticks=[((high - k) * scale, *times_in_one_unit(10.0**k)) for k in np.arange(low, high + 1)],
        legend=keys,
    )


def _line(seconds: Any) -> tuple[FloatArray, FloatArray]:
    return np.arange(len(_SIZES)) + 0.5, np.log10(np.asarray(seconds, float))


def _place(now: Now) -> int:
    return _SIZES.index(parse_bytes("message", now.message))


def _said(now: Now, chosen: list[ProtocolRow]) -> str:
    row = chosen[_place(now)]
    return f"{row.algorithm} {row.protocol} at {now.message}"


def without_effect(now: Now) -> dict[str, str]:
    """The network's cards within a node, and NVLS where NCCL has none."""
    model, _, _ = _shown(now)
    reasons = {"nics": "nothing leaves the node"} if now.num_nodes == 1 else {}
    why = [model.why_not(now.collective, name, "simple") for name in ("nvls", "nvls_tree")]
    return reasons | ({"nvls": why[now.num_nodes > 1]} if all(why) else {})


def report(now: Now) -> list[str]:
    """What NCCL takes at this size, what it expects, what the model and public machines say, and what is not known."""
    model, can, chosen = _shown(now)
    size, row = _SIZES[_place(now)], chosen[_place(now)]
    rest = sorted((rows[_place(now)] for rows in can.values()), key=lambda one: one.nccl_s)
    found = _found(now.gpu, now.gpus_per_node, now.num_nodes, now.collective)
    measured = {name: points[size] for name, points in found.items() if size in points}
    seconds = [row.nccl_s, row.time_s, *[second.nccl_s for second in rest[1:2]], *measured.values()]
    expected, taken, *others = times_in_one_unit(*seconds)
    lines = [
        f"{now.message}: {row.algorithm} {row.protocol} on {row.channels:.0f} of {model.num_channels} channels",
        f"NCCL expects {expected}; with launch, hops and tails a machine takes {taken}",
    ]
    for second in rest[1:2]:
        lines.append(f"next: {second.algorithm} {second.protocol}, {others.pop(0)}")
    lines += [f"{name}: {time}" for name, time in zip(measured, others, strict=True)]
    return [*lines, *model.notes]


ON_THE_SITE = {
    "gpu": ("a100", "h100", "b200", "l40s"),
    "gpus_per_node": (2, 4, 8),
    "num_nodes": (1, 2, 4, 16),
    "collective": ("allreduce", "allgather"),
    "nvls": ALL,
    "message": ("64 KiB", "1 MiB", "64 MiB"),
}


@shows(SETTINGS, title="What NCCL chooses, and what it takes", notebook="17_nccls_choice", on_the_site=ON_THE_SITE)
def nccl() -> Explorer:
    """Return controls over NCCL's choice by size, what it expects, and what machines take."""
    return Explorer(SETTINGS, {"picture": picture}, report, PRESETS, without_effect)
