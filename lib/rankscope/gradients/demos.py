"""What DistributedDataParallel does to gradients, shown on real ranks: equal to one process, or wrong in a known way.

Each demo runs in processes of its own that end with it, and returns figures whose `check` raises where the effect that
it shows is not there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..ranks import launch
from ..values.checks import number, of_type, whole

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


def ddp_equals_single(
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
    >>> ddp_equals_single(linear, *both, nn.functional.mse_loss).check()
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
