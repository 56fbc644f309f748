"""Training steps under a real DistributedDataParallel on several ranks: measured, with and without its allreduces."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from itertools import product
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...common.checks import function, of_type, optional
from ...networks import Cost, Seconds
from ...ranks.recorder import Recording, open_recorders, record
from ...timeline import Span, Timeline
from ..losses import checked_loss
from .gradients import Gradient
from .local import Contention, LocalStep
from .observed import Loss, gradients_of, unreduced
from .step import NO_ITEM, last_backward

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

WARM_UP = 3  # steps; DDP rebuilds its buckets in the second one, with a static graph in the third
FITTED_MB = (5.0, 20.0)  # caps at which contention is fitted, to a module of 40 MiB: five buckets, and two
_WIDTH = 1024  # of that module's layers
_DEPTH = 10  # its layers
_BATCH = 128  # samples in each of a rank's steps
_MOST = 32.0  # the largest factor of contention that is tried
# Where the search for each factor starts. It needs several starts, because the errors have kinks where an allreduce
# ends together with the backward.
_STARTS = np.geomspace(1.02, 31.0, 7)


class MeasuredSteps(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Steps under DDP on all ranks: a timeline of each, with the lanes and kinds of `ddp.simulate`, from its start.

    A bucket's allreduce starts when it is launched and one of Gloo's two workers is free; those of the second one are
    on lane "allreduce 2". ``ready_s[step]`` has a row for each rank and a column for each gradient, in seconds from the
    start of the rank's backward, or nan if there was none.
    """

    steps: tuple[Timeline, ...]
    ready_s: Seconds

    @property
    def step_s(self) -> Seconds:
        """The seconds of each step, from the first rank's start to the last one's end."""
        return np.array([step.makespan_s for step in self.steps])

    @cached_property
    def median_s(self) -> float:
        return float(np.median(self.step_s))

    @property
    def typical(self) -> Timeline:
        """The step that is nearest to the median."""
        return self.steps[int(np.abs(self.step_s - self.median_s).argmin())]

    @cached_property
    def backward_s(self) -> float:
        """The median over the steps of the ranks' mean backward pass, without waits."""
        return float(np.median([_lengths_s(step, "backward").mean() for step in self.steps]))

    def local_step(self, gradients: Iterable[Gradient]) -> LocalStep:
        """Return the step with the time of the slowest rank for each event, as a median over steps.

        These must be steps without allreduces; in all others, ranks hold each other up.
        """
        ready_s = np.median(np.fmax.reduce(self.ready_s, axis=1), axis=0)
        return LocalStep(
            tuple(gradients),
            ready_s,
            forward_s=self._slowest_s("forward"),
            backward_s=float(np.nanmax(ready_s, initial=0.0)),  # after which DDP unpacks
            optimizer_s=self._slowest_s("optimizer"),
            unpack_s=self._slowest_s("unpack"),
        )

    def _slowest_s(self, kind: str) -> float:
        """Return the time from the last rank's start to the last rank's stop; 0 if there are no such spans."""
        seconds = []
        for step in self.steps:
            spans = step.select(kind=kind)
            seconds.append(float(spans.stop_s.max(initial=0.0) - spans.start_s.max(initial=0.0)))
        return float(np.median(seconds))


def _lengths_s(timeline: Timeline, kind: str) -> Seconds:
    spans = timeline.select(kind=kind)
    return spans.stop_s - spans.start_s


# ---- measured from the process that starts the ranks


