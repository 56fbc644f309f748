"""Training steps under a real DistributedDataParallel: run on several ranks, observed, and measured."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...cluster import node_sizes
from ...collectives.timing import Ranks, TimedTask, network_id
from ...common.checks import check_field, function, number, of_type, one_of, optional, whole
from ...provenance import of_machine, of_run
from ...ranks.host import MOST_RANKS
from ...ranks.launcher import launch
from ...ranks.recorder import cuda_event
from ...timeline import Span, Timeline
from ..losses import checked_loss
from .buckets import Buckets, ParameterSpec, parameter_specs
from .contention import fit_contention
from .cost import Cost, Seconds, costs_s
from .observed import DDPRun, DDPSettings, ObservedStep
from .step import NO_ITEM, Contention, LocalStep

Loss = Callable[[nn.Module, int, Any], Tensor]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

WARM_UP = 3  # steps; DDP rebuilds its buckets in the second one, with a static graph in the third
MOST_ITERATIONS = 10_000
NUM_WORKERS = {"gloo": 2}  # how many allreduces run simultaneously; 1 by default, because NCCL has one stream
FITTED_MB = (5.0, 20.0)  # caps at which contention is fitted, to a module of 40 MiB: five buckets, and two
_WIDTH = 1024  # of that module's layers
_DEPTH = 10  # its layers
_BATCH = 128  # samples in each of a rank's steps
_LOCAL_STEP_FACTOR = 2  # times as many iterations without allreduces, because all predictions depend on that step


class Where(msgspec.Struct, frozen=True):
    """Where ranks run, and the time in seconds after which they must have ended.

    Ranks compute on GPUs if the backend is NCCL, else on the CPU. `network` is None for this machine, or an object with
    `num_hosts` hosts, whose ``launch(fn, args, timeout_s, ranks_per_host)`` runs the ranks on them. Raises ValueError
    if the backend is unknown.

    >>> Where(backend="tcp")
    Traceback (most recent call last):
    ValueError: backend must be one of 'gloo', 'nccl', got 'tcp'
    """

    backend: str = "gloo"
    network: Any = None
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        check_field(self, "backend", one_of, ("gloo", "nccl"))
        check_field(self, "timeout_s", number, above=0, high=10**6)

    def launch(self, fn: Callable[..., Any], args: tuple[Any, ...], num_ranks: int | None) -> list[Any]:
        """Run `fn` on the ranks and return its results. Raises ValueError if the network has no hosts for them."""
        optional("num_ranks", num_ranks, whole, 1, MOST_RANKS)
        if self.network is None:
            return launch(fn, num_ranks, args, self.backend, self.timeout_s)
        num_hosts = getattr(self.network, "num_hosts", 0)
        # A network starts its ranks on Gloo: its `launch` takes no backend, and a number of ranks for each host.
        if self.backend != "gloo" or num_ranks is None or num_hosts == 0 or num_ranks % num_hosts:
            wanted = f"one with hosts for {num_ranks} ranks, the same number on each, on Gloo"
            raise ValueError(f"network must be {wanted}, got {self.network!s}")
        results: list[Any] = self.network.launch(fn, args, self.timeout_s, num_ranks // num_hosts)
        return results


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
    """Train a copy of the module under DistributedDataParallel for some steps, and return the observed run.

    ``loss(module, rank, number)`` is called with the wrapped module for each micro-batch, makes or loads the batch, and
    returns a tensor of one number; it may be a lambda or be defined in a notebook. ``optimizer(parameters)`` makes the
    optimizer; by default there is none. Gradients are cleared between steps, outside the measured time. `num_ranks` is
    None for the ranks of torchrun or mpirun. All ranks start each step at one agreed instant.

    `options` are DDP's own ``bucket_cap_mb``, ``gradient_as_bucket_view``, ``find_unused_parameters`` and
    ``static_graph``; ``accumulation``, the number of micro-batches of a step, of which all except the last run under
    ``no_sync``; and ``communicate=False``, with which DDP omits only the allreduces.

    A communication hook performs DDP's own allreduce and records its times, and a hook behind DDP's records when each
    gradient is ready. With such a hook DDP does not average, so the loss is divided by the number of ranks. On CUDA,
    instants are recorded as events.

    Raises ValueError if an argument is invalid; RankError if a rank fails, dies, or has not ended after
    ``where.timeout_s``.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> measure(model, lambda model, rank, number: model(torch.ones(4, 8)).mean(), iterations=4).buckets
    ((3, 2, 1, 0),)
    """
    settings = DDPSettings(**options)
    of_type("where", where, Where)
    iterations = whole("iterations", iterations, 1, MOST_ITERATIONS)
    check_training(module, loss, optimizer)
    device = "cuda" if where.backend == "nccl" else "cpu"
    args = (module, loss, optimizer, settings, iterations, device)
    records: list[Record] = where.launch(_be_rank, args, num_ranks)
    each_step = list(zip(*(record.steps for record in records), strict=True))
    return DDPRun(
        provenance=_provenance(records, where),
        setting=settings,
        parameters=records[0].parameters,  # the same on all ranks, which train copies of one module
        step_s=tuple(max(rank.step_s for rank in step) for step in each_step),
        clean=tuple(all(rank.clean for rank in step) for step in each_step),
        steps=tuple(_observed(step) for step in each_step),
    )


def _provenance(records: list[Record], where: Where) -> dict[str, Any]:
    """Return what the file of a run says about its machine, its software, its ranks and their nodes."""
    ranks_per_node = node_sizes(records[0].nodes)
    if where.network is not None:
        network = str(where.network)
    elif len(ranks_per_node) == 1:
        network = "loopback"
    else:
        network = f"between {len(ranks_per_node)} nodes"
    return {
        **of_machine(),
        # A provenance must have a name, but a run is not given one.
        **of_run(name="", command="ddp.measure", network=network),
        "num_ranks": len(records),
        "num_nodes": len(ranks_per_node),
        "ranks_per_node": ranks_per_node,
        "backend": where.backend,
    }


def measure_local_step(module: nn.Module, loss: Loss, *, num_ranks: int | None = 1, **options: Any) -> LocalStep:
    """Measure the local step of ranks that all compute and do not communicate.

    This is `measure` without the allreduces, with the same `options`. DDP still copies gradients into buckets and back.
    If ranks share cores, measure with the number of ranks that you want to predict.

    >>> step = measure_local_step(nn.Linear(8, 1), lambda model, rank, number: model(torch.ones(4, 8)).mean())
    >>> [spec.name for spec in step.parameters], len(step.ready_s)
    (['weight', 'bias'], 2)
    """
    return measure(module, loss, num_ranks=num_ranks, communicate=False, **options).local_step()


def measure_contention(
    cost: Cost, num_ranks: int | None = 2, *, iterations: int = 10, backend: str | None = None, where: Where = HERE
) -> Contention:
    """Measure how much computing and communicating slow each other down on these ranks.

    The result is fitted to one module, ten linear layers of 1,024 by 1,024, at caps of 5 and 20 MiB. It is valid for
    this machine, number of ranks and network, for any module and cap. `backend` is by default that of `where`.
    """
    if backend is not None:
        where = replace(where, backend=backend)
    costs_s(cost, np.array([1e6]))  # any size: this raises an error for a wrong `cost` before anything is measured
    iterations = whole("iterations", iterations, 1, MOST_ITERATIONS // _LOCAL_STEP_FACTOR)
    alone, *overlapped = calibration_runs(num_ranks, iterations, where)
    return fit_contention([run.overlapped() for run in overlapped], alone.local_step(), cost)


def calibration_runs(num_ranks: int | None, iterations: int, where: Where) -> list[DDPRun]:
    """Measure the module to which contention is fitted: without allreduces, then at each cap of `FITTED_MB`."""
    layers: list[nn.Module] = []
    for _ in range(_DEPTH):
        layers += [nn.Linear(_WIDTH, _WIDTH), nn.ReLU()]
    module = nn.Sequential(*layers)
    loss = partial(_mean_square, torch.ones(_BATCH, _WIDTH))
    measure_layers = partial(measure, module, loss, num_ranks=num_ranks, where=where)
    runs = [measure_layers(iterations=_LOCAL_STEP_FACTOR * iterations, communicate=False)]
    for cap_mb in FITTED_MB:
        runs.append(measure_layers(iterations=iterations, bucket_cap_mb=cap_mb))
    return runs


def _mean_square(batch: Tensor, module: nn.Module, rank: int, number: int) -> Tensor:
    loss: Tensor = module(batch.to(next(module.parameters()).device)).square().mean()
    return loss


def check_training(module: nn.Module, loss: Callable[..., Tensor], optimizer: Optimizer | None) -> None:
    """Raise ValueError unless the module has parameters to train, and `loss` and `optimizer` are functions."""
    parameter_specs(of_type("module", module, nn.Module))
    function("loss", loss)
    optional("optimizer", optimizer, function)


# ---- on each rank


class RecordedStep(NamedTuple):
    """One step as one rank saw it, with spans in seconds from its start; `buckets` are those that DDP launched.

    `clean` says whether the host left the rank undisturbed.
    """

    step_s: float
    clean: bool
    start_s: float  # of the step, by ``time.perf_counter``
    spans: list[Span]
    ready_s: Seconds  # when each gradient was in its bucket, from the start of the last backward
    buckets: list[list[int]]


class Record(NamedTuple):
    """The record that one rank returns; `nodes` has the number of each rank's node, the same on all ranks."""

    nodes: list[int]
    parameters: tuple[ParameterSpec, ...]
    steps: list[RecordedStep]


