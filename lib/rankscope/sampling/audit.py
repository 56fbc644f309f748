"""`audit`: the duplicates, losses, overlaps and repeated orders of an assignment, or of several epochs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, of_type, several
from .assignment import Assignment
from .permutation import IntArray


class AuditError(ValueError):
    """An audit has findings that are not allowed."""


class Finding(NamedTuple):
    """One finding: `kind` is the word that allows it, `message` describes it with its figures."""

    kind: str
    message: str


class Findings:
    """The base of all audits: findings, each of one of its `KINDS`, and what to do with them."""

    KINDS: ClassVar[tuple[str, ...]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of `KINDS`."""
        raise NotImplementedError

    def not_allowed(self, allow: Iterable[str] = ()) -> list[Finding]:
        """Return the findings of kinds that are not allowed. Raises ValueError for a kind that does not exist."""
        allowed = several("allow", allow, "kinds of findings")
        unknown = [kind for kind in allowed if kind not in self.KINDS]
        if unknown:
            raise ValueError(f"allow takes kinds out of {', '.join(self.KINDS)}, got {', '.join(map(str, unknown))}")
        return [finding for finding in self.findings if finding.kind not in allowed]

    def check(self, allow: Iterable[str] = ()) -> None:
        """Raise AuditError unless every finding's kind is allowed; ValueError for a kind that does not exist."""
        messages = [finding.message for finding in self.not_allowed(allow)]
        if messages:
            raise AuditError("; ".join(messages))

    def report(self, head: str, nothing: str) -> str:
        """Return the line `head` and a line for each finding, or the line `nothing` if there is none."""
        lines = [f"  {finding.kind.replace('_', ' ')}: {finding.message}" for finding in self.findings]
        if not lines:
            lines = [f"  {nothing}"]
        return "\n".join([head, *lines])


@attrs.frozen(eq=False)
class EpochAudit:
    """The audit of one epoch.

    `duplicated`, `overlap`, `dropped` and `out_of_range` are sorted indices: those that are read more than once, those
    of the dataset that more than one rank reads, those that no rank reads, and those outside the dataset. `num_reads`
    is the number of reads of all ranks, `num_repeats` the number of reads after an index's first, `shortest` and
    `longest` the fewest and the most reads of a rank.
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


@attrs.frozen(eq=False)
class Audit(Findings):
    """The result of `audit`: ``str()`` is the report, `check` raises; both are made from `findings`.

    `never_seen` are the indices that no rank read in any of the epochs. `repeated_orders` are pairs of epochs, as their
    places in `epochs`, in which every rank read in exactly the same order; it is empty if the sampler is known not to
    shuffle.
    """

    KINDS = (
        "out_of_range",
        "nothing_read",
        "duplicates",
        "overlap",
        "dropped",
        "never_seen",
        "unbalanced",
        "repeated_order",
    )
    size: int
    num_ranks: int
    epochs: tuple[EpochAudit, ...]
    never_seen: IntArray
    repeated_orders: tuple[tuple[int, int], ...]

    @property
    def duplicates(self) -> int:
        """The number of reads of an index that was already read in the same epoch, over all epochs."""
        return sum(epoch.num_repeats for epoch in self.epochs)

    @property
    def dropped(self) -> int:
        """The number of samples that are not read in an epoch, added up over the epochs."""
        return sum(epoch.dropped.size for epoch in self.epochs)

    @property
    def overlap(self) -> int:
        """The number of indices that more than one rank reads in the same epoch, over all epochs."""
        return sum(epoch.overlap.size for epoch in self.epochs)

    @property
    def out_of_range(self) -> int:
        """The number of distinct indices outside the dataset in each epoch, added up over the epochs."""
        return sum(epoch.out_of_range.size for epoch in self.epochs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each way in which the epochs are not exact, balanced partitions of the dataset, each in a new order."""
        findings = []

        def add(kind: str, message: str) -> None:
            findings.append(Finding(kind, message))

        strays = np.unique(np.concatenate([epoch.out_of_range for epoch in self.epochs]))
        if strays.size:
            add("out_of_range", f"indices that a dataset of {self.size} does not have: {_some(strays)}")
        num_empty = sum(epoch.num_reads == 0 for epoch in self.epochs)
        if num_empty and self.size:
            share = f"{count_of(self.size, 'sample')}, {count_of(self.num_ranks, 'rank')}"
            why = f"{share}, and what does not fill every rank's share or batch is dropped"
            add(
                "nothing_read", f"no rank reads anything in {num_empty} of {count_of(len(self.epochs), 'epoch')}: {why}"
            )
        if self.duplicates:
            add("duplicates", f"{count_of(self.duplicates, 'read')} of a sample already read in its epoch")
        if self.overlap:
            times = count_of(self.overlap, "time")
            add("overlap", f"{times} a sample is read by more than one rank in an epoch")
        if self.dropped:
            add("dropped", f"{count_of(self.dropped, 'time')} a sample is left out of an epoch")
        if self.never_seen.size and len(self.epochs) > 1:
            samples = count_of(self.never_seen.size, "sample")
            add("never_seen", f"{samples} not read in any epoch: {_some(self.never_seen)}")
        uneven = max(self.epochs, key=lambda epoch: epoch.longest - epoch.shortest)
        if uneven.longest > uneven.shortest:
            lengths = f"from {uneven.shortest} to {uneven.longest} samples in epoch {uneven.epoch}"
            add("unbalanced", f"ranks read {lengths}")
        if self.repeated_orders:
            add("repeated_order", _repetition(self))
        return tuple(findings)

    def __str__(self) -> str:
        over = f"{count_of(self.num_ranks, 'rank')}, {count_of(len(self.epochs), 'epoch')}"
        reads = count_of(sum(epoch.num_reads for epoch in self.epochs), "read")
        head = f"{count_of(self.size, 'sample')}, {over}: {reads}"
        return self.report(head, "every sample read exactly once an epoch")


