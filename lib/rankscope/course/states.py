"""Join and optimizers: it does not update the optimizer state of ranks that ran out of batches before the others."""

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
from ..train.gradients import TIMEOUT_S, DemoError, Vector, relative_difference, rounding_of, values_of
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
    "SGD": Kind("sgd", shared=False, known=(True, True, True)),
    "Adam": Kind("adam", shared=False, known=(True, False, False)),
    "Adam, state shared": Kind("adam", shared=True, known=(True, True, True)),
    "ZeroRedundancyOptimizer": Kind("zero", shared=False, known=(False, True, False)),
}
_LEARNING_RATE = 0.05
_NUM_EPOCHS = 2


@frozen(eq=False)
class JoinedTraining:
    """The parameters of each rank, and those of one process that trains on the same batches.

    `started` are those of each rank after the first step of the second epoch, ``ended[epoch][rank]`` those after each
    of two epochs, and ``single[epoch]`` those of the one process. `rounding` is the difference that rounding explains.
    """

    started: tuple[Vector, ...]
    ended: tuple[tuple[Vector, ...], ...]
    single: tuple[Vector, ...]
    rounding: float

    @property
    def rank_difference(self) -> float:
        """The difference of any rank from the last rank in the second epoch, relative to the largest parameter."""
        return max(relative_difference(parameters, self.started[-1]) for parameters in self.started)

    def difference(self, epoch: int) -> float:
        """Return a rank's difference from the single process after an epoch, relative to the largest parameter."""
        return max(relative_difference(parameters, self.single[epoch]) for parameters in self.ended[epoch])


@frozen(eq=False)
class StatesAfterJoin:
    """The result of two epochs under Join with each of `KINDS`; `ways` has it by the name of the kind."""

    ways: Mapping[str, JoinedTraining]

    def is_right(self, name: str) -> tuple[bool, bool, bool]:
        """Return whether the first epoch is right, whether ranks agree in the second, and whether the second is."""
        training = self.ways[name]
        first = training.difference(0) <= training.rounding
        agree = training.rank_difference <= training.rounding
        second = training.difference(1) <= training.rounding
        return first, agree, second

    def check(self) -> None:
        """Raise DemoError unless each result is as known."""
        results = {name: self.is_right(name) for name in self.ways}
        known = {name: kind.known for name, kind in KINDS.items()}
        if results != known:
            raise DemoError(f"first epoch right, ranks agree, second epoch right should be {known}, but: {results}")


def share_state(optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    """Copy the optimizer state of a rank with the most steps to every rank. Each rank passes its own `num_steps`.

    The tensors of the state are broadcast one by one; the optimizer must have stepped at least once on every
    rank, because otherwise ranks broadcast different numbers of tensors, and hang.

    Use it after a Join, which shares only the module's parameters and buffers.
    """
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor([num_steps]))
    steps = [int(rank_steps) for rank_steps in gathered]
    source = steps.index(max(steps))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            by_name = optimizer.state[parameter]
            for name in sorted(by_name):  # all ranks must broadcast in the same order
                value = by_name[name]
                if isinstance(value, Tensor):
                    dist.broadcast(value, src=source)


def states_after_join(
    module: nn.Module, inputs: Tensor, targets: Tensor, epoch: Assignment, losses_fn: Losses
) -> StatesAfterJoin:
    """Train two epochs under Join with each optimizer of `KINDS`, and in one process that takes the same steps.

    Under Join, ranks without batches shadow the allreduces, and at the end they receive the last rank's parameters, but
    their optimizers have not stepped. Plain SGD has no state, but Adam's moments are then older than those of other
    ranks, so in the next epoch the ranks train different models. A ZeroRedundancyOptimizer in the same Join also
    steps on finished ranks, but with the gradients of their own last step, because DDP's shadows do not set gradients
    and "gradients must be properly set before this hook is called", as its `join_hook` says.

    Raises ValueError if an argument is invalid or a rank has no batch.
    """
    task = TrainingTask(module, inputs, targets, epoch, losses_fn)
    num_batches = batches_by_rank(epoch)
    if not min(num_batches):
        raise ValueError(f"epoch must have a batch for each rank, got {num_batches}")
    trainings_of_ranks = launch(_train_all, len(num_batches), (task,), timeout_s=TIMEOUT_S)
    num_steps = _NUM_EPOCHS * max(num_batches)
    rounding = num_steps * rounding_of(module.parameters())  # each step may add as much
    ways = {}
    for name, kind in KINDS.items():
        ranks = [trainings[name] for trainings in trainings_of_ranks]
        ways[name] = JoinedTraining(
            started=tuple(rank.started for rank in ranks),
            ended=tuple(zip(*(rank.ended for rank in ranks), strict=True)),  # from each rank's epochs to epochs' ranks
            single=_single(task, kind.optimizer),
            rounding=rounding,
        )
    return StatesAfterJoin(ways)


def _single(task: TrainingTask, optimizer_name: str) -> tuple[Vector, ...]:
    """Return the parameters after each epoch of one process that takes the steps of all ranks.

    Its gradients are those of all ranks' batches in the step, divided by the number of ranks as DDP does under Join.
    """
    module = copy.deepcopy(task.module)
    num_ranks = task.epoch.num_ranks
    # ZeroRedundancyOptimizer only distributes the state of Adam.
    optimizer = _optimizer(module, "adam" if optimizer_name == "zero" else optimizer_name)
    batches = [task.epoch.batches(rank) for rank in range(num_ranks)]
    ended = []
    for _ in range(_NUM_EPOCHS):
        for step in range(max(map(len, batches))):
            optimizer.zero_grad()
            for rank_batches in batches:
                if step < len(rank_batches):
                    indices = rank_batches[step].tolist()
                    losses = task.losses_fn(module(task.inputs[indices]), task.targets[indices])
                    (losses.mean() / num_ranks).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        ended.append(values_of(module))
    return tuple(ended)


class _RankTraining(NamedTuple):
    """One rank's parameters after the first step of the last epoch, and after each epoch."""

    started: Vector
    ended: tuple[Vector, ...]


def _train_all(task: TrainingTask) -> dict[str, _RankTraining]:
    return {name: _train(task, kind.optimizer, kind.shared) for name, kind in KINDS.items()}


def _train(task: TrainingTask, optimizer_name: str, shared: bool) -> _RankTraining:
    """Train this rank under Join; if `shared`, share the optimizer's state after each epoch."""
    ddp = DistributedDataParallel(copy.deepcopy(task.module))
    optimizer = _optimizer(ddp, optimizer_name)
    ended = []
    for _ in range(_NUM_EPOCHS):
        joinables: list[Any] = [ddp]
        if optimizer_name == "zero":  # it has collectives of its own, which ranks without batches must shadow
            joinables.append(optimizer)
        num_steps = 0
        with Join(joinables):
            # "join": all of this rank's batches. For "drop" and "pad", ranks would agree on a common number of them.
            for _indices, inputs, targets in own_batches(task, "join"):
                optimizer.zero_grad()
                task.losses_fn(ddp(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                num_steps += 1
                if num_steps == 1:  # the last epoch overwrites what the first one has set
                    started = values_of(ddp)
        if shared:
            share_state(optimizer, num_steps)
        ended.append(values_of(ddp))
    return _RankTraining(started, tuple(ended))


def _optimizer(module: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)
    if name == "adam":
        return torch.optim.Adam(module.parameters(), lr=_LEARNING_RATE)
    return zero_redundancy_class()(module.parameters(), optimizer_class=torch.optim.Adam, lr=_LEARNING_RATE)
