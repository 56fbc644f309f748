"""What a step is predicted from: what a rank does by itself, what an allreduce costs, and how they slow each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...cluster import Link
from ...common.checks import check_field, each, number, of_type, several, whole
from ...common.units import cell_words
from ...common.words import count_of
from ...networks import Cost, Seconds, ring_cost
from .bucketing import Buckets, Gradient, assign

if TYPE_CHECKING:
    from ...box.profile import Profile


class LocalStep(msgspec.Struct, frozen=True, eq=False):
    """The times of forward, backward and optimizer of one rank in seconds, and when each gradient is ready.

    `gradients` are in the order of ``module.parameters()``. `ready_s` has a time for each, from the start of the
    backward pass, or nan for a parameter that gets no gradient. `unpack_s` is the time that DDP needs to copy all means
    from its buckets into the gradients, 0 with ``gradient_as_bucket_view``. None of these depend on other ranks,
    buckets or communication.

    Raises ValueError if a time is negative, if `ready_s` and `gradients` differ in length, or if a gradient is ready
    after the backward pass has ended.

    >>> LocalStep.modelled([400, 100, 500], backward_s=0.010).ready_s
    array([0.01 , 0.006, 0.005])
    """

    gradients: tuple[Gradient, ...]
    ready_s: Seconds
    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    unpack_s: float = 0.0

    def __post_init__(self) -> None:
        check_field(self, "gradients", each, of_type, Gradient)
        check_field(self, "ready_s", lambda name, values: np.array(values, dtype=np.float64))
        for name in ("forward_s", "backward_s", "optimizer_s", "unpack_s"):
            check_field(self, name, number, 0)
        in_backward = (self.ready_s >= 0) & (self.ready_s <= self.backward_s) | np.isnan(self.ready_s)
        if self.ready_s.shape != (len(self.gradients),) or not in_backward.all():
            wanted = f"{len(self.gradients)} times in a backward of {self.backward_s} s"
            raise ValueError(f"ready_s must have {wanted}, got {self.ready_s}")

    def __repr__(self) -> str:
        times = f"forward {cell_words(self.forward_s)}, backward {cell_words(self.backward_s)}"
        return f"<LocalStep: {count_of(len(self.gradients), 'gradient')}, {times}>"

    @classmethod
    def modelled(
        cls,
        sizes: Iterable[int],
        backward_s: float,
        *,
        forward_s: float | None = None,
    ) -> LocalStep:
        """Return a step whose backward pass goes through gradients of these bytes from the last to the first.

        Each takes a share of `backward_s` in proportion to its bytes, as in a stack of linear layers. `forward_s` is by
        default half of `backward_s`, because a backward pass multiplies two matrices where a forward pass multiplies
        one.
        """
        gradients = tuple([Gradient(str(index), num_bytes) for index, num_bytes in enumerate(several("sizes", sizes))])
        if forward_s is None:
            forward_s = backward_s / 2
        # the bytes of each gradient and of all that are ready before it, which are those of later parameters
        ready_bytes = np.cumsum([float(gradient.num_bytes) for gradient in reversed(gradients)])[::-1]
        total_bytes = max(ready_bytes.max(initial=0.0), 1.0)  # parameters may be empty tensors
        return cls(gradients, ready_bytes / total_bytes * backward_s, forward_s, backward_s)

    @property
    def num_bytes(self) -> int:
        """The bytes of all gradients."""
        return sum(gradient.num_bytes for gradient in self.gradients)

    def buckets(self, bucket_cap_mb: float | None = None) -> Buckets:
        """Return DDP's buckets after it has rebuilt them, in the order in which gradients get ready.

        Of gradients that are ready at the same time, the last one comes first. If a parameter gets no gradient, they
        are those of ``find_unused_parameters``, which DDP fills in the order of definition and never rebuilds.

        >>> LocalStep.modelled([1 << 20] * 4, backward_s=1.0).buckets(bucket_cap_mb=2)
        ((3, 2), (1, 0))
        """
        places = np.arange(len(self.gradients))
        if np.isnan(self.ready_s).any():
            defined = assign(self.gradients, places.tolist(), bucket_cap_mb)
            return tuple(sorted(defined, key=min, reverse=True))
        order = np.lexsort((-places, self.ready_s))  # by time, and by falling number if times are equal
        return assign(self.gradients, order.tolist(), bucket_cap_mb)


class Contention(msgspec.Struct, frozen=True):
    """How much computing and communicating slow each other down when they share cores, memory or SMs.

    During an allreduce, computing takes `compute` times as long. While the rank computes, an allreduce takes
    `communication` times as long. A factor of 1 means no contention.

    >>> Contention(compute=0.5)
    Traceback (most recent call last):
    ValueError: compute must be a finite number of at least 1, got 0.5
    """

    compute: float = 1.0
    communication: float = 1.0

    def __post_init__(self) -> None:
        check_field(self, "compute", number, 1)
        check_field(self, "communication", number, 1)


def cost(machine: Profile | Link, num_ranks: int | None = None) -> Cost:
    """Return a function from bytes (a number or an array) to the seconds of one allreduce without other traffic.

    For a profile this is `Profile.cost`: the measured times of the backend's own allreduce or, for another number of
    ranks, the prediction for a ring. For a link it is the closed form of a ring.

    Raises ValueError if a link is given without `num_ranks`, or if a profile cannot predict the allreduce.

    >>> seconds = cost(Link(alpha_s=1e-5, bytes_per_s=1e9), num_ranks=4)
    >>> round(seconds(1e6), 9)
    0.00156
    """
    if isinstance(machine, Link):
        return ring_cost(machine, whole("num_ranks (of a link)", num_ranks, 1))
    if not callable(getattr(machine, "cost", None)):
        raise ValueError(f"machine must be a Profile or a Link, got {machine!r}")
    return machine.cost(num_ranks)
