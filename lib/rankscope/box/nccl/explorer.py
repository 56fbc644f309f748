"""The explorer of notebook 06: what NCCL chooses at each size, and by how much."""

from __future__ import annotations

from typing import Any

from ...common.units import parse_bytes, time_words
from ...drawing.drawing import Drawing
from ...drawing.grid import draw_grid
from ...drawing.palette import RANKS, WorkLook
from ...panel.explorer import Explorer, Now, Setting, Steps, sizes
from ..machines import PREFIX, is_sick, provenances
from ..profile import Profile
from .constants import COLLECTIVES, GPUS
from .model import Model

_SIZES = sizes(10, 30)
PRESETS: dict[str, dict[str, Any]] = {
    "16 nodes": {"num_nodes": 16},
    "eight L40S, over PCIe": {"gpu": "l40s"},
    "allgather": {"collective": "allgather"},
}


def draw(now: Now) -> list[Drawing]:
    """Two cells for each size: the upper one in the hue of NCCL's choice, the lower one, too, if it was measured."""
    name = f"{now.gpu}_{now.gpus_per_node}".replace("a100", "a100_80gb")
    about = provenances().get(name)
    measured_s: dict[int, float] = {}
    if now.num_nodes == 1 and about and not is_sick(about):
        measured_s = Profile.load(PREFIX + name).native_s(now.collective)
    model = Model(now.gpu, now.gpus_per_node, now.num_nodes)
    looks: dict[str, WorkLook] = {}
    starts = []  # sizes at which the choice changes
    last = ""
    margins = []
    percents = []  # by which the choice takes longer than NCCL expects
    errors = []
    for size in _SIZES:
        num_bytes = parse_bytes("size", size)
        choice, second, *_ = model.compare(now.collective, num_bytes)
        hue = looks.setdefault(choice.words, WorkLook(RANKS[len(looks)], False)).hue
        if choice.words != last:
            starts.append(size)
            last = choice.words
        margins.append((hue, f"{100 * (second.nccl_s / choice.nccl_s - 1):.0f}"))
        took_s = measured_s.get(num_bytes, choice.time_s)
        percents.append(round(100 * (took_s / choice.nccl_s - 1)))
        errors.append((hue if num_bytes in measured_s else "rule", str(percents[-1]).replace("-", "−")))
    rows = [
        ("NCCL's choice, and its lead over the second best [%]", margins),
        ("slower (+) or faster (−) than NCCL expects [%]; grey: our model", errors),
    ]
    title = f"{next(iter(looks))} below {starts[1]}, {last} from {starts[-1]}"
    ends = sorted({min(percents), max(percents)})
    span = " to ".join(f"{percent:+}" for percent in ends).replace("-", "−")
    deck = f"{now.collective} on {now.num_nodes} × {now.gpus_per_node} {now.gpu.upper()}: {span} % off NCCL's estimate"
    return [draw_grid(rows, _SIZES, now.size, looks, title, deck)]


def report(now: Now) -> list[str]:
    """What each choice takes, NCCL's first."""
    estimates = Model(now.gpu, now.gpus_per_node, now.num_nodes).compare(now.collective, parse_bytes("size", now.size))
    return [
        f"{one.words}: NCCL expects {time_words(one.nccl_s)}, our model {time_words(one.time_s)}" for one in estimates
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
