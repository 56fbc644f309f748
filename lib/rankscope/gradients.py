"""What DistributedDataParallel does to gradients, shown on real ranks: equal to one process, or wrong in a known way.

Each function here starts ranks of its own, which end with it, and returns what they found next to what one process
finds. The `check` of a result raises DemoError unless DDP did what it is known to do.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from .sampling.audit import Finding, Findings
from .values.checks import count_of, function, number, of_type, truth, whole
from .values.extras import naming_extras
from .values.frozen import checked, frozen, optional
from .workers.launch import launch

with naming_extras("rankscope.gradients"):
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    from .zero.run import storages

__all__ = [
    "Work",
    "audit_step",
    "bucket_view_memory",
    "differing",
    "equal_training",
    "no_sync",
    "static_graph",
    "unused_parameters",
]

LossFn = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[Any, Tensor, Tensor], object]  # from a module in DDP and a rank's part of the batch to its gradients
Vector = NDArray[np.float64]  # all parameters, or their gradients, one after the other
TIMEOUT_S = 60.0
_ROUNDING = 64  # times the dtype's epsilon: sums in another order differ by a few
_MOST_RANKS = 64
_EXACT = _ROUNDING * torch.finfo(torch.float64).eps  # of modules that are made here


class DemoError(RuntimeError):
    """DDP did not do what it is known to do."""


# ---- what is trained, and what is compared


def _samples(name: str, value: Any) -> Tensor:
    if not (of_type(name, value, Tensor).ndim and len(value)):
        raise ValueError(f"{name} must have a row for each sample, and at least one, got {value!r}")
    return value  # type: ignore[no-any-return]


def _trainable(name: str, value: Any) -> nn.Module:
    if not any(parameter.requires_grad for parameter in of_type(name, value, nn.Module).parameters()):
        raise ValueError(f"{name} must have a parameter that gets a gradient, got {value!r}")
    return value  # type: ignore[no-any-return]


@frozen(eq=False)
class Work:
    """What is trained: a module, a whole batch, and ``loss_fn(outputs, targets)``, as a rule a mean over the samples.

    Raises ValueError for a module without gradients, and for inputs and targets of different lengths.

    >>> Work(nn.Linear(3, 1), torch.ones(8, 3), torch.ones(7, 1), nn.functional.mse_loss)
    Traceback (most recent call last):
    ValueError: targets must have the 8 samples of the inputs, got 7
    """

    module: nn.Module = checked(_trainable)
    inputs: Tensor = checked(_samples)
    targets: Tensor = checked(_samples)
    loss_fn: LossFn = checked(function, "of outputs and targets")

    def __attrs_post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"targets must have the {len(self.inputs)} samples of the inputs, got {len(self.targets)}")

    def part(self, which: int, num_parts: int) -> Work:
        """Return the same work with one of equal parts of the batch; ValueError if it does not divide."""
        if len(self.inputs) % num_parts:
            raise ValueError(f"inputs must be a multiple of {num_parts} samples, got {len(self.inputs)}")
        inputs, targets = (tensor.chunk(num_parts)[which] for tensor in (self.inputs, self.targets))
        return Work(self.module, inputs, targets, self.loss_fn)

    def loss(self, module: nn.Module) -> Tensor:
        """Return the loss of that module on this batch."""
        return self.loss_fn(module(self.inputs), self.targets)

    def gradient(self) -> Vector:
        """Return the gradient of the whole batch in one process; the module stays as it is."""
        return gradient_alone(self.module, self.loss)

    @property
    def rounding(self) -> float:
        """How far values may differ that depend on the order of sums, as a share of the largest."""
        return rounding_of(self.module.parameters())


def flat(tensors: Iterable[Tensor]) -> Vector:
    """Return all elements in one vector."""
    return np.concatenate([tensor.detach().double().numpy().ravel() for tensor in tensors])


def values_of(module: nn.Module) -> Vector:
    """Return all parameters in one vector."""
    return flat(module.parameters())


def gradient_of(module: nn.Module) -> Vector:
    """Return all gradients in one vector, 0 where a parameter has none."""
    return flat(torch.zeros_like(one) if one.grad is None else one.grad for one in module.parameters())


def gradient_alone(module: nn.Module, loss: Callable[..., Tensor], *args: Any) -> Vector:
    """Return the gradient of ``loss(module, *args)`` in one process; the module stays as it is."""
    module = copy.deepcopy(module)
    module.zero_grad()
    loss(module, *args).backward()  # type: ignore[no-untyped-call]
    return gradient_of(module)


def _mean_output(module: nn.Module, *args: Any) -> Tensor:
    mean: Tensor = module(*args).mean()
    return mean


def rounding_of(tensors: Iterable[Tensor]) -> float:
    """Return how far results may differ that depend on the order of sums, as a share of the largest."""
    return _ROUNDING * max(torch.finfo(one.dtype).eps for one in tensors)


def apart(one: Vector, other: Vector) -> float:
    """Return the largest difference of two vectors, as a share of the largest entry of the second."""
    return float(np.abs(one - other).max() / (np.abs(other).max() or 1.0))


def _divided(work: Work, num_ranks: int, num_parts: int = 1) -> None:
    """Raise ValueError unless so many ranks can each have so many equal parts of the batch."""
    of_type("work", work, Work).part(0, num_parts * whole("num_ranks", num_ranks, 2, _MOST_RANKS))


def _on_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    return launch(fn, num_ranks, args, timeout_s=TIMEOUT_S)


def _in_ddp(work: Work) -> tuple[DistributedDataParallel, Work]:
    """Return a copy of the module in DDP and this rank's part of the batch; on a rank.

    A DDP module must be gone before its process group is, or the process may hang at its end: keep it local.
    """
    return DistributedDataParallel(copy.deepcopy(work.module)), work.part(dist.get_rank(), dist.get_world_size())


def _on_bucket(ddp: DistributedDataParallel, note: Callable[[Tensor], object]) -> None:
    """Let `note` see the buffer of each bucket before it is averaged over the ranks."""

    def average(buffer: Tensor) -> Any:
        note(buffer)
        done = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
        return done.get_future().then(lambda future: future.value()[0])

    ddp.register_comm_hook(None, lambda _, bucket: average(bucket.buffer()))


# ---- DDP trains as one process does


@attrs.frozen(eq=False)
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

    @property
    def ratio(self) -> float:
        """How far DDP went as a multiple of the one process's way, by least squares."""
        ddp, single = self.ranks[0] - self.start, self.single - self.start
        return float(ddp @ single / (single @ single))

    def check(self, share: float = 1.0) -> None:
        """Raise DemoError if ranks differ in any bit, or went another `share` of the one process's way."""
        if any((rank != self.ranks[0]).any() for rank in self.ranks):
            raise DemoError("ranks have come to different parameters")
        off = apart(self.ranks[0], self.start + share * (self.single - self.start))
        if not off <= self.num_steps * self.rounding < self.moved:
            raise DemoError(
                f"after {self.num_steps} steps the ranks are {off:.2g} from {share:.3g} of the way of one process, "
                f"which moved by {self.moved:.2g}; rounding makes {self.num_steps * self.rounding:.2g}"
            )


