"""One set of parameters updated by several real processes, through a server, by allreduce, or in shared memory.

Rank 0 serves by `torch.distributed.rpc`, the others pull, compute and push. torch 2.6 to 2.13 have RPC, though torch's
overview of distributed training no longer lists it (pytorch/tutorials#2913). Its processes listen on 127.0.0.1 without
authentication, and carry out what they are sent without a check (torch's SECURITY.md): while they run, any user of this
machine can reach them, run code in them, and end them with SEGV by bytes that are not RPC's own.
"""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..ddp.run import Where
from ..gradients import Vector, Work, values_of
from ..machine.fit import LinkFit, fit_link
from ..sampling import assign
from ..timeline import Recorder, Timeline
from ..values.checks import number, of_type, one_of, whole
from ..workers.crew import memory_folder
from ..workers.errors import RankError
from .model import HOW, MOST_BATCHES, MOST_WORKERS, SERVED, SERVER, ServerRun, checked_batches, each_worker
from .sharing import refuse_torchrun, shared_tensor, whole_numbers

CALL_BYTES = tuple(4**power for power in range(5, 12))  # 1 KiB to 4 MiB
SERVER_NAME = "server"
_now = time.perf_counter_ns
_server: Server | None = None  # in the process of rank 0, while it serves


def train(
    work: Work,
    how: str = "synchronous",
    num_workers: int = 2,
    *,
    num_batches: int = 20,
    batch_size: int = 32,
    learning_rate: float = 0.1,
    compute_s: float | Sequence[float] = 0.0,
    seed: int = 0,
    network: Any = None,
    timeout_s: float = 60.0,
) -> ServerRun:
    """Train a copy of the module with plain SGD on `num_batches` batches, shared by `num_workers` processes.

    `how` is "synchronous": workers pull the parameters from a server, one process more, push a gradient, and the server
    steps by the mean of all of them; "asynchronous": it steps at each gradient, whatever has changed since its pull;
    "allreduce": no server, each steps by the mean; "hogwild": all have the same parameters in shared memory, and each
    subtracts its gradient in place without a lock, while others read them (Niu et al., HOGWILD!, 2011); "alone": this
    process takes the steps of "synchronous" by itself. Batches are those of `batches_of`; worker w has every W-th, and
    asynchronously the next one goes to the worker that asks. For each gradient a worker also sleeps `compute_s` (one
    number, or one for each), as if the module were larger. The processes are those of `ranks.launch`, on this machine,
    and listen on loopback only; or on the hosts of `network`, one of `machine.emulate.emulated`, which share no memory.

    A server listens on 127.0.0.1 by torch's RPC, without authentication: any user of this machine can reach it, run
    code in it, and end it with bytes that are not RPC's own. Do not serve where you do not trust the other users.

    Raises ValueError for bad input; RankError, which names the worker or the server, where one fails, dies, or has not
    ended after `timeout_s`.

    >>> work = Work(nn.Linear(3, 1), torch.ones(8, 3), torch.zeros(8, 1), nn.functional.mse_loss)
    >>> run = train(work, "asynchronous", num_batches=6, batch_size=4)
    >>> run.received_bytes, run.sent_bytes, len(run.staleness)  # 6 · 4 parameters · 4 bytes, in and out
    (96, 96, 6)
    >>> alone, together = (train(work, how, 1, num_batches=6, batch_size=4) for how in ("alone", "hogwild"))
    >>> bool((alone.parameters == together.parameters).all())
    True
    """
    frozen = [name for name, one in of_type("work", work, Work).module.named_parameters() if not one.requires_grad]
    if frozen:
        raise ValueError(f"module must have parameters that all get a gradient, got {', '.join(frozen)} without one")
    one_of("how", how, (*HOW, "hogwild", "alone"))
    if network is not None and how not in HOW:
        raise ValueError(f"network must be None with {how!r}, which stays on this machine, got {network!s}")
    num_workers = whole("num_workers", num_workers, 1, MOST_WORKERS)
    num_batches = checked_batches(how, num_workers, num_batches)
    batches = batches_of(len(work.inputs), num_batches, batch_size, seed)
    seconds, rate = each_worker("compute_s", compute_s, num_workers), number("learning_rate", learning_rate, above=0)
    where = Where(network=network, timeout_s=timeout_s)
    sizes = how, num_workers, num_batches, sum(one.nbytes for one in work.module.parameters())
    if how == "alone":
        return ServerRun(*sizes, Timeline.of([]), parameters=_train_alone(work, batches, rate, seconds))
    refuse_torchrun()
    with_server, recorder = how in SERVED, Recorder()
    with memory_folder() as folder:
        task = _Task(how, work, batches, rate, seconds, _Calls(folder, 2 * where.timeout_s, network is not None))
        try:
            ended = where.launch(_be_rank, (task, recorder), num_workers + with_server)[SERVER]
        except RankError as error:
            worker = error.rank if with_server else error.rank + 1
            name = "the server" if with_server and error.rank == SERVER else f"worker {worker}"
            raise RankError(f"{name}: {error}", error.rank) from error
    spans = recorder.timeline()
    return ServerRun(*sizes, spans.shifted(-spans.begin_s), **ended)


