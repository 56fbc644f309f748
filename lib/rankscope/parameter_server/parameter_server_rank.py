"""What the ranks of a parameter server do: rank 0 serves by `torch.distributed.rpc`, the others pull, compute, push."""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..gradients import Work
from ..timeline import Recorder
from .parameter_server_game import SERVER

SERVER_NAME = "server"
_now = time.perf_counter_ns
_served: Server | None = None  # in the process of rank 0, while it serves


@dataclass(frozen=True, eq=False)
class Setting:
    """What all ranks work by; a row of `batches` is the samples of one gradient."""

    how: str
    work: Work
    batches: NDArray[np.int64]
    learning_rate: float
    compute_s: tuple[float, ...]  # slept by each worker for each gradient
    folder: Path  # where the ranks meet
    timeout_s: float  # of calls: longer than the launch's, which names who hangs
    emulated: bool  # messages go over the network whatever the ranks share


@dataclass(frozen=True, eq=False)
class Served:
    """What a rank ends with; the counts are the server's, empty elsewhere."""

    parameters: NDArray[np.float64]
    received_bytes: int = 0
    sent_bytes: int = 0
    staleness: tuple[int, ...] = ()
    pushed_by: tuple[int, ...] = ()


class Server:
    """Flat parameters that workers pull, and to which their gradients are applied; called from threads of RPC."""

    def __init__(self, setting: Setting, num_workers: int, recorder: Recorder) -> None:
        self._setting, self._num_workers, self._recorder = setting, num_workers, recorder
        self._lock = threading.Lock()
        self._flat = parameters_to_vector(setting.work.module.parameters()).detach()
        self._version = self._given = 0
        self._round: dict[int, Tensor] = {}
        self._waiting: list[tuple[int, Future[Any]]] = []
        self._counts = [0, 0]
        self._staleness: list[tuple[int, int]] = []

    @rpc.functions.async_execution  # type: ignore[untyped-decorator]
    def pull(self, worker: int, version: int) -> Future[Any]:
        """Promise (row of the batch, version, when it was there if it was waited for, parameters), or no row: -1."""
        future: Future[Any] = Future()
        with self._lock:
            if version > self._version:
                self._waiting.append((worker, future))
            else:
                future.set_result(self._answer(worker, 0))
        return future

    def push(self, worker: int, version: int, gradient: Tensor) -> None:
        """Take a gradient; asynchronously it is applied at once, else when all workers' are there."""
        with self._lock:
            self._counts[0] += gradient.nbytes
            self._staleness.append((self._version - version, worker))
            if self._setting.how == "asynchronous":
                self._update(gradient)
                return
            self._round[worker] = gradient
            if len(self._round) < self._num_workers:
                return
            self._update(torch.stack([self._round[one] for one in sorted(self._round)]).mean(0))
            self._round.clear()
            ready_ns, waiting, self._waiting = _now(), self._waiting, []
            answers = [(future, self._answer(one, ready_ns)) for one, future in waiting]
        for future, answer in answers:
            future.set_result(answer)

    def served(self) -> Served:
        with self._lock:
            staleness, pushed_by = zip(*self._staleness, strict=True)
            received_bytes, sent_bytes = self._counts
            return Served(self._flat.double().numpy(), received_bytes, sent_bytes, staleness, pushed_by)

    def _answer(self, worker: int, ready_ns: int) -> tuple[int, int, int, Tensor | None]:
        if self._given >= len(self._setting.batches):
            return -1, self._version, ready_ns, None
        row = self._given
        if self._setting.how == "synchronous":
            row = self._version * self._num_workers + worker - 1
        self._given += 1
        self._counts[1] += self._flat.nbytes
        return row, self._version, ready_ns, self._flat.clone()

    def _update(self, gradient: Tensor) -> None:
        with self._recorder.span("update", "optimizer", self._version):
            self._flat.sub_(gradient, alpha=self._setting.learning_rate)
        self._version += 1


