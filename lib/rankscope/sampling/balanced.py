"""`BalancedSampler`: batches that cost nearly the same on all ranks of a step, in an order that stays random."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import of_type, truth, whole
from .balancing import WindowPlan, ascending, plan_equal_batches
from .elastic import MOST_RANKS, ElasticSampler, Progress, RankReads
from .keyed import KeyedPermutation
from .sample_values import MOST_WINDOW, CostFunction, checked_lengths, costs_of, digest_of

_MOST_SEGMENTS = 10_000  # of a state: restarts in the middle of one window
_PADDING_CHOICE = 4096  # samples at the beginning of the order, of which padding repeats those with a suitable cost


class _Grouping(NamedTuple):
    """How a job forms batches: what may change when an epoch is resumed."""

    num_replicas: int
    batch_size: int
    window: int
    drop_last: bool


class _Segment(NamedTuple):
    """A part of an epoch that was read with one grouping, and stopped in the middle of a window.

    Before the window, `num_samples` of the samples that were left had been read; of the window, `num_steps` steps.
    """

    grouping: _Grouping
    num_samples: int
    num_steps: int


class _WindowEnd(NamedTuple):
    """The numbers of samples, since the origin, and of steps, since the start, up to the end of a window."""

    num_samples: int
    num_steps: int


class _Remaining(msgspec.Struct):
    """The samples of an epoch that are still to read: `head`, then the epoch's order beginning at `position`.

    `head` are samples of the windows in which earlier jobs stopped.
    """

    head: NDArray[np.int64]
    position: int


class _PlannedWindow(NamedTuple):
    """The samples of a window in the order of what is left, and their division into batches.

    Positions of the plan beyond the samples are those of `padding`: samples of the epoch that are read a second time.
    """

    samples: NDArray[np.int64]
    plan: WindowPlan
    padding: NDArray[np.int64]

    @property
    def size(self) -> int:
        return self.samples.size

    @property
    def num_steps(self) -> int:
        return int(self.plan.counts.shape[0])


class _Origin(NamedTuple):
    """What was left where the present grouping began, and how much of that it has read since then.

    Whole windows with `num_samples` samples have been read, and `num_steps` steps of the window after them.
    """

    remaining: _Remaining
    segments: list[dict[str, Any]]
    num_samples: int
    num_steps: int


class BalancedSampler(ElasticSampler):
    """A distributed batch sampler that gives all ranks of a step batches of nearly equal cost.

    Ranks wait for each other in every step, so a step takes as long as its costliest batch. The epoch's random order is
    cut into windows of `window` steps. Within a window, samples are regrouped into batches by their `lengths`, and each
    step gets batches of similar cost. So a sample is read at most one window away from its random place. The last
    window has half to one and a half times as many steps, because few samples are hard to balance.

    Pass it as ``batch_sampler`` to a DataLoader: it yields lists of indices, the same number of lists on every rank.
    Each batch has `batch_size` samples, except in the last step. `cost` is "linear" (a sample costs its length),
    "quadratic", or a function from the array of all lengths to the array of all costs.

    Padding repeats samples of suitable cost from the beginning of the order, fewer than there are ranks; `drop_last`
    leaves fewer samples than ranks out instead. Without `num_replicas` and `rank`, those of torch's process group
    apply, or one rank if there is no group.

    `state_dict` is a position in the order of all ranks: the epoch continues on other numbers of ranks, with other
    batch sizes and windows. Without such a change, the batches are those of an epoch that was never stopped.

    Raises ValueError if a length is not a whole number of at least 0, or another value is out of range.

    >>> lengths = [8, 1, 1, 8, 1, 1, 4, 4]
    >>> ranks = [BalancedSampler(lengths, 2, rank, batch_size=2, window=2) for rank in range(2)]
    >>> [[sum(lengths[index] for index in batch) for batch in sampler] for sampler in ranks]
    [[5, 9], [5, 9]]
    """

    _TITLE = "BalancedSampler"
    _RECIPE: ClassVar = {
        "size": "size",
        "seed": "seed",
        "shuffle": "shuffle",
        "lengths": "_digest",
        "costs": "_cost_digest",
    }
    is_grouped = True
    makes_batches = True

    def __init__(
        self,
        lengths: ArrayLike,
        num_replicas: int | None = None,
        rank: int | None = None,
        batch_size: int = 1,
        cost: str | CostFunction = "linear",
        window: int = 100,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(num_replicas, rank, shuffle, seed, drop_last)
        self.batch_size = whole("batch_size", batch_size, 1)
        self.window = whole("window", window, 1, MOST_WINDOW)
        self.lengths = checked_lengths(lengths)
        self.costs = costs_of(self.lengths, cost)
        self.size = self.lengths.size
        self._digest = digest_of(self.lengths)
        self._cost_digest = digest_of(self.costs)
        self._permutation: KeyedPermutation | None = None  # of the epoch that was read last
        self._start_from(self._first_progress())

    @property
    def padding(self) -> int:
        """The number of samples at the end of the epoch that all ranks together read a second time."""
        reads = self.all_ranks()
        num_reads = sum(indices.size for indices in reads.indices)
        num_left = self._num_left(self._remaining(self._start))
        return max(num_reads - num_left, 0)  # fewer reads than samples are left if `drop_last` drops some

    def all_ranks(self) -> RankReads:
        num_ranks = self.num_replicas
        indices_of_ranks: list[list[NDArray[np.int64]]] = [[] for _ in range(num_ranks)]
        counts_of_windows = [np.empty((0, num_ranks), dtype=np.int64)]  # of no steps: there may be no window
        for samples, counts in self._windows(self._start):
            counts_of_windows.append(counts)
            for rank, indices in enumerate(_by_rank(samples, counts)):
                indices_of_ranks[rank].append(indices)
        stops = np.cumsum(np.concatenate(counts_of_windows), axis=0)  # of each batch, by step and rank
        return RankReads(
            tuple(np.concatenate([_NO_SAMPLES, *arrays]) for arrays in indices_of_ranks),
            tuple(stops[:, rank] for rank in range(num_ranks)),
        )

    def recipe(self) -> dict[str, Any]:
        return super().recipe() | self._grouping()._asdict()

    def _grouping(self) -> _Grouping:
        return _Grouping(self.num_replicas, self.batch_size, self.window, self.drop_last)

    # ---- positions
    #
    # A progress has a `position` and a list of `segments`. Up to the position, the epoch's order has been read in whole
    # windows. A segment describes what was read after it by a job that stopped in the middle of a window: its grouping,
    # the samples of its whole windows, and the steps of the last window. What a segment has left over of its last
    # window is read before the rest of the order, so it is the `head` of what remains. A job that is resumed with the
    # same grouping continues the last segment; its windows then begin at the origin, which precedes its start.

    def _first_progress(self) -> Progress:
        return {"position": 0, "segments": []}

    def _end_progress(self) -> Progress:
        return {"position": self.size, "segments": []}

    def _nothing_left(self, progress: Progress) -> bool:
        num_left = self._num_left(self._remaining(progress))
        return num_left == 0 or (self.drop_last and num_left < self.num_replicas)

    def _checked_progress(self, progress: Progress) -> Progress:
        position = whole("position", progress.get("position"), 0, self.size)
        stored = of_type("segments", progress.get("segments"), list)
        whole("the number of segments", len(stored), 0, _MOST_SEGMENTS)
        remaining = _Remaining(np.empty(0, dtype=np.int64), position)
        checked = []
        for fields in stored:  # the limits of each segment follow from what those before it left
            segment = self._checked_segment(of_type("a segment", fields, dict))
            whole("num_samples", segment.num_samples, 0, self._num_left(remaining))
            window = self._window(remaining, segment.num_samples, segment.grouping)
            whole("num_steps", segment.num_steps, 0, window.num_steps)
            remaining = _after_segment(remaining, segment, window)
            checked.append(_stored(segment))
        return {"position": position, "segments": checked}

    def _checked_segment(self, fields: dict[str, Any]) -> _Segment:
        """Return a segment of a loaded state. Raises ValueError if it lacks a field or one is out of range.

        How many samples and steps it can have at most depends on the segments before it, so the caller checks that.
        """
        expected = (*_Grouping._fields, "num_samples", "num_steps")
        missing = [name for name in expected if name not in fields]
        if missing:
            raise ValueError(f"a segment of the sampler's state lacks {', '.join(missing)}")
        grouping = _Grouping(
            num_replicas=whole("num_replicas", fields["num_replicas"], 1, MOST_RANKS),
            batch_size=whole("batch_size", fields["batch_size"], 1),
            window=whole("window", fields["window"], 1, MOST_WINDOW),
            drop_last=truth("drop_last", fields["drop_last"]),
        )
        num_samples = whole("num_samples", fields["num_samples"], 0)
        num_steps = whole("num_steps", fields["num_steps"], 0)
        return _Segment(grouping, num_samples, num_steps)

    def _progress_after(self, start: Progress, num_items: int) -> Progress:
        """Return the progress after `num_items` steps. Whole windows of the epoch's order need no segment."""
        if num_items == 0:  # also if only samples that `drop_last` drops are left: more or fewer ranks can read them
            return start
        origin = self._origin(start)
        last_end = self._end_before(start, num_items)
        if last_end.num_samples == self._num_left(origin.remaining):
            return self._end_progress()
        steps_in_window = num_items - last_end.num_steps
        num_samples = last_end.num_samples
        head_size = origin.remaining.head.size
        if num_samples >= head_size:
            # What earlier segments had left over has been read, so a position in the order replaces them.
            position = origin.remaining.position + num_samples - head_size
            segments = []
            num_samples = 0
        else:  # a part of the head is left, which can only be computed from the earlier segments
            position = start["position"]
            segments = list(origin.segments)
        if steps_in_window or num_samples:
            segments.append(_stored(_Segment(self._grouping(), num_samples, steps_in_window)))
        return {"position": position, "segments": segments}

    def _origin(self, start: Progress) -> _Origin:
        """Return where the present grouping began: a job that is resumed without a change continues its windows."""
        segments = start["segments"]
        if segments:
            last = _segment(segments[-1])
            if last.grouping == self._grouping():  # it is continued, so it is no earlier segment
                earlier = {"position": start["position"], "segments": segments[:-1]}
                return _Origin(self._remaining(earlier), segments[:-1], last.num_samples, last.num_steps)
        return _Origin(self._remaining(start), segments, num_samples=0, num_steps=0)

    def _num_left(self, remaining: _Remaining) -> int:
        """Return the number of samples that are still to read."""
        return remaining.head.size + self.size - remaining.position

    def _num_items(self, start: Progress) -> int:
        origin = self._origin(start)
        num_steps_of_all = _num_equal_steps(self._num_left(origin.remaining), self._grouping())
        # The windows before the present one are full: their samples are those of full steps.
        num_steps_of_windows = origin.num_samples // (self.num_replicas * self.batch_size)
        return num_steps_of_all - num_steps_of_windows - origin.num_steps

    def _end_before(self, start: Progress, num_items: int) -> _WindowEnd:
        """Return the last end of a window within `num_items` steps from `start`, or where the present window began.

        The samples of the end are counted from the origin, and its steps from `start`. So the window in which `start`
        lies began at a negative number of steps.
        """
        origin = self._origin(start)
        last_end = _WindowEnd(origin.num_samples, -origin.num_steps)
        # Full windows have equally many samples and steps, so the end is computed without planning any window. The last
        # window, which is longer or shorter, ends with the epoch.
        num_left = self._num_left(origin.remaining)
        if num_items == self._num_items(start):
            return _WindowEnd(num_left, num_items)
        per_window = self.num_replicas * self.batch_size * self.window  # samples
        num_windows_before = origin.num_samples // per_window  # before `start`, and all of them full
        num_full_left = _num_full_windows(num_left, per_window) - num_windows_before
        # More steps than those of full windows are in a last window that has more than `window`.
        num_windows = min((num_items - last_end.num_steps) // self.window, num_full_left)
        return _WindowEnd(
            last_end.num_samples + num_windows * per_window, last_end.num_steps + num_windows * self.window
        )

    # ---- windows

    def _pieces(self, start: Progress) -> Iterator[list[Any]]:
        for samples, counts in self._windows(start):
            stops = np.cumsum(counts.ravel()).reshape(counts.shape)  # where each batch ends in `samples`
            batches = []
            for step in range(counts.shape[0]):
                stop = int(stops[step, self.rank])
                first = stop - int(counts[step, self.rank])
                batches.append(samples[first:stop].tolist())
            yield batches

    def _windows(self, start: Progress) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the samples of each window, by step and then by rank, and the number of samples in each batch.

        The second array has the shape (num_steps, num_ranks).
        """
        origin = self._origin(start)
        num_left = self._num_left(origin.remaining)
        num_steps_read = origin.num_steps  # of the first window, before `start`
        num_samples = origin.num_samples  # before the window
        while num_samples < num_left:
            window = self._window(origin.remaining, num_samples, self._grouping())
            num_samples += window.size
            counts = window.plan.counts
            samples = np.concatenate([window.samples, window.padding])
            num_samples_read = int(counts[:num_steps_read].sum())
            yield samples[window.plan.positions[num_samples_read:]], counts[num_steps_read:]
            num_steps_read = 0  # all later windows are read from their beginning

    def _padding_samples(self, count: int, cost: float) -> NDArray[np.int64]:
        """Return samples for padding: of the beginning of the epoch's order, those whose cost is nearest to `cost`."""
        num_candidates = min(max(count, _PADDING_CHOICE), self.size)
        candidates = self._order(np.arange(num_candidates))
        nearest = ascending(np.abs(self.costs[candidates] - cost))[:count]
        nearest.sort()  # back into the epoch's order, which is random if it is shuffled
        return np.resize(candidates[nearest], count)  # repeated if the dataset has fewer samples than `count`

    def _remaining(self, start: Progress) -> _Remaining:
        """Return what is left to read after the segments of a progress."""
        remaining = _Remaining(np.empty(0, dtype=np.int64), start["position"])
        for fields in start["segments"]:
            segment = _segment(fields)
            window = self._window(remaining, segment.num_samples, segment.grouping)
            remaining = _after_segment(remaining, segment, window)
        return remaining

    def _samples(self, remaining: _Remaining, start: int, count: int) -> NDArray[np.int64]:
        """Return `count` of the samples that are left, beginning with number `start`."""
        from_head = remaining.head[start : start + count]
        first = remaining.position + max(start - remaining.head.size, 0)  # position in the epoch's order
        from_order = self._order(np.arange(first, first + count - from_head.size))
        return np.concatenate([from_head, from_order])

    def _order(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at these positions of the epoch's order, whose permutation is made once per epoch."""
        if not self.shuffle:
            return positions
        key = self._key("order")
        if self._permutation is None or self._permutation.key != key:
            self._permutation = KeyedPermutation(self.size, key)
        return self._permutation(positions)

    def _window(self, remaining: _Remaining, start: int, grouping: _Grouping) -> _PlannedWindow:
        """Plan the window that begins with number `start` of what is left.

        It has full batches and, if samples remain, a last step of smaller ones.
        """
        batch_size = grouping.batch_size
        num_left = self._num_left(remaining) - start
        size = grouping.window * grouping.num_replicas * batch_size
        if _num_full_windows(num_left, size) == 0:  # this is the last window
            size = num_left
        samples = self._samples(remaining, start, size)
        num_ranks = grouping.num_replicas
        rest = samples.size % (num_ranks * batch_size)
        last_batch_size = -(-rest // num_ranks)  # rounded up
        if grouping.drop_last:
            last_batch_size = rest // num_ranks
        num_last = min(rest, last_batch_size * num_ranks)  # samples of the last step, without padding
        num_read = samples.size - rest + num_last  # what is dropped is the end of the random order
        costs = self.costs[samples[:num_read]]
        if last_batch_size == 0:
            return _PlannedWindow(samples, plan_equal_batches(costs, num_ranks, batch_size), _NO_SAMPLES)
        last, others = _middle(costs, num_last)
        plan = plan_equal_batches(costs[others], num_ranks, batch_size)
        padding = self._padding_samples(last_batch_size * num_ranks - num_last, float(costs[last].mean()))
        last_costs = np.concatenate([costs[last], self.costs[padding]])
        last = np.concatenate([last, samples.size + np.arange(padding.size)])  # padding is beyond the samples
        last_step = plan_equal_batches(last_costs, num_ranks, last_batch_size)
        return _PlannedWindow(samples, _joined(plan, others, last_step, last), padding)


_NO_SAMPLES: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class _Division(NamedTuple):
    """Two parts of a window, as positions in it."""

    last: NDArray[np.int64]
    others: NDArray[np.int64]


def _middle(costs: NDArray[np.float64], count: int) -> _Division:
    """Choose the samples of medium cost for the last step: few samples per rank balance best if they cost the same."""
    by_cost = ascending(costs)
    first = (by_cost.size - count) // 2
    others = np.sort(np.concatenate([by_cost[:first], by_cost[first + count :]]))
    return _Division(by_cost[first : first + count], others)


def _joined(plan: WindowPlan, others: NDArray[np.int64], last_step: WindowPlan, last: NDArray[np.int64]) -> WindowPlan:
    """Return one plan of both, whose positions are those in the window.

    The positions of `plan` are indices into `others`, and those of `last_step` are indices into `last`.
    """
    return WindowPlan(
        positions=np.concatenate([others[plan.positions], last[last_step.positions]]),
        counts=np.concatenate([plan.counts, last_step.counts]),
    )


def _after_segment(remaining: _Remaining, segment: _Segment, window: _PlannedWindow) -> _Remaining:
    """Return what is left to read after a segment, which stopped in this window."""
    num_read = int(window.plan.counts[: segment.num_steps].sum())
    positions_read = window.plan.positions[:num_read]
    is_left = np.ones(window.size, dtype=bool)
    is_left[positions_read[positions_read < window.size]] = False  # positions beyond the window are padding
    num_passed = segment.num_samples + window.size  # samples up to the end of the window
    num_from_order = max(num_passed - remaining.head.size, 0)
    head = np.concatenate([window.samples[is_left], remaining.head[num_passed:]])
    return _Remaining(head, remaining.position + num_from_order)


def _num_full_windows(num_left: int, per_window: int) -> int:
    """Return how many windows come before the last one, which has half to one and a half times as many samples.

    If fewer samples are left than half a window, the last window has all of them.

    >>> [_num_full_windows(num_left, 100) for num_left in (0, 149, 150, 249, 250)]
    [0, 0, 1, 1, 2]
    """
    return max((2 * num_left - per_window) // (2 * per_window), 0)


def _num_equal_steps(num_left: int, grouping: _Grouping) -> int:
    """Return the number of steps of batches of equally many samples."""
    num_steps, rest = divmod(num_left, grouping.num_replicas * grouping.batch_size)
    # The last step needs a sample for each rank. Without `drop_last`, padding adds those that are missing.
    if rest and (not grouping.drop_last or rest >= grouping.num_replicas):
        num_steps += 1
    return num_steps


def _by_rank(samples: NDArray[np.int64], counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return what each rank reads of a window's samples, which are sorted by step and then by rank."""
    num_steps, num_ranks = counts.shape
    if counts.size and counts.min() == counts.max():  # without a sort, because all batches are of the same size
        batches = samples.reshape(num_steps, num_ranks, -1)
        return list(batches.transpose(1, 0, 2).reshape(num_ranks, -1))
    # `MOST_RANKS` ranks have numbers of 16 bits, which numpy sorts in linear time.
    rank_of_batch = np.tile(np.arange(num_ranks, dtype=np.uint16), num_steps)
    rank_of_sample = np.repeat(rank_of_batch, counts.ravel())
    by_rank = samples[np.argsort(rank_of_sample, kind="stable")]
    return np.split(by_rank, np.cumsum(counts.sum(axis=0))[:-1])


def _stored(segment: _Segment) -> dict[str, Any]:
    return {**segment.grouping._asdict(), "num_samples": segment.num_samples, "num_steps": segment.num_steps}


def _segment(fields: dict[str, Any]) -> _Segment:
    grouping = _Grouping(*[fields[name] for name in _Grouping._fields])
    return _Segment(grouping, fields["num_samples"], fields["num_steps"])
