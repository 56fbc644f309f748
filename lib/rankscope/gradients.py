"""What DistributedDataParallel does to gradients, shown on real ranks: equal to one process, or wrong in a known way.

Each demo runs in processes of its own that end with it, and returns figures whose `check` raises where the effect that
it shows is not there.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from .values.checks import count_of, number, of_type, truth, whole
from .workers.launch import launch
from .zero.run import storages

LossFn = Callable[[Tensor, Tensor], Tensor]
Vector = NDArray[np.float64]  # all parameters, or their gradients, one after the other
TIMEOUT_S = 60.0
ROUNDING = 64  # times the dtype's epsilon: sums in another order differ by a few


class DemoError(RuntimeError):
    """The effect that a demo shows is not there."""


@dataclass(frozen=True, eq=False)
class Work:
    """What a demo trains: a module, a whole batch, and a loss that is a mean over samples unless it says otherwise."""

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    loss_fn: LossFn

    def __post_init__(self) -> None:
        of_type("module", self.module, nn.Module)
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            raise ValueError(f"module must have a parameter that gets a gradient, got {self.module!r}")
        for name in ("inputs", "targets"):
            if not (of_type(name, getattr(self, name), Tensor).ndim and len(getattr(self, name))):
                raise ValueError(f"{name} must have a row a sample, and one at least, got {getattr(self, name)!r}")
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"targets must have the {len(self.inputs)} samples of the inputs, got {len(self.targets)}")
        if not callable(self.loss_fn):
            raise ValueError(f"loss_fn must be a function of outputs and targets, got {self.loss_fn!r}")

    def part(self, which: int, num_parts: int) -> Work:
        """Return the same with one of equal parts of the batch; ValueError where it does not divide."""
        if len(self.inputs) % num_parts:
            raise ValueError(f"inputs must be a multiple of {num_parts} samples, got {len(self.inputs)}")
        inputs, targets = (tensor.chunk(num_parts)[which] for tensor in (self.inputs, self.targets))
        return Work(self.module, inputs, targets, self.loss_fn)

    def loss(self, module: nn.Module) -> Tensor:
        return self.loss_fn(module(self.inputs), self.targets)

    def gradient(self) -> Vector:
        """Return the gradient of the whole batch in one process, with the module left as it was."""
        module = copy.deepcopy(self.module)
        module.zero_grad()
        self.loss(module).backward()  # type: ignore[no-untyped-call]
        return gradient_of(module)

    @property
    def rounding(self) -> float:
        """How far apart values may be that differ by the order of their sums, as a share of the largest."""
        return ROUNDING * max(torch.finfo(one.dtype).eps for one in self.module.parameters())


@dataclass(frozen=True, eq=False)
class EqualTraining:
    """Parameters after `num_steps`: of each rank of DDP, of one process with the whole batch, and before."""

    num_steps: int
    ranks: tuple[Vector, ...]
    single: Vector
    start: Vector
    rounding: float

    @property
    def difference(self) -> float:
        """The largest difference between a rank and the one process, as a share of the largest parameter."""
        return max(apart(rank, self.single) for rank in self.ranks)

    @property
    def moved(self) -> float:
        """The largest change by training, as a share of the largest parameter."""
        return apart(self.start, self.single)

    def check(self) -> None:
        """Raise DemoError where ranks differ in any bit, or from the one process by more than rounding."""
        if any((rank != self.ranks[0]).any() for rank in self.ranks):
            raise DemoError("ranks have come to different parameters")
        if not self.difference <= self.num_steps * self.rounding < self.moved:
            raise DemoError(
                f"after {self.num_steps} steps the ranks are {self.difference:.2g} from one process, which moved by "
                f"{self.moved:.2g}; rounding makes {self.num_steps * self.rounding:.2g}"
            )


def equal_training(
    module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss_fn: LossFn,
    num_ranks: int = 2,
    num_steps: int = 5,
    learning_rate: float = 0.1,
) -> EqualTraining:
    """Train with DDP, each rank on its part of the batch, and in one process on all of it; SGD with momentum.

    Equal to rounding if the loss is a mean over samples and no sample looks at another, as in batch normalisation.
    Raises ValueError where the ranks' parts are not equal.

    >>> linear = nn.Linear(3, 1, dtype=torch.float64)
    >>> both = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    >>> equal_training(linear, *both, nn.functional.mse_loss).check()
    """
    work = Work(module, inputs, targets, loss_fn)
    num_ranks, num_steps = whole("num_ranks", num_ranks, 2, 64), whole("num_steps", num_steps, 1)
    learning_rate = number("learning_rate", learning_rate, above=0)
    work.part(0, num_ranks)
    trained = launch(_train_rank, num_ranks, (work, num_steps, learning_rate), timeout_s=TIMEOUT_S)
    single = copy.deepcopy(module)
    _train(single, work, num_steps, learning_rate)
    return EqualTraining(num_steps, tuple(trained), values_of(single), values_of(module), work.rounding)


def _train_rank(work: Work, num_steps: int, learning_rate: float) -> Vector:
    ddp, own = in_ddp(work)
    _train(ddp, own, num_steps, learning_rate)
    return values_of(ddp)


def _train(module: nn.Module, work: Work, num_steps: int, learning_rate: float) -> None:
    optimizer = torch.optim.SGD(module.parameters(), learning_rate, momentum=0.9)
    for _ in range(num_steps):
        optimizer.zero_grad()
        work.loss(module).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@dataclass(frozen=True, eq=False)
class ScaledGradient:
    """The gradient that DDP leaves, and that of one process with the whole batch."""

    num_ranks: int
    ddp: Vector
    single: Vector
    rounding: float

    @property
    def ratio(self) -> float:
        """How many times the one process's gradient DDP's is, by least squares."""
        return float(self.ddp @ self.single / (self.single @ self.single))

    def check(self) -> None:
        """Raise DemoError unless DDP's gradient is 1/N of the other, entry by entry."""
        if not apart(self.ddp * self.num_ranks, self.single) <= self.rounding:
            raise DemoError(f"DDP's gradient is {self.ratio:.6g} of one process's, not 1/{self.num_ranks}")


