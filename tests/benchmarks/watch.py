"""What `rankscope.watch` costs a training step of about 10 ms, next to the same step unwatched, block by block in turn.

python -m tests.benchmarks.watch [ranks]
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankscope
from rankscope.ranks import launch

BLOCKS, STEPS, EVERY = 40, 56, 50  # of each kind; each block has one line in it
_WIDTH, _LAYERS, _BATCH, _CAP_MB = 256, 4, 256, 0.5
_BAR_S = 1e-4  # 1 % of a step of 10 ms


def model_and_optimizer() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=_CAP_MB)
    return model, torch.optim.SGD(model.parameters(), 1e-3)


def measure() -> list[list[list[tuple[float, float]]]]:
    """Seconds and CPU seconds of each step of each block, unwatched and watched."""
    torch.set_num_threads(1)
    batch, pairs = torch.ones(_BATCH, _WIDTH), (model_and_optimizer(), model_and_optimizer())
    found: list[list[list[tuple[float, float]]]] = [[], []]
    for block in range(-2, BLOCKS):
        for kind in (0, 1) if block % 2 else (1, 0):
            model, optimizer = pairs[kind]
            loader, clocks = [batch] * STEPS, list[tuple[float, float]]()
            watching = rankscope.watch(model, loader, EVERY, report=lambda line: None) if kind else nullcontext()
            with watching as watched:
                dist.barrier()
                for inputs in watched.loader if watched else loader:
                    clocks.append((time.perf_counter(), time.process_time()))
                    optimizer.zero_grad()
                    time.sleep(0.002)  # others' cores have to run, too
                    model(inputs).square().mean().backward()
                    optimizer.step()
            if block >= 0:
                found[kind].append(np.diff(clocks, axis=0).tolist())
    return found


def main() -> None:
    num_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    results = np.array(launch(measure, num_ranks, timeout_s=600))  # ranks x kinds x blocks x steps x clocks
    results = np.moveaxis(results, 1, 0).reshape(2, -1, *results.shape[3:])
    for name, clock in (("wall", 0), ("CPU", 1)):
        plain_s, watched_s = results[..., clock]
        steps = np.arange(STEPS - 1) % EVERY > 1
        medians_s = [float(np.median(one[:, steps])) for one in (plain_s, plain_s[::2], plain_s[1::2], watched_s)]
        extra_s = medians_s[3] - medians_s[0]
        line_s = float(np.median(watched_s[:, EVERY]) - medians_s[3]) / EVERY  # of the step that makes the numbers
        spread_s = abs(medians_s[1] - medians_s[2])
        print(
            f"{name:4} {medians_s[0] * 1e3:6.2f} ms per step (two halves differ by {spread_s * 1e6:.0f} us); watched "
            f"{extra_s * 1e6:+5.0f} us, and {line_s * 1e6:+.0f} us for the line of every {EVERY} steps; bar "
            f"{_BAR_S * 1e6:.0f} us"
        )


if __name__ == "__main__":
    main()
