"""An explorer of notebook 07: a step of DataParallel above one of DDP, and the traffic of GPU 0's port."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...cluster import Link
from ...common.units import decimal_words, time_words
from ...explorers.explorer import Explorer, Now, Setting, Steps
from ...figures.marks import Drawing
from ...figures.timelines import draw_timeline
from ...timeline import Timeline
from ..data_parallel.model import StepCosts, StepSizes, simulate, traffic
from ..ddp.architectures import architecture_step
from .ddp import FLOPS_PER_S

# Input and output bytes of one sample: a float32 image or int64 tokens, and float32 scores of each class or next token.
SAMPLE_BYTES = {"ResNet-50": (3 * 224 * 224 * 4, 1000 * 4), "GPT-2": (1024 * 8, 1024 * 50257 * 4)}
# DataParallel copies from GPU to GPU, so this explorer needs a link's own bandwidth. It has no list of
# networks, because those are times of allreduces. DDP's ring runs over the same link, for a fair comparison.
_LATENCY_S = 10e-6
SETTINGS = (
    Setting("model", "ResNet-50", SAMPLE_BYTES, "model"),
    Setting("num_gpus", 4, range(2, 9), "GPUs"),
    Setting("batch_size", 64, Steps((8, 9, 16, 32, 64, 128, 256, 512)), "samples for all GPUs"),
    Setting("gb_per_s", 12, Steps((1, 2, 5, 12, 25, 50, 100, 200)), "bandwidth [GB/s]"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "8 GPUs": {"num_gpus": 8},
    "NVLink": {"gb_per_s": 200},
    "GPT-2: large outputs": {"model": "GPT-2"},
    "9 samples, 8 GPUs": {"num_gpus": 8, "batch_size": 9},
}
# The two ways in the order in which the picture shows them.
NAMES = {"data_parallel": "DataParallel", "ddp": "DDP, no overlap"}


@lru_cache(maxsize=1)  # the picture and the report ask for the same
def predicted(now: Now) -> tuple[StepSizes, dict[str, Timeline]]:
    """Return the sizes of a step, and the step of each way by its name. Gradients are float32, as the parameters."""
    sample = architecture_step(now.model, 1, FLOPS_PER_S)
    sizes = StepSizes(now.batch_size, *SAMPLE_BYTES[now.model], sample.num_bytes)
    costs = StepCosts(Link(_LATENCY_S, now.gb_per_s * 1e9), sample.forward_s, sample.backward_s)
    return sizes, {how: simulate(sizes, now.num_gpus, costs, how) for how in NAMES}


def draw(now: Now) -> list[Drawing]:
    """Both steps on one axis, with a row for each GPU: none computes while it sends or receives."""
    _, steps = predicted(now)
    panels = {}
    for how, step in steps.items():
        spans = [span._replace(rank=0, lane=f"GPU {span.rank}") for span in step if span.stop_s > span.start_s]
        panels[f"{NAMES[how]}: {time_words(step.makespan_s)} per step"] = Timeline.of(spans)
    factor = steps["data_parallel"].makespan_s / steps["ddp"].makespan_s
    return [draw_timeline(panels, f"{now.num_gpus} GPUs: DDP is {factor:.3g} times as fast", now.model)]


def report(now: Now) -> list[str]:
    """The traffic of the ports."""
    sizes, steps = predicted(now)
    lines = []
    for how in steps:
        first_bytes, *_, last_bytes = traffic(sizes, now.num_gpus, how)
        ports = f"{decimal_words(first_bytes)} pass GPU 0's port per step, {decimal_words(last_bytes)} the last GPU's"
        lines.append(f"{NAMES[how]}: {ports}")
    return lines


def data_parallel() -> Explorer:
    """Return controls over a step of DataParallel and one of DDP, on the same GPUs with the same batch.

    Ports carry one message at a time. DDP's allreduce is one ring after the backward: no overlap.
    """
    return Explorer(SETTINGS, draw, report, PRESETS)