def equal_training(work: Work, num_ranks: int = 2, num_steps: int = 5, learning_rate: float = 0.1) -> EqualTraining:
    """Train with DDP, each rank on its part of the batch, and in one process on all of it; SGD with momentum.

    They are equal to rounding if the loss is a mean over samples and no sample affects another, as it does in batch
    normalisation. DDP averages the ranks' gradients: of means over equal parts that is the mean over all samples; of a
    loss that is a sum it is 1/N of the sum, and so is the `ratio` after one step. Raises ValueError if the ranks' parts
    are not equal.

    >>> both = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)
    >>> equal_training(Work(nn.Linear(3, 1, dtype=torch.float64), *both, nn.functional.mse_loss)).check()
    >>> def squares(outputs, targets):
    ...     return (outputs - targets).square().sum()
    >>> summed = equal_training(Work(nn.Linear(3, 1, dtype=torch.float64), *both, squares), num_steps=1)
    >>> summed.check(share=1 / 2)
    """
    num_steps, learning_rate = whole("num_steps", num_steps, 1), number("learning_rate", learning_rate, above=0)
    _divided(work, num_ranks)
    ranks = _on_ranks(_train_rank, num_ranks, work, num_steps, learning_rate)
    single = copy.deepcopy(work.module)
    _train(single, work, num_steps, learning_rate)
    return EqualTraining(num_steps, tuple(ranks), values_of(single), values_of(work.module), work.rounding)


