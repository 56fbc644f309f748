"""`BalancedSampler`: batches that cost nearly the same on all ranks of a step, in an order that stays random."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import of_type, truth, whole
from ..common.frozen import ReadOnly
from .balancing import WindowPlan, ascending, plan_equal_batches, plan_token_batches
from .elastic import MOST_RANKS, ElasticSampler, Progress, RankReads
from .keyed import KeyedPermutation
from .sample_values import MOST_TOKENS, MOST_WINDOW, CostFunction, checked_lengths, costs_of, digest_of

_MOST_SEGMENTS = 10_000  # of a state: restarts in the middle of one window
_TOKEN_FILL = 0.98  # share of the tokens of a window's batches that its samples may have, so that they fit in
_EASY_FILL = 0.99  # samples that fill batches beyond this hardly ever fit, and the attempt takes as long as the plan
_MANY_STEPS = 20  # of which one more is cheaper than the attempt
_PADDING_CHOICE = 4096  # samples at the beginning of the order, of which padding repeats those with a suitable cost


class _Grouping(NamedTuple):
    """How a job forms batches: what may change when an epoch is resumed."""

    num_replicas: int
    batch_size: int | None
    max_tokens: int | None
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


@attrs.define
class _Remaining:
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


@attrs.define
class _PlannedEnds:
    """The ends of the windows that begin at a start, as far as they have been planned.

    `start` is the epoch and the text of the progress; -1 is no epoch.
    """

    start: tuple[int, str]
    ends: list[_WindowEnd]


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
    If `batch_size` is given, each batch has this number of samples, except in the last step. If `max_tokens` is given
    instead, the lengths in a batch add up to at most `max_tokens`. `cost` is "linear" (a sample costs its length),
    "quadratic", or a function from the array of all lengths to the array of all costs.

    Padding repeats samples of suitable cost from the beginning of the order, fewer than there are ranks; `drop_last`
    leaves fewer samples than ranks out instead. Without `num_replicas` and `rank`, those of torch's process group
    apply, or one rank if there is no group.

    `state_dict` is a position in the order of all ranks: the epoch continues on other numbers of ranks, with other
    batch sizes and windows. Without such a change, the batches are those of an epoch that was never stopped.

    Raises ValueError unless exactly one of `batch_size` and `max_tokens` is given, or if a length is not a whole number
    from 0 to `max_tokens`.

    >>> lengths = [8, 1, 1, 8, 1, 1, 4, 4]
    >>> ranks = [BalancedSampler(lengths, 2, rank, batch_size=2, window=2) for rank in range(2)]
    >>> [[sum(lengths[index] for index in batch) for batch in sampler] for sampler in ranks]
    [[5, 9], [5, 9]]
    """

    _TITLE = "BalancedSampler"
    _RECIPE = ReadOnly(size="size", seed="seed", shuffle="shuffle", lengths="_digest", costs="_cost_digest")
    is_grouped = True
    makes_batches = True

    def __init__(
        self,
        lengths: ArrayLike,
        num_replicas: int | None = None,
        rank: int | None = None,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        cost: str | CostFunction = "linear",
        window: int = 100,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(num_replicas, rank, shuffle, seed, drop_last)
        if (batch_size is None) == (max_tokens is None):
            raise ValueError(f"give either batch_size or max_tokens, got {batch_size!r} and {max_tokens!r}")
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1)
        if max_tokens is not None:
            max_tokens = whole("max_tokens", max_tokens, 1, MOST_TOKENS)
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.window = whole("window", window, 1, MOST_WINDOW)
        self.lengths = checked_lengths(lengths, max_tokens)
        self.costs = costs_of(self.lengths, cost)
        self.size = self.lengths.size
        self._digest = digest_of(self.lengths)
        self._cost_digest = digest_of(self.costs)
        self._permutation: KeyedPermutation | None = None  # of the epoch that was read last
        self._planned_ends = _PlannedEnds((-1, ""), [])
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
        return _Grouping(self.num_replicas, self.batch_size, self.max_tokens, self.window, self.drop_last)

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
        batch_size = fields["batch_size"]
        max_tokens = fields["max_tokens"]
        if (batch_size is None) == (max_tokens is None):
            raise ValueError(f"a segment must have either batch_size or max_tokens, got {batch_size!r}, {max_tokens!r}")
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, 1)
        if max_tokens is not None:
            longest = int(self.lengths.max(initial=1))  # which must fit in a batch
            max_tokens = whole("max_tokens", max_tokens, longest, MOST_TOKENS)
        grouping = _Grouping(
            num_replicas=whole("num_replicas", fields["num_replicas"], 1, MOST_RANKS),
            batch_size=batch_size,
            max_tokens=max_tokens,
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
        if self.batch_size is None:
            num_steps = 0  # if nothing is left
            for end in self._ends(start):
                num_steps = end.num_steps  # the last end is that of the epoch
            return num_steps
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
        if self.batch_size is None:
            for end in self._ends(start):
                if num_items < end.num_steps:
                    break
                last_end = end
            return last_end
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

    def _ends(self, start: Progress) -> Iterator[_WindowEnd]:
        """Yield the end of each window: samples since the origin, and steps since `start`.

        Windows of token batches have different numbers of steps, so they must be planned. The ends are stored as far as
        somebody has asked for them or has read the windows.
        """
        origin = self._origin(start)
        num_left = self._num_left(origin.remaining)
        ends = self._ends_since(start)
        end = _WindowEnd(origin.num_samples, -origin.num_steps)  # where the first window begins
        window_number = 0
        while end.num_samples < num_left:
            if window_number == len(ends):  # the window has not been planned yet
                window = self._window(origin.remaining, end.num_samples, self._grouping())
                ends.append(_WindowEnd(end.num_samples + window.size, end.num_steps + window.num_steps))
            end = ends[window_number]
            yield end
            window_number += 1

    def _ends_since(self, start: Progress) -> list[_WindowEnd]:
        """Return the list of the ends that are known already, to which more can be added."""
        key = (self.epoch, repr(start))
        if self._planned_ends.start != key:
            self._planned_ends = _PlannedEnds(key, [])
        return self._planned_ends.ends

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
        ends = self._ends_since(start)
        num_steps_read = origin.num_steps  # of the first window, before `start`
        end = _WindowEnd(origin.num_samples, -num_steps_read)  # where the first window begins
        window_number = 0
        while end.num_samples < num_left:
            window = self._window(origin.remaining, end.num_samples, self._grouping())
            end = _WindowEnd(end.num_samples + window.size, end.num_steps + window.num_steps)
            if window_number == len(ends):  # so that `_ends` need not plan this window again
                ends.append(end)
            window_number += 1
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

    def _window_samples(self, remaining: _Remaining, start: int, grouping: _Grouping) -> NDArray[np.int64]:
        """Return the samples of the window that begins with number `start` of what is left."""
        num_left = self._num_left(remaining) - start
        num_batches = grouping.window * grouping.num_replicas
        if grouping.batch_size is not None:
            size = num_batches * grouping.batch_size
            if _num_full_windows(num_left, size) == 0:  # this is the last window
                size = num_left
            return self._samples(remaining, start, size)
        assert grouping.max_tokens is not None
        if num_left == 0:  # as a loaded state can say; a sampler itself stores the end of the epoch without a segment
            return _NO_SAMPLES
        window_tokens = int(num_batches * grouping.max_tokens * _TOKEN_FILL)
        most_of_last = window_tokens + window_tokens // 2  # tokens of the last window, which may be half as long again
        mean_length = max(float(self.lengths.mean()), 1.0)  # 0 if no sample has any token
        # Look at more samples until they have too many tokens for a last window, or until none are left. Begin with as
        # many as have that many tokens on average, and one more for each batch.
        num_looked_at = int(min(num_left, most_of_last / mean_length + num_batches))
        while True:
            samples = self._samples(remaining, start, num_looked_at)
            tokens = np.cumsum(self.lengths[samples])
            if num_looked_at == num_left or tokens[-1] > most_of_last:
                break
            num_looked_at = min(num_left, 2 * num_looked_at)
        if tokens[-1] <= most_of_last:  # this is the last window
            return samples
        count = int(np.searchsorted(tokens, window_tokens, side="right"))  # samples that fit into a window together
        per_rank = max(count // grouping.num_replicas, 1)  # equally many for each, so that no batch must be empty
        return samples[: per_rank * grouping.num_replicas]

    def _window(self, remaining: _Remaining, start: int, grouping: _Grouping) -> _PlannedWindow:
        """Plan the window that begins with number `start` of what is left."""
        samples = self._window_samples(remaining, start, grouping)
        if grouping.batch_size is None:
            return self._plan_tokens(samples, grouping)
        return self._plan_batches(samples, grouping, grouping.batch_size)

    def _plan_batches(self, samples: NDArray[np.int64], grouping: _Grouping, batch_size: int) -> _PlannedWindow:
        """Plan a window of full batches and, if samples remain, a last step of smaller ones."""
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

    def _plan_tokens(self, samples: NDArray[np.int64], grouping: _Grouping) -> _PlannedWindow:
        """Plan a window whose batches have at most `max_tokens` tokens."""
        num_ranks = grouping.num_replicas
        costs = self.costs[samples]
        plan = self._token_batches(samples, grouping)
        if (plan.counts > 0).all():
            return _PlannedWindow(samples, plan, _NO_SAMPLES)
        # The samples are so few that some batches would be empty. Those that remain after equal numbers per rank are
        # dropped or get a step of their own.
        rest = samples.size % num_ranks
        if grouping.drop_last:  # the last ones of the random order are dropped
            plan = self._token_batches(samples[: samples.size - rest], grouping)
            return _PlannedWindow(samples, plan, _NO_SAMPLES)
        last, others = _middle(costs, rest)
        plan = self._token_batches(samples[others], grouping)
        padding = self._padding_samples(num_ranks - rest, float(costs[last].mean()))
        last = np.concatenate([last, samples.size + np.arange(padding.size)])
        last_step = WindowPlan(np.arange(num_ranks), np.ones((1, num_ranks), dtype=np.int64))
        return _PlannedWindow(samples, _joined(plan, others, last_step, last), padding)

    def _token_batches(self, samples: NDArray[np.int64], grouping: _Grouping) -> WindowPlan:
        """Plan samples in as few steps as they fit in. The positions of the plan are indices into `samples`.

        A batch is empty only if the number of samples is not a multiple of the number of ranks.
        """
        assert grouping.max_tokens is not None
        num_ranks = grouping.num_replicas
        if not samples.size:
            return WindowPlan(_NO_SAMPLES, np.empty((0, num_ranks), dtype=np.int64))
        lengths = self.lengths[samples]
        num_batches = -(-int(lengths.sum()) // grouping.max_tokens)  # rounded up, as the steps
        num_steps = max(-(-num_batches // num_ranks), 1)  # also samples without tokens are read in a step
        is_hard_to_fit = num_steps >= _MANY_STEPS and num_batches > _EASY_FILL * num_steps * num_ranks
        if is_hard_to_fit and samples.size >= (num_steps + 1) * num_ranks:  # with fewer, batches would be empty
            num_steps += 1
        return plan_token_batches(self.costs[samples], lengths, num_ranks, grouping.max_tokens, num_steps)


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
    assert grouping.batch_size is not None
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