def _be_rank(
    module: nn.Module, loss: Loss, optimizer: Optimizer | None, settings: DDPSettings, iterations: int, device_type: str
) -> Record:
    """Run the steps on this rank, on a copy of the module, and record those after the warm-up."""
    device = torch.device(device_type)
    if device_type == "cuda":  # the launcher has set this rank's GPU
        device = torch.device("cuda", torch.cuda.current_device())
    stepper = DDPStepper(module, loss, optimizer, settings, device)
    ranks = Ranks(device=str(device))
    nodes = ranks.numbered(network_id())
    steps = []
    for iteration in range(WARM_UP + iterations):
        seconds, clean = ranks.once(TimedTask(stepper.run, stepper.before))
        if iteration >= WARM_UP:
            steps.append(stepper.record(seconds, clean))
    return Record(nodes, parameter_specs(stepper.ddp.module), steps)


class DDPStepper:
    """Takes one step after the other with DDP; `loss` gets a micro-batch's number, or the result of `fetch` for it."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        optimizer: Optimizer | None,
        settings: DDPSettings,
        device: torch.device,
        fetch: Callable[[int], Any] | None = None,
    ) -> None:
        module = copy.deepcopy(module).to(device)
        devices = [device] if device.type == "cuda" else None  # DDP refuses a list for a module on the CPU
        self.ddp = DistributedDataParallel(module, device_ids=devices, **settings.ddp)
        self.instants = StepInstants(self.ddp, device)
        self.instants.stamp_buckets(self.ddp, settings.communicate)
        self.instants.stamp_gradients()
        self._loss = loss
        self._loss_share = 1 / dist.get_world_size()  # because DDP does not divide gradients if it has a hook
        self._optimizer = None if optimizer is None else optimizer(self.instants.parameters)
        self._accumulation = settings.accumulation
        self._fetch = fetch
        self._rank = dist.get_rank()
        self._number = 0  # of the next micro-batch

    def before(self) -> None:
        """Clear gradients and the instants of the last step; this is not measured."""
        self.ddp.zero_grad()
        self.instants.clear()

    def run(self) -> None:
        """Take a step: all micro-batches, of which only the last reduces gradients, and the optimizer if there is one.

        `record` turns the instants into spans. On a GPU they are CUDA events, but `_start_s` is on the host's clock.
        """
        self._start_s = time.perf_counter()
        self._start = self.instants.now()
        self._passes: list[_PassInstants] = []
        for micro in range(self._accumulation):
            is_last = micro == self._accumulation - 1
            with nullcontext() if is_last else self.ddp.no_sync():
                self._passes.append(self._forward_and_backward(is_last))
        self._end = self._passes[-1].backward_end
        if self._optimizer is not None:
            self._optimizer.step()
            self._end = self.instants.now()

    def _forward_and_backward(self, is_last: bool) -> _PassInstants:
        """Compute the gradients of the next micro-batch, and of the step's last one record when each is ready."""
        batch: Any = self._number
        if self._fetch is not None:
            batch = self._fetch(self._number)
        self._number += 1
        loaded = self.instants.now()
        loss: Any = checked_loss(self._loss(self.ddp, self._rank, batch)) * self._loss_share
        forward_end = self.instants.now()
        if is_last:
            self.instants.ready.clear()  # the hooks have run in the backward passes of earlier micro-batches, too
        loss.backward()
        return _PassInstants(loaded, forward_end, self.instants.now())

    def record(self, seconds: float = 0.0, clean: bool = True) -> RecordedStep:
        """Return the record of the last step, with the duration and cleanness that were measured around it.

        `follow` measures neither: it takes durations from the spans, and does not use `seconds` and `clean`.
        """
        instants = self.instants
        since_start = partial(instants.since, self._start)
        ready_s = np.full(len(instants.parameters), np.nan)
        for index, ready in instants.ready.items():
            ready_s[index] = since_start(ready)
        allreduces = []
        for item, launched in enumerate(instants.launched):
            allreduces.append((since_start(launched), since_start(instants.done[item])))

        *spans, last_backward = self._pass_spans(since_start)
        last_ready_s = float(np.nanmax(ready_s, initial=0.0))  # 0 if no parameter got a gradient
        last_reduced_s = max([end_s for _, end_s in allreduces], default=0.0)
        ending = self._parts_of_last_backward(last_backward, last_ready_s, last_reduced_s)
        ending.append(self._compute_span("optimizer", NO_ITEM, last_backward.stop_s, since_start(self._end)))
        spans += [span for span in ending if span.stop_s > span.start_s]  # without an optimizer, its span is empty
        spans += self._allreduce_spans(allreduces)
        return RecordedStep(
            step_s=seconds,
            clean=clean,
            start_s=self._start_s,
            spans=spans,
            ready_s=ready_s - last_backward.start_s,
            buckets=instants.buckets,
        )

    def _parts_of_last_backward(self, backward: Span, last_ready_s: float, last_reduced_s: float) -> list[Span]:
        """Divide the last backward call: it computes up to the last gradient, then waits for allreduces, then unpacks.

        Parts may be empty. None begins before the one in front of it, or ends after the call.
        """
        computed_s = min(max(backward.start_s, last_ready_s), backward.stop_s)
        reduced_s = min(max(computed_s, last_reduced_s), backward.stop_s)
        return [
            backward._replace(stop_s=computed_s),
            self._compute_span("wait", NO_ITEM, computed_s, reduced_s),
            self._compute_span("unpack", NO_ITEM, reduced_s, backward.stop_s),
        ]

    def _pass_spans(self, since_start: Callable[[Any], float]) -> list[Span]:
        """Forward and backward of each micro-batch, and before them the loading of its batch if there is a `fetch`.

        The last span is the last backward. `since_start` turns an instant into seconds.
        """
        spans = []
        begin_s = 0.0  # of the next span, each of which begins where the one before it ends
        for micro, instants in enumerate(self._passes):
            if self._fetch is not None:
                loaded_s = since_start(instants.loaded)
                spans.append(self._compute_span("load", micro, begin_s, loaded_s))
                begin_s = loaded_s
            forward_end_s = since_start(instants.forward_end)
            backward_end_s = since_start(instants.backward_end)
            spans.append(self._compute_span("forward", micro, begin_s, forward_end_s))
            spans.append(self._compute_span("backward", micro, forward_end_s, backward_end_s))
            begin_s = backward_end_s
        return spans

    def _compute_span(self, kind: str, item: int, start_s: float, stop_s: float) -> Span:
        return Span(self._rank, "compute", kind, item, start_s, stop_s)

    def _allreduce_spans(self, allreduces: list[tuple[float, float]]) -> list[Span]:
        """A span for each allreduce, given its launch and end.

        When it started is not recorded. It started at its launch, or, if all of the backend's workers were busy, when
        one of them became free: the one that had least to do.
        """
        spans = []
        free_s = [0.0] * NUM_WORKERS.get(dist.get_backend(), 1)  # when each worker becomes free
        for item, (launched_s, end_s) in enumerate(allreduces):
            worker = free_s.index(min(free_s))
            lane = "allreduce" if worker == 0 else f"allreduce {worker + 1}"
            # Another worker may have had it, so this one may become free only after the end.
            start_s = min(max(launched_s, free_s[worker]), end_s)
            spans.append(Span(self._rank, lane, "allreduce", item, start_s, end_s))
            free_s[worker] = end_s
        return spans