def _train_rank(work: Work, num_steps: int, learning_rate: float) -> Vector:
    ddp, own = _in_ddp(work)
    _train(ddp, own, num_steps, learning_rate)
    return values_of(ddp)


def _train(module: nn.Module, work: Work, num_steps: int, learning_rate: float) -> None:
    optimizer = torch.optim.SGD(module.parameters(), learning_rate, momentum=0.9)
    for _ in range(num_steps):
        optimizer.zero_grad()
        work.loss(module).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


# ---- an audit of anyone's step


def differing(module: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that are not the same, to the bit, on all ranks; call it on each.

    It sends 16 bytes per tensor, so that a job can ask every thousand steps. Needs a process group.

    >>> def seeds_differ():
    ...     torch.manual_seed(dist.get_rank())
    ...     return differing(nn.Linear(3, 1))
    >>> launch(seeds_differ, 2)
    [['weight', 'bias'], ['weight', 'bias']]
    """
    own = _digests([*of_type("module", module, nn.Module).named_parameters(), *module.named_buffers()])
    ranks: list[dict[str, bytes]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, own)
    return _unlike(ranks)


def _digests(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, bytes]:
    raw = ((name, one.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()) for name, one in tensors)
    return {name: hashlib.blake2b(one.tobytes(), digest_size=16).digest() for name, one in raw}


def _unlike(ranks: list[dict[str, bytes]]) -> list[str]:
    names = dict.fromkeys(name for one in ranks for name in one)
    return [name for name in names if len({one.get(name) for one in ranks}) > 1]


class _Audited(NamedTuple):
    """What one rank found: its gradient, what it leaves unused, its buffers, and how often it synchronised."""

    gradient: Vector
    unused: tuple[str, ...]
    buffers: dict[str, bytes]
    num_allreduces: float


@attrs.frozen(eq=False)
class StepAudit(Findings):
    """The gradients of a step under DDP, by rank, and that of one process with the whole batch.

    `unused` are the parameters that each rank leaves without a gradient, `buffers` those that differ between ranks
    after the step. `num_allreduces` says how often all gradients were synchronised. ``str()`` is the report.
    """

    KINDS = ("unused", "ranks_differ", "not_the_whole_batch", "buffers_differ")
    ranks: tuple[Vector, ...]
    single: Vector
    rounding: float
    unused: tuple[tuple[str, ...], ...]
    buffers: tuple[str, ...]
    num_allreduces: float

    @property
    def ratio(self) -> float:
        """The first rank's gradient as a multiple of the one process's, by least squares."""
        return float(self.ranks[0] @ self.single / ((self.single @ self.single) or 1.0))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything in which the step differs from one process with the whole batch."""
        found = []
        for names in dict.fromkeys(filter(None, self.unused)):
            ranks = [f"{rank}" for rank, own in enumerate(self.unused) if own == names]
            whose = "any rank" if len(ranks) == len(self.ranks) else f"rank {', '.join(ranks)}"
            says = f"no gradient on {whose} for {_some(names)}: DDP hangs or raises one step later"
            found.append(Finding("unused", f"{says}, unless find_unused_parameters=True"))
        if (spread := max(apart(one, self.ranks[0]) for one in self.ranks)) > 0:
            says = f"ranks have different gradients, by up to {spread:.0%} of the largest entry"
            found.append(Finding("ranks_differ", f"{says}: their parameters drift apart"))
        elif (off := apart(self.ranks[0], self.single)) > self.rounding:
            if apart(self.ranks[0], self.ratio * self.single) <= self.rounding:
                says = f"gradients are {self.ratio:.4g} times those of one process: is the loss a sum? DDP takes means"
            else:
                says = f"gradients differ from one process's by up to {off:.0%} of the largest entry: do samples"
                says += " affect each other (BatchNorm), does the module draw random numbers, or do ranks divide by"
                says += " different numbers of samples or tokens?"
            found.append(Finding("not_the_whole_batch", says))
        if self.buffers:
            says = f"buffers differ between ranks: {_some(self.buffers)}"
            found.append(Finding("buffers_differ", f"{says}; only rank 0's are kept"))
        return tuple(found)

    def __str__(self) -> str:
        head = f"{count_of(len(self.ranks), 'rank')}, {self.num_allreduces:g} synchronised"
        return self.report(head, "as one process")


def audit_step(work: Work, num_ranks: int = 2, step: Step | None = None) -> StepAudit:
    """Run one step on real ranks under DDP, each with its part of the batch, and compare with one process.

    ``step(ddp, inputs, targets)`` leaves the gradients of a rank's part, before any clipping; by default it is a
    forward, `loss_fn` and a backward. Dropout modules are switched off, since each rank draws its own numbers. Where a
    rank leaves a parameter unused, DDP would hang: the step is then not run, and the mean of what ranks compute alone
    is compared. Raises ValueError if the batch does not divide, RankError where the step raises.

    >>> both = torch.randn(8, 3), torch.randn(8, 1)
    >>> print(audit_step(Work(nn.Linear(3, 1), *both, nn.functional.mse_loss)))
    2 ranks, 1 synchronised
      as one process
    >>> print(audit_step(Work(nn.Linear(3, 1), *both, nn.MSELoss(reduction="sum"))))
    2 ranks, 1 synchronised
      not the whole batch: gradients are 0.5 times those of one process: is the loss a sum? DDP takes means
    """
    _divided(work, num_ranks)
    optional("step", step, function, "of ddp, inputs and targets")
    work = Work(copy.deepcopy(work.module), work.inputs, work.targets, work.loss_fn)
    for one in work.module.modules():
        if isinstance(one, nn.modules.dropout._DropoutNd):
            one.eval()
    ranks: list[_Audited] = _on_ranks(_audited, num_ranks, work, step)
    return StepAudit(
        tuple(one.gradient for one in ranks),
        work.gradient(),
        work.rounding,
        tuple(one.unused for one in ranks),
        tuple(_unlike([one.buffers for one in ranks])),
        ranks[0].num_allreduces,
    )


def _audited(work: Work, step: Step | None) -> _Audited:
    own, alone = work.part(dist.get_rank(), dist.get_world_size()), copy.deepcopy(work.module)
    alone.zero_grad()
    own.loss(alone).backward()  # type: ignore[no-untyped-call]
    trained = [(name, one) for name, one in alone.named_parameters() if one.requires_grad]
    unused = tuple(name for name, one in trained if one.grad is None)
    mean, anywhere = torch.from_numpy(gradient_of(alone)), torch.tensor(len(unused))
    dist.all_reduce(mean)
    dist.all_reduce(anywhere)
    if anywhere:
        return _Audited((mean / dist.get_world_size()).numpy(), unused, _digests(alone.named_buffers()), 0)
    ddp, sent = DistributedDataParallel(copy.deepcopy(work.module)), list[int]()
    _on_bucket(ddp, lambda buffer: sent.append(buffer.numel()))
    if step is None:
        own.loss(ddp).backward()  # type: ignore[no-untyped-call]
    else:
        step(ddp, own.inputs, own.targets)
    num_allreduces = sum(sent) / sum(one.numel() for _, one in trained)
    return _Audited(gradient_of(ddp), unused, _digests(ddp.module.named_buffers()), num_allreduces)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


# ---- no_sync must be around the forward


class _Placement(NamedTuple):
    """Which passes of two micro-batches are inside no_sync, whether both forwards come first, and the known outcome."""

    forward: tuple[bool, bool]
    backward: tuple[bool, bool]
    forwards_first: bool
    is_right: bool
    num_allreduces: int


_PLACEMENTS = {
    "forward and backward": _Placement((True, False), (True, False), False, is_right=True, num_allreduces=1),
    "backward only": _Placement((False, False), (True, False), False, is_right=True, num_allreduces=2),
    "backward only, forwards first": _Placement((False, False), (True, False), True, is_right=False, num_allreduces=1),
    "forwards only": _Placement((True, True), (False, False), True, is_right=False, num_allreduces=0),
}


@attrs.frozen(eq=False)
class Accumulated:
    """What two micro-batches leave: each rank's gradients after the first and after both, and DDP's allreduces."""

    after_first: tuple[Vector, ...]
    after_both: tuple[Vector, ...]
    num_allreduces: int

    @property
    def ranks_apart(self) -> float:
        """How far the ranks' gradients differ in the end; optimizers would take the ranks different ways."""
        return max(apart(one, self.after_both[0]) for one in self.after_both)


@attrs.frozen(eq=False)
class NoSync:
    """What each placement of no_sync leaves, and the gradient of the whole batch in one process, which is right."""

    placements: Mapping[str, Accumulated]
    right: Vector
    rounding: float

    def is_right(self, placement: str) -> bool:
        """Return whether all ranks have the right gradient."""
        return all(apart(one, self.right) <= self.rounding for one in self.placements[placement].after_both)

    def check(self) -> None:
        """Raise DemoError unless each placement is right or wrong, and allreduces as often, as it is known to."""
        known = {name: (one.is_right, one.num_allreduces) for name, one in _PLACEMENTS.items()}
        found = {name: (self.is_right(name), one.num_allreduces) for name, one in self.placements.items()}
        if found != known:
            raise DemoError(f"placements of no_sync should be right or wrong, and allreduce, {known}, but: {found}")
        alone, synced = (self.placements[name].after_first for name in list(_PLACEMENTS)[:2])
        if (alone[0] == alone[1]).all() or (synced[0] != synced[1]).any():
            raise DemoError("after the first micro-batch, ranks should have the same gradients in the second case only")


def no_sync(work: Work, num_ranks: int = 2) -> NoSync:
    """Accumulate the gradients of two micro-batches on each rank, with `no_sync` around different parts of the first.

    DDP decides in the forward pass whether the next backward is synchronised. So `no_sync` around the backward only
    changes nothing: each backward is synchronised, which costs one more allreduce and gives the right sum; or, if both
    forwards come first, the first backward is and the second is not. Around both forwards and no backward, nothing is
    synchronised at all. Raises ValueError if the batch cannot be cut into equal parts.
    """
    _divided(work, num_ranks, 2)
    ranks = _on_ranks(_accumulate_all, num_ranks, work)
    placements = {}
    for name in _PLACEMENTS:
        firsts, boths, counts = zip(*(rank[name] for rank in ranks), strict=True)
        placements[name] = Accumulated(firsts, boths, counts[0])
    return NoSync(placements, work.gradient(), work.rounding)


def _accumulate_all(work: Work) -> dict[str, tuple[Vector, Vector, int]]:
    return {name: _accumulate(work, placement) for name, placement in _PLACEMENTS.items()}


def _accumulate(work: Work, placement: _Placement) -> tuple[Vector, Vector, int]:
    ddp, own = _in_ddp(work)
    gradients: list[Vector] = []
    num_before: list[int] = []  # for each bucket that was sent, how many backwards were over
    _on_bucket(ddp, lambda _: num_before.append(len(gradients)))
    losses: list[Tensor] = []
    for turn in range(2):
        while len(losses) <= (1 if placement.forwards_first else turn):
            micro = len(losses)
            with ddp.no_sync() if placement.forward[micro] else nullcontext():
                losses.append(own.part(micro, 2).loss(ddp) / 2)
        with ddp.no_sync() if placement.backward[turn] else nullcontext():
            losses[turn].backward()  # type: ignore[no-untyped-call]
        gradients.append(gradient_of(ddp))
    return gradients[0], gradients[1], len(set(num_before))


# ---- a parameter that one rank does not use


_USED = (("left", "right"), ("left",))  # branches, by rank
_PATIENCE_S = 1.0  # of an allreduce that would wait for ever


class _Branches(nn.Module):
    """A sum of branches, of which a forward uses those that it is given: a small mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Linear(3, 1, dtype=torch.float64) for _ in range(2))

    def forward(self, inputs: Tensor, used: tuple[str, ...]) -> Tensor:
        """Return, for inputs of shape (batch, 3), the sum of the branches used, of shape (batch, 1)."""
        return torch.stack([getattr(self, name)(inputs) for name in used]).sum(dim=0)


@attrs.frozen(eq=False)
class RankStory:
    """What one rank saw: which parameters its forward left out, and how two steps went.

    `stuck_in` says where it waited without end for another rank, `error` what torch raised; both are empty if all
    went well. `gradient` is that after the first step, None if it did not come so far.
    """

    rank: int
    unused: tuple[str, ...]
    stuck_in: str
    error: str
    gradient: Vector | None

    @property
    def named_by_torch(self) -> tuple[int, ...]:
        """The numbers of the parameters that got no gradient, according to torch's error."""
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", self.error)
        return tuple(map(int, found[1].split())) if found else ()

    def has(self, gradient: Vector) -> bool:
        """Return whether this is the rank's gradient after the first step."""
        return self.gradient is not None and apart(self.gradient, gradient) <= _EXACT


@attrs.frozen(eq=False)
class Unused:
    """Two ranks, of which the second leaves a branch out, and each rank's `own` gradient without the other rank."""

    find_unused: bool
    ranks: tuple[RankStory, ...]
    own: tuple[Vector, ...]

    @property
    def right(self) -> Vector:
        """The mean of the ranks' own gradients."""
        return np.asarray(np.mean(self.own, axis=0))

    def check(self) -> None:
        """Raise DemoError unless it went as it must: stuck and refused without the search, right with it."""
        if self.find_unused:
            for one in self.ranks:
                if one.stuck_in or one.error or not one.has(self.right):
                    raise DemoError(f"rank {one.rank} should have the mean of all gradients, but: {one}")
            return
        full, lacking = self.ranks
        if full.stuck_in != "backward of step 0":
            raise DemoError(f"rank 0 should be stuck in its first backward, but: {full}")
        if lacking.named_by_torch != (2, 3) or lacking.unused != ("right.weight", "right.bias"):
            raise DemoError(f"torch should name right's two parameters on rank 1, but: {lacking}")
        if not lacking.has(self.own[1]):
            raise DemoError(f"rank 1 should be left with its own gradient after step 0, but: {lacking}")


def unused_parameters(find_unused: bool) -> Unused:
    """Take two steps on two ranks, of which rank 1 leaves a branch out, with or without `find_unused_parameters`.

    Without it, a bucket that holds the branch is complete on rank 0 only, whose backward waits for the other one for
    ever. Rank 1 does not wait: it ends its backward with gradients that no other rank has seen, and is told in its next
    forward. This is noticed in a second, and ends; ranks are those of one machine.
    """
    truth("find_unused", find_unused)
    inputs, module = _inputs(), _Branches()
    ranks = _on_ranks(_take_two_steps, len(_USED), module, inputs, find_unused)
    own = (gradient_alone(module, _mean_output, inputs[rank], used) for rank, used in enumerate(_USED))
    return Unused(find_unused, tuple(ranks), tuple(own))


def _inputs() -> Tensor:
    """Four samples for each of two ranks."""
    return torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _take_two_steps(module: _Branches, inputs: Tensor, find_unused: bool) -> RankStory:
    rank, group = dist.get_rank(), dist.new_group()
    ddp = DistributedDataParallel(module, process_group=group, find_unused_parameters=find_unused)
    dist.barrier()  # from here on nobody waits for a rank that is only slow
    if not find_unused:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=_PATIENCE_S), group)
    doing, error, gradient = "", "", None
    try:
        for step in range(2):
            doing = f"forward of step {step}"
            loss = ddp(inputs[rank], _USED[rank]).mean()
            doing = f"backward of step {step}"
            loss.backward()
            gradient = gradient_of(ddp) if step == 0 else gradient
            ddp.zero_grad()
    except RuntimeError as raised:
        error = str(raised)
    unused = tuple(name for name, _ in module.named_parameters() if name.split(".")[0] not in _USED[rank])
    stuck_in, error = (doing, "") if "Timed out" in error else ("", error)
    return RankStory(rank, unused, stuck_in, error, gradient)


