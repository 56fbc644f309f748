"""`audit`: the duplicates, losses, overlaps and repeated orders of an assignment, or of several epochs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import count_of, of_type, several
from ..common.units import percent_words
from .assignment import Assignment
from .permutation import IntArray
from .sample_values import CostFunction
from .work import (
    EpochWork,
    WeightBias,
    epoch_work,
    sum_of_squared_repeats,
    weight_bias,
    weighted_reads,
    weights_for,
)

MOST_IMBALANCE = 1.05
"""Steps that take this much longer than if all ranks had equal work are a finding."""

MOST_PADDING_SHARE = 0.2
"""A larger share of padding tokens is a finding."""

MOST_DEVIATIONS = 6.0
"""A number of reads that is less likely than so many standard deviations is a finding: at most 3 in 10**8 by chance."""

LEAST_P_VALUE = 1e-5
"""Reads of groups of samples that are less likely than this, if the draws follow the weights, are a finding."""

MOST_DRAWN_ONCE = 0.75
"""If an epoch reads at most this share of the samples, and none twice, its draws may be without replacement. Where they
are more, they take nearly all samples, whatever the weights are, and the audit reports that."""


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


class EpochAudit(msgspec.Struct, frozen=True, eq=False):
    """The audit of one epoch.

    `duplicated`, `overlap`, `dropped` and `out_of_range` are sorted indices: those that are read more than once, those
    of the dataset that more than one rank reads, those that no rank reads, and those outside the dataset. `num_reads`
    is the number of reads of all ranks, `num_repeats` the number of reads after an index's first, `shortest` and
    `longest` the fewest and the most reads of a rank, or its batches if the sampler makes them (`unit`).
    `drops_incomplete` says that the sampler or the loader is known to drop incomplete shares or batches.
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
    unit: str = "samples"
    drops_incomplete: bool = False


