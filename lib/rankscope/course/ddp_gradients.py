"""DistributedDataParallel's gradients if it is used in unusual ways, shown on two real ranks.

Each function starts its own ranks, which end with it. The `check` of a result raises DemoError unless DDP behaved as
known.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ..common.checks import count_of, of_type, truth
from ..train.gradients import (
    DemoError,
    Vector,
    Work,
    check_divides,
    gradient_alone,
    gradient_of,
    in_ddp,
    on_bucket,
    on_ranks,
    relative_difference,
    rounding_of,
)
from ..train.zero.run import storages

_FLOAT64_ROUNDING = rounding_of([torch.empty(0, dtype=torch.float64)])  # of the modules of this file


def mean_output(module: nn.Module, *args: Any) -> Tensor:
    mean: Tensor = module(*args).mean()
    return mean


# ---- no_sync must be around the forward


class _Placement(NamedTuple):
    """Which passes of two micro-batches are inside no_sync, whether both forwards come first, and the known outcome."""

    forward: tuple[bool, bool]
    backward: tuple[bool, bool]
    forwards_first: bool
    is_right: bool
    num_allreduces: int


_PLACEMENTS = {
    "forward and backward": _Placement(
        forward=(True, False), backward=(True, False), forwards_first=False, is_right=True, num_allreduces=1
    ),
    "backward only": _Placement(
        forward=(False, False), backward=(True, False), forwards_first=False, is_right=True, num_allreduces=2
    ),
    "backward only, forwards first": _Placement(
        forward=(False, False), backward=(True, False), forwards_first=True, is_right=False, num_allreduces=1
    ),
    "forwards only": _Placement(
        forward=(True, True), backward=(False, False), forwards_first=True, is_right=False, num_allreduces=0
    ),
}


@attrs.frozen(eq=False)
class Accumulated:
    """The result of two micro-batches: each rank's gradients after the first and after both, and DDP's allreduces."""

    after_first: tuple[Vector, ...]
    after_both: tuple[Vector, ...]
    num_allreduces: int

    @property
    def ranks_apart(self) -> float:
        """The difference of the ranks' gradients in the end, with which optimizers would train different models."""
        return max(relative_difference(gradient, self.after_both[0]) for gradient in self.after_both)


@attrs.frozen(eq=False)
class NoSync:
    """The result of each placement of no_sync, and the gradient of the whole batch in one process, which is right."""

    placements: Mapping[str, Accumulated]
    right: Vector
    rounding: float

    def is_right(self, placement: str) -> bool:
        """Return whether all ranks have the right gradient."""
        gradients = self.placements[placement].after_both
        return all(relative_difference(gradient, self.right) <= self.rounding for gradient in gradients)

    def check(self) -> None:
        """Raise DemoError unless each placement is right or wrong, and allreduces as often, as known."""
        known = {name: (placement.is_right, placement.num_allreduces) for name, placement in _PLACEMENTS.items()}
        results = {name: (self.is_right(name), result.num_allreduces) for name, result in self.placements.items()}
        if results != known:
            raise DemoError(f"placements of no_sync should be right or wrong, and allreduce, {known}, but: {results}")
        alone = self.placements["forward and backward"].after_first
        synchronised = self.placements["backward only"].after_first
        if (alone[0] == alone[1]).all() or (synchronised[0] != synchronised[1]).any():
            raise DemoError("after the first micro-batch, ranks should have the same gradients in the second case only")


def no_sync(work: Work, num_ranks: int = 2) -> NoSync:
    """Accumulate the gradients of two micro-batches on each rank, with `no_sync` around different parts of the first.

    DDP decides in the forward pass whether the next backward is synchronised. So `no_sync` around the backward only has
    no effect. Then each backward is synchronised, which costs one more allreduce and gives the right sum. If both
    forwards come first, the first backward is synchronised and the second is not. With `no_sync` around both forwards
    and no backward, nothing is synchronised at all. Raises ValueError if the batch cannot be cut into equal parts.
    """
    check_divides(work, num_ranks, 2)
    ranks = on_ranks(_accumulate_all, num_ranks, work)
    placements = {}
    for name in _PLACEMENTS:
        results = [rank[name] for rank in ranks]
        placements[name] = Accumulated(
            after_first=tuple(result.after_first for result in results),
            after_both=tuple(result.after_both for result in results),
            num_allreduces=results[0].num_allreduces,
        )
    return NoSync(placements, work.gradient(), work.rounding)