# ---- a graph that never changes, and one that does


class _Graph(NamedTuple):
    """How often the middle layer is used in each of four steps, on every rank; and whether DDP takes all of them."""

    uses: tuple[int, ...]
    plain: bool
    static: bool


_GRAPHS = {
    "always unused": _Graph((0, 0, 0, 0), plain=False, static=True),
    "checkpointed twice": _Graph((2, 2, 2, 2), plain=False, static=True),
    "unused from step 2 on": _Graph((1, 1, 0, 0), plain=False, static=False),
    "used from step 2 on": _Graph((0, 0, 1, 1), plain=False, static=False),
}


class _Repeated(nn.Module):
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


@attrs.frozen
class Run:
    """The number of steps taken by a rank when torch raised `error`, all with "", and how many of them were right.

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


@attrs.frozen
class StaticGraph:
    """Each graph without and with `static_graph`, on the rank with the fewest right steps."""

    plain: Mapping[str, Run]
    static: Mapping[str, Run]

    def check(self) -> None:
        """Raise DemoError unless each graph is taken, or refused, as it is known to be."""
        known = {name: (graph.plain, graph.static) for name, graph in _GRAPHS.items()}
        found = {name: (self.plain[name].went_well, self.static[name].went_well) for name in _GRAPHS}
        if found != known:
            raise DemoError(f"DDP without and with static_graph should take {known}, but: {found}")


def static_graph() -> StaticGraph:
    """Take up to four steps with graphs that never change and graphs that do, without and with `static_graph`.

    With it, DDP learns in the first step which parameters are used, and how often, and relies on that. It then copes
    with parameters that are never used and with some that become ready several times. A graph that changes is refused:
    at once if a parameter is new, and a step later if one is left out. The gradients of that step are each rank's own,
    and nothing says so.
    """
    ranks = _on_ranks(_run_all, 2, _Repeated(), _inputs())
    plain, static = (
        {name: min((rank[flag][name] for rank in ranks), key=lambda run: run.num_right) for name in _GRAPHS}
        for flag in (False, True)
    )
    return StaticGraph(plain, static)


def _run_all(module: _Repeated, inputs: Tensor) -> dict[bool, dict[str, Run]]:
    return {
        static: {name: _run(module, inputs, graph.uses, static) for name, graph in _GRAPHS.items()}
        for static in (False, True)
    }


def _run(module: _Repeated, inputs: Tensor, uses: tuple[int, ...], static: bool) -> Run:
    ddp = DistributedDataParallel(copy.deepcopy(module), static_graph=static)
    num_steps = num_right = 0
    for times in uses:
        ddp.zero_grad()
        try:
            ddp(inputs[dist.get_rank()], times).mean().backward()
        except RuntimeError as error:
            return Run(num_steps, num_right, str(error))
        num_steps += 1
        # the mean of the ranks' gradients is that of all samples
        right = gradient_alone(module, _mean_output, inputs.flatten(0, 1), times)
        num_right += apart(gradient_of(ddp), right) <= _EXACT
    return Run(num_steps, num_right, "")


# ---- what gradient_as_bucket_view saves


@attrs.frozen
class GradientMemory:
    """The bytes of a rank's gradients, of DDP's buckets, and of the memory that the two take together."""

    gradient_bytes: int
    bucket_bytes: int
    held_bytes: int


@attrs.frozen
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

    Each storage counts once. Every parameter must be used, and get a dense gradient of its own type.

    >>> view = bucket_view_memory(nn.Linear(100, 10), torch.ones(2, 100))
    >>> view.without.held_bytes, view.with_view.held_bytes
    (8080, 4040)
    """
    of_type("module", module, nn.Module), of_type("inputs", inputs, Tensor)
    without, with_view = (_on_ranks(_held, 2, module, inputs, view)[0] for view in (False, True))
    return BucketView(without, with_view)


def _held(module: nn.Module, inputs: Tensor, as_view: bool) -> GradientMemory:
    ddp = DistributedDataParallel(copy.deepcopy(module), gradient_as_bucket_view=as_view)
    buckets: dict[int, int] = {}
    _on_bucket(ddp, lambda buffer: buckets.update(storages([buffer])))
    for _ in range(3):  # DDP rebuilds its buckets after the first
        buckets.clear()
        ddp.zero_grad()
        ddp(inputs).sum().backward()
    gradients = [parameter.grad for parameter in ddp.parameters() if parameter.grad is not None]
    held = storages(gradients) | buckets
    return GradientMemory(sum(one.nbytes for one in gradients), sum(buckets.values()), sum(held.values()))
