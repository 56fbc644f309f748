"""The explorer of notebook 06: what NCCL chooses at each size, and by how much."""

from __future__ import annotations

from typing import Any

from ...common.units import parse_bytes, percent_words, time_words
from ...drawing.drawing import Drawing
from ...drawing.grid import draw_grid
from ...drawing.palette import RANKS, WorkLook
from ...panel.explorer import Explorer, Now, Setting, Steps, sizes
from .constants import COLLECTIVES, GPUS
from .model import Estimate, Model

_SIZES = sizes(12, 30)
PRESETS: dict[str, dict[str, Any]] = {
    "16 nodes": {"num_nodes": 16},
    "eight L40S, over PCIe": {"gpu": "l40s"},
    "allgather": {"collective": "allgather", "size": "64 MiB"},
}


def ranked(now: Now, size: str) -> list[Estimate]:
    """Return what NCCL compares, its choice first."""
    model = Model(now.gpu, now.gpus_per_node, now.num_nodes)
    return sorted(model.compare(now.collective, parse_bytes("size", size)), key=lambda estimate: estimate.nccl_s)


def draw(now: Now) -> list[Drawing]:
    """Two cells for each size, in the hue of NCCL's choice; the title has them all if there is one change."""
    looks: dict[str, WorkLook] = {}
    changes = []  # of the choice from one size to the next
    before = ""
    margins = []
    errors = []
    for size in _SIZES:
        choice, second, *_ = ranked(now, size)
        longer = second.nccl_s / choice.nccl_s - 1
        hue = looks.setdefault(choice.words, WorkLook(RANKS[len(looks)], False)).hue
        if before not in ("", choice.words):
            changes.append(f"{before} below {size}, then {choice.words}")
        before = choice.words
        margins.append((hue, f"{round(100 * longer)}"))
        errors.append((hue, f"{round(100 * (choice.time_s / choice.nccl_s - 1))}".replace("-", "−")))
        if size == now.size:
            here = f"{choice.words}, {percent_words(longer)} before {second.words}"
    title = f"NCCL: {changes[0] if len(changes) == 1 else here}"
    rows = {
        "NCCL's choice, and by how many % the second best takes longer": margins,
        "by how many % it takes longer than NCCL expects, by our model": errors,
    }
    deck = f"{now.collective}, {now.num_nodes} × {now.gpus_per_node} {now.gpu.upper()}; {now.size}: {here}"
    return [draw_grid(rows, _SIZES, now.size, looks, title, deck)]


def report(now: Now) -> list[str]:
    """What each choice takes, NCCL's first."""
    return [
        f"{one.words}: NCCL expects {time_words(one.nccl_s)}, our model {time_words(one.time_s)}"
        for one in ranked(now, now.size)
    ]


def nccl() -> Explorer:
    """Return controls over a cluster and a collective, and which algorithm and protocol NCCL chooses at each size."""
    settings = (
        Setting("gpu", "h100", tuple(GPUS), "GPU"),
        Setting("gpus_per_node", 8, range(2, 9), "GPUs per node"),
        Setting("num_nodes", 1, Steps((1, 2, 3, 4, 8, 16, 32, 64, 128)), "nodes"),
        Setting("collective", "allreduce", COLLECTIVES, "collective"),
        Setting("size", "1 MiB", _SIZES, "size"),
    )
    return Explorer(settings, draw, report, PRESETS)