def summed_loss(
    module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: LossFn, num_ranks: int = 2
) -> ScaledGradient:
    """Take the gradient of a loss that `loss_fn` sums over the batch, with DDP and in one process.

    DDP averages the ranks' gradients. Of means over equal parts that is the mean over all; of sums it is 1/N of the
    sum. Raises ValueError where the ranks' parts are not equal.

    >>> def squares(outputs, targets):
    ...     return (outputs - targets).square().sum()
    >>> both = torch.ones(4, 1), torch.zeros(4, 1)
    >>> summed_loss(nn.Linear(1, 1), *both, squares).ratio
    0.5
    """
    work = Work(module, inputs, targets, loss_fn)
    work.part(0, whole("num_ranks", num_ranks, 2, 64))
    gradients = launch(_one_gradient, num_ranks, (work,), timeout_s=TIMEOUT_S)
    return ScaledGradient(num_ranks, gradients[0], work.gradient(), work.rounding)


def _one_gradient(work: Work) -> Vector:
    ddp, own = in_ddp(work)
    own.loss(ddp).backward()  # type: ignore[no-untyped-call]
    return gradient_of(ddp)


def in_ddp(work: Work) -> tuple[DistributedDataParallel, Work]:
    """Return a copy of the module in DDP and this rank's part of the batch; in a rank.

    A DDP module must be gone before its process group is, or the process may hang at its end: keep it local.
    """
    ddp = DistributedDataParallel(copy.deepcopy(work.module))
    return ddp, work.part(dist.get_rank(), dist.get_world_size())


def on_bucket(ddp: DistributedDataParallel, note: Callable[[Tensor], object]) -> None:
    """Let `note` see the buffer of each bucket before it is averaged over the ranks."""

    def average(buffer: Tensor) -> Any:
        note(buffer)
        done = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
        return done.get_future().then(lambda future: future.value()[0])

    ddp.register_comm_hook(None, lambda _, bucket: average(bucket.buffer()))


def values_of(module: nn.Module) -> Vector:
    return _flat(list(module.parameters()))


def gradient_of(module: nn.Module) -> Vector:
    return _flat([torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters()])


def apart(one: Vector, other: Vector) -> float:
    """Return the largest difference of two vectors, as a share of the largest entry of the second."""
    return float(np.abs(one - other).max() / (np.abs(other).max() or 1.0))