class _RankAccumulated(NamedTuple):
    """One rank's gradients after the first micro-batch and after both, and its number of allreduces."""

    after_first: Vector
    after_both: Vector
    num_allreduces: int


def _accumulate_all(work: Work) -> dict[str, _RankAccumulated]:
    return {name: _accumulate(work, placement) for name, placement in _PLACEMENTS.items()}


def _accumulate(work: Work, placement: _Placement) -> _RankAccumulated:
    ddp, own = in_ddp(work)
    gradients: list[Vector] = []
    num_backwards: list[int] = []  # for each bucket that was sent, how many backwards had ended
    on_bucket(ddp, lambda buffer: num_backwards.append(len(gradients)))
    losses: list[Tensor] = []

    def forward(micro: int) -> None:
        with ddp.no_sync() if placement.forward[micro] else nullcontext():
            losses.append(own.part(micro, 2).loss(ddp) / 2)

    def backward(micro: int) -> None:
        with ddp.no_sync() if placement.backward[micro] else nullcontext():
            losses[micro].backward()  # type: ignore[no-untyped-call]
        gradients.append(gradient_of(ddp))

    forward(0)
    if placement.forwards_first:
        forward(1)
        backward(0)
    else:
        backward(0)
        forward(1)
    backward(1)
    return _RankAccumulated(gradients[0], gradients[1], len(set(num_backwards)))


# ---- a parameter that one rank does not use


_USED = (("left", "right"), ("left",))  # branches, by rank
_HANG_S = 1.0  # the timeout of an allreduce that would otherwise wait forever


