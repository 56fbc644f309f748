"""`train_workers`: one set of parameters updated by several processes, through a server or by allreduce, and watched.

The server is made with `torch.distributed.rpc`, which torch 2.6 to 2.13 have, though torch's overview of distributed
training no longer lists it (pytorch/tutorials#2913).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import vector_to_parameters

from ..ddp.measure_steps import launcher
from ..gradients import Vector, Work, values_of
from ..machine.fit import LinkFit, fit_link
from ..ranks import RankError
from ..sampling import assign
from ..timeline import Recorder
from ..values.checks import number, of_type, one_of, whole
from .parameter_server_game import SERVER
from .parameter_server_model import HOW, MOST_BATCHES, MOST_WORKERS, ServerRun, checked_batches, each_worker
from .parameter_server_rank import Served, Setting, be_caller, be_part, be_peer
from .sharing import refuse_torchrun, whole_numbers

CALL_BYTES = tuple(4**power for power in range(5, 12))  # 1 KiB to 4 MiB


def train_workers(
    work: Work, how: str = "synchronous", num_workers: int = 2, *, num_batches: int = 20, batch_size: int = 32,
    learning_rate: float = 0.1, compute_s: float | Sequence[float] = 0.0, seed: int = 0, network: Any = None,
    timeout_s: float = 60.0,
) -> ServerRun:  # fmt: skip
    """Train a copy of the module with plain SGD on `num_batches` batches, shared by `num_workers` processes.

    `how` is "synchronous": workers pull the parameters from a server, a process more, push a gradient, and the server
    steps by the mean of all of them; "asynchronous": it steps at each gradient, whatever has changed since its pull;
    "allreduce": no server, each steps by the mean. Batches are those of `batches_of`; synchronously worker w has every
    W-th, asynchronously who asks has the next. For each gradient a worker also sleeps `compute_s` (one number, or one
    for each), as if the module were larger. The processes are those of `ranks.launch`, on this machine, and listen on
    loopback only; or on the hosts of `network`, one of `machine.emulate.emulated`.

    Raises ValueError for bad input; RankError, which names the worker or the server, where one fails, dies, or has not
    ended after `timeout_s`.

    >>> work = Work(nn.Linear(3, 1), torch.ones(8, 3), torch.zeros(8, 1), nn.functional.mse_loss)
    >>> run = train_workers(work, "asynchronous", num_batches=6, batch_size=4)
    >>> run.received_bytes, run.sent_bytes, len(run.staleness)  # 6 · 4 parameters · 4 bytes, in and out
    (96, 96, 6)
    """
    check_work(work)
    one_of("how", how, HOW)
    num_workers = whole("num_workers", num_workers, 1, MOST_WORKERS)
    num_batches = checked_batches(how, num_workers, num_batches)
    batches = batches_of(len(work.inputs), num_batches, batch_size, seed)
    seconds, rate = each_worker("compute_s", compute_s, num_workers), number("learning_rate", learning_rate, above=0)
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    refuse_torchrun()
    start = launcher(num_workers + (how != "allreduce"), "gloo", network, timeout_s)
    with TemporaryDirectory() as folder:
        setting = Setting(how, work, batches, rate, seconds, Path(folder), 2 * timeout_s, network is not None)
        return _started(setting, num_workers, start)


def measure_calls(
    num_bytes: Sequence[int] = CALL_BYTES, iterations: int = 20, network: Any = None, timeout_s: float = 60.0
) -> LinkFit:
    """Return what a call takes from a worker to a server and back, with that many bytes on the way there.

    One worker calls, one call after the other: the latency holds what RPC does in Python and in its threads. Raises
    ValueError for fewer than 5 sizes, and what `train_workers` raises.

    >>> measure_calls(iterations=4).link.alpha_s > 1e-6
    True
    """
    sizes = whole_numbers("num_bytes", num_bytes, 1 << 30, least=5)
    iterations = whole("iterations", iterations, 1, 10_000)
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    start = launcher(getattr(network, "num_hosts", 2), "gloo", network, timeout_s)
    refuse_torchrun()
    with TemporaryDirectory() as folder:
        seconds = start(be_caller, (sizes, iterations, Path(folder), 2 * timeout_s, network is not None))[SERVER + 1]
    return fit_link(sizes, seconds)


def train_alone(
    work: Work, num_workers: int = 2, *, num_batches: int = 20, batch_size: int = 32, learning_rate: float = 0.1,
    seed: int = 0,
) -> Vector:  # fmt: skip
    """Return the parameters after the steps of a synchronous `train_workers`, taken by this process by itself.

    >>> work = Work(nn.Linear(1, 1, bias=False), torch.ones(4, 1), torch.zeros(4, 1), nn.functional.mse_loss)
    >>> bool(abs(train_alone(work, num_batches=8, batch_size=2)) < abs(values_of(work.module)))
    True
    """
    check_work(work)
    num_workers = whole("num_workers", num_workers, 1, MOST_WORKERS)
    num_batches = checked_batches("synchronous", num_workers, num_batches)
    batches = torch.from_numpy(batches_of(len(work.inputs), num_batches, batch_size, seed))
    module = copy.deepcopy(work.module)
    optimizer = torch.optim.SGD(module.parameters(), number("learning_rate", learning_rate, above=0))
    for rows in batches.reshape(-1, num_workers, batch_size):
        optimizer.zero_grad()
        for row in rows:
            (work.loss_fn(module(work.inputs[row]), work.targets[row]) / num_workers).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return values_of(module)


def batches_of(num_samples: int, num_batches: int, batch_size: int, seed: int = 0) -> NDArray[np.int64]:
    """Return which samples are in each batch: epochs shuffled as torch's DistributedSampler does it, one after another.

    >>> batches_of(5, 4, 2).shape, sorted(batches_of(6, 3, 2).ravel().tolist())
    ((4, 2), [0, 1, 2, 3, 4, 5])
    """
    num_samples = whole("num_samples", num_samples, 1)
    needed = whole("num_batches", num_batches, 1, MOST_BATCHES) * whole("batch_size", batch_size, 1, num_samples)
    epochs = range(-(-needed // num_samples))
    order = np.concatenate([assign(num_samples, 1, seed=seed, epoch=epoch).ranks[0] for epoch in epochs])
    return order[:needed].reshape(num_batches, batch_size).astype(np.int64)


def with_parameters(module: nn.Module, parameters: Vector) -> nn.Module:
    """Return a copy of the module that has these parameters, flat as `ServerRun.parameters` are.

    >>> with_parameters(nn.Linear(1, 1), np.array([2.0, 1.0]))(torch.ones(1, 1)).item()
    3.0
    """
    of_type("module", module, nn.Module)
    wanted = sum(one.numel() for one in module.parameters())
    if not wanted:
        raise ValueError(f"module must have parameters, got {module!r}")
    if np.shape(parameters) != (wanted,):
        raise ValueError(f"parameters must be {wanted} numbers, got an array of shape {np.shape(parameters)}")
    copied = copy.deepcopy(module)
    dtype = next(module.parameters()).dtype
    vector_to_parameters(torch.from_numpy(np.asarray(parameters)).to(dtype), copied.parameters())
    return copied


def check_work(work: Work) -> None:
    """Raise ValueError for what cannot be trained as one flat vector."""
    frozen = [name for name, one in of_type("work", work, Work).module.named_parameters() if not one.requires_grad]
    if frozen:
        raise ValueError(f"module must have parameters that all get a gradient, got {', '.join(frozen)} without one")


def _role(rank: int, with_server: bool) -> str:
    return f"worker {rank + (not with_server)}" if rank != SERVER or not with_server else "the server"


def _started(setting: Setting, num_workers: int, start: Callable[..., list[Served]]) -> ServerRun:
    with_server, recorder = setting.how != "allreduce", Recorder()
    try:
        served = start(be_part if with_server else be_peer, (setting, recorder))[SERVER]
    except RankError as error:
        raise RankError(f"{_role(error.rank, with_server)}: {error}", error.rank) from error
    parameter_bytes = sum(one.nbytes for one in setting.work.module.parameters())
    spans = recorder.timeline()
    return ServerRun(
        how=setting.how,
        num_workers=num_workers,
        num_batches=len(setting.batches),
        parameter_bytes=parameter_bytes,
        timeline=spans.shifted(-spans.begin_s),
        received_bytes=served.received_bytes,
        sent_bytes=served.sent_bytes,
        staleness=served.staleness,
        pushed_by=served.pushed_by,
        parameters=served.parameters,
    )
