"""An audit of a training step: its gradients on real ranks under DDP, compared with those of one process."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..common.checks import check_field, function, of_type, optional, whole
from ..common.units import percent_words
from ..common.words import count_of
from ..ranks.launcher import launch
from ..sampling.findings import Finding, Findings
from .losses import checked_loss

__all__ = ["Work", "audit_step", "differing"]

LossFn = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[Any, Tensor, Tensor], object]  # from a module in DDP and a rank's part of the batch to its gradients
Vector = NDArray[np.float64]  # all parameters, or their gradients, one after the other
TIMEOUT_S = 60.0
_ROUNDING = 64  # times the dtype's epsilon, because sums in another order differ by a few epsilons
_MOST_RANKS = 64
_MOST_NAMES = 4  # of parameters or buffers in a finding


# ---- the work of the ranks, and comparisons


def _samples(name: str, value: Any) -> Tensor:
    tensor: Tensor = of_type(name, value, Tensor)
    if tensor.ndim == 0 or len(tensor) == 0:
        raise ValueError(f"{name} must have a row for each sample, and at least one, got {value!r}")
    return tensor


def _trainable(name: str, value: Any) -> nn.Module:
    module: nn.Module = of_type(name, value, nn.Module)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{name} must have a parameter that gets a gradient, got {value!r}")
    return module


class Work(msgspec.Struct, frozen=True, eq=False):
    """A module, a whole batch, and ``loss_fn(outputs, targets)``, which is usually a mean over the samples.

    Raises ValueError if the module has no gradients or if inputs and targets differ in length.

    >>> Work(nn.Linear(3, 1), torch.ones(8, 3), torch.ones(7, 1), nn.functional.mse_loss)
    Traceback (most recent call last):
    ValueError: targets must have the 8 samples of the inputs, got 7
    """

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    loss_fn: LossFn

    def __post_init__(self) -> None:
        check_field(self, "module", _trainable)
        check_field(self, "inputs", _samples)
        check_field(self, "targets", _samples)
        check_field(self, "loss_fn", function, "of outputs and targets")
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"targets must have the {len(self.inputs)} samples of the inputs, got {len(self.targets)}")

    def part(self, index: int, num_parts: int) -> Work:
        """Return the same work on one of equal parts of the batch. Raises ValueError if the batch does not divide."""
        if len(self.inputs) % num_parts:
            raise ValueError(f"inputs must be a multiple of {num_parts} samples, got {len(self.inputs)}")
        inputs = self.inputs.chunk(num_parts)[index]
        targets = self.targets.chunk(num_parts)[index]
        return Work(self.module, inputs, targets, self.loss_fn)

    def loss(self, module: nn.Module) -> Tensor:
        """Return the loss of that module on this batch."""
        return checked_loss(self.loss_fn(module(self.inputs), self.targets), "loss_fn")

    def gradient(self) -> Vector:
        """Return the gradient of the whole batch in one process, without changing the module."""
        return gradient_alone(self.module, self.loss)

    @property
    def rounding(self) -> float:
        """The allowed difference of values that depend on the order of sums, as a share of the largest value."""
        return rounding_of(self.module.parameters())


def flat(tensors: Iterable[Tensor]) -> Vector:
    """Return all elements in one vector, a complex one as its real and its imaginary part.

    >>> flat([torch.tensor([1.0, 2.0]), torch.tensor(3 + 4j)])
    array([1., 2., 3., 4.])
    """
    vectors = []
    for tensor in tensors:
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())  # torch cannot view a conjugate that is not computed yet
        vectors.append(tensor.double().numpy().ravel())
    return np.concatenate(vectors)


def gradient_of(module: nn.Module) -> Vector:
    """Return all gradients in one vector, 0 for a parameter that has none."""
    gradients = []
    for parameter in module.parameters():
        gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return flat(gradients)


def gradient_alone(module: nn.Module, loss: Callable[..., Tensor], *args: Any) -> Vector:
    """Return the gradient of ``loss(module, *args)`` in one process, without changing the module."""
    module = copy.deepcopy(module)
    module.zero_grad()
    loss(module, *args).backward()  # type: ignore[no-untyped-call]
    return gradient_of(module)


def rounding_of(tensors: Iterable[Tensor]) -> float:
    """Return the allowed difference of results that depend on the order of sums, as a share of the largest result."""
    return _ROUNDING * max(torch.finfo(tensor.dtype).eps for tensor in tensors)


def relative_difference(vector: Vector, reference: Vector) -> float:
    """Return the largest difference of two vectors, as a share of the largest entry of the second.

    If all entries of the second are 0, return the difference itself.
    """
    largest = np.abs(reference).max()
    if largest == 0:
        largest = 1.0
    return float(np.abs(vector - reference).max() / largest)


def check_divides(work: Work, num_ranks: int, num_parts: int = 1) -> None:
    """Raise ValueError unless the batch divides into `num_parts` equal parts for each rank."""
    of_type("work", work, Work)
    num_ranks = whole("num_ranks", num_ranks, 2, _MOST_RANKS)
    work.part(0, num_parts * num_ranks)  # any part, for its error


def on_ranks(fn: Callable[..., Any], num_ranks: int, *args: Any) -> list[Any]:
    """Return the results of `fn` on so many ranks."""
    return launch(fn, num_ranks, args, timeout_s=TIMEOUT_S)


def on_bucket(ddp: DistributedDataParallel, note: Callable[[Tensor], object]) -> None:
    """Call `note` with the buffer of each bucket before it is averaged over the ranks."""

    def average(buffer: Tensor) -> Any:
        """DDP's communication hook: return a future of the averaged buffer."""
        note(buffer)
        handle = dist.all_reduce(buffer.div_(dist.get_world_size()), async_op=True)
        return handle.get_future().then(lambda future: future.value()[0])  # of a list with the one tensor

    # A lambda, because DDP refuses annotations that are strings. The hook has no state, hence None and `_`.
    ddp.register_comm_hook(None, lambda _, bucket: average(bucket.buffer()))


