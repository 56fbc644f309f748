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

BLOCKS, STEPS = 30, 52  # of each kind; a block of the watched has a line in it
_WIDTH, _LAYERS, _BATCH, _CAP_MB = 256, 4, 256, 0.5


def model_and_optimizer() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=_CAP_MB)
    return model, torch.optim.SGD(model.parameters(), 1e-3)


def measure() -> list[list[tuple[float, float]]]:
    """Seconds and CPU seconds per step of each block, unwatched and watched."""
    torch.set_num_threads(1)
    batch, pairs = torch.ones(_BATCH, _WIDTH), (model_and_optimizer(), model_and_optimizer())
    found: list[list[tuple[float, float]]] = [[], []]
    for block in range(-2, BLOCKS):
        for kind in (0, 1) if block % 2 else (1, 0):
            model, optimizer = pairs[kind]
            loader = [batch] * STEPS
            with rankscope.watch(model, loader, report=lambda line: None) if kind else nullcontext() as watched:
                dist.barrier()
                begin = time.perf_counter(), time.process_time()
                for inputs in watched.loader if watched else loader:
                    optimizer.zero_grad()
                    time.sleep(0.002)  # others' cores have to run, too
                    model(inputs).square().mean().backward()
                    optimizer.step()
                end = time.perf_counter(), time.process_time()
            if block >= 0:
                found[kind].append(((end[0] - begin[0]) / STEPS, (end[1] - begin[1]) / STEPS))
    return found


def main() -> None:
    num_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    results = np.array(launch(measure, num_ranks, timeout_s=600))  # ranks x kinds x blocks x clocks
    for name, clock in (("wall", 0), ("CPU", 1)):
        plain, watched = (results[:, kind, :, clock].mean(axis=0) for kind in (0, 1))
        extra = watched - plain
        low, middle, high = np.percentile(extra, [25, 50, 75]) * 1e6
        share = np.median(extra) / np.median(plain)
        print(
            f"{name:4} {np.median(plain) * 1e3:6.2f} ms per step; watched {middle:+5.0f} us "
            f"(quartiles {low:+.0f} to {high:+.0f}), {share:+.2%} (bar: 1 % of 10 ms)"
        )


if __name__ == "__main__":
    main()
