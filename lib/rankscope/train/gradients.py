"""What DistributedDataParallel does to gradients, shown on real ranks: equal training, and an audit of your own step.

Each function here starts ranks of its own, which end with it, and returns what they found next to what one process
finds. The `check` of a result raises DemoError unless DDP did what it is known to do.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, function, number, of_type, whole
from ..common.extras import naming_extras
from ..common.frozen import checked, frozen, optional
from ..ranks.launcher import launch
from ..sampling.audit import Finding, Findings

with naming_extras("rankscope.train.gradients"):
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel


__all__ = ["Work", "audit_step", "differing", "equal_training"]

LossFn = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[Any, Tensor, Tensor], object]  # from a module in DDP and a rank's part of the batch to its gradients
Vector = NDArray[np.float64]  # all parameters, or their gradients, one after the other
TIMEOUT_S = 60.0
_ROUNDING = 64  # times the dtype's epsilon: sums in another order differ by a few
_MOST_RANKS = 64


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


def rounding_of(tensors: Iterable[Tensor]) -> float:
    """Return how far results may differ that depend on the order of sums, as a share of the largest."""
    return _ROUNDING * max(torch.finfo(one.dtype).eps for one in tensors)


def apart(one: Vector, other: Vector) -> float:
    """Return the largest difference of two vectors, as a share of the largest entry of the second."""
    return float(np.abs(one - other).max() / (np.abs(other).max() or 1.0))


def divided(work: Work, num_ranks: int, num_parts: int = 1) -> None:
    """Raise ValueError unless so many ranks can each have so many equal parts of the batch."""
    of_type("work", work, Work).part(0, num_parts * whole("num_ranks", num_ranks, 2, _MOST_RANKS))


def on_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    """Return what `fn` returns on each of so many ranks."""
    return launch(fn, num_ranks, args, timeout_s=TIMEOUT_S)


def in_ddp(work: Work) -> tuple[DistributedDataParallel, Work]:
    """Return a copy of the module in DDP and this rank's part of the batch; on a rank.

    A DDP module must be gone before its process group is, or the process may hang at its end: keep it local.
    """
    return DistributedDataParallel(copy.deepcopy(work.module)), work.part(dist.get_rank(), dist.get_world_size())


def on_bucket(ddp: DistributedDataParallel, note: Callable[[Tensor], object]) -> None:
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
    divided(work, num_ranks)
    ranks = on_ranks(_train_rank, num_ranks, work, num_steps, learning_rate)
    single = copy.deepcopy(work.module)
    _train(single, work, num_steps, learning_rate)
    return EqualTraining(num_steps, tuple(ranks), values_of(single), values_of(work.module), work.rounding)


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
    after the step. `num_allreduces` says how often all gradients were synchronised. `causes` are measured reasons why
    the mean over ranks is not the gradient of the whole batch; without any, the report only says that it is not.
    ``str()`` is the report.
    """

    KINDS = ("unused", "ranks_differ", "not_the_whole_batch", "buffers_differ")
    ranks: tuple[Vector, ...]
    single: Vector
    rounding: float
    unused: tuple[tuple[str, ...], ...]
    buffers: tuple[str, ...]
    num_allreduces: float
    causes: tuple[str, ...] = ()

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
            says += ": their parameters drift apart"
            if self.num_allreduces == 0:
                says += ". Nothing was allreduced: does the step call ddp.module(x) instead of ddp(x), or is all of it"
                says += " under no_sync?"
            found.append(Finding("ranks_differ", says))
        elif (off := apart(self.ranks[0], self.single)) > self.rounding:
            if apart(self.ranks[0], self.ratio * self.single) <= self.rounding:
                says = f"gradients are {self.ratio:.4g} times those of one process: is the loss a sum? DDP takes means"
            else:
                says = f"gradients differ from one process's by up to {off:.0%} of the largest entry"
                if self.causes:
                    says += f": {'; '.join(self.causes)}"
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
    divided(work, num_ranks)
    optional("step", step, function, "of ddp, inputs and targets")
    work = Work(copy.deepcopy(work.module), work.inputs, work.targets, work.loss_fn)
    for one in work.module.modules():
        if isinstance(one, nn.modules.dropout._DropoutNd):
            one.eval()
    ranks: list[_Audited] = on_ranks(_audited, num_ranks, work, step)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        single = work.gradient()
    audit = StepAudit(
        tuple(one.gradient for one in ranks),
        single,
        work.rounding,
        tuple(one.unused for one in ranks),
        tuple(_unlike([one.buffers for one in ranks])),
        ranks[0].num_allreduces,
    )
    if all(finding.kind != "not_the_whole_batch" for finding in audit.findings):
        return audit
    with torch.random.fork_rng(devices=[]):
        return attrs.evolve(audit, causes=_causes(work, num_ranks))


def _causes(work: Work, num_ranks: int) -> tuple[str, ...]:
    """Say why the mean of the parts' gradients is not that of the whole batch, by experiments in this process.

    If the two are equal, module and loss are innocent, and only the step can change the gradient. Where the module's
    outputs are not one row per sample, the last two experiments are left out.
    """
    parts = [work.part(rank, num_ranks) for rank in range(num_ranks)]
    if _draws_random_numbers(work):
        return ("the module draws random numbers, and each rank draws its own",)
    mean = np.mean([part.gradient() for part in parts], axis=0)
    if apart(mean, work.gradient()) <= work.rounding:
        says = "module and loss are right, so the step changes the gradients"
        return (f"{says}: does it clip or scale before the last allreduce?",)
    outputs = _outputs(work)
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(work.inputs):
        return ()
    causes = []
    if _samples_affect_each_other(work, parts):
        causes.append("samples of a batch affect each other, as in BatchNorm, and each rank sees only its own")
    if _loss_is_weighted(work, parts):
        says = "the whole batch's loss is not the mean of the ranks' losses"
        causes.append(f"{says}: do ranks divide by different numbers of samples or tokens?")
    return tuple(causes)


def _draws_random_numbers(work: Work) -> bool:
    torch.manual_seed(0)
    first = work.gradient()
    torch.manual_seed(1)
    return bool((work.gradient() != first).any())


def _outputs(work: Work) -> Any:
    with torch.no_grad():
        return copy.deepcopy(work.module)(work.inputs)


def _samples_affect_each_other(work: Work, parts: Iterable[Work]) -> bool:
    in_parts = torch.cat([_outputs(part) for part in parts])
    return apart(flat([in_parts]), flat([_outputs(work)])) > work.rounding


def _loss_is_weighted(work: Work, parts: Sequence[Work]) -> bool:
    """Return whether the loss of the same outputs differs from the mean of the losses of its parts."""
    outputs = _outputs(work)
    losses = [
        float(part.loss_fn(own_outputs, part.targets))
        for part, own_outputs in zip(parts, outputs.chunk(len(parts)), strict=True)
    ]
    whole_loss = float(work.loss_fn(outputs, work.targets))
    return abs(float(np.mean(losses)) - whole_loss) > work.rounding * abs(whole_loss)


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
    on_bucket(ddp, lambda buffer: sent.append(buffer.numel()))
    if step is None:
        own.loss(ddp).backward()  # type: ignore[no-untyped-call]
    else:
        step(ddp, own.inputs, own.targets)
    num_allreduces = sum(sent) / sum(one.numel() for _, one in trained)
    return _Audited(gradient_of(ddp), unused, _digests(ddp.module.named_buffers()), num_allreduces)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