def audit(assignments: Assignment | Iterable[Assignment]) -> Audit:
    """Audit one epoch, or several epochs of the same dataset and world size.

    Only one assignment is in memory at a time if they come from a generator. Raises ValueError if there is no epoch, or
    if the size or the number of ranks changes between epochs.

    >>> from rankscope.sampling import assign
    >>> print(audit(assign(10, 4) for _ in range(2)))  # set_epoch forgotten
    10 samples, 4 ranks, 2 epochs: 24 reads
      duplicates: 4 reads of a sample already read in its epoch
      overlap: 4 times a sample is read by more than one rank in an epoch
      repeated order: 2 of 2 epochs read in the same order on every rank, that of epoch 0: was set_epoch forgotten?
    """
    if not isinstance(assignments, Iterable):
        assignments = [assignments]
    epochs: list[EpochAudit] = []
    place_of_order: dict[bytes, int] = {}  # the first epoch with each order, by its fingerprint
    repeated: list[tuple[int, int]] = []
    shape: tuple[int, int] | None = None  # the dataset's size and the number of ranks
    for place, assignment in enumerate(assignments):
        of_type("assignments", assignment, Assignment)
        if shape is None:
            shape = (assignment.size, assignment.num_ranks)
            seen = np.zeros(assignment.size, dtype=bool)
        elif shape != (assignment.size, assignment.num_ranks):
            raise ValueError(
                f"epochs to audit must share size and ranks: {shape[0]} samples over {shape[1]} ranks, then "
                f"{assignment.size} over {assignment.num_ranks}"
            )
        flat = np.concatenate(assignment.ranks)
        epochs.append(_audit_epoch(assignment, flat, seen))
        if assignment.shuffle is not False and assignment.size > 1 and flat.size:
            first = place_of_order.setdefault(_fingerprint(assignment, flat), place)
            if first != place:
                repeated.append((first, place))
    if shape is None:
        raise ValueError("audit needs at least one epoch, got none")
    return Audit(*shape, tuple(epochs), np.flatnonzero(~seen), tuple(repeated))


