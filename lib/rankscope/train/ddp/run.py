"""Training steps under a real DistributedDataParallel: run on several ranks, observed, and measured."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...cluster import node_sizes
from ...collectives.timing import Ranks, TimedTask, network_id
from ...common.checks import function, number, of_type, one_of, whole
from ...common.frozen import checked, frozen, optional
from ...provenance import of_machine, of_run
from ...ranks.host import MOST_RANKS
from ...ranks.launcher import launch
from ...timeline import Span, Timeline
from .buckets import Buckets, ParameterSpec, parameter_specs
from .contention import fit_contention
from .cost import Cost, Seconds, costs_s
from .observed import DDPRun, DDPSettings, ObservedStep
from .step import Contention, LocalStep

Loss = Callable[[nn.Module, int, Any], Tensor]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

BACKENDS = ("gloo", "nccl", "mpi")
WARM_UP = 3  # DDP rebuilds its buckets in the second step
MOST_ITERATIONS = 10_000
NUM_WORKERS = {"gloo": 2}  # that carry out allreduces simultaneously; NCCL has one stream
FITTED_MB = (5.0, 20.0)  # caps at which contention is fitted, to a module of 40 MiB
_WIDTH, _DEPTH, _BATCH = 1024, 10, 128
_MORE = 2  # times as many iterations of the step that all predictions depend on


@frozen
class Where:
    """Where ranks run, and after how many seconds they must have ended.

    Ranks compute on GPUs where the backend is NCCL, else on the CPU. `network` is None for this machine, or an object
    with `num_hosts` hosts, whose ``launch(fn, args, timeout_s, ranks_per_host)`` runs the ranks on them. Raises
    ValueError for an unknown backend.

    >>> Where(backend="tcp")
    Traceback (most recent call last):
    ValueError: backend must be one of 'gloo', 'nccl', 'mpi', got 'tcp'
    """

    backend: str = checked(one_of, BACKENDS, default="gloo")
    network: Any = None
    timeout_s: float = checked(number, above=0, high=10**6, default=300.0)

    def launch(self, fn: Callable[..., Any], args: tuple[Any, ...], num_ranks: int | None) -> list[Any]:
        """Return what each of these ranks returns; ValueError if the network has no hosts for them."""
        optional("num_ranks", num_ranks, whole, 1, MOST_RANKS)
        if self.network is None:
            return launch(fn, num_ranks, args, self.backend, self.timeout_s)
        hosts = getattr(self.network, "num_hosts", None)
        if self.backend != "gloo" or num_ranks is None or not hosts or num_ranks % hosts:
            wanted = f"one with hosts for {num_ranks} ranks, the same number on each, on Gloo"
            raise ValueError(f"network must be {wanted}, got {self.network!s}")
        found: list[Any] = self.network.launch(fn, args, self.timeout_s, num_ranks // hosts)
        return found


HERE = Where()


# ---- measured from the process that starts the ranks


def measure(
    module: nn.Module,
    loss: Loss,
    *,
    num_ranks: int | None = 2,
    iterations: int = 20,
    optimizer: Optimizer | None = None,
    where: Where = HERE,
    **options: Any,
) -> DDPRun:
    """Train a copy of the module under DistributedDataParallel for some steps, and return what was observed.

    ``loss(module, rank, number)`` is called with the wrapped module for each micro-batch, makes or finds the batch, and
    returns a tensor of one number; it may be a lambda or live in a notebook. ``optimizer(parameters)`` makes the
    optimizer; by default there is none. Gradients are cleared between steps, unmeasured. `num_ranks` is None for the
    ranks of torchrun. All ranks start each step at one agreed instant.

    `options` are DDP's own ``bucket_cap_mb``, ``gradient_as_bucket_view``, ``find_unused_parameters`` and
    ``static_graph``; ``accumulation``, the micro-batches of a step, of which all but the last run under ``no_sync``;
    and ``communicate=False``, with which DDP does everything but the allreduces.

    A communication hook does DDP's own allreduce and stamps it, and a hook behind DDP's stamps each gradient; to leave
    nothing to divide, the loss is divided by the number of ranks. On CUDA stamps are events.

    Raises ValueError for bad input, RankError if a rank fails, dies, or has not ended after ``where.timeout_s``.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> measure(model, lambda model, rank, number: model(torch.ones(4, 8)).mean(), iterations=4).buckets
    ((3, 2, 1, 0),)
    """
    setting, where = DDPSettings(**options), of_type("where", where, Where)
    iterations = whole("iterations", iterations, 1, MOST_ITERATIONS)
    check_training(module, loss, optimizer)
    device = "cuda" if where.backend == "nccl" else "cpu"
    args = module, loss, optimizer, setting, iterations, device
    records: list[Record] = where.launch(_be_rank, args, num_ranks)
    sizes = node_sizes(records[0].nodes)
    network = "loopback" if len(sizes) == 1 else f"between {len(sizes)} nodes"
    ranks = {"num_ranks": len(records), "num_nodes": len(sizes), "ranks_per_node": sizes, "backend": where.backend}
    about = of_run("", "ddp.measure", network if where.network is None else str(where.network))
    each_step = list(zip(*(record.steps for record in records), strict=True))
    return DDPRun(
        provenance={**of_machine(), **about, **ranks},
        setting=setting,
        parameters=records[0].parameters,
        step_s=tuple(max(one.step_s for one in step) for step in each_step),
        clean=tuple(all(one.clean for one in step) for step in each_step),
        steps=tuple(map(_observed, each_step)),
    )


def measure_local_step(module: nn.Module, loss: Loss, *, num_ranks: int | None = 1, **options: Any) -> LocalStep:
    """Return what a step of each of these ranks takes while all of them compute and none communicates.

    It is `measure` without the allreduces, and has its `options`: DDP still copies gradients into buckets and back. If
    ranks share cores, measure as many as you want to predict.

    >>> step = measure_local_step(nn.Linear(8, 1), lambda model, rank, number: model(torch.ones(4, 8)).mean())
    >>> [spec.name for spec in step.parameters], len(step.ready_s)
    (['weight', 'bias'], 2)
    """
    return measure(module, loss, num_ranks=num_ranks, communicate=False, **options).local_step()


def measure_contention(
    cost: Cost, num_ranks: int = 2, *, iterations: int = 10, backend: str | None = None, where: Where = HERE
) -> Contention:
    """Return how much computing and communicating slow each other down where these ranks run.

    It is fitted to one module, ten linear layers of 1,024 by 1,024, at caps of 5 and 20 MiB, and holds for the machine,
    this number of ranks and this network, whatever is trained with whatever cap. `backend` is by default that of
    `where`.
    """
    if backend is not None:
        where = Where(backend, where.network, where.timeout_s)
    costs_s(cost, np.array([1e6]))  # refuses now what would be refused once all is measured
    steps = whole("iterations", iterations, 1, MOST_ITERATIONS // _MORE)
    alone, *overlapped = calibration_runs(num_ranks, steps, where)
    return fit_contention([run.overlapped() for run in overlapped], alone.local_step(), cost)


def calibration_runs(num_ranks: int, iterations: int, where: Where) -> list[DDPRun]:
    """Measure the module that contention is fitted to: without allreduces, then at each cap of `FITTED_MB`."""
    layers = [layer for _ in range(_DEPTH) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    steps = partial(
        measure,
        nn.Sequential(*layers),
        partial(_mean_square, torch.ones(_BATCH, _WIDTH)),
        num_ranks=num_ranks,
        where=where,
    )
    alone = steps(iterations=_MORE * iterations, communicate=False)
    return [alone, *(steps(iterations=iterations, bucket_cap_mb=cap) for cap in FITTED_MB)]


def _mean_square(batch: Tensor, module: nn.Module, rank: int, number: int) -> Tensor:
    loss: Tensor = module(batch.to(next(module.parameters()).device)).square().mean()
    return loss


def check_training(module: nn.Module, loss: Callable[..., Tensor], optimizer: Optimizer | None) -> None:
    """Raise ValueError unless there are parameters to train, and functions to do it with."""
    parameter_specs(of_type("module", module, nn.Module))
    function("loss", loss)
    optional("optimizer", optimizer, function)


# ---- on each rank


class Taken(NamedTuple):
    """One step as one rank saw it: spans from its start; `begun_s` is that start by time.perf_counter."""

    step_s: float
    clean: bool
    begun_s: float
    spans: list[Span]
    ready_s: Seconds  # when each gradient was in its bucket, from the start of the last backward
    buckets: list[list[int]]


class Record(NamedTuple):
    """What one rank brings back; `nodes` are the numbers of all ranks' nodes."""

    nodes: list[int]
    parameters: tuple[ParameterSpec, ...]
    steps: list[Taken]


