"""Training steps under a real DistributedDataParallel on several ranks: measured, with and without its allreduces."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...common.checks import function, of_type, optional
from ...networks import Seconds
from ...ranks.recorder import Recording, open_recorders, record
from ...timeline import Span, Timeline
from ..losses import Loss, Optimizer, checked_loss
from .local import LocalStep
from .model import NO_ITEM
from .observed import gradients_of, unreduced

WARM_UP = 3  # steps; DDP rebuilds its buckets in the second one, with a static graph in the third


class MeasuredSteps(NamedTuple):
    """Steps under DDP on all ranks: a timeline of each, with the lanes and kinds of `ddp.simulate`, from its start.

    A bucket's allreduce starts when it is launched, so it includes the wait for other ranks and for a worker of Gloo.
    Those that overlap are on lanes "allreduce 2" and so on.

    ``ready_s[step]`` has a row for each rank and a column for each gradient, in seconds from the start of the rank's
    backward, or nan if there was none.
    """

    steps: tuple[Timeline, ...]
    ready_s: Seconds

    @property
    def step_s(self) -> Seconds:
        """The seconds of each step, from the last rank's start to the last one's end."""
        return np.array([step.end_s - step.select(kind="forward").start_s.max() for step in self.steps])

    @property
    def median_s(self) -> float:
        return float(np.median(self.step_s))

    def __repr__(self) -> str:
        return f"<MeasuredSteps: {len(self.steps)} steps, median {1e3 * self.median_s:.3g} ms>"

    @property
    def typical(self) -> Timeline:
        """The step that is nearest to the median."""
        return self.steps[np.abs(self.step_s - self.median_s).argmin()]


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

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> steps = measure(model, lambda model: model(torch.ones(4, 8)).mean(), num_steps=4).steps
    >>> [len(step.select(kind="allreduce", rank=0)) for step in steps]
    [1, 1, 1, 1]
    """
    num_gradients = len(gradients_of(of_type("module", module, nn.Module)))
    function("loss", loss)
    optional("optimizer", optimizer, function)
    make_step = partial(training, module, loss, optimizer, communicate, options)
    return steps_of(record(make_step, num_ranks, num_steps, WARM_UP, backend, timeout_s), num_gradients)


def measure_local_step(module: nn.Module, loss: Loss, num_ranks: int | None = 1, **options: Any) -> LocalStep:
    """Measure the local step of ranks that all compute and do not communicate.

    This is `measure` without the allreduces, with the same `options`. DDP still copies gradients into buckets and back.
    If ranks share cores, measure with the number of ranks that you want to predict. Each time is that of the slowest
    rank, as a median over steps.

    >>> import torch
    >>> step = measure_local_step(nn.Linear(8, 1), lambda model: model(torch.ones(4, 8)).mean())
    >>> [gradient.name for gradient in step.gradients]
    ['weight', 'bias']
    """
    measured = measure(module, loss, num_ranks, communicate=False, **options)

    def slowest_s(kind: str) -> float:
        """Return the time from the last rank's start to the last rank's stop; 0 if there are no such spans."""
        spans = [step.select(kind=kind) for step in measured.steps]
        return float(np.median([one.stop_s.max(initial=0) - one.start_s.max(initial=0) for one in spans]))

    ready_s = np.median(np.fmax.reduce(measured.ready_s, axis=1), axis=0)
    backward_s = float(np.nanmax(ready_s, initial=0.0))  # after which DDP unpacks
    others_s = [slowest_s(kind) for kind in ("optimizer", "unpack")]
    return LocalStep(tuple(gradients_of(module).values()), ready_s, slowest_s("forward"), backward_s, *others_s)


# ---- on each rank


def training(
    module: nn.Module, loss: Loss, optimizer: Optimizer | None, communicate: bool, options: Mapping[str, Any]
) -> Callable[[], object]:
    """Wrap a copy of the module with DDP on this rank, and return its step, for `ranks.record`.

    The step records when DDP has copied each gradient into its bucket. DDP has a hook at the node of autograd's graph
    that accumulates a parameter's gradient. Hooks of a node run in the order in which they were added, so one that is
    added to the same node here runs after DDP's. A parameter does not refer to that node, but a view of it does.
    """
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    wrapped = DistributedDataParallel(copy.deepcopy(module).to(device), **options)
    if not communicate:
        wrapped.register_comm_hook(None, lambda state, bucket: unreduced(bucket))

    def stamp(index: int, inputs: Any, outputs: Any) -> None:
        with open_recorders[0].span("ready", lane=f"gradient {index}"):
            pass

    for index, parameter in enumerate(gradients_of(wrapped.module)):
        view: Any = parameter.view_as(parameter).grad_fn
        view.next_functions[0][0].register_hook(partial(stamp, index))
    optimizing = None if optimizer is None else optimizer(wrapped.parameters())

    def step() -> None:
        wrapped.zero_grad()
        value: Any = checked_loss(loss(wrapped))
        value.backward()
        if optimizing is not None:
            optimizing.step()

    return step


# ---- from recordings to steps


def steps_of(recording: Recording, num_gradients: int) -> MeasuredSteps:
    """Divide a recording of `training` into steps."""
    timeline = recording.timeline
    ready_s = np.full((timeline.item.max() + 1, timeline.rank.max() + 1, num_gradients), np.nan)
    steps = []
    for number, of_ranks in enumerate(ready_s):
        spans = []
        for rank, rank_ready_s in enumerate(of_ranks):
            recorded = timeline.select(item=number, rank=rank)
            spans += _compute_spans(rank, recorded)
            for bucket, span in enumerate(recorded.select(kind="allreduce")):
                spans.append(span._replace(lane=span.lane.replace("collectives", "allreduce"), item=bucket))
            for span in recorded.select(kind="ready"):
                index = int(span.lane.removeprefix("gradient "))
                rank_ready_s[index] = span.stop_s - recorded.select(kind="backward").begin_s
        step = Timeline.of(spans)
        steps.append(step.shifted(-step.begin_s))
    return MeasuredSteps(tuple(steps), ready_s)


def _compute_spans(rank: int, recorded: Timeline) -> list[Span]:
    """Return what a rank does one after the other: its backward computes, then waits for allreduces, then unpacks."""
    backward = recorded.select(kind="backward")
    last_ready_s = recorded.select(kind="ready").stop_s.max(initial=backward.begin_s)
    last_reduced_s = recorded.select(kind="allreduce").stop_s.max(initial=last_ready_s)
    stops_s = {
        "forward": backward.begin_s,
        "backward": last_ready_s,
        "wait": min(last_reduced_s, backward.end_s),
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