def _audit_epoch(assignment: Assignment, flat: IntArray, seen: NDArray[np.bool_]) -> EpochAudit:
    """Audit one epoch, and mark the samples that it reads in `seen`. `flat` contains the indices of all ranks."""
    lengths = np.array([indices.size for indices in assignment.ranks])
    size = assignment.size
    inside = flat
    outside = flat[:0]
    if flat.size and (flat.min() < 0 or flat.max() >= size):
        valid = (flat >= 0) & (flat < size)
        inside = flat[valid]
        outside = flat[~valid]
    counts = np.bincount(inside, minlength=size)
    seen |= counts > 0
    duplicated = np.flatnonzero(counts > 1)
    strays, stray_counts = np.unique(outside, return_counts=True)
    repeated_strays = strays[stray_counts > 1]
    num_repeats = int((counts[duplicated] - 1).sum() + (stray_counts - 1).sum())
    return EpochAudit(
        epoch=assignment.epoch,
        seed=assignment.seed,
        num_reads=flat.size,
        num_repeats=num_repeats,
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
        duplicated=np.concatenate(
            [repeated_strays[repeated_strays < 0], duplicated, repeated_strays[repeated_strays >= size]]
        ),
        overlap=_read_by_many(assignment) if num_repeats else duplicated,
        dropped=np.flatnonzero(counts == 0),
        out_of_range=strays,
    )


def _read_by_many(assignment: Assignment) -> IntArray:
    """Return the indices of the dataset that at least two ranks read."""
    reader = np.full(assignment.size, -1)  # the last rank that reads each sample
    is_shared = np.zeros(assignment.size, dtype=bool)
    for rank, indices in enumerate(assignment.ranks):
        inside = indices[(indices >= 0) & (indices < assignment.size)]
        earlier_reader = reader[inside]
        is_shared[inside[(earlier_reader != -1) & (earlier_reader != rank)]] = True
        reader[inside] = rank
    return np.flatnonzero(is_shared)


def _fingerprint(assignment: Assignment, flat: IntArray) -> bytes:
    digest = hashlib.blake2b(repr([indices.size for indices in assignment.ranks]).encode(), digest_size=16)
    digest.update(flat.astype(np.int64, copy=False).data)
    return digest.digest()


def _some(indices: IntArray, limit: int = 8) -> str:
    shown = ", ".join(map(str, indices[:limit].tolist()))
    if indices.size <= limit:
        return shown
    return f"{shown}, … ({indices.size} in all)"


def _repetition(audit: Audit) -> str:
    """Return the message about epochs with the same order: which ones, and why."""
    first_place, again_place = audit.repeated_orders[0]
    first = audit.epochs[first_place]
    again = audit.epochs[again_place]
    if (first.seed, first.epoch) == (again.seed, again.epoch):
        return _forgotten(audit, first_place)
    names = f"epochs {first.epoch} and {again.epoch}"
    if first.seed != again.seed:
        names = f"(seed {first.seed}, epoch {first.epoch}) and (seed {again.seed}, epoch {again.epoch})"
    sums = {(epoch.seed or 0) + epoch.epoch for epoch in (first, again)}
    if first.seed is None or again.seed is None:
        why = "the sampler ignores the epoch, or few samples have few orders"
    elif len(sums) == 1:
        why = "seed + epoch is the same"
    elif len({number % 2**32 for number in sums}) == 1:
        why = "seed + epoch is the same modulo 2**32"
    else:
        why = "by chance, few samples have few orders"
    return f"{names}{_more_pairs(len(audit.repeated_orders) - 1)} read in the same order on every rank: {why}"


def _forgotten(audit: Audit, place: int) -> str:
    """Return the message about epochs that had the same seed and number as the one at `place`."""
    epoch = audit.epochs[place]
    num_repeats = 0
    for first, again_place in audit.repeated_orders:
        again = audit.epochs[again_place]
        if first == place and (again.seed, again.epoch) == (epoch.seed, epoch.epoch):
            num_repeats += 1
    names = f"{1 + num_repeats} of {count_of(len(audit.epochs), 'epoch')}"
    others = _more_pairs(len(audit.repeated_orders) - num_repeats)
    return (
        f"{names}{others} read in the same order on every rank, that of epoch {epoch.epoch}: was set_epoch forgotten?"
    )


def _more_pairs(number: int) -> str:
    if not number:
        return ""
    return f" (and {count_of(number, 'more pair')})"
