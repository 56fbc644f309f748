"""`audit`: what an assignment, or a run of epochs, does to the dataset: duplicates, losses, overlap, repetition."""

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
    """An assignment does what its owner did not allow."""


class Finding(NamedTuple):
    """One thing found: `kind` is the word to allow it by, `message` says it with its figures."""

    kind: str
    message: str


class Findings:
    """What every audit does with its findings, which are of some of its `KINDS`."""

    KINDS: ClassVar[tuple[str, ...]]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was found."""
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
        found = [finding.message for finding in self.not_allowed(allow)]
        if found:
            raise AuditError("; ".join(found))

    def report(self, head: str, nothing: str) -> str:
        """Return a line of what was audited, and one for each finding, or one that says that there is none."""
        lines = [f"  {one.kind.replace('_', ' ')}: {one.message}" for one in self.findings]
        return "\n".join([head, *(lines or [f"  {nothing}"])])


@attrs.frozen(eq=False)
class EpochAudit:
    """One epoch: sorted arrays of indices, and the reads a rank has.

    `duplicated` are read more than once; `overlap` are those of the dataset's that more than one rank reads; `dropped`
    are read by no rank; `out_of_range` do not exist in the dataset. `num_repeats` counts reads beyond an index's first.
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
    """What `audit` found; ``str()`` is the report, `check` raises, `findings` is what both are made from.

    `never_seen` are the indices that no rank read in any of the epochs. `repeated_orders` pairs places in the run
    of epochs that read in exactly the same order on every rank, unless the sampler is known not to shuffle.
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
        """Reads of an index already read in the same epoch, over all epochs."""
        return sum(epoch.num_repeats for epoch in self.epochs)

    @property
    def dropped(self) -> int:
        """Samples not read in an epoch, added up over the epochs."""
        return sum(epoch.dropped.size for epoch in self.epochs)

    @property
    def overlap(self) -> int:
        """Indices read by more than one rank in the same epoch, over all epochs."""
        return sum(epoch.overlap.size for epoch in self.epochs)

    @property
    def out_of_range(self) -> int:
        """Distinct indices outside the dataset, over all epochs."""
        return sum(epoch.out_of_range.size for epoch in self.epochs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that is not an exact, balanced, fresh partition of the dataset."""
        epochs, unseen = self.epochs, self.never_seen
        reads, times = count_of(self.duplicates, "read"), count_of(self.overlap, "time")
        strays = np.unique(np.concatenate([epoch.out_of_range for epoch in epochs]))
        empty = sum(epoch.num_reads == 0 for epoch in epochs) if self.size else 0
        share = f"{count_of(self.size, 'sample')}, {count_of(self.num_ranks, 'rank')}"
        dropped = "and what does not fill every rank's share or batch is dropped"
        uneven = max(epochs, key=lambda epoch: epoch.longest - epoch.shortest)
        lengths = f"from {uneven.shortest} to {uneven.longest} samples in epoch {uneven.epoch}"
        found = (  # in the order of KINDS
            (strays.size, f"indices that a dataset of {self.size} does not have: {_some(strays)}"),
            (empty, f"no rank reads anything in {empty} of {count_of(len(epochs), 'epoch')}: {share}, {dropped}"),
            (self.duplicates, f"{reads} of a sample already read in its epoch"),
            (self.overlap, f"{times} a sample is read by more than one rank in an epoch"),
            (self.dropped, f"{count_of(self.dropped, 'time')} a sample is left out of an epoch"),
            (
                unseen.size if len(epochs) > 1 else 0,
                f"{count_of(unseen.size, 'sample')} not read in any epoch: {_some(unseen)}",
            ),
            (uneven.longest - uneven.shortest, f"ranks read {lengths}"),
            (len(self.repeated_orders), _repetition(self)),
        )
        return tuple(Finding(kind, says) for kind, (present, says) in zip(self.KINDS, found, strict=True) if present)

    def __str__(self) -> str:
        over = f"{count_of(self.num_ranks, 'rank')}, {count_of(len(self.epochs), 'epoch')}"
        reads = count_of(sum(epoch.num_reads for epoch in self.epochs), "read")
        head = f"{count_of(self.size, 'sample')}, {over}: {reads}"
        return self.report(head, "every sample read exactly once an epoch")


