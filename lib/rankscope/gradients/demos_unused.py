"""Parameters that a rank does not use: what DDP does then, without and with `find_unused_parameters`."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..ranks import launch
from ..values.checks import truth
from .demos import ROUNDING, TIMEOUT_S, DemoError, Vector, apart, gradient_of

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
