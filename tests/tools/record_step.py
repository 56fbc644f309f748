"""Record DDP steps of notebook 00's model on two emulated hosts: python -m tests.tools.record_step (root, Linux).

Two measurements go into the prediction: the step without allreduces, and the allreduce alone; nothing is fitted. A step
of median length is stored next to it. There is one rank per core: ranks that share cores take turns, and then each has
a backward and a wait of its own.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from rankscope.networks import CostTable
from rankscope.provenance import of_machine, of_run
from rankscope.train.ddp import Contention, simulate
from rankscope.train.ddp.observed import gradients_of
from tests.benchmarks._ddp_sweeps import CapSweep
from tests.benchmarks.ddp_prediction import SIZES, allreduce_s, go_before_others, joined, save_sweeps, steps
from tests.tools.emulate import emulated

COMMAND = "python -m tests.tools.record_step"
TARGET = Path(__file__).parents[2] / "notebooks" / "profiles"
NUM_RANKS, BYTES_PER_S = 2, 50e6
ROUNDS, ITERATIONS = 3, 20
PARTS = "forward", "backward", "wait", "unpack", "optimizer"


def model() -> nn.Module:
    """Return the transformer of notebook 00."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=256, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(32, 128), nn.TransformerEncoder(layer, 3), nn.Flatten(), nn.Linear(32 * 128, 10))


def loss(images: Tensor, targets: Tensor, module: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(module(images), targets)


def main() -> None:
    go_before_others()
    digits = load_digits()
    images = np.kron(digits.images[:16] / 16, np.ones((1, 4, 4)))
    batch = torch.from_numpy(images.astype("float32"))
    case = model(), partial(loss, batch, torch.from_numpy(digits.target[:16]))
    sgd = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    costs_s, alone, together = [], [], []
    with emulated(NUM_RANKS, BYTES_PER_S) as network:
        where = NUM_RANKS, ITERATIONS, network
        for _ in range(ROUNDS):
            costs_s.append(allreduce_s(*where))
            alone.append(steps(case, *where, optimizer=sgd, alone=True))
            together.append(steps(case, *where, optimizer=sgd))
    cost = CostTable(SIZES, tuple(np.median(costs_s, axis=0).tolist()))
    local = joined(alone).local_step(gradients_of(case[0]).values())
    run = joined(together)
    measured = ((None, tuple(run.step_s.tolist())),)
    sweep = CapSweep("notebook 00", NUM_RANKS, str(network), local, cost, Contention(), measured)
    save_sweeps(TARGET / "step_of_two_ranks.json", [sweep], COMMAND)
    path = run.typical.to_chrome_trace(TARGET / "step_of_two_ranks_run.json")
    provenance = {**of_machine(), **of_run(name="", command=COMMAND, network=str(network))}
    path.write_text(json.dumps({**json.loads(path.read_text()), "provenance": provenance}))
    twin = simulate(local, cost)
    print(f"predicted {twin.makespan_s * 1e3:.1f} ms, measured {run.median_s * 1e3:.1f} ms")
    for kind in PARTS:
        spans = run.typical.select(kind=kind)
        mean_ms = 1e3 * float((spans.stop_s - spans.start_s).sum()) / NUM_RANKS
        print(f"{kind:10}{twin.select(kind=kind).busy_s * 1e3:6.1f}{mean_ms:6.1f} ms")


if __name__ == "__main__":
    main()