def _be_rank(
    module: nn.Module, loss: Loss, optimizer: Optimizer | None, setting: DDPSettings, iterations: int, device: str
) -> Record:
    """Run the steps on this rank, on a copy of the module."""
    own = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    steps = DDPStepper(module, loss, optimizer, setting, own)
    ranks, kept = Ranks(device=str(own)), []
    nodes = ranks.numbered(network_id())
    for place in range(WARM_UP + iterations):
        seconds, clean = ranks.once(TimedTask(steps.run, steps.before))
        if place >= WARM_UP:
            kept.append(steps.taken(seconds, clean))
    return Record(nodes, parameter_specs(steps.ddp.module), kept)


class DDPStepper:
    """Takes one step after the other with DDP; `loss` gets a micro-batch's number, or what `fetch` returns for it."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        optimizer: Optimizer | None,
        setting: DDPSettings,
        device: torch.device,
        fetch: Callable[[int], Any] | None = None,
    ) -> None:
        module = copy.deepcopy(module).to(device)
        devices = [device] if device.type == "cuda" else None
        self.ddp = DistributedDataParallel(module, device_ids=devices, **setting.ddp)
        self.watch = StepInstants(self.ddp, device)
        self.watch.stamp_buckets(self.ddp, setting.communicate)
        self.watch.stamp_gradients()
        self._share = 1 / dist.get_world_size()  # of the loss: DDP does not divide where it has a hook
        self._optimizer = None if optimizer is None else optimizer(self.watch.parameters)
        self._loss, self._accumulation, self._fetch = loss, setting.accumulation, fetch
        self._rank, self._number = dist.get_rank(), 0

    def before(self) -> None:
        self.ddp.zero_grad()
        self.watch.clear()

    def run(self) -> None:
        now = self.watch.now
        self._begun_s, self._passes, self._loaded = time.perf_counter(), [now()], []
        for micro in range(self._accumulation):
            last = micro == self._accumulation - 1
            with nullcontext() if last else self.ddp.no_sync():
                batch = self._fetch(self._number) if self._fetch else self._number
                self._number += 1
                self._loaded.append(now())
                loss: Any = self._loss(self.ddp, self._rank, batch) * self._share
                self._passes.append(now())
                if last:
                    self.watch.ready.clear()
                loss.backward()
                self._passes.append(now())
        self._end = self._passes[-1]
        if self._optimizer is not None:
            self._optimizer.step()
            self._end = now()

    def taken(self, seconds: float = 0.0, clean: bool = True) -> Taken:
        """Return what was seen of the last step, and what was timed around it.

        The last backward ends with its last gradient, or with what DDP does.
        """
        watch, since = self.watch, partial(self.watch.since, self._passes[0])
        passes_s, loaded_s = list(map(since, self._passes)), list(map(since, self._loaded))
        stamped = (watch.ready.get(place) for place in range(len(watch.parameters)))
        ready_s = np.array([np.nan if one is None else since(one) for one in stamped])
        allreduces = [(since(one), since(watch.done[place])) for place, one in enumerate(watch.launched)]
        done = []
        for micro, begin_s in enumerate(passes_s[:-1:2]):
            if self._fetch:
                done.append(("load", micro, begin_s, loaded_s[micro]))
                begin_s = loaded_s[micro]
            middle_s, end_s = passes_s[2 * micro + 1 : 2 * micro + 3]
            done += [("forward", micro, begin_s, middle_s), ("backward", micro, middle_s, end_s)]
        _, last, begin_s, stop_s = done.pop()
        computed_s = min(max(begin_s, float(np.nanmax(ready_s, initial=0.0))), stop_s)
        summed_s = min(max([computed_s, *(end_s for _, end_s in allreduces)]), stop_s)
        rest = [
            ("backward", last, begin_s, computed_s),
            ("wait", -1, computed_s, summed_s),
            ("unpack", -1, summed_s, stop_s),
            ("optimizer", -1, stop_s, since(self._end)),
        ]
        done += [one for one in rest if one[3] > one[2]]
        spans = [Span(self._rank, "compute", *one) for one in done]
        free_s = [0.0] * NUM_WORKERS.get(dist.get_backend(), 1)
        for item, (launched_s, end_s) in enumerate(allreduces):
            worker = free_s.index(min(free_s))
            lane = "allreduce" if worker == 0 else f"allreduce {worker + 1}"
            spans.append(Span(self._rank, lane, "allreduce", item, min(max(launched_s, free_s[worker]), end_s), end_s))
            free_s[worker] = end_s
        return Taken(seconds, clean, self._begun_s, spans, ready_s - begin_s, watch.buckets)


class StepInstants:
    """Instants of what DDP does in the step under way: of the host, or events of the current CUDA stream.

    DDP's hooks hold this object. It must not hold DDP in turn: a DDP that outlives its process group may hang at exit.
    """

    def __init__(self, ddp: DistributedDataParallel, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self.parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
        self.places = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self.clear()

    def clear(self) -> None:
        self.ready: dict[int, Any] = {}
        self.buckets: list[list[int]] = []
        self.launched: list[Any] = []
        self.done: dict[int, Any] = {}

    def now(self) -> Any:
        if not self._is_cuda:
            return time.monotonic()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def since(self, begin: Any, instant: Any) -> float:
        return float(begin.elapsed_time(instant)) * 1e-3 if self._is_cuda else float(instant - begin)

    def stamp_gradients(self) -> None:
        """Stamp each gradient once DDP has taken it: hooks of a node run in the order in which they were added."""

        def stamp(place: int, inputs: Any, outputs: Any) -> None:
            self.ready[place] = self.now()

        for place, parameter in enumerate(self.parameters):
            with torch.enable_grad():
                view: Any = parameter.view_as(parameter).grad_fn
            view.next_functions[0][0].register_hook(partial(stamp, place))

    def stamp_buckets(self, ddp: DistributedDataParallel, communicate: bool) -> None:
        """Do the allreduce of each bucket that DDP would do, and stamp it; or none at all."""

        def reduce(bucket: Any) -> Any:
            place = len(self.launched)
            self.buckets.append([self.places[id(parameter)] for parameter in bucket.parameters()])
            self.launched.append(self.now())
            if not communicate:
                self.done[place] = self.launched[place]
                future: torch.futures.Future[Tensor] = torch.futures.Future()
                future.set_result(bucket.buffer())
                return future
            work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

            def done(future: Any) -> Any:
                self.done[place] = self.now()
                return future.value()[0]

            return work.get_future().then(done)

        ddp.register_comm_hook(None, lambda _, bucket: reduce(bucket))  # DDP refuses annotations that are strings


# ---- what ranks saw, as values


def _observed(ranks: tuple[Taken, ...]) -> ObservedStep:
    ready_s = np.array([one.ready_s for one in ranks])
    return ObservedStep(buckets_in_common(ranks), ready_s, Timeline.of([span for one in ranks for span in one.spans]))


def buckets_in_common(ranks: Iterable[Taken]) -> Buckets:
    """Return the buckets that all ranks launched in a step."""
    first, *others = [one.buckets for one in ranks]
    if any(buckets != first for buckets in others):
        raise RuntimeError(f"ranks must launch the same buckets, got {[first, *others]}")
    return Buckets(first)