def measure(
    module: nn.Module,
    loss: Loss,
    num_ranks: int | None = 2,
    *,
    num_steps: int = 20,
    optimizer: Optimizer | None = None,
    communicate: bool = True,
    backend: str = "gloo",
    timeout_s: float = 300.0,
    **options: Any,
) -> MeasuredSteps:
    """Train a copy of the module under DistributedDataParallel on real ranks, and return the steps after a warm-up.

    ``loss(module)`` is called with the wrapped module on each rank, makes or loads the batch, and returns a tensor of
    one number; it may be a lambda or be defined in a notebook. ``optimizer(parameters)`` makes the optimizer; by
    default there is none. Gradients are cleared between steps, outside the measured time. Ranks compute on GPUs if the
    backend is NCCL, else on the CPU. `num_ranks` is None for the ranks of torchrun or mpirun. `options` are DDP's own,
    such as ``bucket_cap_mb`` and ``gradient_as_bucket_view``. With ``communicate=False``, DDP omits only the
    allreduces.

    Raises ValueError if an argument is invalid, and as `ranks.record` does; RankError if a rank fails.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> steps = measure(model, lambda model: model(torch.ones(4, 8)).mean(), num_steps=4).steps
    >>> [len(step.select(kind="allreduce", rank=0)) for step in steps]
    [1, 1, 1, 1]
    """
    num_gradients = len(gradients_of(of_type("module", module, nn.Module)))
    make_step = partial(training, module, function("loss", loss), optional("optimizer", optimizer, function))
    make_step = partial(make_step, communicate, options)
    return steps_of(record(make_step, num_ranks, num_steps, WARM_UP, backend, timeout_s), num_gradients)


def measure_local_step(module: nn.Module, loss: Loss, num_ranks: int | None = 1, **options: Any) -> LocalStep:
    """Measure the local step of ranks that all compute and do not communicate.

    This is `measure` without the allreduces, with the same `options`. DDP still copies gradients into buckets and back.
    If ranks share cores, measure with the number of ranks that you want to predict.

    >>> step = measure_local_step(nn.Linear(8, 1), lambda model: model(torch.ones(4, 8)).mean())
    >>> [gradient.name for gradient in step.gradients]
    ['weight', 'bias']
    """
    measured = measure(module, loss, num_ranks, communicate=False, **options)
    return measured.local_step(gradients_of(module).values())


# ---- on each rank


def training(
    module: nn.Module, loss: Loss, optimizer: Optimizer | None, communicate: bool, options: Mapping[str, Any]
) -> Callable[[], object]:
    """Wrap a copy of the module with DDP on this rank, and return its step, for `ranks.record`."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    wrapped = DistributedDataParallel(copy.deepcopy(module).to(device), **options)
    if not communicate:
        wrapped.register_comm_hook(None, lambda state, bucket: unreduced(bucket))
    _stamp_gradients(list(gradients_of(wrapped.module)))
    optimizing = None if optimizer is None else optimizer(wrapped.parameters())

    def step() -> None:
        wrapped.zero_grad()
        value: Any = checked_loss(loss(wrapped))
        value.backward()
        if optimizing is not None:
            optimizing.step()

    return step


def _stamp_gradients(parameters: list[Tensor]) -> None:
    """Record when DDP has copied each gradient into its bucket.

    DDP has a hook at the node of autograd's graph that accumulates a parameter's gradient. Hooks of a node run in the
    order in which they were added, so one that is added to the same node here runs after DDP's. A parameter does not
    refer to that node, but the node of a view of it does.
    """

    def stamp(index: int, inputs: Any, outputs: Any) -> None:
        with open_recorders[0].span("ready", lane=f"gradient {index}"):
            pass

    for index, parameter in enumerate(parameters):
        with torch.enable_grad():  # a script may have switched gradients off
            view: Any = parameter.view_as(parameter).grad_fn
        view.next_functions[0][0].register_hook(partial(stamp, index))


# ---- from recordings to steps


def steps_of(recording: Recording, num_gradients: int) -> MeasuredSteps:
    """Divide a recording of `training` into steps."""
    timeline = recording.timeline
    num_steps = int(timeline.item.max()) + 1
    num_ranks = int(timeline.rank.max()) + 1
    ready_s = np.full((num_steps, num_ranks, num_gradients), np.nan)
    steps = []
    for number in range(num_steps):
        spans = []
        for rank in range(num_ranks):
            recorded = timeline.select(item=number, rank=rank)
            backward_begin_s = recorded.select(kind="backward").begin_s
            for span in recorded.select(kind="ready"):
                ready_s[number, rank, int(span.lane.removeprefix("gradient "))] = span.stop_s - backward_begin_s
            last_ready_s = float(np.nanmax(ready_s[number, rank], initial=0.0))
            spans += _compute_spans(rank, recorded, backward_begin_s + last_ready_s)
            spans += _allreduce_spans(rank, recorded.select(kind="allreduce"))
        step = Timeline.of(spans)
        steps.append(step.shifted(-step.begin_s))
    return MeasuredSteps(tuple(steps), ready_s)


def _compute_spans(rank: int, recorded: Timeline, last_ready_s: float) -> list[Span]:
    """Return what a rank does one after the other: its backward computes, then waits for allreduces, then unpacks."""
    backward = recorded.select(kind="backward")
    allreduces = recorded.select(kind="allreduce")
    stops_s = {
        "forward": backward.begin_s,
        "backward": last_ready_s,
        "wait": min(allreduces.stop_s.max(initial=last_ready_s), backward.end_s),
        "unpack": backward.end_s,
        "optimizer": recorded.select(kind="optimizer").stop_s.max(initial=backward.end_s),
    }
    spans = []
    start_s = recorded.select(kind="forward").begin_s
    for kind, stop_s in stops_s.items():
        if stop_s > start_s:
            item = 0 if kind in ("forward", "backward") else NO_ITEM
            spans.append(Span(rank, "compute", kind, item, start_s, stop_s))
            start_s = stop_s
    return spans


def _allreduce_spans(rank: int, launched: Timeline) -> list[Span]:
    """Return a span for each allreduce, from when one of Gloo's two workers, or the stream of NCCL, was free for it."""
    spans = []
    free_s = {"allreduce": 0.0, "allreduce 2": 0.0}
    for item, (launch_s, stop_s) in enumerate(sorted(zip(launched.start_s, launched.stop_s, strict=True))):
        lane = min(free_s, key=lambda name: free_s[name])
        # Another worker may have had it, so this one may become free only after the end.
        start_s = min(max(launch_s, free_s[lane]), stop_s)
        spans.append(Span(rank, lane, "allreduce", item, start_s, stop_s))
        free_s[lane] = stop_s
    return spans


