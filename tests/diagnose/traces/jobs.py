"""Small DDP and FSDP jobs on Gloo with one thing wrong with one rank, recorded by torch.profiler, a trace per rank.

`run_jobs` runs several in one launch, so that a campaign starts its processes once. A step takes 40 ms and mostly
sleeps, so that four ranks on two cores do not fight for them; its tensors are small, and its gradients real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from rankscope.ranks import launch

CAUSES = ("loader", "forward", "backward", "optimizer", "host")
STEP_S = {"loader": 0.004, "forward": 0.012, "backward": 0.018, "optimizer": 0.004, "host": 0.002}
WARM_UP = 3  # DDP rebuilds its buckets in the second step
_WIDTH, _LAYERS, _BATCH = 64, 4, 4
_CAP_MB = 0.01  # a bucket for each layer


class Job(NamedTuple):
    """What is wrong, with which rank; a healthy job has no cause.

    Every `every`-th step, `cause` takes `delay_s` longer on `rank`.
    """

    cause: str = ""
    rank: int = 0
    delay_s: float = 0.06
    every: int = 1
    seed: int = 0
    batch_norm: bool = False  # whose buffers DDP broadcasts in forward
    metric: bool = False  # is reduced over all ranks after each step
    num_steps: int = 12
    is_sharded: bool = False  # by fully_shard, each layer for itself


class Ran(NamedTuple):
    """Where the traces of a job are, and the seconds of each of its steps on rank 0."""

    job: Job
    folder: Path
    step_s: list[float]


def run_jobs(folder: Path, jobs: Sequence[Job], num_ranks: int = 4) -> list[Ran]:
    """Run jobs one after the other on the same ranks; the traces of each are in a folder of its own."""
    folders = [folder / f"job_{place:04}" for place in range(len(jobs))]
    for job_folder in folders:
        job_folder.mkdir(parents=True, exist_ok=True)
    seconds = 20 + sum(0.5 + 2 * (job.num_steps + WARM_UP) * (0.1 + job.delay_s) for job in jobs)
    step_s = launch(_be_rank, num_ranks, (list(jobs), folders), timeout_s=4 * seconds)[0]
    return [Ran(*fields) for fields in zip(jobs, folders, step_s, strict=True)]


def _be_rank(jobs: list[Job], folders: list[Path]) -> list[list[float]]:
    torch.set_num_threads(1)
    os.environ["KINETO_LOG_LEVEL"] = "99"  # it says on stderr when it starts and stops
    with profile(activities=[ProfilerActivity.CPU]):  # the first one takes a second to start
        pass
    return [_train(job, folder) for job, folder in zip(jobs, folders, strict=True)]


def _train(job: Job, folder: Path) -> list[float]:
    rank = dist.get_rank()
    times = _Times(job, rank)
    torch.manual_seed(job.seed)
    model = _parallel(_Layers(times, job.batch_norm), job.is_sharded)
    optimizer = _Slow(model.parameters(), times)
    num_steps = WARM_UP + job.num_steps
    loader = DataLoader(
        torch.randn(num_steps * _BATCH, _WIDTH),  # type: ignore[arg-type]  # a tensor is a sequence of samples
        batch_size=_BATCH,
        collate_fn=times.collate,
    )
    schedule = torch.profiler.schedule(wait=0, warmup=WARM_UP, active=job.num_steps, repeat=1)
    path, ends_s = str(folder / f"rank_{rank}.json"), list[float]()
    with (
        profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule,
            on_trace_ready=lambda done: done.export_chrome_trace(path),
            record_shapes=True,
        ) as profiler,
    ):
        dist.barrier()
        for batch in loader:
            times.spend("host", 0.5)
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            if job.metric:
                dist.all_reduce(loss.detach())
            times.spend("host", 0.5, late=False)
            ends_s.append(time.perf_counter())
            profiler.step()
            times.step += 1
    return np.diff(ends_s[WARM_UP - 1 :]).tolist()


def _parallel(layers: _Layers, is_sharded: bool) -> nn.Module:
    if not is_sharded:
        return DistributedDataParallel(layers, bucket_cap_mb=_CAP_MB)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(layers, mesh=mesh)


class _Times:
    """What a phase takes in the step under way: its time in `STEP_S` within 10 %, and the delay where there is one."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job, self._late, self.step = job, rank == job.rank, 0
        self._random = np.random.default_rng((job.seed, rank))
        self.place = int(np.random.default_rng(job.seed).integers(_LAYERS))  # the layer that is late

    def spend(self, phase: str, share: float = 1.0, late: bool = True) -> None:
        job, seconds = self._job, share * STEP_S[phase] * self._random.uniform(0.9, 1.1)
        if late and self._late and job.cause == phase and self.step % job.every == 0:
            time.sleep(job.delay_s)
        time.sleep(seconds)

    def collate(self, samples: list[Tensor]) -> Tensor:
        self.spend("loader")
        return torch.stack(samples)


class _Layers(nn.Module):
    """Linear layers that each take their share of the forward and of the backward."""

    def __init__(self, times: _Times, batch_norm: bool) -> None:
        super().__init__()
        self._times = times
        self.layers = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(_WIDTH) if batch_norm else nn.Identity() for _ in range(_LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for place, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            self._times.spend("forward", 1 / _LAYERS, place == self._times.place)
            x = torch.tanh(norm(_Slower.apply(layer(x), self._times, place)))
        return x


class _Slower(torch.autograd.Function):
    """Nothing in forward; in backward a share of what the backward takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: _Times, place: int) -> Tensor:
        ctx.times, ctx.place = times, place
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        ctx.times.spend("backward", 1 / _LAYERS, ctx.place == ctx.times.place)
        return gradient, None, None


class _Slow(torch.optim.SGD):
    def __init__(self, parameters: Any, times: _Times) -> None:
        super().__init__(parameters, lr=0.01)
        self._times = times

    def step(self, closure: Any = None) -> None:
        self._times.spend("optimizer")
        super().step(closure)
