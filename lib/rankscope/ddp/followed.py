"""`FollowedSteps`: what became of each sample in steps of real ranks, from the sampler to the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..sampling import Assignment
from ..timeline import Timeline
from ..values.checks import of_type, whole
from .ddp_run import Buckets

Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FollowedSteps:
    """Steps under DDP that were fed by DataLoaders: which samples came, what ran when, what was learned.

    `read` holds the samples of each rank in the order in which they came to its steps. In `timeline` every span's item
    is the number of its step: in lanes "worker 0", … a batch is read and collated, in lane "compute" it is waited for
    ("load"), goes forward and backward, and the optimizer follows; lanes "allreduce" have the buckets. `buckets` says
    for each step which gradients shared an allreduce, as places of parameters; `losses` has a row a rank and a column
    a step; `parameters` are each rank's at the end, in one vector.
    """

    read: Assignment
    timeline: Timeline
    buckets: tuple[Buckets, ...]
    losses: NDArray[np.float64]
    parameters: tuple[Vector, ...]

    def __post_init__(self) -> None:
        of_type("read", self.read, Assignment)
        of_type("timeline", self.timeline, Timeline)
        ranks, steps = len(self.parameters), len(self.buckets)
        if self.losses.shape != (ranks, steps) or self.read.num_ranks != ranks:
            raise ValueError(f"losses and read must be of {ranks} ranks and {steps} steps, got {self.losses.shape}")

    @property
    def num_steps(self) -> int:
        return len(self.buckets)

    @cached_property
    def step_s(self) -> NDArray[np.float64]:
        """Seconds of each step, from the first rank's request for its batch to the last one's end."""
        compute = self.timeline.select(lane="compute")
        steps = [compute.select(item=number) for number in range(self.num_steps)]
        return np.array([step.makespan_s for step in steps])

    @property
    def typical(self) -> int:
        """The step of median length among those after the second, in which DDP builds its buckets anew."""
        later = np.argsort(self.step_s[2:], kind="stable")
        return 2 + int(later[(later.size - 1) // 2])

    def step(self, number: int | None = None) -> Timeline:
        """Return all that was done for one step's batches, its reading included; by default the `typical` one's.

        Raises ValueError for a step that was not followed.
        """
        wanted = self.typical if number is None else whole("number", number, 0, self.num_steps - 1)
        return self.timeline.select(item=wanted)

    def samples(self, number: int) -> list[list[int]]:
        """Return for each rank which samples its batch of a step was made of."""
        place = whole("number", number, 0, self.num_steps - 1)
        return [self.read.batches(rank)[place].tolist() for rank in range(self.read.num_ranks)]

    def check(self) -> None:
        """Raise ValueError where the ranks have come to different parameters, in any bit."""
        for rank, parameters in enumerate(self.parameters):
            if not np.array_equal(parameters, self.parameters[0]):
                off = float(np.abs(parameters - self.parameters[0]).max())
                raise ValueError(f"ranks must end with the same parameters, and rank {rank} is off rank 0 by {off:.3g}")