def _flat(tensors: list[Tensor]) -> Vector:
    return np.concatenate([tensor.detach().double().numpy().ravel() for tensor in tensors])


_NUM_STEPS = 3  # DDP makes its buckets anew after the first


@dataclass(frozen=True)
class GradientMemory:
    """The bytes of a rank's gradients, of DDP's buckets, and of the memory that the two take together."""

    gradient_bytes: int
    bucket_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class BucketView:
    """The same module without and with `gradient_as_bucket_view`."""

    without: GradientMemory
    with_view: GradientMemory

    @property
    def saved_bytes(self) -> int:
        return self.without.held_bytes - self.with_view.held_bytes

    def check(self) -> None:
        """Raise DemoError unless the view saves exactly what the gradients take, which then lie in the buckets."""
        size = self.without.gradient_bytes
        if self.saved_bytes != size or self.with_view.held_bytes != self.with_view.bucket_bytes:
            raise DemoError(f"the view should save the gradients' {count_of(size, 'byte')}, but: {self}")


def bucket_view_memory(module: nn.Module, inputs: Tensor) -> BucketView:
    """Take three steps of a module on two ranks of DDP, and count the memory that gradients and buckets hold.

    Every parameter must be used, and get a dense gradient of its own type.

    >>> import torch
    >>> view = bucket_view_memory(nn.Linear(100, 10), torch.ones(2, 100))
    >>> view.without.held_bytes, view.with_view.held_bytes
    (8080, 4040)
    """
    of_type("module", module, nn.Module), of_type("inputs", inputs, Tensor)
    both = [launch(_held, 2, (module, inputs, view), timeout_s=TIMEOUT_S)[0] for view in (False, True)]
    return BucketView(*both)


def _held(module: nn.Module, inputs: Tensor, as_view: bool) -> GradientMemory:
    ddp = DistributedDataParallel(copy.deepcopy(module), gradient_as_bucket_view=as_view)
    buckets: dict[int, int] = {}
    on_bucket(ddp, lambda buffer: buckets.update(storages([buffer])))
    for _ in range(_NUM_STEPS):
        buckets.clear()
        ddp.zero_grad()
        ddp(inputs).sum().backward()
    gradients: dict[int, int] = {}
    num_bytes = 0
    for parameter in ddp.parameters():
        if parameter.grad is not None:
            gradients.update(storages([parameter.grad]))
            num_bytes += parameter.grad.nbytes
    return GradientMemory(num_bytes, sum(buckets.values()), sum((gradients | buckets).values()))


# which of two micro-batches' forward and backward are inside no_sync, and whether both forwards come first
PLACEMENTS = {
    "forward and backward": ((True, False), (True, False), False),
    "backward only": ((False, False), (True, False), False),
    "backward only, forwards first": ((False, False), (True, False), True),
    "forwards only": ((True, True), (False, False), True),
}


@dataclass(frozen=True, eq=False)
class Accumulated:
    """What two micro-batches leave: each rank's gradients after the first and after both, and DDP's allreduces."""

    after_first: tuple[Vector, ...]
    after_both: tuple[Vector, ...]
    num_allreduces: int

    @property
    def ranks_apart(self) -> float:
        """How far apart the ranks' gradients are in the end; optimizers would take the ranks different ways."""
        return max(apart(one, self.after_both[0]) for one in self.after_both)


@dataclass(frozen=True, eq=False)
class NoSync:
    """What each of `PLACEMENTS` leaves, beside the gradient of the whole batch in one process."""

    placements: Mapping[str, Accumulated]
    right: Vector
    rounding: float

    def difference(self, placement: str) -> float:
        """Return how far a rank is from the right gradient at most, as a share of the largest entry."""
        return max(apart(one, self.right) for one in self.placements[placement].after_both)

    def is_right(self, placement: str) -> bool:
        return self.difference(placement) <= self.rounding

    def check(self) -> None:
        """Raise DemoError unless each placement is right or wrong, and allreduces as often, as it is known to."""
        known = dict(zip(PLACEMENTS, [(True, 1), (True, 2), (False, 1), (False, 0)], strict=True))
        found = {name: (self.is_right(name), one.num_allreduces) for name, one in self.placements.items()}
        if found != known:
            raise DemoError(f"placements of no_sync should be right or wrong, and allreduce, {known}, but: {found}")
        alone, synced = (self.placements[name].after_first for name in list(PLACEMENTS)[:2])
        if (alone[0] == alone[1]).all() or (synced[0] != synced[1]).any():
            raise DemoError("after the first micro-batch, ranks should have the same gradients in the second case only")