class Audit(Findings, msgspec.Struct, frozen=True, eq=False):
    """The result of `audit`: ``str()`` is the report, `check` raises; both are made from `findings`.

    `never_seen` are the indices that no rank read in any of the epochs. `repeated_orders` are pairs of indices into
    `epochs`: the first epoch with an order on every rank, and each later one with the same. It is empty if the sampler
    is known not to shuffle. `work` has the tokens, costs and padding of each epoch, if `audit` got lengths, and
    `weight_bias` compares the reads of all epochs with the weights that it got. With weights, no sample has to be read
    exactly once, so duplicates, overlap and samples that are not read are no findings.
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
        "unequal_cost",
        "padding_waste",
        "weight_bias",
    )
    size: int
    num_ranks: int
    epochs: tuple[EpochAudit, ...]
    never_seen: IntArray
    repeated_orders: tuple[tuple[int, int], ...]
    work: tuple[EpochWork, ...] = ()
    weight_bias: WeightBias | None = None

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
        self._add_empty_epochs(add)
        if self.weight_bias is None:  # weights ask for some samples several times, and for others seldom or never
            self._add_repeats(add)
            self._add_losses(add)
        uneven = max(self.epochs, key=lambda epoch: epoch.longest - epoch.shortest)
        if uneven.longest > uneven.shortest and not self.work:  # with `work`, `_add_work` compares batches instead
            counts = f"from {uneven.shortest} to {uneven.longest} {uneven.unit} in epoch {uneven.epoch}"
            add("unbalanced", f"ranks read {counts}")
        if self.repeated_orders:
            add("repeated_order", _repetition(self))
        if self.work:
            self._add_work(add)
        if self.weight_bias is not None:
            self._add_weight_bias(self.weight_bias, add)
        return tuple(findings)

    def _add_empty_epochs(self, add: Callable[[str, str], None]) -> None:
        """Add that nothing is read in some epochs, unless the dataset has nothing to read."""
        empty_epochs = [epoch for epoch in self.epochs if epoch.num_reads == 0]
        if not empty_epochs or self.size == 0:
            return
        epochs = f"{len(empty_epochs)} of {count_of(len(self.epochs), 'epoch')}"
        if not all(epoch.drops_incomplete for epoch in empty_epochs):
            # A sampler of the user's own, for example: why it returned nothing is not known.
            add("nothing_read", f"in {epochs} no rank reads any of {count_of(self.size, 'sample')}")
            return
        samples = f"{count_of(self.size, 'sample')} on {count_of(self.num_ranks, 'rank')}"
        do_not_fill = "does not fill" if self.size == 1 else "do not fill"
        why = f"{samples} {do_not_fill} every rank's share or batch, and incomplete ones are dropped"
        add("nothing_read", f"in {epochs} no rank reads any sample, because {why}")

    def _add_repeats(self, add: Callable[[str, str], None]) -> None:
        """Add what is read more than once."""
        if self.duplicates:
            add("duplicates", f"{count_of(self.duplicates, 'read')} of a sample already read in its epoch")
        if self.overlap:
            counted = ", counted per epoch," if len(self.epochs) > 1 else ""
            samples = f"{count_of(self.overlap, 'sample')}{counted}"
            add("overlap", f"{samples} {_is_are(self.overlap)} read by more than one rank in the same epoch")

    def _add_losses(self, add: Callable[[str, str], None]) -> None:
        """Add what is not read."""
        if self.dropped and len(self.epochs) > 1:
            add("dropped", f"{count_of(self.dropped, 'read')} {_is_are(self.dropped)} missing")
        elif self.dropped:
            add("dropped", f"{count_of(self.dropped, 'sample')} {_is_are(self.dropped)} left out of the epoch")
        if self.never_seen.size and len(self.epochs) > 1:  # of a single epoch, "dropped" says the same
            samples = f"{count_of(self.never_seen.size, 'sample')} {_is_are(self.never_seen.size)}"
            add("never_seen", f"{samples} not read in any epoch: {_some(self.never_seen)}")

    def _add_work(self, add: Callable[[str, str], None]) -> None:
        """Add what makes ranks wait or compute in vain."""
        # A rank with fewer batches has none in the last step, and so a cost of 0 there. An epoch may have no step.
        if any((work.step_costs[-1:] == 0).any() for work in self.work):
            add("unbalanced", "some ranks have fewer batches than others, or batches that cost nothing")
        costliest = max(self.work, key=lambda work: work.imbalance)
        if costliest.imbalance > MOST_IMBALANCE:
            times = f"the costliest batch of a step costs {costliest.imbalance:.2f} times the mean"
            busy_share = 1 / costliest.imbalance  # of a mean batch, in the time of the costliest one
            waiting = percent_words(1 - busy_share)
            add("unequal_cost", f"{times}, so ranks wait for {waiting} of the time")
        most_padded = max(self.work, key=lambda work: work.padding_share)
        if most_padded.padding_share > MOST_PADDING_SHARE:
            padded = percent_words(most_padded.padding_share)
            add("padding_waste", f"{padded} of the processed tokens are padding")

    @property
    def _may_be_without_replacement(self) -> bool:
        """Whether no epoch reads a sample twice, nor most samples: draws without replacement are not in proportion."""
        most_reads = max(epoch.num_reads for epoch in self.epochs)
        return self.duplicates == 0 and most_reads <= MOST_DRAWN_ONCE * self.size

    def _add_weight_bias(self, bias: WeightBias, add: Callable[[str, str], None]) -> None:
        if bias.num_forbidden:
            add("weight_bias", f"{count_of(bias.num_forbidden, 'read')} of samples whose weight is 0")
        if self._may_be_without_replacement:
            return
        if bias.p_value < LEAST_P_VALUE:
            reads = ", ".join(map(str, bias.group_reads.tolist()))
            expected = ", ".join(f"{number:.4g}" for number in bias.group_expected)
            groups = f"{bias.group_reads.size} groups of samples, lightest first, are read {reads} times"
            add("weight_bias", f"{groups}, but their weights require {expected}")
        elif not _follows(bias):
            sample = f"sample {bias.sample} is read {count_of(int(bias.reads[bias.sample]), 'time')}"
            expected = f"but its weight requires {bias.expected[bias.sample]:.4g}"
            add("weight_bias", f"{sample}, {expected}; they differ by {bias.deviations:.1f} standard deviations")

    def __str__(self) -> str:
        over = f"{count_of(self.num_ranks, 'rank')}, {count_of(len(self.epochs), 'epoch')}"
        reads = count_of(sum(epoch.num_reads for epoch in self.epochs), "read")
        head = "\n".join([f"{count_of(self.size, 'sample')}, {over}: {reads}", *self._measures()])
        nothing = "every sample is read exactly once per epoch"
        if self.weight_bias is not None:
            nothing = "every sample is read in proportion to its weight"
            if self._may_be_without_replacement and not _follows(self.weight_bias):
                nothing = "reads are not in proportion to the weights; draws without replacement would explain that"
        return self.report(head, nothing)

    def _measures(self) -> list[str]:
        """Return the lines of the report on what the epochs cost, whether or not it is a finding."""
        lines = []
        if self.work:
            tokens = np.sum([work.tokens for work in self.work], axis=0)
            lines.append(f"  tokens per rank: {tokens.min()} to {tokens.max()}, {tokens.sum()} in all")
            costs = [work.imbalance for work in self.work]
            worst = max(float(work.ratios.max(initial=1.0)) for work in self.work)  # 1.0 for an epoch without a step
            lines.append(f"  cost per step: highest over mean {max(costs):.3f}, in the worst step {worst:.3f}")
            lines.append(f"  padding: {percent_words(max(work.padding_share for work in self.work), 1)} of the tokens")
        if self.weight_bias is not None:
            deviations = f"{self.weight_bias.deviations:.1f} standard deviations"
            lines.append(f"  weights: reads differ from their expected number by at most {deviations}")
        return lines


def audit(
    assignments: Assignment | Iterable[Assignment],
    *,
    lengths: ArrayLike | None = None,
    cost: str | CostFunction = "linear",
    weights: ArrayLike | None = None,
) -> Audit:
    """Audit one epoch, or several epochs of the same dataset and world size.

    If the `lengths` of all samples in tokens are given, the audit also counts tokens per rank, the cost of each rank's
    batch at each step, and padding, as `epoch_work` does. If `weights` are given, it compares the numbers of reads
    with those expected from the weights, as draws with replacement have them: of groups of samples of similar weight,
    by a chi-square test, and of each sample.

    If the assignments come from a generator, only one is in memory at a time. Raises ValueError if there is no epoch,
    if the size or the number of ranks changes between epochs, or if `lengths` or `weights` are not one number of at
    least 0 per sample.

    >>> from rankscope.sampling import assign
    >>> print(audit(assign(10, 4) for _ in range(2)))  # set_epoch forgotten
    10 samples, 4 ranks, 2 epochs: 24 reads
      duplicates: 4 reads of a sample already read in its epoch
      overlap: 4 samples, counted per epoch, are read by more than one rank in the same epoch
      repeated order: 2 of 2 epochs read in the same order on every rank, that of epoch 0: was set_epoch forgotten?
    """
    if not isinstance(assignments, Iterable):
        assignments = [assignments]
    epochs: list[EpochAudit] = []
    first_with_order: dict[bytes, int] = {}  # the index of the first epoch with each order, by its fingerprint
    repeated: list[tuple[int, int]] = []
    work: list[EpochWork] = []
    # If there are weights: the number of reads of each sample and the expected one, summed over the epochs. Both become
    # arrays with an entry per sample when the first epoch is added.
    reads: IntArray = np.zeros(1, dtype=np.int64)
    expected: NDArray[np.float64] = np.zeros(1)
    sum_of_squares = 0  # over the draws of all epochs: how often each may have been read, squared
    shape: tuple[int, int] | None = None  # the dataset's size and the number of ranks
    for index, assignment in enumerate(assignments):
        of_type("assignments", assignment, Assignment)
        if shape is None:
            shape = (assignment.size, assignment.num_ranks)
            is_read = np.zeros(assignment.size, dtype=bool)
        elif shape != (assignment.size, assignment.num_ranks):
            raise ValueError(
                f"epochs to audit must share size and ranks: {shape[0]} samples over {shape[1]} ranks, then "
                f"{assignment.size} over {assignment.num_ranks}"
            )
        flat = np.concatenate(assignment.ranks)
        epochs.append(_audit_epoch(assignment, flat, is_read))  # which also marks the samples in `is_read`
        if lengths is not None:
            work.append(epoch_work(assignment, lengths, cost))
        if weights is not None:
            checked_weights = weights_for(assignment, weights)  # which also checks the indices of this epoch
            reads_of_epoch, expected_of_epoch = weighted_reads(assignment, checked_weights)
            reads = reads + reads_of_epoch
            expected = expected + expected_of_epoch
            sum_of_squares += sum_of_squared_repeats(assignment)
        may_be_shuffled = assignment.shuffle is not False  # None if it is not known
        if may_be_shuffled and assignment.size > 1 and flat.size:  # one sample, or none, has only one order
            first = first_with_order.setdefault(_fingerprint(assignment, flat), index)
            if first != index:
                repeated.append((first, index))
    if shape is None:
        raise ValueError("audit needs at least one epoch, got none")
    size, num_ranks = shape
    bias = None
    if weights is not None:
        bias = weight_bias(reads, expected, sum_of_squares / max(int(reads.sum()), 1))
    return Audit(
        size=size,
        num_ranks=num_ranks,
        epochs=tuple(epochs),
        never_seen=np.flatnonzero(~is_read),
        repeated_orders=tuple(repeated),
        work=tuple(work),
        weight_bias=bias,
    )


def _audit_epoch(assignment: Assignment, flat: IntArray, is_read: NDArray[np.bool_]) -> EpochAudit:
    """Audit one epoch, and mark the samples that it reads in `is_read`. `flat` contains the indices of all ranks.

    Ranks must take as many steps as each other, so batches are counted where the sampler makes them, else samples.
    """
    counts_of_ranks = [indices.size for indices in assignment.ranks]
    unit = "samples"
    if assignment.batch_stops is not None:
        counts_of_ranks = [stops.size for stops in assignment.batch_stops]
        unit = "batches"
    size = assignment.size
    inside = flat
    outside = flat[:0]
    if flat.size and (flat.min() < 0 or flat.max() >= size):  # usually not, and then nothing needs to be copied
        valid = (flat >= 0) & (flat < size)
        inside = flat[valid]
        outside = flat[~valid]
    counts = np.bincount(inside, minlength=size)  # the number of reads of each sample
    is_read |= counts > 0
    duplicated = np.flatnonzero(counts > 1)
    strays, stray_counts = np.unique(outside, return_counts=True)
    repeated_strays = strays[stray_counts > 1]
    num_repeats = int((counts[duplicated] - 1).sum() + (stray_counts - 1).sum())
    return EpochAudit(
        epoch=assignment.epoch,
        seed=assignment.seed,
        num_reads=flat.size,
        num_repeats=num_repeats,
        shortest=min(counts_of_ranks),
        longest=max(counts_of_ranks),
        # In ascending order: indices below those of the dataset, those of the dataset, and those above.
        duplicated=np.concatenate(
            [repeated_strays[repeated_strays < 0], duplicated, repeated_strays[repeated_strays >= size]]
        ),
        # Without repeats, no two ranks read the same sample.
        overlap=_read_by_many(assignment) if num_repeats else np.empty(0, dtype=np.int64),
        dropped=np.flatnonzero(counts == 0),
        out_of_range=strays,
        unit=unit,
        drops_incomplete=bool(assignment.drop_last or (assignment.loader and assignment.loader.drop_last)),
    )


def _read_by_many(assignment: Assignment) -> IntArray:
    """Return the indices of the dataset that at least two ranks read."""
    reader = np.full(assignment.size, -1)  # the last rank so far that reads each sample, or -1
    is_shared = np.zeros(assignment.size, dtype=bool)
    for rank, indices in enumerate(assignment.ranks):
        inside = indices[(indices >= 0) & (indices < assignment.size)]
        earlier_reader = reader[inside]
        is_shared[inside[(earlier_reader != -1) & (earlier_reader != rank)]] = True
        reader[inside] = rank
    return np.flatnonzero(is_shared)


def _fingerprint(assignment: Assignment, flat: IntArray) -> bytes:
    """Return bytes that differ if any rank reads in another order; `flat` contains the indices of all ranks."""
    digest = hashlib.blake2b(repr([indices.size for indices in assignment.ranks]).encode(), digest_size=16)
    digest.update(flat.astype(np.int64, copy=False).data)
    return digest.digest()


def _follows(bias: WeightBias) -> bool:
    """Return whether the reads can be draws with replacement by the weights."""
    return bias.p_value >= LEAST_P_VALUE and bias.deviations <= MOST_DEVIATIONS * bias.variance_ratio**0.5


def _is_are(number: int) -> str:
    return "is" if number == 1 else "are"


def _some(indices: IntArray, limit: int = 8) -> str:
    shown = ", ".join(map(str, indices[:limit].tolist()))
    if indices.size <= limit:
        return shown
    return f"{shown}, … ({indices.size} in all)"


def _repetition(audit: Audit) -> str:
    """Return the message about epochs with the same order: which ones, and why."""
    first_index, again_index = audit.repeated_orders[0]
    first = audit.epochs[first_index]
    again = audit.epochs[again_index]
    if (first.seed, first.epoch) == (again.seed, again.epoch):
        return _forgotten(audit, first_index)
    names = f"epochs {first.epoch} and {again.epoch}"
    if first.seed != again.seed:
        names = f"(seed {first.seed}, epoch {first.epoch}) and (seed {again.seed}, epoch {again.epoch})"
    why = _why_repeated(first, again)
    return f"{names}{_more_pairs(len(audit.repeated_orders) - 1)} read in the same order on every rank: {why}"


def _why_repeated(first: EpochAudit, again: EpochAudit) -> str:
    """Return why two epochs have the same order.

    torch shuffles with a generator that is seeded with seed + epoch, of which it uses 32 bits.
    """
    if first.seed is None or again.seed is None:  # the indices were collected from samplers
        return "the sampler ignores the epoch, or few samples have few orders"
    first_sum = first.seed + first.epoch
    again_sum = again.seed + again.epoch
    if first_sum == again_sum:
        return "seed + epoch is the same"
    if first_sum % 2**32 == again_sum % 2**32:
        return "seed + epoch is the same modulo 2**32"
    return "by chance, few samples have few orders"


def _forgotten(audit: Audit, index: int) -> str:
    """Return the message about epochs that had the same seed and number as the one at `index`."""
    epoch = audit.epochs[index]
    num_repeats = 0
    for first_index, again_index in audit.repeated_orders:
        again = audit.epochs[again_index]
        if first_index == index and (again.seed, again.epoch) == (epoch.seed, epoch.epoch):
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
