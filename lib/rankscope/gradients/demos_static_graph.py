"""What `static_graph=True` allows that DDP refuses otherwise, and what it forbids."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ..ranks import launch
from ..values.checks import count_of
from .demos import ROUNDING, TIMEOUT_S, DemoError, Vector, apart, gradient_of

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
