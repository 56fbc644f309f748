"""The explorer of notebook 06: which algorithm and protocol NCCL chooses at each size, and how long that takes."""

from __future__ import annotations

from typing import Any

from ...common.units import parse_bytes, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, Steps, sizes
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ..nccl import GPUS, Model

PRESETS: dict[str, dict[str, Any]] = {
    "a ring, three protocols": {"gpu": "a100"},
    "16 nodes: trees first": {"num_nodes": 16},
    "one network card": {"num_nodes": 4, "nics": 1},
    "over PCIe": {"gpu": "l40s"},
}


def _model(now: Now) -> Model:
    return Model(now.gpu, now.gpus_per_node, now.num_nodes, now.version, nics=now.nics)


def draw(now: Now) -> list[Drawing]:
    """The times that NCCL compares."""
    estimates = _model(now).compare(now.collective, parse_bytes("message", now.message))
    expected_s = {estimate.words: estimate.nccl_s for estimate in estimates}
    title = f"NCCL {now.version}: {now.collective} of {now.message}"
    return [draw_ranking(expected_s, title=title, deck="the times that NCCL expects; it runs the shortest")]


def report(now: Now) -> list[str]:
    """The choice, its time as NCCL and our model estimate it, and the limits of the model."""
    model = _model(now)
    choice = model.choose(now.collective, parse_bytes("message", now.message))
    nccl, ours = times_in_one_unit(choice.nccl_s, choice.time_s)
    return [
        f"{now.message}: {choice.words} on {choice.channels} of {model.num_channels} channels",
        f"NCCL expects {nccl}; our estimate, which includes launch, hops and tails, is {ours}",
        *model.notes,
    ]


def nccl() -> Explorer:
    """Return controls over NCCL's choice by size, the times that it expects, and our estimates."""
    gpus = tuple((name.upper().replace("_", " "), name) for name in GPUS)
    settings = (
        Setting("gpu", "h100", gpus, "GPU"),
        Setting("gpus_per_node", 8, Steps((2, 4, 8)), "GPUs per node"),
        Setting("num_nodes", 1, Steps((1, 2, 4, 8, 16, 32, 64)), "nodes"),
        Setting("nics", 8, Steps((1, 2, 4, 8)), "network cards per node", lambda now: now.num_nodes > 1),
        Setting("collective", "allreduce", ("allreduce", "allgather", "reduce_scatter", "broadcast"), "collective"),
        Setting("message", "1 MiB", sizes(10, 30), "message"),
        Setting("version", "2.30", ("2.20", "2.22", "2.27", "2.29", "2.30"), "NCCL"),
    )
    return Explorer(settings, draw, report, PRESETS)
