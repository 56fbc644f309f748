"""Exercises of notebooks 01 and 02: which rank reads what."""

from __future__ import annotations

from typing import Any

from ..sampling import assign, audit
from ..sampling.libtorch_samplers import DistributedRandomSampler
from .answers import Check, is_whole


def _no_padding(answer: Any) -> str | None:
    """The smallest number of ranks above 1 that shares 1,797 samples without padding."""
    if not is_whole(answer, 2, 1797):
        return f"a number of ranks from 2 to 1797 is asked for, got {answer!r}"
    repeats = audit(assign(1797, answer)).duplicates
    if repeats:
        are = "is a repeat" if repeats == 1 else "are repeats"
        return f"{answer} ranks read {1797 + repeats} samples, of which {repeats} {are}"
    smaller = next((n for n in range(2, answer) if not audit(assign(1797, n)).findings), None)
    return f"{answer} ranks need no padding, but nor do fewer" if smaller else None


def _counted_twice(answer: Any) -> str | None:
    """How many reads too many 56 ranks count on 450 samples."""
    right = audit(assign(450, 56, shuffle=False)).duplicates
    return None if answer == right else f"56 ranks read a multiple of 56; what is beyond 450 is not {answer!r}"


def _colliding_seed(answer: Any) -> str | None:
    """The seed whose epoch 0 is epoch 4 of seed 3."""
    run = audit([assign(1797, 8, seed=3, epoch=4), assign(1797, 8, seed=answer, epoch=0)])
    return None if run.repeated_orders else f"seed {answer} reads epoch 0 in another order than seed 3 reads epoch 4"


def _never_seen(answer: Any) -> str | None:
    """The samples of 22 that libtorch's random sampler never reads over 4 ranks without duplicates."""
    run = (assign(22, 4, sampler="libtorch_random", epoch=epoch, drop_last=True) for epoch in range(50))
    right = set(audit(run).never_seen.tolist())
    if not isinstance(answer, list | tuple | set) or not all(isinstance(one, int) for one in answer):
        return f"a list of samples is asked for, got {answer!r}"
    return None if set(answer) == right else f"50 epochs read one of {answer}, or miss another one"


def _smallest_world(answer: Any) -> str | None:
    """The smallest world size at which libtorch's random sampler leaves a dataset of 5 samples."""
    if not is_whole(answer, 1, 1000):
        return f"a world size from 1 to 1000 is asked for, got {answer!r}"
    if not _strays(5, answer):
        return f"with {answer} ranks every index is below 5"
    return f"a world smaller than {answer} does it too" if any(_strays(5, n) for n in range(1, answer)) else None


def _strays(size: int, num_ranks: int) -> int:
    return audit(assign(size, num_ranks, sampler="libtorch_random")).out_of_range


def _resumed(answer: Any) -> str | None:
    """What a rank still reads after being saved in the middle of an epoch and loaded."""
    sampler = DistributedRandomSampler(20, num_replicas=2, rank=1)
    sampler.next(7)
    right = sampler.next(20)
    return None if answer == right else f"the three reads that are left, in order, are not {answer!r}"


EXERCISES: dict[str, Check] = {
    "01.1": _no_padding,
    "01.2": _counted_twice,
    "01.3": _colliding_seed,
    "02.1": _never_seen,
    "02.2": _smallest_world,
    "02.3": _resumed,
}
