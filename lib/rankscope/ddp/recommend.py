"""`recommend_bucket_cap`: predicted step time by bucket cap, and what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ..cluster import Link
from ..machine import Profile
from ..values.checks import count_of, number, of_type, several
from ..values.units import time_words
from .buckets import CAP_MB, parameter_specs
from .cost import Cost, allreduce_cost
from .launches import default_launches
from .local_step import FREE, Contention, LocalStep
from .overlap import first_ones, last_backward

if TYPE_CHECKING:
    from torch.nn import Module

DEFAULT_CAPS_MB = (1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 32.0, 64.0, 128.0, 256.0, 512.0)
_WORTH = 0.01  # of a step's time: less than the model can tell


class Candidate(NamedTuple):
    """What a cap (in MiB; None is DDP's default) is predicted to make of a step; the rank waits for `wait_s` of it."""

    bucket_cap_mb: float | None
    num_buckets: int
    step_s: float
    wait_s: float


@dataclass(frozen=True)
class Recommendation:
    """The candidates by rising cap, DDP's default, and the step without communication.

    A step takes `alone_s`, the waiting for allreduces, and what they hold computing up. `chosen` is the smallest
    cap within 1 % of the best, which leaves the least to wait for at the end; the default where none of these saves
    1 % of it.
    """

    candidates: tuple[Candidate, ...]
    default: Candidate
    alone_s: float

    @cached_property
    def chosen(self) -> Candidate:
        enough_s = min((one.step_s for one in self.candidates), default=0.0) * (1 + _WORTH)
        worth_s = self.default.step_s * (1 - _WORTH)
        good = (one for one in self.candidates if one.step_s <= enough_s and one.step_s < worth_s)
        return next(good, self.default)

    @property
    def bucket_cap_mb(self) -> float | None:
        """What to give to DistributedDataParallel; None is its default."""
        return self.chosen.bucket_cap_mb

    @property
    def gain(self) -> float:
        """The share of the default's step that the recommended cap is predicted to save."""
        return 1 - self.chosen.step_s / self.default.step_s if self.default.step_s else 0.0

    @property
    def neighbours(self) -> tuple[Candidate, ...]:
        """The candidates with the next smaller and the next larger cap, DDP's default counting as its 25 MiB."""
        cap = CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb
        smaller = [one for one in self.candidates if one.bucket_cap_mb is not None and one.bucket_cap_mb < cap]
        larger = [one for one in self.candidates if one.bucket_cap_mb is not None and one.bucket_cap_mb > cap]
        return (*smaller[-1:], *larger[:1])

    def __str__(self) -> str:
        one, default_s = self.chosen, time_words(self.default.step_s)
        if one.bucket_cap_mb is None:
            first = f"leave bucket_cap_mb alone: {default_s} a step, and no cap is predicted to save 1 % of it"
        else:
            what = f"write DistributedDataParallel(module, bucket_cap_mb={one.bucket_cap_mb:g})"
            first = f"{what}: {time_words(one.step_s)} a step, {self.gain:.1%} less than the default's {default_s}"
        buckets = count_of(one.num_buckets, "bucket")
        waits = f"{time_words(one.wait_s)} of the step waiting for them, {one.wait_s / (one.step_s or 1):.0%}"
        beside = (f"{each.bucket_cap_mb:g} MiB {time_words(each.step_s)}" for each in self.neighbours)
        return "\n".join([first, f"{buckets}, {waits}", f"next to it: {', '.join(beside) or 'nothing'}"])


def recommend_bucket_cap(
    module: Module | LocalStep, machine: Profile | Link | Cost, *, caps_mb: Iterable[float] = DEFAULT_CAPS_MB,
    num_ranks: int | None = None, contention: Contention = FREE, accumulation: int = 1, overlap: bool = True,
    loss: Callable[..., Any] | None = None, backward_s: float | None = None,
) -> Recommendation:  # fmt: skip
    """Return the predicted step of each cap and of DDP's default, and which to take: see `Recommendation`.

    Of a module, `loss` is run to measure its `LocalStep` (see `measure_local_step`), on as many ranks as share a
    node by the profile, else on one; or, unmeasured, `backward_s` is shared out among its parameters by their bytes.
    `machine` is a profile, a link with `num_ranks`, or a function from bytes to seconds: see `allreduce_cost`. The
    other arguments are those of `simulate_step`.

    There is a best cap only because allreduces overlap the backward. Without overlap, one bucket never loses:

    >>> local = LocalStep.modelled([1 << 20] * 64, backward_s=0.064)
    >>> link = Link(alpha_s=50e-6, bytes_per_s=2e9)
    >>> print(recommend_bucket_cap(local, link, num_ranks=8))
    write DistributedDataParallel(module, bucket_cap_mb=8): 104 ms a step, 12.5% less than the default's 119 ms
    8 buckets, 8.32 ms of the step waiting for them, 8%
    next to it: 4 MiB 106 ms, 16 MiB 111 ms
    >>> recommend_bucket_cap(local, link, num_ranks=8, overlap=False).chosen.num_buckets
    1

    Raises ValueError for a module with neither `loss` nor `backward_s`, for caps below 0, and as `allreduce_cost` and
    `simulate_step` do.
    """
    caps = sorted({number("caps_mb", cap, 0) for cap in several("caps_mb", caps_mb, "caps")})
    contention = of_type("contention", contention, Contention)
    local = _local_step(module, machine, num_ranks, loss, backward_s)
    cost = allreduce_cost(machine, num_ranks) if isinstance(machine, Profile | Link) else machine
    others_s = first_ones(local, accumulation)[0] + local.optimizer_s

    def candidate(cap: float | None, wire: Cost = cost) -> Candidate:
        launched = default_launches(local, cap)
        last = last_backward(local, launched, wire, contention, overlap)
        return Candidate(cap, len(launched.launch_s), others_s + last.end_s, last.wait_s)

    found = tuple(map(candidate, caps))
    alone_s = candidate(None, lambda num_bytes: 0.0).step_s
    return Recommendation(found, candidate(None), alone_s)


def _local_step(module: Any, machine: Any, num_ranks: int | None, loss: Any, backward_s: float | None) -> LocalStep:
    if isinstance(module, LocalStep):
        for name, value in (("loss", loss), ("backward_s", backward_s)):
            if value is not None:
                raise ValueError(f"{name} goes with a module, and must be None with a LocalStep, got {value!r}")
        return module
    if (loss is None) == (backward_s is None):
        raise ValueError("of a module, either loss (to measure its step) or backward_s (to model it) must be given")
    if backward_s is not None:
        return LocalStep.modelled(parameter_specs(module), backward_s)
    from .measure_steps import measure_local_step

    on_node = int(machine.provenance["ranks_per_node"][0]) if isinstance(machine, Profile) else 1
    alone = isinstance(machine, Profile) and machine.num_nodes == 1
    return measure_local_step(module, loss, num_ranks=num_ranks or on_node if alone else on_node)