# ---- an audit of anyone's step


def differing(module: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that differ between ranks in any bit.

    All ranks of the process group must call it. It sends 16 bytes per tensor, so a job can call it every thousand
    steps.

    >>> def seeds_differ():
    ...     torch.manual_seed(dist.get_rank())
    ...     return differing(nn.Linear(3, 1))
    >>> launch(seeds_differ, 2)
    [['weight', 'bias'], ['weight', 'bias']]
    """
    of_type("module", module, nn.Module)
    digests = _digests([*module.named_parameters(), *module.named_buffers()])
    ranks: list[dict[str, bytes]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, digests)
    return _unlike(ranks)


def _digests(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, bytes]:
    """Return a digest of the bytes of each named tensor."""
    digests = {}
    for name, tensor in tensors:
        vector = tensor.detach().cpu().reshape(-1).contiguous()  # torch refuses to view a scalar as bytes
        raw = vector.view(torch.uint8).numpy()  # numpy lacks some dtypes of torch, such as bfloat16
        digests[name] = hashlib.blake2b(raw.tobytes(), digest_size=16).digest()
    return digests


def _unlike(ranks: list[dict[str, bytes]]) -> list[str]:
    """The names whose digests differ between ranks."""
    names = dict.fromkeys(chain.from_iterable(ranks))
    return [name for name in names if len({digests.get(name) for digests in ranks}) > 1]


class _Audited(NamedTuple):
    """One rank's gradient, unused parameters, digests of buffers, and number of synchronisations."""

    gradient: Vector
    unused: tuple[str, ...]
    buffers: dict[str, bytes]
    num_allreduces: float


class StepAudit(Findings, msgspec.Struct, frozen=True, eq=False):
    """The gradients of a step under DDP, by rank, and that of one process with the whole batch.

    `unused` has the parameters that each rank leaves without a gradient, and `buffers` the buffers that differ between
    ranks after the step. `num_allreduces` counts how often all gradients were synchronised. `causes` are measured
    reasons why the mean over ranks is not the gradient of the whole batch; without any, the report states only that it
    is not. ``str()`` is the report.
    """

    KINDS = ("unused", "not_finite", "ranks_differ", "not_the_whole_batch", "buffers_differ")
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
        square = float(self.single @ self.single)
        if square == 0:  # the gradient is 0, so the ratio has no meaning: it is stated as 0
            square = 1.0
        return float(self.ranks[0] @ self.single / square)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All differences between the step and one process with the whole batch."""
        findings = self._unused_findings() + self._gradient_findings()
        if self.buffers:
            message = f"buffers differ between ranks: {_some(self.buffers)}"
            findings.append(Finding("buffers_differ", f"{message}; only rank 0's are kept"))
        return tuple(findings)

    def _gradient_findings(self) -> list[Finding]:
        """The first that applies of: gradients cannot be compared, ranks differ, all ranks differ from one process."""
        not_finite = self._not_finite()
        if not_finite:  # before the comparisons: a difference that is nan is not above any limit
            message = f"gradients are infinite or not numbers {' and '.join(not_finite)}, so they cannot be compared"
            return [Finding("not_finite", message)]
        spread = max(relative_difference(rank, self.ranks[0]) for rank in self.ranks)
        if spread > 0:  # no rounding is allowed here, because an allreduce gives all ranks the same bits
            return [Finding("ranks_differ", self._difference_between_ranks(spread))]
        if relative_difference(self.ranks[0], self.single) > self.rounding:
            return [Finding("not_the_whole_batch", self._difference_from_single())]
        return []

    def _not_finite(self) -> list[str]:
        """Where a gradient has an entry that is infinite or not a number."""
        places = []
        ranks = [str(rank) for rank, gradient in enumerate(self.ranks) if not np.isfinite(gradient).all()]
        if ranks:
            places.append(f"on rank {', '.join(ranks)}")
        if not np.isfinite(self.single).all():
            places.append("in one process")
        return places

    def _unused_findings(self) -> list[Finding]:
        """A finding for each set of unused parameters, with the ranks that leave these unused."""
        ranks_by_names: dict[tuple[str, ...], list[str]] = {}
        for rank, names in enumerate(self.unused):
            if names:
                ranks_by_names.setdefault(names, []).append(str(rank))
        findings = []
        for names, ranks in ranks_by_names.items():
            where = "any rank" if len(ranks) == len(self.ranks) else f"rank {', '.join(ranks)}"
            message = f"no gradient on {where} for {_some(names)}, so DDP hangs or raises one step later"
            findings.append(Finding("unused", f"{message} unless find_unused_parameters=True"))
        return findings

    def _difference_from_single(self) -> str:
        is_multiple = relative_difference(self.ranks[0], self.ratio * self.single) <= self.rounding
        if is_multiple:
            message = f"Gradients are {self.ratio:.4g} times those of one process."
        else:
            share = percent_words(relative_difference(self.ranks[0], self.single))
            message = f"Gradients differ from those of one process by up to {share} of the largest entry."
        return " ".join([message, *self.causes])

    def _difference_between_ranks(self, spread: float) -> str:
        message = f"Ranks have different gradients, by up to {percent_words(spread)} of the largest entry, "
        message += "so their parameters drift apart."
        if self.num_allreduces > 0:
            return message
        question = "Does the step call ddp.module(x) instead of ddp(x), or does all of it run under no_sync?"
        return f"{message} DDP did not run any allreduce. {question}"

    def __str__(self) -> str:
        times = "once" if self.num_allreduces == 1 else f"{self.num_allreduces:g} times"
        head = f"{count_of(len(self.ranks), 'rank')}, gradients synchronised {times}"
        return self.report(head, "the gradients are those of one process")


def audit_step(work: Work, num_ranks: int = 2, step: Step | None = None) -> StepAudit:
    """Run one step on real ranks under DDP, each with its part of the batch, and compare with one process.

    ``step(ddp, inputs, targets)`` computes the gradients of a rank's part, before any clipping; by default it runs a
    forward pass, `loss_fn` and a backward pass. Dropout modules are switched off, because each rank draws its own
    numbers. If a rank leaves a parameter unused, DDP would hang, so the step is not run, and the mean of the gradients
    that the ranks compute alone is compared instead. Raises ValueError if the batch does not divide; RankError if the
    step raises.

    >>> both = torch.randn(8, 3), torch.randn(8, 1)
    >>> print(audit_step(Work(nn.Linear(3, 1), *both, nn.functional.mse_loss)))
    2 ranks, gradients synchronised once
      the gradients are those of one process
    >>> print(audit_step(Work(nn.Linear(3, 1), *both, nn.MSELoss(reduction="sum"))))
    2 ranks, gradients synchronised once
      not the whole batch: Gradients are 0.5 times those of one process. Is the loss a sum? DDP averages over ranks.
    """
    check_divides(work, num_ranks)
    optional("step", step, function, "of ddp, inputs and targets")
    # A copy, because the caller's dropout modules stay as they are.
    work = Work(copy.deepcopy(work.module), work.inputs, work.targets, work.loss_fn)
    for submodule in work.module.modules():
        if isinstance(submodule, nn.modules.dropout._DropoutNd):
            submodule.eval()
    ranks: list[_Audited] = on_ranks(_audited, num_ranks, work, step)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        single = work.gradient()
    audit = StepAudit(
        ranks=tuple(rank.gradient for rank in ranks),
        single=single,
        rounding=work.rounding,
        unused=tuple(rank.unused for rank in ranks),
        buffers=tuple(_unlike([rank.buffers for rank in ranks])),
        num_allreduces=ranks[0].num_allreduces,
    )
    if all(finding.kind != "not_the_whole_batch" for finding in audit.findings):
        return audit
    with torch.random.fork_rng(devices=[]):
        return replace(audit, causes=_causes(work, audit, has_step=step is not None))


def _causes(work: Work, audit: StepAudit, has_step: bool) -> tuple[str, ...]:
    """Say why the gradient that DDP delivered is not that of the whole batch, by experiments in this process.

    The mean of the parts' gradients stands between the two. If DDP delivered something else, the step changed it. If
    that mean is not the gradient of the whole batch, module or loss are the reason, and further experiments say which.
    An experiment that cannot be made says nothing.
    """
    num_ranks = len(audit.ranks)
    parts = [work.part(rank, num_ranks) for rank in range(num_ranks)]
    if _draws_random_numbers(work):
        return ("The module or the loss draws random numbers, and each rank draws its own.",)
    mean = np.mean([part.gradient() for part in parts], axis=0)
    causes = []
    if relative_difference(audit.ranks[0], mean) > audit.rounding:
        if has_step:
            causes.append("The step changes the gradients. Does it clip or scale before the last allreduce?")
        else:
            causes.append("Module or loss behave differently under torch.distributed.")
    if relative_difference(mean, audit.single) > audit.rounding:
        causes += _causes_in_module_or_loss(work, parts)
    return tuple(causes)


def _causes_in_module_or_loss(work: Work, parts: Sequence[Work]) -> list[str]:
    """Say why the mean of the parts' gradients is not that of the whole batch, as far as outputs and losses show it."""
    causes = []
    # If the outputs have no row for each sample, `_outputs` raises an error, and neither experiment can be made. One of
    # them alone may also fail: the outputs of the parts may have shapes that cannot be joined or compared, and the loss
    # may fail on a part or not be one number.
    with suppress(Exception):
        if _samples_affect_each_other(work, parts):
            causes.append("Samples of a batch affect each other, as in BatchNorm, and each rank sees only its own.")
    with suppress(Exception):
        losses = _losses(work, parts)
        tolerance = work.rounding * max(abs(losses.whole), *(abs(loss) for loss in losses.parts))
        sum_of_parts = sum(losses.parts)
        mean_of_parts = sum_of_parts / len(parts)
        if abs(sum_of_parts - losses.whole) <= tolerance:
            causes.append("Is the loss a sum? DDP averages over ranks.")
        elif abs(mean_of_parts - losses.whole) > tolerance:
            causes.append(
                "The loss of the whole batch is not the mean of the ranks' losses. Do ranks divide by different "
                "numbers of samples or tokens, or does the loss compare samples with each other?"
            )
    return causes


def _draws_random_numbers(work: Work) -> bool:
    """Whether the gradient depends on the seed. The generator stays changed, so callers fork it."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs, too
    first = work.gradient()
    torch.default_generator.manual_seed(1)
    return bool((work.gradient() != first).any())


def _outputs(work: Work) -> Tensor:
    """Return the module's outputs; raise ValueError unless they are a tensor with a row for each sample."""
    outputs = copy.deepcopy(work.module)(work.inputs)
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(work.inputs):
        raise ValueError("the outputs have no row for each sample")
    return outputs


def _samples_affect_each_other(work: Work, parts: Iterable[Work]) -> bool:
    """Whether the outputs of the whole batch are not those of its parts, one after the other."""
    outputs_of_parts = torch.cat([_outputs(part) for part in parts])
    return relative_difference(flat([outputs_of_parts]), flat([_outputs(work)])) > work.rounding


class _Losses(NamedTuple):
    """The loss of the whole batch's outputs, and those of the ranks' parts of the same outputs."""

    whole: float
    parts: list[float]


def _losses(work: Work, parts: Sequence[Work]) -> _Losses:
    outputs = _outputs(work)
    losses_of_parts = []
    for part, part_outputs in zip(parts, outputs.chunk(len(parts)), strict=True):
        losses_of_parts.append(part.loss_fn(part_outputs, part.targets).item())
    return _Losses(work.loss_fn(outputs, work.targets).item(), losses_of_parts)


def _audited(work: Work, step: Step | None) -> _Audited:
    """Run the step on this rank under DDP; without DDP if some rank leaves a parameter unused, which would hang."""
    part = work.part(dist.get_rank(), dist.get_world_size())
    alone = copy.deepcopy(work.module)
    # By the loss, not by `step`, which takes a module in DDP: it may call no_sync or clip.
    part.loss(alone).backward()  # type: ignore[no-untyped-call]
    trained = [(name, parameter) for name, parameter in alone.named_parameters() if parameter.requires_grad]
    unused = tuple(name for name, parameter in trained if parameter.grad is None)
    sum_of_gradients = torch.from_numpy(gradient_of(alone))
    num_unused = torch.tensor(len(unused))
    dist.all_reduce(sum_of_gradients)
    dist.all_reduce(num_unused)  # of all ranks, so that all take the same branch
    if num_unused:
        mean = (sum_of_gradients / dist.get_world_size()).numpy()
        return _Audited(mean, unused, _digests(alone.named_buffers()), num_allreduces=0)
    ddp = DistributedDataParallel(copy.deepcopy(work.module))
    sent_sizes: list[int] = []  # the bytes of each bucket that DDP reduces; it has two elements for a complex number
    on_bucket(ddp, lambda buffer: sent_sizes.append(buffer.nbytes))
    if step is None:
        part.loss(ddp).backward()  # type: ignore[no-untyped-call]
    else:
        step(ddp, part.inputs, part.targets)
    num_allreduces = sum(sent_sizes) / sum(parameter.nbytes for _, parameter in trained)
    return _Audited(gradient_of(ddp), unused, _digests(ddp.module.named_buffers()), num_allreduces)


def _some(names: tuple[str, ...]) -> str:
    """The first names, and how many more there are."""
    listed = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        listed += f" and {len(names) - _MOST_NAMES} more"
    return listed