def audit(assignments: Assignment | Iterable[Assignment]) -> Audit:
    """Audit one epoch, or a run of epochs of the same dataset and world size (one is held at a time).

    Raises ValueError for no epochs at all, and where size or number of ranks changes on the way.

    >>> from rankscope.sampling import assign
    >>> print(audit(assign(10, 4) for _ in range(2)))  # set_epoch forgotten
    10 samples, 4 ranks, 2 epochs: 24 reads
      duplicates: 4 reads of a sample already read in its epoch
      overlap: 4 times a sample is read by more than one rank in an epoch
      repeated order: 2 of 2 epochs read in the same order on every rank, that of epoch 0: was set_epoch forgotten?
    """
    run = assignments if isinstance(assignments, Iterable) else [assignments]  # one at a time: it may be a generator
    epochs: list[EpochAudit] = []
    orders: dict[bytes, int] = {}
    repeated: list[tuple[int, int]] = []
    shape: tuple[int, int] | None = None
    for place, assignment in enumerate(run):
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
            first = orders.setdefault(_fingerprint(assignment, flat), place)
            if first != place:
                repeated.append((first, place))
    if shape is None:
        raise ValueError("audit needs at least one epoch, got none")
    return Audit(*shape, tuple(epochs), np.flatnonzero(~seen), tuple(repeated))


def _audit_epoch(assignment: Assignment, flat: IntArray, seen: NDArray[np.bool_]) -> EpochAudit:
    """Audit one epoch and mark in `seen` what it reads."""
    lengths = np.array([indices.size for indices in assignment.ranks])
    size = assignment.size
    inside = flat
    outside = flat[:0]
    if flat.size and (flat.min() < 0 or flat.max() >= size):
        valid = (flat >= 0) & (flat < size)
        inside, outside = flat[valid], flat[~valid]
    counts = np.bincount(inside, minlength=size)
    seen |= counts > 0
    duplicated = np.flatnonzero(counts > 1)
    strays, stray_counts = np.unique(outside, return_counts=True)
    again = strays[stray_counts > 1]
    repeats = int((counts[duplicated] - 1).sum() + (stray_counts - 1).sum())
    return EpochAudit(
        epoch=assignment.epoch,
        seed=assignment.seed,
        num_reads=flat.size,
        num_repeats=repeats,
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
        duplicated=np.concatenate([again[again < 0], duplicated, again[again >= size]]),  # in order
        overlap=_read_by_many(assignment) if repeats else duplicated,
        dropped=np.flatnonzero(counts == 0),
        out_of_range=strays,
    )


def _read_by_many(assignment: Assignment) -> IntArray:
    """Return the indices of the dataset that at least two ranks read."""
    reader, many = np.full(assignment.size, -1), np.zeros(assignment.size, dtype=bool)
    for rank, indices in enumerate(assignment.ranks):
        inside = indices[(indices >= 0) & (indices < assignment.size)]
        before = reader[inside]
        many[inside[(before != -1) & (before != rank)]] = True
        reader[inside] = rank
    return np.flatnonzero(many)


def _fingerprint(assignment: Assignment, flat: IntArray) -> bytes:
    digest = hashlib.blake2b(repr([indices.size for indices in assignment.ranks]).encode(), digest_size=16)
    digest.update(flat.astype(np.int64, copy=False).data)
    return digest.digest()


def _some(indices: IntArray, limit: int = 8) -> str:
    shown = ", ".join(map(str, indices[:limit].tolist()))
    return shown if indices.size <= limit else f"{shown}, … ({indices.size} in all)"


def _repetition(audit: Audit) -> str:
    if not audit.repeated_orders:
        return ""
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
    """What to say of epochs that had the seed and the epoch of the one at `place`."""
    recipe = audit.epochs[place].seed, audit.epochs[place].epoch
    repeats = 0
    for first, again in audit.repeated_orders:
        if first == place and (audit.epochs[again].seed, audit.epochs[again].epoch) == recipe:
            repeats += 1
    names = f"{1 + repeats} of {count_of(len(audit.epochs), 'epoch')}"
    rest = _more_pairs(len(audit.repeated_orders) - repeats)
    return f"{names}{rest} read in the same order on every rank, that of epoch {recipe[1]}: was set_epoch forgotten?"


def _more_pairs(number: int) -> str:
    if not number:
        return ""
    return f" (and {count_of(number, 'more pair')})"
