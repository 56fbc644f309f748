"""`BalancedSampler`: batches that cost nearly the same on all ranks of a step, in an order that stays random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from ...common.checks import whole
from .balancing import Indices, Plan, ascending, divide, plan_equal_batches, plan_token_batches
from .elastic import MOST_RANKS, ElasticSampler, RankReads
from .keyed import keyed_permutation
from .values import CostFunction, checked_lengths, costs_of, digest_of

_PADDING_CHOICE = 4096  # samples at the beginning of the order, of which padding repeats those with a suitable cost
_NO_SAMPLES: Indices = np.empty(0, dtype=np.int64)


class Job(NamedTuple):
    """How a job forms batches of an epoch, from position `begin` of its order on. `window` is a number of steps."""

    begin: Annotated[int, Meta(ge=0)]
    num_replicas: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    batch_size: Annotated[int, Meta(ge=1)]
    window: Annotated[int, Meta(ge=1)]
    drop_last: bool
    max_tokens: int | None = None

    @property
    def samples_per_step(self) -> int:
        return self.num_replicas * self.batch_size


class _Steps(NamedTuple):
    """What is read in some steps, step by step and then by rank, and the number of samples in each batch.

    `counts` has the shape (number of steps, number of ranks).
    """

    samples: Indices
    counts: Indices


class _Window(NamedTuple):
    """The samples of a window in their random order, and their division into batches.

    `first` is the position of the first sample in the epoch's order. Positions of the plan beyond the samples are those
    of `padding`: samples of the epoch that are read a second time.
    """

    first: int
    samples: Indices
    padding: Indices
    plan: Plan

    def steps(self, num_read: int) -> _Steps:
        """Return the steps without the first ones, which read so many samples."""
        num_done = int(np.searchsorted(np.cumsum(self.plan.counts.sum(axis=1)), num_read, side="right"))
        samples = np.concatenate([self.samples, self.padding])
        return _Steps(samples[self.plan.positions[num_read:]], self.plan.counts[num_done:])

    def unread(self, num_read: int) -> Indices:
        """Return the samples that are not among the first ones read, in their random order."""
        is_unread = np.ones(self.samples.size + self.padding.size, dtype=bool)
        is_unread[self.plan.positions[:num_read]] = False
        return self.samples[is_unread[: self.samples.size]]


class BalancedSampler(ElasticSampler):
    """A distributed batch sampler that gives all ranks of a step batches of nearly equal cost.

    Ranks wait for each other in every step, so a step takes as long as its costliest batch. The epoch's random order is
    cut into windows of `window` steps. Within a window, samples are regrouped into batches by their `lengths`, and each
    step gets batches of similar cost. So a sample is read at most one window away from its random place. The last
    window has half to one and a half times as many steps, because few samples are hard to balance.

    Pass it as ``batch_sampler`` to a DataLoader: it yields lists of indices, the same number of lists on every rank.
    Each batch has `batch_size` samples (by default 1), except in the last step. If `max_tokens` is given instead, each
    has at most so many tokens, even if its samples are padded to the longest, and a step has samples of similar length.
    `cost` is "linear" (a sample costs its length), "quadratic", or a function from the array of all lengths to the
    array of all costs.

    Padding repeats samples of suitable cost from the beginning of the order, fewer than there are ranks; `drop_last`
    leaves fewer samples than ranks out instead. Without `num_replicas` and `rank`, those of torch's process group
    apply, or one rank if there is no group.

    A job with other ranks, batch size or window that resumes an epoch cuts the rest of it into windows of its own. The
    state tells which jobs have read the epoch, and how far.

    Raises ValueError if a length is not a whole number of at least 0, if a sample is longer than `max_tokens`, or if
    another value is out of range.

    >>> lengths = [8, 1, 1, 8, 1, 1, 4, 4]
    >>> ranks = [BalancedSampler(lengths, 2, rank, batch_size=2, window=2) for rank in range(2)]
    >>> [[sum(lengths[index] for index in batch) for batch in sampler] for sampler in ranks]
    [[5, 9], [5, 9]]
    """

    is_grouped = True
    makes_batches = True

    def __init__(
        self,
        lengths: ArrayLike,
        num_replicas: int | None = None,
        rank: int | None = None,
        batch_size: int | None = None,
        cost: str | CostFunction = "linear",
        window: int = 100,
        *,
        max_tokens: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.lengths = checked_lengths(lengths)
        self.max_tokens = max_tokens
        if max_tokens is not None:
            if batch_size is not None:
                raise ValueError(f"give batch_size or max_tokens, got {batch_size!r} and {max_tokens!r}")
            self.max_tokens = whole("max_tokens", max_tokens, int(self.lengths.max(initial=1)))
            # Of samples of mean length, so that a window has about `window` steps.
            batch_size = max(self.max_tokens * self.lengths.size // max(int(self.lengths.sum()), 1), 1)
        self.batch_size = whole("batch_size", 1 if batch_size is None else batch_size, 1)
        self.window = whole("window", window, 1)
        self.costs = costs_of(self.lengths, cost)
        self._digests = {"lengths": digest_of(self.lengths), "costs": digest_of(self.costs)}
        super().__init__(self.lengths.size, num_replicas, rank, shuffle, seed, drop_last)

    @property
    def _samples_per_step(self) -> int:
        return self.num_replicas * self.batch_size

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | self._digests

    def _begin_epoch(self) -> None:
        super()._begin_epoch()
        self._step_ends: Indices | None = None  # planned when somebody asks for them
        self._jobs = [self._job(begin=0)]  # that have read the epoch; the last one is this one

    def _job(self, begin: int) -> Job:
        return Job(begin, self.num_replicas, self.batch_size, self.window, self.drop_last, self.max_tokens)

    def _state(self, consumed: int, is_finished: bool = False) -> dict[str, Any]:
        return super()._state(consumed, is_finished) | {"jobs": [list(job) for job in self._jobs]}

    def _take_up(self, state: Mapping[str, Any]) -> None:
        try:
            jobs = msgspec.convert(state["jobs"], list[Job])
        except msgspec.ValidationError as error:
            raise ValueError(f"jobs of the sampler's state are broken: {error}") from error
        begins = [job.begin for job in jobs]
        if begins[:1] != [0] or begins != sorted({*begins}):
            raise ValueError(f"jobs of the sampler's state must begin at 0 and then later and later, got {begins}")
        if self._consumed_before == 0:  # the epoch is read from its beginning
            return
        self._jobs = [job for job in jobs if job.begin < self._consumed_before]  # not those that have read nothing
        if self._jobs[-1] != self._job(self._jobs[-1].begin):
            self._jobs.append(self._job(self._consumed_before))

    # ---- batches of tokens: only their plan says how many samples a step has

    def __len__(self) -> int:
        return super().__len__() if self.max_tokens is None else self._ends().size

    @property
    def padding(self) -> int:
        if self.drop_last or self._consumed_before == self.size:
            return 0
        return (self._jobs[-1].begin - self.size) % self.num_replicas

    def _consumed_after(self, num_items: int) -> int:
        if self.max_tokens is None or num_items in (0, len(self)):
            return super()._consumed_after(num_items)
        return int(self._ends()[num_items - 1])

    def _ends(self) -> Indices:
        """Return the positions in the epoch's order at which the steps end that are left."""
        if self._step_ends is None:
            counts = [step.counts.sum(axis=1) for step in self._steps()]
            self._step_ends = self._consumed_before + np.cumsum(np.concatenate([_NO_SAMPLES, *counts]))
        return self._step_ends

    # ---- items

    def _pieces(self) -> Iterator[Sequence[Any]]:
        for samples, counts in self._steps():
            stops = np.cumsum(counts.ravel()).reshape(counts.shape)[:, self.rank]  # where batches end in `samples`
            starts = stops - counts[:, self.rank]
            yield [samples[start:stop].tolist() for start, stop in zip(starts, stops, strict=True)]

    def all_ranks(self) -> RankReads:
        num_ranks = self.num_replicas
        indices_of_ranks: list[list[Indices]] = [[_NO_SAMPLES] for _ in range(num_ranks)]
        counts_of_parts = [np.empty((0, num_ranks), dtype=np.int64)]
        for samples, counts in self._steps():
            counts_of_parts.append(counts)
            for rank, indices in enumerate(_by_rank(samples, counts)):
                indices_of_ranks[rank].append(indices)
        stops = np.cumsum(np.concatenate(counts_of_parts), axis=0)  # of each batch, by step and rank
        return RankReads(tuple(np.concatenate(arrays) for arrays in indices_of_ranks), tuple(stops.T))

    # ---- steps

    def _steps(self) -> Iterator[_Steps]:
        """Yield the steps of what is left of the epoch, a window at a time."""
        left = _NO_SAMPLES  # of windows that a job has begun: the next job reads them first
        for job, next_job in pairwise(self._jobs):
            window = self._window(job, left, next_job.begin)
            after_window = window.first + window.samples.size - job.begin
            left = np.concatenate([window.unread(next_job.begin - window.first), left[after_window:]])
        position = self._consumed_before
        while position < self.size:
            window = self._window(self._jobs[-1], left, position)
            yield window.steps(num_read=position - window.first)
            position = window.first + window.samples.size

    def _window(self, job: Job, left: Indices, position: int) -> _Window:
        """Return the window of a job that has this position of the epoch's order. The job begins with `left`."""
        per_window = job.window * job.samples_per_step
        num_full = _num_full_windows(self.size - job.begin, per_window)
        number = min((position - job.begin) // per_window, num_full)
        first = job.begin + number * per_window
        stop = self.size if number == num_full else first + per_window
        begin_of_others = job.begin + left.size  # the positions of all samples after `left` are those in random order
        others = self._order(max(first, begin_of_others), max(stop, begin_of_others))
        return self._planned(first, np.concatenate([left[first - job.begin : stop - job.begin], others]), job)

    def _order(self, start: int, stop: int) -> Indices:
        """Return the samples at these positions of the epoch's random order."""
        positions = np.arange(start, stop)
        if not self.shuffle:
            return positions
        return keyed_permutation(self.size, self._key("order"))(positions)

    def _planned(self, first: int, samples: Indices, job: Job) -> _Window:
        """Plan full steps and, if samples remain, a last step of smaller batches with padding.

        With `drop_last`, the last samples are left out instead of padding.
        """
        num_ranks = job.num_replicas
        num_last = samples.size % job.samples_per_step
        num_dropped = 0
        num_padding = -num_last % num_ranks
        if job.drop_last:
            num_dropped = num_last % num_ranks
            num_padding = 0
        if job.max_tokens is not None:
            lengths = self.lengths[samples[: samples.size - num_dropped]]
            padding = np.resize(samples[ascending(lengths.astype(np.float64))[:num_padding]], num_padding)
            plan = plan_token_batches(lengths, num_padding, num_ranks, job.max_tokens)
            return _Window(first, samples, padding, plan)
        num_last -= num_dropped
        costs = self.costs[samples[: samples.size - num_dropped]]
        if num_last == 0:
            return _Window(first, samples, _NO_SAMPLES, plan_equal_batches(costs, num_ranks, job.batch_size))
        last, others = divide(costs, num_last)
        padding = self._padding_samples(num_padding, float(costs[last].mean()))
        last = np.concatenate([last, samples.size + np.arange(num_padding)])  # padding is beyond the samples
        costs_of_last = np.concatenate([costs[last[:num_last]], self.costs[padding]])
        plan = plan_equal_batches(costs[others], num_ranks, job.batch_size)
        last_step = plan_equal_batches(costs_of_last, num_ranks, last.size // num_ranks)
        positions = np.concatenate([others[plan.positions], last[last_step.positions]])
        counts = np.concatenate([plan.counts, last_step.counts])
        return _Window(first, samples, padding, Plan(positions, counts))

    def _padding_samples(self, count: int, cost: float) -> Indices:
        """Return samples for padding: of the beginning of the epoch's order, those whose cost is nearest to `cost`."""
        candidates = self._order(0, min(max(count, _PADDING_CHOICE), self.size))
        nearest = ascending(np.abs(self.costs[candidates] - cost))[:count]
        # Back into the epoch's order, which is random if it is shuffled.
        return np.resize(candidates[np.sort(nearest)], count)  # repeated if the dataset has fewer samples than `count`


def _num_full_windows(num_samples: int, per_window: int) -> int:
    """Return how many windows come before the last one, which has half to one and a half times as many samples.

    If there are fewer samples than in half a window, the last window has all of them.

    >>> [_num_full_windows(num_samples, 100) for num_samples in (0, 149, 150, 249, 250)]
    [0, 0, 1, 1, 2]
    """
    return max((2 * num_samples - per_window) // (2 * per_window), 0)


def _by_rank(samples: Indices, counts: Indices) -> list[Indices]:
    """Return what each rank reads of samples that are sorted by step and then by rank."""
    num_steps, num_ranks = counts.shape
    if counts.size and counts.min() == counts.max():  # without a sort, because all batches are of the same size
        batches = samples.reshape(num_steps, num_ranks, -1)
        return list(batches.transpose(1, 0, 2).reshape(num_ranks, -1))
    # `MOST_RANKS` ranks have numbers of 16 bits, which numpy sorts in linear time.
    rank_of_batch = np.tile(np.arange(num_ranks, dtype=np.uint16), num_steps)
    rank_of_sample = np.repeat(rank_of_batch, np.intp(counts.ravel()))
    by_rank = samples[np.argsort(rank_of_sample, kind="stable")]
    return np.split(by_rank, np.cumsum(counts.sum(axis=0))[:-1])
