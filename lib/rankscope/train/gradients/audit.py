"""An audit of a training step: its gradients on real ranks under DDP, compared with those of one process."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...common.checks import function, of_type, optional, whole
from ...common.units import percent_words
from ...common.words import count_of
from ...ranks.launcher import launch
from ...ranks.recorder import recording
from ...sampling.audits.findings import Finding, Findings, some
from ..work import Vector, Work, gradient_of, relative_difference
from .causes import causes

Step = Callable[[Any, Tensor, Tensor], object]  # from a module in DDP and a rank's part of the batch to its gradients


class StepAudit(Findings, msgspec.Struct, frozen=True, eq=False):
    """The gradients of a step under DDP, by rank, and that of one process with the whole batch.

    `unused` has the parameters that each rank leaves without a gradient; if there are any, the step was not run, and
    gradients are those that ranks compute alone. `buffers` are the buffers that differ between ranks after the step.
    `num_allreduces` are the bytes of all allreduces as a multiple of those of all gradients. `causes` are measured
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
        """The first rank's gradient as a multiple of the one process's, by least squares; 0 if that is 0."""
        square = float(self.single @ self.single) or 1.0
        return float(self.ranks[0] @ self.single / square)

    def _found(self) -> Iterator[Finding]:
        for names in dict.fromkeys(filter(None, self.unused)):
            ranks = [str(rank) for rank, unused in enumerate(self.unused) if unused == names]
            where = "any rank" if len(ranks) == len(self.ranks) else f"rank {', '.join(ranks)}"
            message = f"no gradient on {where} for {some(names)}, so DDP hangs or raises one step later"
            yield Finding("unused", f"{message} unless find_unused_parameters=True")
        if not any(self.unused):
            yield from self._gradient_finding()
        if self.buffers:
            yield Finding(
                "buffers_differ", f"buffers differ between ranks: {some(self.buffers)}; only rank 0's are kept"
            )

    def _gradient_finding(self) -> Iterator[Finding]:
        """The first that applies of: gradients cannot be compared, ranks differ, all ranks differ from one process."""
        places = [f"on rank {rank}" for rank, gradient in enumerate(self.ranks) if not np.isfinite(gradient).all()]
        if not np.isfinite(self.single).all():
            places.append("in one process")
        if places:
            message = f"gradients are infinite or not numbers {' and '.join(places)}, so they cannot be compared"
            yield Finding("not_finite", message)
            return
        spread = max(relative_difference(rank, self.ranks[0]) for rank in self.ranks)
        if spread > 0:  # no rounding is allowed here, because an allreduce gives all ranks the same bits
            message = f"Ranks have different gradients, by up to {percent_words(spread)} of the largest entry, "
            message += "so their parameters drift apart."
            if not self.num_allreduces:
                message += " DDP did not run any allreduce. Does the step call ddp.module(x) instead of ddp(x), "
                message += "or does all of it run under no_sync?"
            yield Finding("ranks_differ", message)
        elif relative_difference(self.ranks[0], self.single) > self.rounding:
            if relative_difference(self.ranks[0], self.ratio * self.single) <= self.rounding:
                message = f"Gradients are {self.ratio:.4g} times those of one process."
            else:
                share = percent_words(relative_difference(self.ranks[0], self.single))
                message = f"Gradients differ from those of one process by up to {share} of the largest entry."
            yield Finding("not_the_whole_batch", " ".join([message, *self.causes]))

    def __str__(self) -> str:
        times = "once" if self.num_allreduces == 1 else f"{self.num_allreduces:g} times"
        head = f"{count_of(len(self.ranks), 'rank')}, gradients synchronised {times}"
        return self.report(head, "the gradients are those of one process")

    __repr__ = __str__  # for a notebook, which shows the last value of a cell


def audit_step(work: Work, num_ranks: int = 2, step: Step | None = None) -> StepAudit:
    """Run one step on real ranks under DDP, each with its part of the batch, and compare with one process.

    ``step(ddp, inputs, targets)`` computes the gradients of a rank's part, before any clipping; by default it runs a
    forward pass, `loss_fn` and a backward pass. Dropout modules are switched off, because each rank draws its own
    numbers. If a rank leaves a parameter unused, DDP would hang, so the step is not run. Raises ValueError if the batch
    does not divide; RankError if the step raises.

    >>> both = torch.randn(8, 3), torch.randn(8, 1)
    >>> print(audit_step(Work(nn.Linear(3, 1), *both, nn.functional.mse_loss)))
    2 ranks, gradients synchronised once
      the gradients are those of one process
    >>> print(audit_step(Work(nn.Linear(3, 1), *both, nn.MSELoss(reduction="sum"))))
    2 ranks, gradients synchronised once
      not the whole batch: Gradients are 0.5 times those of one process. Is the loss a sum? DDP averages over ranks.
    """
    of_type("work", work, Work).part(0, whole("num_ranks", num_ranks, 2))  # raises an error if it does not divide
    optional("step", step, function, "of ddp, inputs and targets")
    work = replace(work, module=copy.deepcopy(work.module))  # the caller's stays as it is
    for submodule in work.module.modules():
        if isinstance(submodule, nn.modules.dropout._DropoutNd):
            submodule.eval()
    ranks = launch(_audited, num_ranks, (work, step))
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
    if "not_the_whole_batch" not in [finding.kind for finding in audit.findings]:
        return audit
    return replace(audit, causes=causes(work, audit.ranks[0], single, num_ranks, has_step=step is not None))


class _Audited(NamedTuple):
    """One rank's gradient, unused parameters, digests of buffers, and number of synchronisations."""

    gradient: Vector
    unused: tuple[str, ...]
    buffers: dict[str, bytes]
    num_allreduces: float


def _audited(work: Work, step: Step | None) -> _Audited:
    """Run the step on this rank under DDP; without DDP if some rank leaves a parameter unused, which would hang."""
    part = work.part(dist.get_rank(), dist.get_world_size())
    alone = copy.deepcopy(work.module)
    # By the loss, not by `step`, which takes a module in DDP: it may call no_sync or clip.
    part.loss(alone).backward()  # type: ignore[no-untyped-call]
    trained = {name: parameter for name, parameter in alone.named_parameters() if parameter.requires_grad}
    unused = tuple(name for name, parameter in trained.items() if parameter.grad is None)
    num_unused = torch.tensor(len(unused))
    dist.all_reduce(num_unused)  # of all ranks, so that all take the same branch
    if num_unused:
        return _Audited(gradient_of(alone), unused, _digests(alone.named_buffers()), num_allreduces=0)
    ddp = DistributedDataParallel(copy.deepcopy(work.module))
    with recording() as recorder:
        if step is None:
            part.loss(ddp).backward()  # type: ignore[no-untyped-call]
        else:
            step(ddp, part.inputs, part.targets)
    timeline, num_bytes = recorder.result()
    sent_bytes = sum(size for span, size in zip(timeline, num_bytes.tolist(), strict=True) if span.kind == "allreduce")
    num_allreduces = sent_bytes / sum(parameter.nbytes for parameter in trained.values())
    return _Audited(gradient_of(ddp), unused, _digests(ddp.module.named_buffers()), num_allreduces)


# ---- tensors that differ between ranks


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


def _unlike(ranks: Sequence[dict[str, bytes]]) -> list[str]:
    """The names whose digests differ between ranks."""
    return [name for name in ranks[0] if len({digests.get(name) for digests in ranks}) > 1]