def be_part(setting: Setting, recorder: Recorder) -> Served:
    """Serve or work until all batches are used up; in a rank."""
    torch.set_num_threads(1)
    rank, num_workers = dist.get_rank(), dist.get_world_size() - 1
    recorder = recorder.for_rank(rank)
    global _served
    if rank == SERVER:
        _served = Server(setting, num_workers, recorder)
    with _calls(setting.folder, setting.timeout_s, setting.emulated):
        if rank != SERVER:
            _work(setting, rank, recorder)
        dist.barrier()
        return Served(np.empty(0)) if _served is None else _served.served()


def _work(setting: Setting, worker: int, recorder: Recorder) -> None:
    server: Any = rpc.remote(SERVER_NAME, _here).rpc_sync(timeout=setting.timeout_s)
    module, pulls = copy.deepcopy(setting.work.module), 0
    while True:
        asked_ns = _now()
        row, version, ready_ns, flat = server.pull(worker, pulls if setting.how == "synchronous" else 0)
        there_ns = _now()
        if row < 0:
            return
        pulls += 1
        if ready_ns > asked_ns:
            recorder.add("work", "wait", -1, asked_ns, ready_ns)
        recorder.add("work", "pull", version, max(asked_ns, ready_ns), there_ns)
        with recorder.span("work", "compute", version):
            vector_to_parameters(flat, module.parameters())
            gradient = _gradient(setting, module, row, worker)
        with recorder.span("work", "push", version):
            server.push(worker, version, gradient)


def _gradient(setting: Setting, module: nn.Module, row: int, worker: int) -> Tensor:
    """The flat gradient of a batch's loss; what a real model would take longer is slept."""
    work = setting.work
    chosen = torch.from_numpy(setting.batches[row])
    loss = work.loss_fn(module(work.inputs[chosen]), work.targets[chosen])
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    if setting.compute_s[worker - 1]:
        time.sleep(setting.compute_s[worker - 1])
    return parameters_to_vector(gradients)


def _here() -> Server:
    assert _served is not None
    return _served


@contextmanager
def _calls(folder: Path, timeout_s: float, emulated: bool) -> Iterator[None]:
    """RPC between the ranks. They meet in a folder, since a store of their own would listen to the whole network, and
    listen themselves where Gloo does."""
    os.environ["TP_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    private: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]} if emulated else {}
    place = (folder / "store").as_uri()
    options = rpc.TensorPipeRpcBackendOptions(init_method=place, rpc_timeout=timeout_s, **private)
    rank, size = dist.get_rank(), dist.get_world_size()
    name = SERVER_NAME if rank == SERVER else f"worker{rank}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of how RPC gathers its devices
        rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    yield
    rpc.shutdown(timeout=timeout_s)


def be_caller(
    num_bytes: tuple[int, ...], iterations: int, folder: Path, timeout_s: float, emulated: bool
) -> list[list[float]]:
    """Return, of rank 1, the seconds of calls that bring rank 0 so many bytes, a list for each size."""
    torch.set_num_threads(1)
    seconds: list[list[float]] = []
    with _calls(folder, timeout_s, emulated):
        if dist.get_rank() == SERVER + 1:
            for size in num_bytes:
                message = torch.zeros(size, dtype=torch.uint8)
                stamps = [_now()]
                for _ in range(iterations + 2):  # the first ones connect
                    rpc.rpc_sync(SERVER_NAME, torch.numel, (message,))
                    stamps.append(_now())
                seconds.append((np.diff(stamps)[2:] / 1e9).tolist())
        dist.barrier()
    return seconds


def be_peer(setting: Setting, recorder: Recorder) -> Served:
    """Train with an allreduce of the gradients at each step; in a rank, all of which are workers."""
    torch.set_num_threads(1)
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    recorder = recorder.for_rank(rank)
    module = copy.deepcopy(setting.work.module)
    flat = parameters_to_vector(module.parameters()).detach()
    dist.all_reduce(torch.zeros(1))  # connects
    for step in range(len(setting.batches) // num_workers):
        with recorder.span("work", "compute", step):
            vector_to_parameters(flat, module.parameters())
            gradient = _gradient(setting, module, step * num_workers + rank, rank + 1)
        with recorder.span("work", "allreduce", step):
            dist.all_reduce(gradient)
        with recorder.span("work", "optimizer", step):
            flat.sub_(gradient, alpha=setting.learning_rate / num_workers)
    return Served(flat.double().numpy())
