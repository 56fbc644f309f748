"""An explorer of notebook 07: a step of DataParallel above one of DDP, and the traffic of GPU 0's port."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from ...cluster import Link
from ...common.units import decimal_words, percent_words, time_words, times_in_one_unit
from ...explorers.explorer import Explorer, Now, Setting, Steps
from ...figures.marks import Drawing
from ...figures.timelines import draw_timeline
from ...timeline import Span, Timeline
from ..data_parallel.model import StepCosts, StepSizes, chunk_sizes, simulate, traffic
from ..ddp.architectures import ARCHITECTURES, architecture_step

# Input and output bytes of one sample: a float32 image or int64 tokens, and float32 scores of each class or next token.
SAMPLE_BYTES = {
    "small CNN": (28 * 28 * 4, 10 * 4),
    "ResNet-50": (3 * 224 * 224 * 4, 1000 * 4),
    "GPT-2": (1024 * 8, 1024 * 50257 * 4),
    "LLaMA-7B": (2048 * 8, 2048 * 32000 * 4),
}
BATCHES = {f"{number} samples": number for number in (8, 9, 16, 32, 64, 128, 256, 512)}
RATES = {f"{number} TFLOP/s": number * 1e12 for number in (5, 10, 20, 40, 100, 200, 400)}
# DataParallel copies from GPU to GPU, so this explorer needs a link's own latency and bandwidth. It has no list of
# networks, because those are times of allreduces. DDP's ring runs over the same link, for a fair comparison.
LINKS = {
    "1 GB/s, 50 µs (10 GbE)": Link(50e-6, 1e9),
    "12 GB/s, 10 µs (PCIe 3)": Link(10e-6, 12e9),
    "24 GB/s, 10 µs (PCIe 4)": Link(10e-6, 24e9),
    "200 GB/s, 3 µs (NVLink)": Link(3e-6, 200e9),
}
SETTINGS = (
    Setting("model", "ResNet-50", ARCHITECTURES, "model"),
    Setting("num_gpus", 4, range(2, 9), "GPUs"),
    Setting("batch", "64 samples", Steps(BATCHES), "batch for all GPUs"),
    Setting("rate", "40 TFLOP/s", Steps(RATES), "speed of a GPU"),
    Setting("link", "12 GB/s, 10 µs (PCIe 3)", LINKS, "link"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "8 GPUs": {"num_gpus": 8},
    "512 samples": {"batch": "512 samples"},
    "NVLink": {"link": "200 GB/s, 3 µs (NVLink)"},
    "GPT-2: large outputs": {"model": "GPT-2"},
    "9 samples, 8 GPUs": {"num_gpus": 8, "batch": "9 samples"},
}
# The two ways in the order in which the picture shows them.
_NAMES = {"data_parallel": "DataParallel", "ddp": "DDP"}
_NO_ITEM = -1  # of a span without another GPU


class _OneSample(NamedTuple):
    """The seconds of one sample on a GPU, and the bytes of the gradients."""

    forward_s: float
    backward_s: float
    gradient_bytes: int


def _one_sample(now: Now) -> _OneSample:
    local = architecture_step(now.model, 1, RATES[now.rate])
    return _OneSample(local.forward_s, local.backward_s, local.num_bytes)


def sizes(now: Now) -> StepSizes:
    """Return the sizes of a step: gradients in float32, as large as the parameters."""
    return StepSizes(BATCHES[now.batch], *SAMPLE_BYTES[now.model], _one_sample(now).gradient_bytes)


@lru_cache(maxsize=3)  # the picture and the report ask for the same two, and the report for one GPU
def step(now: Now, how: str, num_gpus: int) -> Timeline:
    """Return a step of DataParallel or of DDP on so many GPUs."""
    sample = _one_sample(now)
    return simulate(sizes(now), num_gpus, StepCosts(LINKS[now.link], sample.forward_s, sample.backward_s), how)


def draw(now: Now) -> list[Drawing]:
    """Both steps on one axis: a row for each GPU, which at any time computes, sends or receives, or waits."""
    steps = [step(now, how, now.num_gpus) for how in _NAMES]
    times = times_in_one_unit(*[timeline.makespan_s for timeline in steps])
    panels = {}
    for name, timeline, time in zip(_NAMES.values(), steps, times, strict=True):
        panels[f"{name}: {time} per step"] = Timeline.of(_by_gpu(timeline, now.num_gpus))
    factor = steps[0].makespan_s / steps[1].makespan_s
    return [draw_timeline(panels, f"{now.num_gpus} GPUs: DDP is {factor:.3g} times as fast", now.model)]


def _by_gpu(timeline: Timeline, num_gpus: int) -> list[Span]:
    """Return the spans of a step for a picture with a row for each GPU.

    One lane is enough, because no GPU computes while it sends or receives. A GPU without work waits for the others.
    """
    spans = []
    for span in timeline:
        if span.stop_s > span.start_s:  # the loss takes no time here
            spans.append(span._replace(rank=0, lane=f"GPU {span.rank}"))
    used_gpus = {span.rank for span in timeline}
    for gpu in range(num_gpus):
        if gpu not in used_gpus:
            spans.append(Span(0, f"GPU {gpu}", "wait", _NO_ITEM, 0.0, timeline.makespan_s))
    return spans


def report(now: Now) -> list[str]:
    """The step on one GPU and on all, the traffic of the ports, and who is idle."""
    step_sizes = sizes(now)
    alone_s = step(now, "data_parallel", 1).makespan_s
    lines = [f"one GPU alone: {time_words(alone_s)} per step"]
    for how, name in (("data_parallel", "DataParallel"), ("ddp", "DDP, no overlap")):
        timeline = step(now, how, now.num_gpus)
        port_bytes = traffic(step_sizes, now.num_gpus, how).port_bytes
        computing_share = timeline.select(rank=0, lane="compute").busy_s / timeline.makespan_s
        lines.append(
            f"{name}: {alone_s / timeline.makespan_s:.2f} times as fast as one GPU; GPU 0 computes for "
            f"{percent_words(computing_share)} of the step; its port carries {decimal_words(port_bytes[0])}, "
            f"the last GPU's {decimal_words(port_bytes[-1])}"
        )
    output_bytes = step_sizes.batch_size * step_sizes.output_bytes
    outputs = decimal_words(2 * output_bytes)  # gradients are as large as the outputs
    lines.append(f"GPU 0 also holds all outputs and their gradients with DataParallel: {outputs}")
    num_used = len(chunk_sizes(step_sizes.batch_size, now.num_gpus))
    if num_used < now.num_gpus:
        lines.append(f"DataParallel uses {num_used} of {now.num_gpus} GPUs: it cuts the batch as torch.chunk does")
    return lines


def data_parallel() -> Explorer:
    """Return controls over a step of DataParallel and one of DDP, on the same GPUs with the same batch.

    Ports carry one message at a time. DDP's allreduce is one ring after the backward: no overlap.
    """
    return Explorer(SETTINGS, draw, report, PRESETS)
