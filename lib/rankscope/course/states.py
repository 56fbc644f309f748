"""What Join does not update: the optimizer state of ranks that ran out of batches before the others."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ..common.frozen import frozen
from ..ranks.launcher import launch
from ..sampling import Assignment
from ..train.gradients import TIMEOUT_S, DemoError, Vector, apart, rounding_of, values_of
from ..train.uneven.model import batches_by_rank
from ..train.uneven.run import Losses, TrainingTask, own_batches
from ..train.zero.run import zero_redundancy_class


class Kind(NamedTuple):
    """An optimizer, whether its state is shared after each epoch, and its known result.

    `known` says whether the first epoch is right, whether ranks agree in the second, and whether the second is right.
    """

    optimizer: str
    shared: bool
    known: tuple[bool, bool, bool]


KINDS = {
    "SGD": Kind("sgd", False, (True, True, True)),
    "Adam": Kind("adam", False, (True, False, False)),
    "Adam, state shared": Kind("adam", True, (True, True, True)),
    "ZeroRedundancyOptimizer": Kind("zero", False, (False, True, False)),
}
_RATE, _EPOCHS = 0.05, 2


@frozen(eq=False)
class JoinedTraining:
    """The parameters of each rank, and those of one process that trains on the same batches.

    `started` are after the first step of the second epoch, `ended` after each of two epochs: ``ended[epoch][rank]``.
    """

    started: tuple[Vector, ...]
    ended: tuple[tuple[Vector, ...], ...]
    single: tuple[Vector, ...]
    rounding: float

    @property
    def rank_difference(self) -> float:
        """The difference between ranks in the second epoch, relative to the largest parameter."""
        return max(apart(one, self.started[-1]) for one in self.started)

    def difference(self, epoch: int) -> float:
        """Return a rank's difference from the single process after an epoch, relative to the largest parameter."""
        return max(apart(one, self.single[epoch]) for one in self.ended[epoch])


@frozen(eq=False)
class StatesAfterJoin:
    """The result of two epochs under Join with each of `KINDS`."""

    ways: Mapping[str, JoinedTraining]

    def is_right(self, name: str) -> tuple[bool, bool, bool]:
        """Return whether the first epoch is right, whether ranks agree in the second, and whether the second is
        right."""
        one = self.ways[name]
        first, agree, second = (
            off <= one.rounding for off in (one.difference(0), one.rank_difference, one.difference(1))
        )
        return first, agree, second

    def check(self) -> None:
        """Raise DemoError unless each result is as known."""
        found = {name: self.is_right(name) for name in self.ways}
        known = {name: kind.known for name, kind in KINDS.items()}
        if found != known:
            raise DemoError(f"first epoch right, ranks agree, second epoch right should be {known}, but: {found}")


def share_state(optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    """Give every rank the optimizer state of a rank with the most steps. Each rank passes its own `num_steps`.

    The tensors of the state are broadcast one by one; the optimizer must have stepped at least once on every rank.

    Use it after a Join, which shares only the module's parameters and buffers. Raises RuntimeError on all ranks if one
    has made no step, and so has no state to receive into.
    """
    made = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(made, torch.tensor([num_steps]))
    steps = [int(one) for one in made]
    if not all(steps):
        raise RuntimeError(f"rank {steps.index(0)} has made no step, and its optimizer has no state yet")
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for _, value in sorted(optimizer.state[parameter].items()):
                if isinstance(value, Tensor):
                    dist.broadcast(value, src=steps.index(max(steps)))


def states_after_join(
    module: nn.Module, inputs: Tensor, targets: Tensor, epoch: Assignment, losses_fn: Losses
) -> StatesAfterJoin:
    """Train two epochs under Join with each optimizer of `KINDS`, and in one process that takes the same steps.

    Under Join, ranks without batches shadow the allreduces, and at the end get the last rank's parameters. Their
    optimizers have not stepped. Plain SGD has no state; Adam's moments are then older than those of other ranks, so in
    the next epoch the ranks train different models. A ZeroRedundancyOptimizer in the same Join steps on finished ranks,
    too, but with the gradients of their own last step: DDP's shadows do not set gradients, and "gradients must be
    properly set before this hook is called", as its `join_hook` says.

    Raises ValueError for invalid arguments, and if a rank has no batch.
    """
    task = TrainingTask(module, inputs, targets, epoch, losses_fn)
    own = batches_by_rank(epoch)
    if not min(own):
        raise ValueError(f"epoch must have a batch for each rank, got {own}")
    by_rank = launch(_train_all, len(own), (task,), timeout_s=TIMEOUT_S)
    rounding = _EPOCHS * max(own) * rounding_of(module.parameters())
    ways = {}
    for (name, kind), *ranks in zip(KINDS.items(), *by_rank, strict=True):
        started, ended = zip(*ranks, strict=True)
        ways[name] = JoinedTraining(started, tuple(zip(*ended, strict=True)), _single(task, kind.optimizer), rounding)
    return StatesAfterJoin(ways)


def _single(task: TrainingTask, optimizer: str) -> tuple[Vector, ...]:
    """The parameters after each epoch in one process: gradients of all ranks' batches, divided by the number of
    ranks."""
    module, epoch = copy.deepcopy(task.module), task.epoch
    rule = _optimizer(module, "adam" if optimizer == "zero" else optimizer)
    batches = [epoch.batches(rank) for rank in range(epoch.num_ranks)]
    ended = []
    for _ in range(_EPOCHS):
        for step in range(max(map(len, batches))):
            rule.zero_grad()
            for indices in (rank[step].tolist() for rank in batches if step < len(rank)):
                losses = task.losses_fn(module(task.inputs[indices]), task.targets[indices])
                (losses.mean() / epoch.num_ranks).backward()  # type: ignore[no-untyped-call]
            rule.step()
        ended.append(values_of(module))
    return tuple(ended)


def _train_all(task: TrainingTask) -> list[tuple[Vector, tuple[Vector, ...]]]:
    return [_train(task, kind.optimizer, kind.shared) for kind in KINDS.values()]


def _train(task: TrainingTask, optimizer: str, shared: bool) -> tuple[Vector, tuple[Vector, ...]]:
    """The parameters after the first step of the last epoch, and after each epoch."""
    ddp = DistributedDataParallel(copy.deepcopy(task.module))
    rule = _optimizer(ddp, optimizer)
    ended = []
    for _ in range(_EPOCHS):
        joinables: list[Any] = [ddp, rule] if optimizer == "zero" else [ddp]
        num_steps = 0
        with Join(joinables):
            for _, inputs, targets in own_batches(task, "join"):
                rule.zero_grad()
                task.losses_fn(ddp(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
                rule.step()
                num_steps += 1
                if num_steps == 1:
                    started = values_of(ddp)
        if shared:
            share_state(rule, num_steps)
        ended.append(values_of(ddp))
    return started, tuple(ended)


def _optimizer(module: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=_RATE)
    if name == "adam":
        return torch.optim.Adam(module.parameters(), lr=_RATE)
    return zero_redundancy_class()(module.parameters(), optimizer_class=torch.optim.Adam, lr=_RATE)