def no_sync(module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: LossFn, num_ranks: int = 2) -> NoSync:
    """Accumulate the gradients of two micro-batches on each rank, with `no_sync` around different parts of the first.

    DDP decides in the forward pass whether the next backward is to be synchronised. Around the backward only, `no_sync`
    therefore changes nothing: each backward is synchronised, which costs an allreduce more and gives the right sum; or,
    where both forwards come before, the first backward is and the second is not. Around both forwards and no backward
    nothing is synchronised at all. Raises ValueError where the batch cannot be cut into equal parts.
    """
    work = Work(module, inputs, targets, loss_fn)
    work.part(0, 2 * whole("num_ranks", num_ranks, 2, 64))
    ranks = launch(_accumulate_all, num_ranks, (work,), timeout_s=TIMEOUT_S)
    placements = {}
    for name in PLACEMENTS:
        firsts, boths, counts = zip(*(rank[name] for rank in ranks), strict=True)
        placements[name] = Accumulated(firsts, boths, counts[0])
    return NoSync(placements, work.gradient(), work.rounding)


def _accumulate_all(work: Work) -> dict[str, tuple[Vector, Vector, int]]:
    return {name: _accumulate(work, *inside) for name, inside in PLACEMENTS.items()}


def _accumulate(
    work: Work, forward_in: tuple[bool, bool], backward_in: tuple[bool, bool], forwards_first: bool
) -> tuple[Vector, Vector, int]:
    ddp, own = in_ddp(work)
    seen: list[Vector] = []
    num_before: list[int] = []  # for each bucket that was sent, how many backwards were over
    on_bucket(ddp, lambda _: num_before.append(len(seen)))
    losses: list[Tensor] = []
    for turn in range(2):
        while len(losses) <= (1 if forwards_first else turn):
            part = own.part(len(losses), 2)
            with _around(ddp, forward_in[len(losses)]):
                losses.append(part.loss(ddp) / 2)
        with _around(ddp, backward_in[turn]):
            losses[turn].backward()  # type: ignore[no-untyped-call]
        seen.append(gradient_of(ddp))
    return seen[0], seen[1], len(set(num_before))


def _around(ddp: DistributedDataParallel, inside: bool) -> AbstractContextManager[None]:
    return ddp.no_sync() if inside else nullcontext()


# how often the middle layer is used in each of four steps, on every rank
GRAPHS = {
    "always unused": (0, 0, 0, 0),
    "checkpointed twice": (2, 2, 2, 2),
    "unused from step 2 on": (1, 1, 0, 0),
    "used from step 2 on": (0, 0, 1, 1),
}
# whether DDP takes all steps, without and with static_graph
_KNOWN = dict(zip(GRAPHS, [(False, True), (False, True), (False, False), (False, False)], strict=True))


