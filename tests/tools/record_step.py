"""Record DDP steps of notebook 00's model on two emulated hosts: python -m tests.tools.record_step (root, Linux).

Two measurements go into the prediction: the step without allreduces, and the allreduce alone; nothing is fitted. The
steps themselves are stored next to it. There is one rank per core: ranks that share cores take turns, and then each has
a backward and a wait of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rankscope.pipeline import StoredImages
from rankscope.train.ddp import Contention, DDPRun, Where, measure, simulate
from rankscope.train.ddp.cost import CostTable
from rankscope.train.ddp.sweep import CapSweep, MeasuredCap
from tests.benchmarks.ddp_prediction import go_before_others, joined, measure_allreduce, save_sweeps
from tests.tools.emulate import emulated

COMMAND = "python -m tests.tools.record_step"
TARGET = Path(__file__).parents[2] / "notebooks" / "profiles"
NUM_RANKS, BYTES_PER_S = 2, 50e6
ROUNDS, ITERATIONS, KEPT = 3, 20, 9
PARTS = "forward", "backward", "wait", "unpack", "optimizer"


def model() -> nn.Module:
    """Return the transformer of notebook 00."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=256, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(32, 128), nn.TransformerEncoder(layer, 3), nn.Flatten(), nn.Linear(32 * 128, 10))


def loss(images: Tensor, targets: Tensor, module: nn.Module, rank: int, number: int) -> Tensor:
    return nn.functional.cross_entropy(module(images), targets)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def middle(run: DDPRun, num_steps: int) -> DDPRun:
    """Return the clean steps whose length is nearest to the median, in the order in which they were taken."""
    nearest = sorted(run.used, key=lambda place: abs(run.step_s[place] - run.median_s))[:num_steps]
    names = "step_s", "clean", "steps"
    kept = {name: tuple(getattr(run, name)[place] for place in sorted(nearest)) for name in names}
    return replace(run, provenance={**run.provenance, "command": COMMAND}, **kept)


def main() -> None:
    go_before_others()
    digits = load_digits()
    images = StoredImages(digits.images / 16, digits.target, size_px=32)
    batch = torch.stack([torch.from_numpy(images[place][0]) for place in range(16)])
    step_loss = partial(loss, batch, torch.from_numpy(digits.target[:16]))
    costs, alone, together = [], [], []
    with emulated(NUM_RANKS, BYTES_PER_S) as network:
        where = Where(network=network, timeout_s=600.0)
        options = {"num_ranks": NUM_RANKS, "optimizer": sgd, "where": where, "iterations": ITERATIONS}
        steps = partial(measure, model(), step_loss, **options)
        for _ in range(ROUNDS):
            costs.append(measure_allreduce(NUM_RANKS, where))
            alone.append(steps(communicate=False))
            together.append(steps())
    cost = CostTable(costs[0].num_bytes, tuple(np.median([one.seconds for one in costs], axis=0).tolist()))
    local, run = joined(alone), joined(together)
    measured = MeasuredCap(None, run.buckets, run.step_s, run.clean)
    sweep = CapSweep("notebook 00", local.provenance, local.local_step(), cost, Contention(), (measured,))
    save_sweeps(TARGET / "step_of_two_ranks.json", [sweep], COMMAND)
    middle(run, KEPT).save(TARGET / "step_of_two_ranks_run.json")
    twin = simulate(sweep.local, cost, buckets=run.buckets)
    print(f"predicted {twin.makespan_s * 1e3:.1f} ms, measured {run.median_s * 1e3:.1f} ms")
    for kind in PARTS:
        spans = [run.steps[place].timeline.select(kind=kind) for place in run.used]
        mean_ms = 1e3 * float(np.median([(one.stop_s - one.start_s).sum() / NUM_RANKS for one in spans]))
        print(f"{kind:10}{twin.select(kind=kind).busy_s * 1e3:6.1f}{mean_ms:6.1f} ms")


if __name__ == "__main__":
    main()