class _PassInstants(NamedTuple):
    """Instants of one micro-batch: its batch is there, its forward has ended, its backward has ended."""

    loaded: Any
    forward_end: Any
    backward_end: Any


class StepInstants:
    """Instants of DDP's actions in the current step: times of the host, or events of the current CUDA stream.

    `ready` has an instant for each parameter whose gradient is ready, by its index in `parameters`. `buckets` are the
    buckets of the step in launch order, lists of such indices. `launched` and `done` are when their allreduces were
    launched and had ended; `done` is a dict by the bucket's number, because they may end in another order.

    DDP's hooks refer to this object. It must not refer to DDP in turn, because a DDP that outlives its process group
    may hang at exit.
    """

    def __init__(self, ddp: DistributedDataParallel, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self.parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
        self._index_of = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        self.clear()

    def clear(self) -> None:
        self.ready: dict[int, Any] = {}
        self.buckets: list[list[int]] = []
        self.launched: list[Any] = []
        self.done: dict[int, Any] = {}

    def now(self) -> Any:
        if not self._is_cuda:
            return time.monotonic()
        return cuda_event()

    def since(self, begin: Any, instant: Any) -> float:
        """Return the seconds between two instants."""
        if self._is_cuda:
            return float(begin.elapsed_time(instant)) * 1e-3
        return float(instant - begin)

    def stamp_gradients(self) -> None:
        """Record when DDP has copied each gradient into its bucket.

        DDP has a hook at the node of autograd's graph that accumulates a parameter's gradient. Hooks of a node run in
        the order in which they were added, so one that is added to the same node here runs after DDP's. A parameter
        does not refer to that node, but the node of a view of it does.
        """

        def stamp(index: int, inputs: Any, outputs: Any) -> None:
            self.ready[index] = self.now()

        for index, parameter in enumerate(self.parameters):
            with torch.enable_grad():  # without it, as in a script that has switched gradients off, a view has no node
                view: Any = parameter.view_as(parameter).grad_fn
            accumulate_gradient = view.next_functions[0][0]  # the node after that of the view in backward
            accumulate_gradient.register_hook(partial(stamp, index))

    def stamp_buckets(self, ddp: DistributedDataParallel, communicate: bool) -> None:
        """Perform the allreduce of each bucket as DDP would, and record its times; or perform none at all."""

        def reduce(bucket: Any) -> Any:
            """DDP's communication hook: return a future of the bucket's sum, of a loss that was divided already."""
            number = len(self.launched)
            self.buckets.append([self._index_of[id(parameter)] for parameter in bucket.parameters()])
            self.launched.append(self.now())
            if not communicate:  # the bucket is returned as it is, at once
                self.done[number] = self.launched[number]
                future: torch.futures.Future[Tensor] = torch.futures.Future()
                future.set_result(bucket.buffer())
                return future
            work: Any = dist.all_reduce(bucket.buffer(), async_op=True)

            def done(future: Any) -> Any:
                self.done[number] = self.now()
                return future.value()[0]  # of a list with the one tensor that was reduced

            return work.get_future().then(done)

        # A lambda, because DDP refuses annotations that are strings. The hook has no state, hence None and `_`.
        ddp.register_comm_hook(None, lambda _, bucket: reduce(bucket))


# ---- the records of all ranks


def _observed(ranks: tuple[RecordedStep, ...]) -> ObservedStep:
    ready_s = np.array([rank.ready_s for rank in ranks])
    spans = chain.from_iterable(rank.spans for rank in ranks)
    return ObservedStep(buckets_in_common(ranks), ready_s, Timeline.of(list(spans)))


def buckets_in_common(ranks: Iterable[RecordedStep]) -> Buckets:
    """Return the buckets that all ranks launched in a step."""
    first, *others = [rank.buckets for rank in ranks]
    if any(buckets != first for buckets in others):
        raise RuntimeError(f"ranks must launch the same buckets, got {[first, *others]}")
    return Buckets(first)
