"""The explorer of notebook 08: whether a model fits under `fully_shard`, and what of its communication is hidden."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...common.units import decimal_words, time_words
from ...common.words import count_of
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps
from ...timeline import Timeline
from ..network_settings import Networks
from .costs import cost
from .observed import observe
from .picture import draw_fsdp_step
from .step import Cost, Step

_WRAPS = {"each block": ["*"], "the model alone": []}
_MEMORY_BYTES_PER_S = 3.35e12  # of an H100
_NAMED = 5  # terms of the peak, the largest
_LARGE = {"width": 8192, "num_tokens": 32768, "num_ranks": 8, "memory_gb": 40}
PRESETS: dict[str, dict[str, Any]] = {
    "keep what was gathered": {"reshard": False},
    "one group": {"wrap": "the model alone"},
    "too large": _LARGE,
    "the same, recomputed": {**_LARGE, "recompute": True},
    "a network of 10 GB/s": {"gb_per_s": 10},
    "four nodes of eight A100s": {"network": "abci_a100_4x8"},
}


class Block(nn.Sequential):
    """A block with as many parameters as a transformer's, 12·width², without attention."""

    def __init__(self, width: int, recompute: bool) -> None:
        up = nn.Linear(width, 6 * width, bias=False)
        super().__init__(nn.LayerNorm(width), up, nn.GELU(), nn.Linear(6 * width, width, bias=False))
        self.recompute = recompute

    def forward(self, inputs: Tensor) -> Any:
        if self.recompute:
            return checkpoint(super().forward, inputs, use_reentrant=False)
        return super().forward(inputs)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=64)
def observed(
    num_ranks: int, num_blocks: int, width: int, num_tokens: int, wrap: str, reshard: bool, recompute: bool
) -> Step:
    """Return the step of a stack of blocks in bfloat16, at once if it was observed before."""
    with torch.device("meta"):
        model = nn.Sequential(*[Block(width, recompute) for _ in range(num_blocks)])
    return observe(
        model,
        lambda model: model(torch.ones(num_tokens, width)).float().mean(),
        num_ranks=num_ranks,
        wrap=_WRAPS[wrap],
        optimizer=torch.optim.Adam,
        reshard_after_forward=reshard,
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
    )


def fsdp() -> Explorer:
    """Return controls over one step under `fully_shard`: what runs on each of its streams, and the memory of a rank.

    What is shown has been observed: torch takes the step when it is first needed, in a fraction of a second. The
    networks are latency and bandwidth set by hand, machines of the bank, NCCL's model, and recorded Gloo. An all-gather
    or a reduce-scatter takes half the time of an all-reduce, as in a ring.
    """
    networks = Networks()

    def predicted(now: Now) -> tuple[Step, Cost, Timeline]:
        sizes = networks.num_ranks(now), now.num_blocks, now.width, now.num_tokens
        step = observed(*sizes, now.wrap, now.reshard, now.recompute)
        seconds = cost(networks.cost(now), flops_per_s=now.tflops * 1e12, bytes_per_s=_MEMORY_BYTES_PER_S)
        return step, seconds, step.timeline(seconds)

    def draw(now: Now) -> list[Drawing]:
        step, seconds, _ = predicted(now)
        fits = "fit into" if step.peak_bytes <= now.memory_gb * 1e9 else "*exceed*"
        saved_bytes = (step.peak["parameters"] + step.peak["optimizer_states"]) * (networks.num_ranks(now) - 1)
        peak = decimal_words(step.peak_bytes)
        title = f"Sharding saves {decimal_words(saved_bytes)}; {peak} {fits} {now.memory_gb} GB"
        job = f"{count_of(now.num_blocks, 'block')} of width {now.width} on {count_of(networks.num_ranks(now), 'rank')}"
        return [draw_fsdp_step(step, seconds, title, step.peak_bytes + saved_bytes, job)]

    def report(now: Now) -> list[str]:
        step, _, spans = predicted(now)
        sizes = [call.num_bytes for call in step.collectives]
        largest = sorted(step.peak.items(), key=lambda term: -term[1])[:_NAMED]
        terms = [f"{term.replace('_', ' ')} {decimal_words(num_bytes)}" for term, num_bytes in largest]
        return [
            f"{12e-9 * now.num_blocks * now.width**2:.3g} billion parameters, mixed precision with Adam",
            f"{time_words(spans.makespan_s)} per step, {time_words(spans.select(kind='wait').busy_s)} exposed",
            f"peak: {', '.join(terms)}",
            "not counted: the allocator's reserve, CUDA's context, NCCL's buffers, the optimizer's temporary tensors",
            f"{count_of(len(sizes), 'collective')} of {decimal_words(sum(sizes))}, at most {decimal_words(max(sizes))}",
            *networks.about(now, max(sizes)),
        ]

    network, num_ranks, *link = networks.settings()
    settings = (
        num_ranks._replace(default=64),
        Setting("num_blocks", 4, Steps((1, 2, 4, 8, 16, 32)), "blocks"),
        Setting("width", 4096, Steps((1024, 2048, 4096, 8192)), "width"),
        Setting("num_tokens", 16384, Steps((1024, 2048, 4096, 8192, 16384, 32768)), "tokens per GPU"),
        Setting("wrap", "each block", _WRAPS, "groups"),
        Setting("reshard", True, (), "reshard after forward"),
        Setting("recompute", False, (), "recompute activations"),
        Setting("memory_gb", 80, Steps((24, 40, 80, 141)), "memory of a GPU [GB]"),
        Setting("tflops", 400, Steps((50, 100, 200, 400, 800)), "computing [TFLOP/s]"),
        network,
        *link,
    )
    return Explorer(settings, draw, report, PRESETS)
