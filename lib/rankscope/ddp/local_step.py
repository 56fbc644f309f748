"""`LocalStep`: what one rank's training step does without the other ranks, parameter by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..values.checks import count_of, number, of_type, several, truth, whole

Seconds = NDArray[np.float64]
MOST_ACCUMULATION = 10_000  # micro-batches of a step
_MOST_BYTES = 2**50  # of a gradient: sums of thousands still fit into 64 bits


@dataclass(frozen=True)
class ParameterSpec:
    """What DDP asks of a parameter before it puts its gradient into a bucket; sizes are the gradient's, in bytes.

    >>> ParameterSpec("fc.weight", 4 * 10 * 10)
    ParameterSpec(name='fc.weight', num_bytes=400, dtype='float32', device='cpu', sparse=False)
    """

    name: str
    num_bytes: int
    dtype: str = "float32"
    device: str = "cpu"
    sparse: bool = False

    def __post_init__(self) -> None:
        of_type("name", self.name, str)
        object.__setattr__(self, "num_bytes", whole("num_bytes", self.num_bytes, 0, _MOST_BYTES))
        truth("sparse", self.sparse)


@dataclass(frozen=True, eq=False)
class LocalStep:
    """Forward, backward and optimizer of one rank, in seconds, and when in the backward each gradient is ready.

    `parameters` are those that take part, in the order of ``module.parameters()``. `ready_s`, one a parameter, counts
    from the start of the backward; it is not a number (nan) where a parameter gets no gradient. `unpack_s` is what DDP
    takes to copy all sums from its buckets into the gradients, nothing with ``gradient_as_bucket_view``. Nothing here
    depends on other ranks, on buckets, or on whether anything is communicated.

    Raises ValueError for negative times, for as many `ready_s` as there are no parameters, and for a gradient that is
    ready after the backward has ended.

    >>> step = LocalStep.modelled([400, 100, 500], backward_s=0.010)
    >>> step.ready_s, step.ready_order
    (array([0.01 , 0.006, 0.005]), (2, 1, 0))
    """

    parameters: tuple[ParameterSpec, ...]
    ready_s: Seconds
    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    unpack_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "optimizer_s", "unpack_s"):
            object.__setattr__(self, name, number(name, getattr(self, name), 0))
        specs = several("parameters", self.parameters, "ParameterSpec values")
        object.__setattr__(self, "parameters", tuple(of_type("parameters", p, ParameterSpec) for p in specs))
        ready = numbers("ready_s", self.ready_s)
        if ready.shape != (len(self.parameters),):
            wanted = count_of(len(self.parameters), "parameter")
            raise ValueError(f"ready_s must have one time for each of {wanted}, got shape {ready.shape}")
        wrong = ~np.isnan(ready) & ~((ready >= 0) & (ready <= self.backward_s))
        if wrong.any():
            found, name = next((ready[n], p.name) for n, p in enumerate(self.parameters) if wrong[n])
            raise ValueError(f"ready_s must lie in the backward of {self.backward_s} s, got {found} for {name!r}")
        ready.flags.writeable = False
        object.__setattr__(self, "ready_s", ready)

    @classmethod
    def modelled(
        cls,
        parameters: Sequence[ParameterSpec | int],
        backward_s: float,
        *,
        forward_s: float | None = None,
        optimizer_s: float = 0.0,
        unpack_s: float = 0.0,
        work: ArrayLike | None = None,
    ) -> LocalStep:
        """Return a step whose backward goes through the parameters from the last to the first.

        Each takes a share of `backward_s` as its share of `work` (FLOPs, say), by default of the bytes, as in a stack
        of linear layers. A plain number stands for a parameter of so many bytes. `forward_s` is half of the backward
        unless given: a backward multiplies matrices twice where a forward does once.
        """
        given = enumerate(several("parameters", parameters, "ParameterSpec values or bytes"))
        specs = [p if isinstance(p, ParameterSpec) else ParameterSpec(f"{n}", p) for n, p in given]
        shares = numbers("work", [spec.num_bytes for spec in specs] if work is None else work)
        with np.errstate(over="ignore"):
            good = shares.shape == (len(specs),) and (shares >= 0).all() and np.isfinite(shares.sum())
        if not good:
            each = count_of(len(specs), "parameter")
            raise ValueError(f"work must be a finite number of at least 0 for each of {each}, got {work!r}")
        backward_s = number("backward_s", backward_s, 0)
        done = np.cumsum(shares[::-1])[::-1]
        ready = np.minimum(done / done[0], 1.0) * backward_s if done.size and done[0] else np.zeros(len(specs))
        forward_s = backward_s / 2 if forward_s is None else forward_s
        return cls(tuple(specs), ready, forward_s, backward_s, optimizer_s, unpack_s)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each gradient."""
        sizes = np.array([spec.num_bytes for spec in self.parameters], dtype=np.int64)
        sizes.flags.writeable = False
        return sizes

    @property
    def num_bytes(self) -> int:
        """Of all gradients."""
        return int(self.sizes.sum())

    @cached_property
    def alike(self) -> bool:
        """Whether all gradients may share buckets and all get ready: dense, of one dtype, on one device."""
        keys = {(spec.dtype, spec.device, spec.sparse) for spec in self.parameters}
        return len(keys) == 1 and not any(sparse for *_, sparse in keys) and not np.isnan(self.ready_s).any()

    @cached_property
    def ready_order(self) -> tuple[int, ...]:
        """The places of parameters in the order in which their gradients are ready; those that never are left out."""
        order = np.lexsort((-np.arange(len(self.parameters)), self.ready_s))  # of equals the last comes first
        return tuple(order[~np.isnan(self.ready_s[order])].tolist())


def numbers(name: str, values: Any) -> Seconds:
    """Return a copy of the values as float64, None being nan; ValueError where they are no numbers."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}") from None


@dataclass(frozen=True)
class Contention:
    """How much computing and communicating hold each other up where they share cores, memory or SMs.

    While an allreduce is under way computing takes `compute` times as long, and while the rank computes an allreduce
    takes `communication` times as long. 1 is no contention.

    >>> Contention(compute=0.5)
    Traceback (most recent call last):
    ValueError: compute must be a finite number of at least 1, got 0.5
    """

    compute: float = 1.0
    communication: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute", number("compute", self.compute, 1))
        object.__setattr__(self, "communication", number("communication", self.communication, 1))


FREE = Contention()  # no contention
