"""`audit`: the duplicates, losses, overlaps and repeated orders of an assignment, or of several epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from ...common.checks import of_type
from ...common.units import percent_words
from ...common.words import count_of, is_are
from ..assignment import Assignment
from ..samplers.permutation import IntArray
from ..samplers.values import CostFunction
from ..work.model import EpochWork, epoch_work
from .epoch_audit import EpochAudit, audit_epoch, fingerprint, repetition
from .findings import Finding, Findings, some

MOST_IMBALANCE = 1.05
"""Steps that take this much longer than if all ranks had equal work are a finding."""

MOST_PADDING_SHARE = 0.2
"""A larger share of padding tokens is a finding."""


class Audit(Findings, msgspec.Struct, frozen=True, eq=False):
    """The result of `audit`: ``str()`` is the report, `check` raises; both are made from `findings`.

    `never_seen` are the indices that no rank read in any of the epochs. `repeated_orders` are pairs of indices into
    `epochs`: the first epoch with an order on every rank, and each later one with the same. It is empty if the sampler
    is known not to shuffle. `work` has the tokens, costs and padding of each epoch, if `audit` got lengths.
    """

    KINDS = (
        "wrong_length",
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
    )
    size: int
    num_ranks: int
    epochs: tuple[EpochAudit, ...]
    never_seen: IntArray
    repeated_orders: tuple[tuple[int, int], ...]
    work: tuple[EpochWork, ...] = ()

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

    def _found(self) -> Iterator[Finding]:
        """Yield each way in which the epochs are not exact, balanced partitions, each in a new order."""
        wrong = [words for epoch in self.epochs for words in epoch.wrong_lengths]
        if wrong:
            yield Finding("wrong_length", f"len() is wrong: {some(wrong)}")
        strays = np.unique(np.concatenate([epoch.out_of_range for epoch in self.epochs]))
        if strays.size:
            yield Finding("out_of_range", f"indices that a dataset of {self.size} does not have: {some(strays)}")
        yield from self._found_empty()
        yield from self._found_repeats()
        yield from self._found_losses()
        uneven = max(self.epochs, key=lambda epoch: epoch.longest - epoch.shortest)
        if uneven.longest > uneven.shortest and not self.work:  # with `work`, batches are compared instead
            counts = f"from {uneven.shortest} to {uneven.longest} {uneven.unit} in epoch {uneven.epoch}"
            yield Finding("unbalanced", f"ranks read {counts}")
        if self.repeated_orders:
            yield Finding("repeated_order", repetition(self.epochs, self.repeated_orders))
        if self.work:
            yield from self._found_in_work()

    def _found_empty(self) -> Iterator[Finding]:
        """Find epochs in which nothing is read, although the dataset has samples."""
        empty_epochs = [epoch for epoch in self.epochs if epoch.num_reads == 0]
        if not empty_epochs or self.size == 0:
            return
        epochs = f"{len(empty_epochs)} of {count_of(len(self.epochs), 'epoch')}"
        if not all(epoch.drops_incomplete for epoch in empty_epochs):
            # A sampler of the user's own, for example: why it returned nothing is not known.
            yield Finding("nothing_read", f"in {epochs} no rank reads any of {count_of(self.size, 'sample')}")
            return
        samples = f"{count_of(self.size, 'sample')} on {count_of(self.num_ranks, 'rank')}"
        why = f"{samples} cannot fill every rank's share or batch, and incomplete ones are dropped"
        yield Finding("nothing_read", f"in {epochs} no rank reads any sample, because {why}")

    def _found_repeats(self) -> Iterator[Finding]:
        if self.duplicates:
            yield Finding("duplicates", f"{count_of(self.duplicates, 'read')} of a sample already read in its epoch")
        if self.overlap:
            counted = ", counted per epoch," if len(self.epochs) > 1 else ""
            samples = f"{count_of(self.overlap, 'sample')}{counted}"
            problem = f"{samples} {is_are(self.overlap)} read by more than one rank in the same epoch"
            hints = [epoch.own_orders for epoch in self.epochs if epoch.own_orders]
            yield Finding("overlap", problem + "".join(hints[:1]))

    def _found_losses(self) -> Iterator[Finding]:
        if self.dropped and len(self.epochs) > 1:
            yield Finding("dropped", f"{count_of(self.dropped, 'read')} {is_are(self.dropped)} missing")
        elif self.dropped:
            samples = f"{count_of(self.dropped, 'sample')} {is_are(self.dropped)}"
            yield Finding("dropped", f"{samples} left out of the epoch")
        if self.never_seen.size and len(self.epochs) > 1:  # of a single epoch, "dropped" says the same
            samples = f"{count_of(self.never_seen.size, 'sample')} {is_are(self.never_seen.size)}"
            yield Finding("never_seen", f"{samples} not read in any epoch: {some(self.never_seen)}")

    def _found_in_work(self) -> Iterator[Finding]:
        """Find what makes ranks wait or compute in vain."""
        # A rank with fewer batches has none in the last step, and so a cost of 0 there. An epoch may have no step.
        if any((work.step_costs[-1:] == 0).any() for work in self.work):
            yield Finding("unbalanced", "some ranks have fewer batches than others, or batches that cost nothing")
        imbalance = max(work.imbalance for work in self.work)
        if imbalance > MOST_IMBALANCE:
            times = f"the costliest batch of a step costs {imbalance:.2f} times the mean"
            busy_share = 1 / imbalance  # of a mean batch, in the time of the costliest one
            yield Finding("unequal_cost", f"{times}, so ranks wait for {percent_words(1 - busy_share)} of the time")
        padding_share = max(work.padding_share for work in self.work)
        if padding_share > MOST_PADDING_SHARE:
            yield Finding("padding_waste", f"{percent_words(padding_share)} of the processed tokens are padding")

    def __str__(self) -> str:
        over = f"{count_of(self.num_ranks, 'rank')}, {count_of(len(self.epochs), 'epoch')}"
        reads = count_of(sum(epoch.num_reads for epoch in self.epochs), "read")
        lines = [f"{count_of(self.size, 'sample')}, {over}: {reads}"]
        if self.work:
            tokens = np.sum([work.tokens for work in self.work], axis=0)
            lines.append(f"  tokens per rank: {tokens.min()} to {tokens.max()}, {tokens.sum()} in all")
            imbalance = max(work.imbalance for work in self.work)
            worst = max(float(work.ratios.max(initial=1.0)) for work in self.work)  # 1.0 for an epoch without a step
            lines.append(f"  cost per step: highest over mean {imbalance:.3f}, in the worst step {worst:.3f}")
            padding = percent_words(max(work.padding_share for work in self.work), 1)
            lines.append(f"  padding: {padding} of the tokens")
        return self.report("\n".join(lines), "every sample is read exactly once per epoch")

    __repr__ = __str__  # for a notebook, which shows the last value of a cell


def audit(
    assignments: Assignment | Iterable[Assignment],
    *,
    lengths: ArrayLike | None = None,
    cost: str | CostFunction = "linear",
) -> Audit:
    """Audit one epoch, or several epochs of the same dataset and world size.

    If the `lengths` of all samples in tokens are given, the audit also counts tokens per rank, the cost of each rank's
    batch at each step, and padding, as `epoch_work` does.

    If the assignments come from a generator, only one is in memory at a time. Raises ValueError if there is no epoch,
    if the size or the number of ranks changes between epochs, or if `lengths` are not one number of at least 0 per
    sample.

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
    shape: tuple[int, int] | None = None  # the dataset's size and the number of ranks
    for index, assignment in enumerate(assignments):
        of_type("assignments", assignment, Assignment, "Assignment.collect(samplers, size)")
        if shape is None:
            shape = (assignment.size, assignment.num_ranks)
            is_read = np.zeros(assignment.size, dtype=bool)
        elif shape != (assignment.size, assignment.num_ranks):
            other = f"{assignment.size} over {assignment.num_ranks}"
            raise ValueError(
                f"epochs must share size and ranks: {shape[0]} samples over {shape[1]} ranks, then {other}"
            )
        flat = np.concatenate(assignment.ranks)
        epochs.append(audit_epoch(assignment, flat, is_read))  # which also marks the samples in `is_read`
        if lengths is not None:
            work.append(epoch_work(assignment, lengths, cost))
        may_be_shuffled = assignment.shuffle is not False  # None if it is not known
        if may_be_shuffled and assignment.size > 1 and flat.size:  # one sample, or none, has only one order
            first = first_with_order.setdefault(fingerprint(assignment, flat), index)
            if first != index:
                repeated.append((first, index))
    if shape is None:
        raise ValueError("audit needs at least one epoch, got none")
    return Audit(
        size=shape[0],
        num_ranks=shape[1],
        epochs=tuple(epochs),
        never_seen=np.flatnonzero(~is_read),
        repeated_orders=tuple(repeated),
        work=tuple(work),
    )
