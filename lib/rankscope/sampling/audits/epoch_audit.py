"""The audit of one epoch, and what epochs with the same order have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...common.words import count_of
from ..assignment import Assignment
from ..samplers.permutation import IntArray
from .findings import own_orders


class EpochAudit(msgspec.Struct, frozen=True, eq=False):
    """The audit of one epoch.

    `duplicated`, `overlap`, `dropped` and `out_of_range` are sorted indices: those of the dataset that are read more
    than once, that more than one rank reads and that no rank reads, and those outside the dataset. `num_reads` is the
    number of reads of all ranks, `num_repeats` the number of reads after an index's first, `shortest` and `longest` the
    fewest and the most reads of a rank, or its batches if the sampler makes them (`unit`). `drops_incomplete` says that
    the sampler or the loader is known to drop incomplete shares or batches. `own_orders` is the hint that each rank
    seems to have an order of its own, and `wrong_lengths` are those of the assignment.
    """

    epoch: int
    seed: int | None
    num_reads: int
    num_repeats: int
    shortest: int
    longest: int
    duplicated: IntArray
    overlap: IntArray
    dropped: IntArray
    out_of_range: IntArray
    unit: str
    drops_incomplete: bool
    own_orders: str
    wrong_lengths: tuple[str, ...]


def audit_epoch(assignment: Assignment, flat: IntArray, is_read: NDArray[np.bool_]) -> EpochAudit:
    """Audit one epoch, and mark the samples that it reads in `is_read`. `flat` contains the indices of all ranks.

    Ranks must take as many steps as each other, so batches are counted where the sampler makes them, else samples.
    """
    counts_of_ranks = [indices.size for indices in assignment.batch_stops or assignment.ranks]
    size = assignment.size
    inside = flat
    strays = flat[:0]
    if flat.size and (flat.min() < 0 or flat.max() >= size):  # usually not, and then nothing needs to be copied
        valid = (flat >= 0) & (flat < size)
        inside = flat[valid]
        strays = np.unique(flat[~valid])
    counts = np.bincount(np.intp(inside), minlength=size)  # the number of reads of each sample
    is_read |= counts > 0
    num_repeats = flat.size - int(np.count_nonzero(counts)) - strays.size
    dropped = np.flatnonzero(counts == 0)
    hint = ""
    if num_repeats and dropped.size:
        hint = own_orders([indices.tolist() for indices in assignment.ranks], dropped.size)
    return EpochAudit(
        epoch=assignment.epoch,
        seed=assignment.seed,
        num_reads=flat.size,
        num_repeats=num_repeats,
        shortest=min(counts_of_ranks),
        longest=max(counts_of_ranks),
        duplicated=np.flatnonzero(counts > 1),
        # Without repeats, no two ranks read the same sample.
        overlap=_read_by_many(assignment) if num_repeats else np.empty(0, dtype=np.int64),
        dropped=dropped,
        out_of_range=strays,
        unit="samples" if assignment.batch_stops is None else "batches",
        drops_incomplete=bool(assignment.drop_last or (assignment.loader and assignment.loader.drop_last)),
        own_orders=hint,
        wrong_lengths=assignment.wrong_lengths,
    )


def _read_by_many(assignment: Assignment) -> IntArray:
    """Return the indices of the dataset that at least two ranks read."""
    is_read = np.zeros(assignment.size, dtype=bool)  # by the ranks so far
    is_shared = np.zeros(assignment.size, dtype=bool)
    for indices in assignment.ranks:
        inside = indices[(indices >= 0) & (indices < assignment.size)]
        is_shared[inside[is_read[inside]]] = True
        is_read[inside] = True
    return np.flatnonzero(is_shared)


def fingerprint(assignment: Assignment, flat: IntArray) -> bytes:
    """Return bytes that differ if any rank reads in another order; `flat` contains the indices of all ranks."""
    digest = hashlib.blake2b(repr([indices.size for indices in assignment.ranks]).encode(), digest_size=16)
    digest.update(flat.astype(np.int64, copy=False).data)
    return digest.digest()


def repetition(epochs: Sequence[EpochAudit], repeated_orders: Sequence[tuple[int, int]]) -> str:
    """Return the message about epochs with the same order: which ones, and why.

    Each pair has the indices of the first epoch with an order and of a later one.
    """
    first_index, again_index = repeated_orders[0]
    first = epochs[first_index]
    again = epochs[again_index]
    if (first.seed, first.epoch) == (again.seed, again.epoch):
        num_alike = 1 + [index for index, _ in repeated_orders].count(first_index)
        names = f"{num_alike} of {count_of(len(epochs), 'epoch')}"
        where = f"on every rank, that of epoch {first.epoch}"
        return f"{names} read in the same order {where}: was set_epoch forgotten?"
    names = f"epochs {first.epoch} and {again.epoch}"
    if first.seed != again.seed:
        names = f"(seed {first.seed}, epoch {first.epoch}) and (seed {again.seed}, epoch {again.epoch})"
    return f"{names} read in the same order on every rank: {_why(first, again)}"


def _why(first: EpochAudit, again: EpochAudit) -> str:
    """Return why two epochs have the same order.

    torch shuffles with a generator that is seeded with seed + epoch, of which it uses 32 bits.
    """
    if first.seed is None or again.seed is None:  # the indices were collected from samplers
        return "the sampler ignores the epoch, or few samples have few orders"
    difference = first.seed + first.epoch - again.seed - again.epoch
    if difference == 0:
        return "seed + epoch is the same"
    if difference % 2**32 == 0:
        return "seed + epoch is the same modulo 2**32"
    return "by chance, few samples have few orders"
