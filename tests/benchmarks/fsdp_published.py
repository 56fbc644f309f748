"""Published FSDP runs of llm-foundry against the model: ``python -m tests.benchmarks.fsdp_published``.

Two tables: the memory of each run, and what is left of 80 GB for activations; and the throughput that is lost between
128, 256 and 512 GPUs, measured and predicted. The network of these runs is not published, so the second table assumes
one network card of 50 GB/s for each GPU, and 5 µs for each step of a ring.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.cluster import Link
from rankscope.train import fsdp

FILE = Path(__file__).parents[1] / "train" / "fsdp" / "published.json"
GPU_BYTES = 80e9
TOKENS = 2048  # per sample
VOCABULARY = 50368  # of the MPT models: with it and the positions, the published numbers of parameters come out
LINK = Link(alpha_s=5e-6, bytes_per_s=50e9)
# Bytes that a layer of width 1 keeps per token: the 34 of Korthikanti et al. (2022, equation 2) without the attention
# matrix, which flash attention does not keep, and without the masks of dropout, which MPT does not use. With
# checkpointing it is only the layer's input in bfloat16.
LAYER_BYTES = 32
CHECKPOINT_BYTES = 2
LOGIT_BYTES = 6  # per token and word: bfloat16, and float32 for the loss


class PublishedRun(NamedTuple):
    """One row of the published table."""

    model: str
    num_gpus: int
    samples_per_gpu: int
    accumulation: int
    checkpointing: bool
    tokens_per_s_per_gpu: float
    num_parameters: int
    width: int
    num_layers: int

    @property
    def tokens_per_gpu(self) -> int:
        return self.samples_per_gpu * TOKENS

    @property
    def pass_s(self) -> float:
        """The seconds of one micro-batch."""
        return self.tokens_per_gpu / self.tokens_per_s_per_gpu

    @property
    def activation_bytes(self) -> int:
        """An estimate of the activations of a micro-batch."""
        per_width = LAYER_BYTES * self.num_layers
        if self.checkpointing:
            per_width = CHECKPOINT_BYTES * self.num_layers + LAYER_BYTES
        return self.tokens_per_gpu * (per_width * self.width + LOGIT_BYTES * VOCABULARY)

    def step(self, computing_s: float = 0.0) -> fsdp.ModuleStep:
        """The step of equal layers, whose backward also computes forward again with checkpointing."""
        passes = 4 if self.checkpointing else 3
        forward_s = computing_s / passes / self.num_layers
        layers = []
        for place in range(self.num_layers):
            name = f"blocks.{place}"
            weight = fsdp.ShardedParameter((f"{name}.weight",), (12 * self.width, self.width))
            layers.append(fsdp.ShardedLayer(name, (weight,), forward_s, (passes - 1) * forward_s))
        embedding = fsdp.ShardedParameter(("embed.weight",), (VOCABULARY + TOKENS, self.width))
        return fsdp.ModuleStep.of_layers([fsdp.ShardedLayer("embed", (embedding,)), *layers])

    def predicted(self, computing_s: float = 0.0) -> fsdp.PredictedStep:
        costs = fsdp.FSDPCosts.of_link(LINK, self.num_gpus)
        return fsdp.predict(
            self.step(computing_s),
            costs,
            num_ranks=self.num_gpus,
            wrap=["blocks.*"],
            reshard_after_forward=None,
            param_dtype="bfloat16",
            reduce_dtype="float32",
        )


def published_runs() -> list[PublishedRun]:
    stored: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    runs = []
    for row in stored["runs"]:
        sizes = stored["dimensions"][row[0]]
        runs.append(PublishedRun(*row, sizes["width"], sizes["num_layers"]))
    return runs


def show_memory() -> None:
    print("memory of one GPU in GB: states and communication as predicted, left of 80, activations as estimated")
    for run in published_runs():
        peak_bytes = run.predicted().memory.peak_bytes
        left_bytes = GPU_BYTES - peak_bytes
        print(
            f"  {run.model:>5} on {run.num_gpus:3} GPUs, {run.samples_per_gpu:2} samples"
            f"{', checkpointing' if run.checkpointing else '':<15} {peak_bytes / 1e9:5.1f} {left_bytes / 1e9:5.1f} "
            f"{run.activation_bytes / 1e9:5.1f}  {'fits' if run.activation_bytes <= left_bytes else 'does not fit'}"
        )


def show_losses() -> None:
    print("throughput per GPU lost against 128 GPUs: measured, predicted")
    runs = {(run.model, run.num_gpus): run for run in published_runs()}
    for model in ("7b", "13b", "30b", "70b"):
        base = runs[model, 128]
        computing_s = _computing_s(base)
        for num_gpus in (256, 512):
            run = runs[model, num_gpus]
            measured = 1 - run.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu
            predicted = 1 - base.predicted(computing_s).step_s / run.predicted(computing_s).step_s
            print(f"  {model:>4} on {num_gpus}: {measured:6.1%} {predicted:6.1%}")


def _computing_s(run: PublishedRun) -> float:
    """The computing with which the predicted step is the measured one, by bisection."""
    low_s = 0.0
    high_s = run.pass_s
    for _ in range(30):
        middle_s = (low_s + high_s) / 2
        if run.predicted(middle_s).step_s > run.pass_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s


if __name__ == "__main__":
    show_memory()
    show_losses()