class Repeated(nn.Module):
    """Three layers, of which the middle one is used so many times; from twice on, each time under a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = (nn.Linear(3, 3, dtype=torch.float64) for _ in range(2))
        self.last = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, inputs: Tensor, times: int) -> Tensor:
        """Return a tensor of shape (batch, 1) for inputs of shape (batch, 3)."""
        hidden = self.first(inputs)
        for _ in range(times):
            again = times > 1
            hidden = checkpoint(self.middle, hidden, use_reentrant=True) if again else self.middle(hidden)
        outputs: Tensor = self.last(hidden)
        return outputs


@dataclass(frozen=True)
class Run:
    """How many steps a rank had taken when torch raised `error`, all with "", and how many of them were right.

    A step is right if its gradient is the mean of all ranks'.
    """

    num_steps: int
    num_right: int
    error: str

    def __str__(self) -> str:
        return f"{self.num_right} of {count_of(self.num_steps, 'step')} right{', then an error' if self.error else ''}"

    @property
    def went_well(self) -> bool:
        return not self.error and self.num_right == self.num_steps


@dataclass(frozen=True)
class StaticGraph:
    """Each of `GRAPHS` without and with `static_graph`, on the rank that fared worst."""

    plain: Mapping[str, Run]
    static: Mapping[str, Run]

    def check(self) -> None:
        """Raise DemoError unless each graph is taken, or refused, as it is known to be."""
        found = {name: (self.plain[name].went_well, self.static[name].went_well) for name in GRAPHS}
        if found != _KNOWN:
            raise DemoError(f"DDP without and with static_graph should take {_KNOWN}, but: {found}")


def static_graph() -> StaticGraph:
    """Take up to four steps of each of `GRAPHS` on two ranks, without and with `static_graph`.

    With it, DDP learns in the first step which parameters are used, and how often, and keeps to that. It then copes
    with parameters that are never used and with some that become ready several times. A graph that changes is refused:
    at once where a parameter comes new, and a step later where one is left out. The gradients of that step are each
    rank's own, and nobody says so.
    """
    inputs = torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    module = Repeated()
    ranks = launch(_run_all, len(inputs), (module, inputs), timeout_s=TIMEOUT_S)
    worst = [
        {name: min((rank[flag][name] for rank in ranks), key=lambda run: run.num_right) for name in GRAPHS}
        for flag in (False, True)
    ]
    return StaticGraph(*worst)


def _run_all(module: Repeated, inputs: Tensor) -> dict[bool, dict[str, Run]]:
    return {
        flag: {name: _run(module, inputs, counts, flag) for name, counts in GRAPHS.items()} for flag in (False, True)
    }


def _run(module: Repeated, inputs: Tensor, counts: tuple[int, ...], static: bool) -> Run:
    ddp = DistributedDataParallel(copy.deepcopy(module), static_graph=static)
    num_steps = num_right = 0
    for times in counts:
        ddp.zero_grad()
        try:
            ddp(inputs[dist.get_rank()], times).mean().backward()
        except RuntimeError as error:
            return Run(num_steps, num_right, str(error))
        num_steps += 1
        off = apart(gradient_of(ddp), _mean(module, inputs, times))
        num_right += off <= ROUNDING * torch.finfo(torch.float64).eps
    return Run(num_steps, num_right, "")


def _mean(module: Repeated, inputs: Tensor, times: int) -> Vector:
    """The mean of all ranks' gradients, which is that of all their samples."""
    whole = copy.deepcopy(module)
    whole(inputs.flatten(0, 1), times).mean().backward()
    return gradient_of(whole)


_PATIENCE_S = 1.0  # with a rank that is still at work once another has ended: it hangs, however long one waits
_GROUP_S = 30.0  # what a stuck allreduce waits for at most, should the process live so long
_USED = (("left", "right"), ("left",))  # by rank


class Branches(nn.Module):
    """A sum of branches, of which a forward uses those it is told: a mixture of experts in small."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Linear(3, 1, dtype=torch.float64) for _ in range(2))

    def forward(self, inputs: Tensor, used: tuple[str, ...]) -> Tensor:
        """Return, for inputs of shape (batch, 3), the sum of the branches used, of shape (batch, 1)."""
        return torch.stack([getattr(self, name)(inputs) for name in used]).sum(dim=0)


@dataclass(frozen=True, eq=False)
class RankStory:
    """What one rank saw: which parameters its forward left out, and how two steps went.

    `stuck_in` says where it still stood when another rank had ended, `error` what torch raised; both are empty where
    all went well. `gradient` is that after the first step, None where it did not come so far.
    """

    rank: int
    unused: tuple[str, ...]
    stuck_in: str
    error: str
    gradient: Vector | None

    @property
    def named_by_torch(self) -> tuple[int, ...]:
        """The numbers of the parameters that torch's error says have got no gradient."""
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", self.error)
        return tuple(map(int, found[1].split())) if found else ()


