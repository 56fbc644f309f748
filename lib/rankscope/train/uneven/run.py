"""An epoch in which real DDP ranks run out of batches at different times: recorded, and compared with the model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

import msgspec
import numpy as np
import torch.distributed as dist
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ...common.checks import function, number, of_type, one_of
from ...ranks.launcher import launch
from ...ranks.recorder import Recording, recording
from ...sampling import Assignment
from ...timeline import Span, Timeline
from ..work import Vector, gradient_of
from .model import HANDLINGS, LANE, Prediction, batches_of, predict

Losses = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> a loss per sample
_WORD_BYTES = 8  # of Join's messages, a single number each, at most


class UnevenError(RuntimeError):
    """Real ranks did not behave as predicted."""


class UnevenRun(msgspec.Struct, frozen=True, eq=False):
    """One epoch on real ranks, and its prediction.

    `trained` are the samples of each rank's steps. `gradients` are DDP's after each step, of shape (steps, parameters),
    equal on all ranks that had a batch in it. A span "allreduce" of the timeline begins when its rank asks for the
    first one of the step, so it includes the wait for other ranks.
    """

    expected: Prediction
    trained: Assignment
    gradients: Vector
    timeline: Timeline

    def check(self) -> None:
        """Raise UnevenError if reads or steps are not as predicted."""
        for rank, (samples, predicted) in enumerate(zip(self.trained.ranks, self.expected.trained.ranks, strict=True)):
            if samples.tolist() != predicted.tolist():
                raise UnevenError(f"rank {rank} trained on samples {samples}, and not on those predicted, {predicted}")
        if len(self.gradients) != len(self.expected.scale):
            raise UnevenError(f"there were {len(self.gradients)} steps, not {len(self.expected.scale)}")


def measure(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    epoch: Assignment,
    losses_fn: Losses,
    handling: str = "join",
    step_s: float = 0.0,
    timeout_s: float = 60.0,
) -> UnevenRun:
    """Run DDP on real ranks that read the batches of `epoch`, and record each rank.

    `handling` is as for `simulate`, except "hang". `losses_fn` returns one loss per sample; a rank averages them over
    its batch. The module is never updated, so the gradients of all steps belong to the same parameters. A step sleeps
    for `step_s` before its forward pass.

    Raises ValueError if an argument is invalid, or if the module has at most 8 bytes of parameters, whose gradient
    cannot be distinguished from Join's own messages; RankError if a rank fails or has not ended after `timeout_s`.

    >>> import torch
    >>> def losses(outputs, targets):
    ...     return (outputs - targets).square().sum(dim=1)
    >>> both = torch.randn(6, 2), torch.randn(6, 1)
    >>> epoch = Assignment(6, [np.arange(2), np.arange(2, 6)]).with_loader(1)
    >>> run = measure(nn.Linear(2, 1), *both, epoch, losses)
    >>> run.check()
    >>> len(run.timeline.select(rank=0, kind="shadow"))
    2
    """
    function("losses_fn", losses_fn, "of outputs and targets")
    number("step_s", step_s, 0)
    one_of("handling", handling, HANDLINGS[1:])
    expected = predict(epoch, handling)
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        if of_type(name, tensor, Tensor).shape[:1] != (epoch.size,):
            raise ValueError(f"{name} must have a row for each of {epoch.size} samples, got {tuple(tensor.shape)}")
    num_bytes = sum(parameter.nbytes for parameter in module.parameters() if parameter.requires_grad)
    if num_bytes <= _WORD_BYTES:
        raise ValueError(f"module must have more than {_WORD_BYTES} bytes of parameters to train, got {num_bytes}")
    joins = handling == "join"
    args = module, inputs, targets, batches_of(epoch), losses_fn, len(expected.scale), joins, step_s
    ranks = launch(_train, epoch.num_ranks, args, timeout_s=timeout_s)
    gradients = max((rank.gradients for rank in ranks), key=len)
    timeline = Timeline.of([span for rank in ranks for span in rank.spans])
    trained = replace(epoch, ranks=tuple(rank.trained for rank in ranks))
    return UnevenRun(expected, trained, gradients, timeline.shifted(-timeline.begin_s))


# ---- in a rank


class _RankRecord(NamedTuple):
    """One rank's record of an epoch."""

    trained: NDArray[np.int64]
    gradients: Vector
    spans: list[Span]


def _train(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    batches: Sequence[Sequence[NDArray[np.int64]]],
    losses_fn: Losses,
    most_steps: int,
    joins: bool,
    step_s: float,
) -> _RankRecord:
    """Train one epoch, and record it. Without Join, each rank makes as many steps as the one that makes most."""
    ddp = DistributedDataParallel(copy.deepcopy(module))
    own = batches[dist.get_rank()]
    num_steps = len(own) if joins else most_steps
    trained = [np.empty(0, dtype=np.int64)]
    gradients: list[Vector] = []
    dist.barrier()  # so that all ranks begin the first step together
    with recording() as recorder, Join([ddp], enable=joins):
        for indices in islice(cycle(own), num_steps):
            recorder.item = len(gradients)
            with recorder.span("step"):
                time.sleep(step_s)
                ddp.zero_grad()
                rows = indices.tolist()
                losses = losses_fn(ddp(inputs[rows]), targets[rows])
                losses.mean().backward()  # type: ignore[no-untyped-call]
            trained.append(indices)
            gradients.append(gradient_of(ddp))
        finished_s = time.perf_counter()  # within Join, which shadows the steps of the other ranks at its exit
    spans = list(_spans(recorder.result(), len(gradients), finished_s))
    stacked = np.array(gradients).reshape(-1, gradient_of(ddp).size)  # two dimensions even without any step
    return _RankRecord(np.concatenate(trained), stacked, spans)


def _spans(recorded: Recording, item: int, finished_s: float) -> Iterator[Span]:
    """Yield the steps and allreduces of a rank, then the waits and shadows from `finished_s`, its last batch, on.

    Each step is divided where it asked for the allreduce of its first gradients, which ends with the step. `item` is
    the first step without a batch. A shadow begins with the first gradients, and ends when Join asks whether another
    step follows. The wait after the last shadow, for Join's final messages, is left out.
    """
    timeline, num_bytes = recorded
    is_allreduce = np.array([span.kind == "allreduce" for span in timeline], dtype=bool)
    is_word = num_bytes <= _WORD_BYTES  # a message of Join's
    gradients_s = timeline.start_s[is_allreduce & ~is_word]
    words_s = timeline.start_s[is_allreduce & is_word]
    for step in timeline.select(kind="step"):
        reduced_s = gradients_s[gradients_s > step.start_s].min()
        yield step._replace(lane=LANE, stop_s=reduced_s)
        yield step._replace(lane=LANE, kind="allreduce", start_s=reduced_s)
    while (gradients_s > finished_s).any():
        begin_s = gradients_s[gradients_s > finished_s].min()
        end_s = words_s[words_s > begin_s].min()
        yield Span(dist.get_rank(), LANE, "wait", item, finished_s, begin_s)
        yield Span(dist.get_rank(), LANE, "shadow", item, begin_s, end_s)
        finished_s = end_s
        item += 1