# ---- contention


def measure_contention(
    cost: Cost, num_ranks: int | None = 2, *, num_steps: int = 10, backend: str = "gloo", timeout_s: float = 300.0
) -> Contention:
    """Measure how much computing and communicating slow each other down on these ranks.

    The result is fitted to one module, ten linear layers of 1,024 by 1,024, at caps of 5 and 20 MiB. It is valid for
    this machine, number of ranks and network, for any module and cap.
    """
    function("cost", cost, "of bytes, such as ddp.cost makes")
    module, loss = calibration()
    steps = partial(measure, module, loss, num_ranks, backend=backend, timeout_s=timeout_s)
    local = steps(num_steps=2 * num_steps, communicate=False).local_step(gradients_of(module).values())
    overlapped = {cap_mb: steps(num_steps=num_steps, bucket_cap_mb=cap_mb) for cap_mb in FITTED_MB}
    return fit_contention(local, cost, overlapped)


def calibration() -> tuple[nn.Module, Loss]:
    """Return the module to which contention is fitted, and its loss."""
    layers: list[nn.Module] = []
    for _ in range(_DEPTH):
        layers += [nn.Linear(_WIDTH, _WIDTH), nn.ReLU()]
    batch = torch.ones(_BATCH, _WIDTH)

    def loss(module: nn.Module) -> Tensor:
        mean: Tensor = module(batch.to(next(module.parameters()).device)).square().mean()
        return mean

    return nn.Sequential(*layers), loss


def fit_contention(local: LocalStep, cost: Cost, measured: Mapping[float, MeasuredSteps]) -> Contention:
    """Return the contention with which the model comes nearest to these steps, measured at these caps.

    The errors of the backward and of the whole step have the same weight, each as a share of the step. How much longer
    the backward takes shows how communicating affects computing, and the rest of the step shows how computing affects
    communicating.
    """
    from scipy.optimize import least_squares  # here: without scipy, everything else works

    around_s = local.forward_s + local.optimizer_s  # the parts of a step that no allreduce can slow down

    def errors(factors: NDArray[np.float64]) -> list[float]:
        shares = []
        for cap_mb, steps in measured.items():
            last = last_backward(local, local.buckets(cap_mb), cost, Contention(*factors))
            shares.append((last.backward_s - steps.backward_s) / steps.median_s)
            shares.append((around_s + last.end_s - steps.median_s) / steps.median_s)
        return shares

    fits = [least_squares(errors, start, bounds=(1.0, _MOST)) for start in product(_STARTS, repeat=2)]
    best = min(fits, key=lambda fit: fit.cost)
    return Contention(*best.x)