@dataclass(frozen=True, eq=False)
class Unused:
    """Two ranks, of which the second leaves a branch out; `right` is the mean of their gradients."""

    find_unused: bool
    ranks: tuple[RankStory, ...]
    right: Vector
    own: tuple[Vector, ...]  # each rank's gradient without any other rank

    def check(self) -> None:
        """Raise DemoError unless it went as it must: stuck and refused without the search, right with it."""
        if self.find_unused:
            for one in self.ranks:
                if one.stuck_in or one.error or one.gradient is None or not self._is(one.gradient, self.right):
                    raise DemoError(f"rank {one.rank} should have the mean of all gradients, but: {one}")
            return
        full, lacking = self.ranks
        if full.stuck_in != "backward of step 0":
            raise DemoError(f"rank 0 should be stuck in its first backward, but: {full}")
        if lacking.named_by_torch != (2, 3) or lacking.unused != ("right.weight", "right.bias"):
            raise DemoError(f"torch should name right's two parameters on rank 1, but: {lacking}")
        if lacking.gradient is None or not self._is(lacking.gradient, self.own[1]):
            raise DemoError(f"rank 1 should be left with its own gradient after step 0, but: {lacking}")

    @staticmethod
    def _is(one: Vector, other: Vector) -> bool:
        return apart(one, other) <= ROUNDING * torch.finfo(torch.float64).eps


def unused_parameters(find_unused: bool) -> Unused:
    """Take two steps on two ranks, of which rank 1 leaves a branch out, with or without `find_unused_parameters`.

    Without, a bucket that holds the branch is complete on rank 0 only, whose backward waits for the other for ever.
    Rank 1 does not wait: it ends its backward with gradients that no other rank has seen, and learns of it in its next
    forward. The demo notices in a second and ends; ranks are those of one machine.
    """
    truth("find_unused", find_unused)
    inputs = torch.randn(len(_USED), 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    module = Branches()
    with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
        ranks = launch(_tell, len(_USED), (module, inputs, find_unused, folder), timeout_s=TIMEOUT_S)
    own = [_alone(module, inputs[rank], used) for rank, used in enumerate(_USED)]
    right: Vector = sum(own[1:], start=own[0]) / len(own)
    return Unused(find_unused, tuple(ranks), right, tuple(own))


def _alone(module: Branches, inputs: Tensor, used: tuple[str, ...]) -> Vector:
    module = copy.deepcopy(module)
    module(inputs, used).mean().backward()
    return gradient_of(module)


@dataclass
class _Steps:
    """Two steps of a rank, as far as they have come."""

    doing: str = ""
    error: str = ""
    gradient: Vector | None = None

    def take(self, ddp: DistributedDataParallel, inputs: Tensor, used: tuple[str, ...]) -> None:
        try:
            for step in range(2):
                self.doing = f"forward of step {step}"
                loss = ddp(inputs, used).mean()
                self.doing = f"backward of step {step}"
                loss.backward()
                self.gradient = gradient_of(ddp) if step == 0 else self.gradient
                ddp.zero_grad()
            self.doing = ""
        except RuntimeError as error:
            self.doing, self.error = "", str(error)


def _tell(module: Branches, inputs: Tensor, find_unused: bool, folder: str) -> RankStory:
    rank = dist.get_rank()
    used = _USED[rank]
    group = dist.new_group(timeout=timedelta(seconds=_GROUP_S))
    ddp = DistributedDataParallel(module, process_group=group, find_unused_parameters=find_unused)
    steps = _Steps()
    with _quiet(find_unused):
        thread = threading.Thread(target=steps.take, args=(ddp, inputs[rank], used), daemon=True)
        thread.start()
        _wait(thread, steps, Path(folder), rank, float("inf") if find_unused else _PATIENCE_S)
    unused = tuple(name for name, _ in module.named_parameters() if name.split(".")[0] not in used)
    return RankStory(rank, unused, steps.doing, steps.error, steps.gradient)


def _wait(thread: threading.Thread, steps: _Steps, folder: Path, rank: int, patience_s: float) -> None:
    """Wait for the thread, or until so long after another rank has ended and this one is in its backward."""
    given_up_s = float("inf")
    while thread.is_alive() and time.monotonic() < given_up_s:
        thread.join(0.02)
        if given_up_s == float("inf") and any(folder.iterdir()) and steps.doing.startswith("backward"):
            given_up_s = time.monotonic() + patience_s
    if not thread.is_alive():
        (folder / str(rank)).touch()


@contextlib.contextmanager
def _quiet(wanted: bool) -> Iterator[None]:
    """Keep to itself what torch's C++ part warns of: that on rank 0, which uses all, the search finds nothing."""
    if not wanted:
        yield
        return
    before = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