def _train_alone(work: Work, batches: NDArray[np.int64], rate: float, compute_s: tuple[float, ...]) -> Vector:
    """The parameters after torch's own SGD, a step for one batch of each worker."""
    module, num_workers = copy.deepcopy(work.module), len(compute_s)
    optimizer = torch.optim.SGD(module.parameters(), rate)
    for rows in torch.from_numpy(batches).reshape(-1, num_workers, batches.shape[1]):
        optimizer.zero_grad()
        for row, seconds in zip(rows, compute_s, strict=True):
            (work.loss_fn(module(work.inputs[row]), work.targets[row]) / num_workers).backward()  # type: ignore[no-untyped-call]
            time.sleep(seconds)
        optimizer.step()
    return values_of(module)


def measure_calls(
    num_bytes: Sequence[int] = CALL_BYTES, iterations: int = 20, network: Any = None, timeout_s: float = 60.0
) -> LinkFit:
    """Return what a call takes from a worker to a server and back, with that many bytes on the way there.

    One worker calls, one call after the other: the latency holds what RPC does in Python and in its threads. Raises
    ValueError for fewer than 5 sizes, and what `train` raises. Other users can reach it, as `train`.

    >>> fit = measure_calls(iterations=4)
    >>> fit.link.alpha_s > 1e-6, fit.num_held_out
    (True, 3)
    """
    sizes = whole_numbers("num_bytes", num_bytes, 1 << 30, least=5)
    iterations = whole("iterations", iterations, 1, 10_000)
    where = Where(network=network, timeout_s=timeout_s)
    refuse_torchrun()
    with memory_folder() as folder:
        calls = _Calls(folder, 2 * where.timeout_s, network is not None)
        args = sizes, iterations, calls
        seconds = where.launch(_time_calls, args, getattr(network, "num_hosts", 2))[SERVER + 1]
    return fit_link(sizes, seconds)


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


# ---- in a rank


_Ended = dict[str, Any]  # what a rank knows of a ServerRun's last fields


@attrs.frozen
class _Calls:
    """How the ranks call each other by RPC."""

    folder: Path  # where they meet
    timeout_s: float  # of a call: longer than the launch's, which names the rank that hangs
    emulated: bool  # messages go over the network whatever the ranks share

    @contextmanager
    def between_ranks(self) -> Iterator[None]:
        """Have RPC. A store of their own would listen to the whole network; ranks listen where Gloo does."""
        os.environ["TP_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        private: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]} if self.emulated else {}
        place = (self.folder / "store").as_uri()
        options = rpc.TensorPipeRpcBackendOptions(init_method=place, rpc_timeout=self.timeout_s, **private)
        rank, size = dist.get_rank(), dist.get_world_size()
        name = SERVER_NAME if rank == SERVER else f"worker{rank}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of how RPC gathers its devices
            rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)  # type: ignore[no-untyped-call]
        yield
        rpc.shutdown(timeout=self.timeout_s)


@attrs.frozen(eq=False)
class _Task:
    """What all ranks work by; a row of `batches` is the samples of one gradient."""

    how: str
    work: Work
    batches: NDArray[np.int64]
    learning_rate: float
    compute_s: tuple[float, ...]  # slept by each worker for each gradient
    calls: _Calls

    def gradient(self, module: nn.Module, row: int, worker: int) -> Tensor:
        """Return the flat gradient of a batch's loss; what a real model would take longer is slept."""
        work = self.work
        chosen = torch.from_numpy(self.batches[row])
        loss = work.loss_fn(module(work.inputs[chosen]), work.targets[chosen])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        time.sleep(self.compute_s[worker - 1])
        return parameters_to_vector(gradients)


