"""Gradient accumulation with DDP: what `no_sync` must be around, and what happens where it is around less."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..ranks import launch
from ..values.checks import whole
from .demos import TIMEOUT_S, DemoError, LossFn, Vector, Work, apart, gradient_of, in_ddp, on_bucket

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


def no_sync_placements(
    module: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: LossFn, num_ranks: int = 2
) -> NoSync:
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