class _Branches(nn.Module):
    """A sum of the branches that are named in the call of forward: a small mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 1, dtype=torch.float64)
        self.right = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, inputs: Tensor, used: tuple[str, ...]) -> Tensor:
        """Return, for inputs of shape (batch, 3), the sum of the branches used, of shape (batch, 1)."""
        return torch.stack([getattr(self, name)(inputs) for name in used]).sum(dim=0)


@attrs.frozen(eq=False)
class RankStory:
    """One rank's two steps, and the parameters that its forward left out.

    `stuck_in` says where it waited for another rank without end, and `error` what torch raised. Both are empty if all
    went well. `gradient` is the gradient after the first step, None if the rank did not reach that point.
    """

    rank: int
    unused: tuple[str, ...]
    stuck_in: str
    error: str
    gradient: Vector | None

    @property
    def named_by_torch(self) -> tuple[int, ...]:
        """The numbers of the parameters that got no gradient, according to torch's error."""
        match = re.search(r"did not receive grad for rank \d+: ([\d ]+)", self.error)
        if match is None:
            return ()
        return tuple(map(int, match[1].split()))

    def has(self, gradient: Vector) -> bool:
        """Return whether this is the rank's gradient after the first step."""
        return self.gradient is not None and relative_difference(self.gradient, gradient) <= _FLOAT64_ROUNDING


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
        """Raise DemoError unless the steps are stuck and raise an error without the search, and are right with it."""
        if self.find_unused:
            for story in self.ranks:
                if story.stuck_in or story.error or not story.has(self.right):
                    raise DemoError(f"rank {story.rank} should have the mean of all gradients, but: {story}")
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

    Without it, a bucket with the branch is complete on rank 0 only, whose backward waits for the other rank forever.
    Rank 1 does not wait. It ends its backward with gradients that no other rank has seen, and its next forward raises
    an error. Here, the wait ends after a second. The ranks run on this machine.
    """
    truth("find_unused", find_unused)
    inputs = _inputs()
    module = _Branches()
    ranks = on_ranks(_take_two_steps, len(_USED), module, inputs, find_unused)
    own = [gradient_alone(module, mean_output, inputs[rank], used) for rank, used in enumerate(_USED)]
    return Unused(find_unused, tuple(ranks), tuple(own))


def _inputs() -> Tensor:
    """Four samples for each of two ranks."""
    return torch.randn(2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _take_two_steps(module: _Branches, inputs: Tensor, find_unused: bool) -> RankStory:
    rank = dist.get_rank()
    group = dist.new_group()
    ddp = DistributedDataParallel(module, process_group=group, find_unused_parameters=find_unused)
    dist.barrier()  # now no rank has to wait for one that is only slow
    if not find_unused:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=_HANG_S), group)
    phase = ""
    stuck_in = ""
    error = ""
    gradient = None
    try:
        for step in range(2):
            phase = f"forward of step {step}"
            loss = ddp(inputs[rank], _USED[rank]).mean()
            phase = f"backward of step {step}"
            loss.backward()
            if step == 0:
                gradient = gradient_of(ddp)
            ddp.zero_grad()
    except RuntimeError as raised:
        if "Timed out" in str(raised):
            stuck_in = phase
        else:
            error = str(raised)
    unused = tuple(name for name, _ in module.named_parameters() if name.split(".")[0] not in _USED[rank])
    return RankStory(rank, unused, stuck_in, error, gradient)


# ---- a graph that never changes, and one that does


class _LayerUses(NamedTuple):
    """How often each of four steps uses the middle layer.

    `plain` and `static` say whether DDP accepts all of them without and with `static_graph`.
    """

    uses: tuple[int, ...]
    plain: bool
    static: bool


_GRAPHS = {
    "always unused": _LayerUses((0, 0, 0, 0), plain=False, static=True),
    "checkpointed twice": _LayerUses((2, 2, 2, 2), plain=False, static=True),
    "unused from step 2 on": _LayerUses((1, 1, 0, 0), plain=False, static=False),
    "used from step 2 on": _LayerUses((0, 0, 1, 1), plain=False, static=False),
}


class _Repeated(nn.Module):
    """Three layers, of which the middle one is used any number of times; if several, each time under a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.middle = nn.Linear(3, 3, dtype=torch.float64)
        self.last = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, inputs: Tensor, times: int) -> Tensor:
        """Return a tensor of shape (batch, 1) for inputs of shape (batch, 3)."""
        hidden = self.first(inputs)
        for _ in range(times):
            hidden = checkpoint(self.middle, hidden, use_reentrant=True) if times > 1 else self.middle(hidden)
        outputs: Tensor = self.last(hidden)
        return outputs


@attrs.frozen
class GraphRun:
    """The number of steps that a rank took before torch raised `error`, and how many of them were right.

    A step is right if its gradient is the mean of all ranks'. `error` is empty if the rank took all steps.
    """

    num_steps: int
    num_right: int
    error: str

    def __str__(self) -> str:
        words = f"{self.num_right} of {count_of(self.num_steps, 'step')} right"
        if self.error:
            words += ", then an error"
        return words

    @property
    def went_well(self) -> bool:
        return not self.error and self.num_right == self.num_steps


@attrs.frozen
class StaticGraph:
    """Each graph without and with `static_graph`, on the rank with the fewest right steps."""

    plain: Mapping[str, GraphRun]
    static: Mapping[str, GraphRun]

    def check(self) -> None:
        """Raise DemoError unless DDP takes or rejects each graph as known."""
        known = {name: (graph.plain, graph.static) for name, graph in _GRAPHS.items()}
        results = {name: (self.plain[name].went_well, self.static[name].went_well) for name in _GRAPHS}
        if results != known:
            raise DemoError(f"DDP without and with static_graph should take {known}, but: {results}")