class Server:
    """Flat parameters that workers pull, and to which their gradients are applied; called from threads of RPC."""

    def __init__(self, task: _Task, num_workers: int, recorder: Recorder) -> None:
        self._task, self._num_workers, self._recorder = task, num_workers, recorder
        self._lock = threading.Lock()
        self._flat = parameters_to_vector(task.work.module.parameters()).detach()
        self._version = self._num_given = 0
        self._round: dict[int, Tensor] = {}
        self._waiting: list[tuple[int, Future[Any]]] = []
        self._received_bytes = self._sent_bytes = 0
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
            self._received_bytes += gradient.nbytes
            self._staleness.append((self._version - version, worker))
            if self._task.how == "asynchronous":
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

    def end(self) -> _Ended:
        with self._lock:
            staleness, pushed_by = zip(*self._staleness, strict=True)
            moved = {"received_bytes": self._received_bytes, "sent_bytes": self._sent_bytes}
            return {"parameters": self._flat.double().numpy(), "staleness": staleness, "pushed_by": pushed_by, **moved}

    def _answer(self, worker: int, ready_ns: int) -> tuple[int, int, int, Tensor | None]:
        if self._num_given >= len(self._task.batches):
            return -1, self._version, ready_ns, None
        row = self._num_given
        if self._task.how == "synchronous":
            row = self._version * self._num_workers + worker - 1
        self._num_given += 1
        self._sent_bytes += self._flat.nbytes
        return row, self._version, ready_ns, self._flat.clone()

    def _update(self, gradient: Tensor) -> None:
        with self._recorder.span("update", "optimizer", self._version):
            self._flat.sub_(gradient, alpha=self._task.learning_rate)
        self._version += 1


def _here() -> Server:
    assert _server is not None
    return _server


def _be_rank(task: _Task, recorder: Recorder) -> _Ended:
    torch.set_num_threads(1)
    rank = dist.get_rank()
    train = {"allreduce": _train_in_ring, "hogwild": _train_in_shared_memory}.get(task.how, _serve_or_work)
    return train(task, rank, recorder.for_rank(rank))


def _serve_or_work(task: _Task, rank: int, recorder: Recorder) -> _Ended:
    """Serve or work until all batches are used up."""
    global _server
    if rank == SERVER:
        _server = Server(task, dist.get_world_size() - 1, recorder)
    with task.calls.between_ranks():
        if rank != SERVER:
            _work(task, rank, recorder)
        dist.barrier()
        return {} if _server is None else _server.end()


def _work(task: _Task, worker: int, recorder: Recorder) -> None:
    server: Any = rpc.remote(SERVER_NAME, _here).rpc_sync(timeout=task.calls.timeout_s)
    module, pulls = task.work.module, 0
    while True:
        asked_ns = _now()
        row, version, ready_ns, flat = server.pull(worker, pulls if task.how == "synchronous" else 0)
        there_ns = _now()
        if row < 0:
            return
        pulls += 1
        if ready_ns > asked_ns:
            recorder.add("work", "wait", -1, asked_ns, ready_ns)
        recorder.add("work", "pull", version, max(asked_ns, ready_ns), there_ns)
        with recorder.span("work", "compute", version):
            vector_to_parameters(flat, module.parameters())
            gradient = task.gradient(module, row, worker)
        with recorder.span("work", "push", version):
            server.push(worker, version, gradient)


def _train_in_ring(task: _Task, rank: int, recorder: Recorder) -> _Ended:
    """Train with an allreduce of the gradients at each step: all ranks are workers."""
    module, num_workers = task.work.module, dist.get_world_size()
    flat = parameters_to_vector(module.parameters()).detach()
    dist.all_reduce(torch.zeros(1))  # connects
    for step in range(len(task.batches) // num_workers):
        with recorder.span("work", "compute", step):
            vector_to_parameters(flat, module.parameters())
            gradient = task.gradient(module, step * num_workers + rank, rank + 1)
        with recorder.span("work", "allreduce", step):
            dist.all_reduce(gradient)
        with recorder.span("work", "optimizer", step):
            flat.sub_(gradient, alpha=task.learning_rate / num_workers)
    return {"parameters": flat.double().numpy()}


def _train_in_shared_memory(task: _Task, rank: int, recorder: Recorder) -> _Ended:
    """Train on parameters that all ranks have mapped: what one subtracts the others see."""
    module = task.work.module
    flat = shared_tensor(parameters_to_vector(module.parameters()).detach(), task.calls.folder)
    vector_to_parameters(flat, module.parameters())  # they are views of it from now on
    for row in range(rank, len(task.batches), dist.get_world_size()):
        with recorder.span("work", "step", row):
            flat.sub_(task.gradient(module, row, rank + 1), alpha=task.learning_rate)
    dist.barrier()
    return {"parameters": flat.double().numpy()}


def _time_calls(num_bytes: tuple[int, ...], iterations: int, calls: _Calls) -> list[list[float]]:
    """Return, of rank 1, the seconds of calls that bring rank 0 so many bytes, a list for each size."""
    torch.set_num_threads(1)
    seconds: list[list[float]] = []
    with calls.between_ranks():
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