def static_graph() -> StaticGraph:
    """Take up to four steps with graphs that never change and graphs that do, without and with `static_graph`.

    With it, DDP learns in the first step which parameters are used, and how often, and relies on that. It then copes
    with parameters that are never used and with some that become ready several times. A graph that changes is rejected:
    at once if a parameter is new, and a step later if one is left out. The gradients of that step are each rank's own,
    without any error.
    """
    ranks = on_ranks(_run_all, 2, _Repeated(), _inputs())
    return StaticGraph(
        plain=_worst([rank.plain for rank in ranks]),
        static=_worst([rank.static for rank in ranks]),
    )


def _worst(ranks: list[dict[str, GraphRun]]) -> dict[str, GraphRun]:
    """The run of each graph on the rank with the fewest right steps."""
    return {name: min((runs[name] for runs in ranks), key=lambda run: run.num_right) for name in _GRAPHS}


class _RankGraphs(NamedTuple):
    """One rank's run of each graph, without and with `static_graph`."""

    plain: dict[str, GraphRun]
    static: dict[str, GraphRun]


def _run_all(module: _Repeated, inputs: Tensor) -> _RankGraphs:
    return _RankGraphs(
        plain={name: _run(module, inputs, graph.uses, static=False) for name, graph in _GRAPHS.items()},
        static={name: _run(module, inputs, graph.uses, static=True) for name, graph in _GRAPHS.items()},
    )


def _run(module: _Repeated, inputs: Tensor, uses: tuple[int, ...], static: bool) -> GraphRun:
    ddp = DistributedDataParallel(copy.deepcopy(module), static_graph=static)
    num_steps = 0
    num_right = 0
    for times in uses:
        ddp.zero_grad()
        try:
            ddp(inputs[dist.get_rank()], times).mean().backward()
        except RuntimeError as error:
            return GraphRun(num_steps, num_right, str(error))
        num_steps += 1
        # the mean of the ranks' gradients is that of all samples
        right = gradient_alone(module, mean_output, inputs.flatten(0, 1), times)
        if relative_difference(gradient_of(ddp), right) <= _FLOAT64_ROUNDING:
            num_right += 1
    return GraphRun(num_steps, num_right, "")


# ---- the memory saved by gradient_as_bucket_view


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
        """Raise DemoError unless the view saves exactly the gradients' bytes, because they are then in the buckets."""
        size = self.without.gradient_bytes
        if self.saved_bytes != size or self.with_view.held_bytes != self.with_view.bucket_bytes:
            raise DemoError(f"the view should save the gradients' {count_of(size, 'byte')}, but: {self}")


def bucket_view_memory(module: nn.Module, inputs: Tensor) -> BucketView:
    """Take three steps of a module on two ranks of DDP, and count the memory of gradients and buckets.

    Each storage counts once. Every parameter must be used, and get a dense gradient of its own type.

    >>> view = bucket_view_memory(nn.Linear(100, 10), torch.ones(2, 100))
    >>> view.without.held_bytes, view.with_view.held_bytes
    (8080, 4040)
    """
    of_type("module", module, nn.Module)
    of_type("inputs", inputs, Tensor)
    without = on_ranks(_gradient_memory, 2, module, inputs, False)[0]
    with_view = on_ranks(_gradient_memory, 2, module, inputs, True)[0]
    return BucketView(without, with_view)


def _gradient_memory(module: nn.Module, inputs: Tensor, as_view: bool) -> GradientMemory:
    ddp = DistributedDataParallel(copy.deepcopy(module), gradient_as_bucket_view=as_view)
    buckets: dict[int, int] = {}
    on_bucket(ddp, lambda buffer: buckets.update(storages([buffer])))
    for _ in range(3):  # DDP rebuilds its buckets after the first
        buckets.clear()
        ddp.zero_grad()
        ddp(inputs).sum().backward()
    gradients = [parameter.grad for parameter in ddp.parameters() if parameter.grad is not None]
    gradient_bytes = sum(gradient.nbytes for gradient in gradients)
    held = storages(gradients) | buckets
    return GradientMemory(gradient_bytes, sum(buckets.values()), sum(held.values()))
