"""`what_if`: what a recorded step would take with another bucket cap, a faster link, or without the rank that is late.

Recorded steps become the input of `ddp.recommend`: when the last rank has each gradient ready, the time of an allreduce
by its size once the last rank has arrived, and how much the two slow each other down. The difference between this model
and the recorded step is added to each answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, several
from ..common.frozen import frozen
from ..common.words import listed
from ..timeline import Timeline
from ..timeline.timeline import merge
from ..train.ddp import Contention, LocalStep, recommend
from ..train.ddp.buckets import ParameterSpec
from ..train.ddp.cost import CostTable, Seconds
from ..train.ddp.recommend import DEFAULT_CAPS_MB, CapCandidate
from ..train.ddp.step import Launches, last_backward
from .forecasts import Answer, Forecast
from .sharded_forecast import ShardedForecast, sharded_forecast
from .sharded_steps import is_sharded

if TYPE_CHECKING:
    from .diagnosis import JobDiagnosis
    from .trace import Calls, Trace

_LEAST_STEPS = 2
_MOST_PAIRS = 1 << 21  # of gradients and allreduces, or of two allreduces, in a step
_MOST_PAIRS_OF_STEPS = 1 << 26  # of all steps; where there are more, the last steps are taken
_SPREAD = 4.0  # the largest size by the smallest: sizes that are closer do not show the latency
_FREE = 0.1  # of a gradient's time: with a smaller share of allreduces it counts as undisturbed …
_BUSY = 0.9  # … and with a larger one as disturbed
_SAMPLES = 3  # of each kind, at least, to compare them
_LEAST_SHARE = 0.1  # of its usual progress that an allreduce makes during the backward, at least
_MOST_SLOWED = 8.0  # times as long as without allreduces, at most
_WORTH = 0.01  # of a step: the model cannot resolve smaller savings
_FASTER = 2  # times as fast as the recorded link


@frozen(eq=False)
class SavingsForecast(Forecast):
    """The predicted effects of changes to a recorded job, and the model behind them.

    `step_s` is the recorded step, `model_s` the same step by the model; their difference is in every answer.
    ``ddp.simulate(local, cost, contention=contention)`` draws the model's step with DDP's default cap. `caps` has each
    requested cap, and None for DDP's default. `skipped_steps` are the numbers of steps in which some rank's stamps came
    late: its backward seems to begin before the allreduces of the step before it end.
    """

    step_s: float
    model_s: float
    local: LocalStep
    cost: CostTable
    contention: Contention
    caps: tuple[CapCandidate, ...]
    answers: tuple[Answer, ...]
    skipped_steps: tuple[int, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences on steps that were left out."""
        if not self.skipped_steps:
            return []
        steps = count_of(len(self.skipped_steps), "step")
        were = "was" if len(self.skipped_steps) == 1 else "were"
        why = "a stamp came late, so that backward seems to begin before the allreduces of the step before it end"
        return [f"{steps} {were} skipped, because {why}."]


def what_if(
    traces: Sequence[Trace], diagnosis: JobDiagnosis | None = None, *, caps_mb: Iterable[float] = DEFAULT_CAPS_MB
) -> SavingsForecast | ShardedForecast:
    """Predict the effects of other settings from the traces of all ranks of a DDP or FSDP job.

    Caps are predicted from the sizes of gradients, so record with ``record_shapes=True``. Without shapes, and on a GPU,
    where traces do not show when gradients are ready, each recorded bucket counts as one gradient, so larger caps join
    buckets and smaller ones change nothing. The slowdown of computing by allreduces is estimated best if some of the
    recorded steps run under ``no_sync``, else from repeated layers. If all allreduces have about the same size, their
    latency is unknown, and the predicted step with a small cap is a lower bound. If a `diagnosis` is given, each of its
    culprits is removed in turn, and ranks that are late in the same steps are removed together. Traces do not show how
    many workers a loader needs; see `pipeline.advise`. Steps with a late stamp are skipped; see
    `SavingsForecast.skipped_steps`.

    For FSDP on Gloo, the forecast is a `ShardedForecast` of resharding, prefetching, a faster link and late ranks, each
    with a range. Its `with_changes` predicts other settings. `caps_mb` is not used.

    Raises ValueError if the traces do not all contain steps with allreduces of gradients, or if traces of FSDP do not
    allow predictions; see `sharded_forecast`.
    """
    traces = several("traces", traces)
    if is_sharded(traces):
        return sharded_forecast(traces, diagnosis)
    recorded = _recorded_steps(traces)
    slowed = _slowed_by_allreduces(recorded)
    local = _local(recorded, slowed)
    cost, allreduces_slowed = _cost(recorded)
    contention = Contention(slowed, allreduces_slowed)
    launches = _recorded_launches(local, recorded.num_bytes)

    def model_s(times_faster: float = 1.0) -> float:
        faster = CostTable(cost.num_bytes, tuple(seconds / times_faster for seconds in cost.seconds))
        return local.forward_s + last_backward(local, launches, faster, contention).end_s

    step_s = float(np.median(recorded.step_s))
    modelled_s = model_s()
    missed_s = step_s - modelled_s  # assumed to be the same with other settings
    caps = _caps(local, cost, contention, caps_mb, missed_s)
    changes = [_best_cap(caps, recorded, step_s)]
    changes.append(_Effect(f"a link {_FASTER} times as fast", model_s(_FASTER) + missed_s))
    without_allreduces_s = local.forward_s + local.backward_s + missed_s
    changes.append(_Effect("allreduces that take no time (lower bound)", without_allreduces_s))
    if recorded.loader_s.any():
        without_waiting_s = step_s - _waited_for_loaders_s(recorded)
        changes.append(_Effect("a loader that never keeps a rank waiting", without_waiting_s))
    if diagnosis:
        changes += _mended(diagnosis, step_s)
    answers = []
    for change in changes:
        seconds = max(change.step_s, 0.0)
        answers.append(Answer(change.what, seconds, 1 - seconds / step_s))
    return SavingsForecast(step_s, modelled_s, local, cost, contention, caps, tuple(answers), recorded.skipped_steps)


def _recorded_launches(local: LocalStep, num_bytes: NDArray[np.int64]) -> Launches:
    """Return when the recorded buckets, of so many bytes each, are launched: as soon as their last gradient is ready.

    Buckets are filled with gradients in the order in which they get ready, which is the reverse of the parameters'. So
    the last gradient of a bucket is the first at which the sum of gradients reaches the sum of buckets.
    """
    ready_s = local.ready_s[::-1]
    bytes_of_gradients = np.cumsum(local.sizes[::-1])
    bytes_of_buckets = np.cumsum(num_bytes)
    last_gradient = np.searchsorted(bytes_of_gradients, bytes_of_buckets)
    last_gradient = np.minimum(last_gradient, ready_s.size - 1)
    return Launches(ready_s[last_gradient], num_bytes)


def _waited_for_loaders_s(recorded: _StepsOfShape) -> float:
    """Return by how much earlier the last rank would begin its backward pass without loaders, in the median step."""
    last_begin_s = recorded.begin_s.max(axis=1)
    last_begin_without_s = (recorded.begin_s - recorded.loader_s).max(axis=1)
    return float(np.median(last_begin_s - last_begin_without_s))


class _Effect(NamedTuple):
    """A change in words, and the seconds of a step with it, by the model."""

    what: str
    step_s: float


def _caps(
    local: LocalStep, cost: CostTable, contention: Contention, caps_mb: Iterable[float], missed_s: float
) -> tuple[CapCandidate, ...]:
    """DDP's default cap and each of these, with the seconds that the model misses added to their steps."""
    recommendation = recommend(local, cost, caps_mb=caps_mb, contention=contention)
    candidates = (recommendation.default, *recommendation.candidates)
    return tuple(cap._replace(step_s=max(cap.step_s + missed_s, 0.0)) for cap in candidates)


def _best_cap(caps: Sequence[CapCandidate], recorded: _StepsOfShape, step_s: float) -> _Effect:
    best = min(caps, key=lambda cap: cap.step_s)
    if best.step_s >= (1 - _WORTH) * step_s:
        return _Effect("the recorded bucket_cap_mb, because no other saves 1 %", step_s)
    cap = "DDP's default cap" if best.bucket_cap_mb is None else f"bucket_cap_mb={best.bucket_cap_mb:g}"
    buckets = f"{count_of(best.num_buckets, 'bucket')} instead of {recorded.num_bytes.size}"
    return _Effect(f"{cap}, {buckets}", best.step_s)


def _mended(diagnosis: JobDiagnosis, step_s: float) -> list[_Effect]:
    """A step without each culprit; ranks that are late together are taken out together."""
    changes = []
    for group in diagnosis.lateness.groups:
        culprits = [culprit for late in group for culprit in late.culprits]
        if len(group) == 1:
            parts = [([culprit], f"rank {culprit.rank}") for culprit in culprits]
        else:
            parts = [(culprits, listed("rank", [culprit.rank for culprit in culprits]))]
        for together, ranks in parts:
            cost_s = sum(culprit.cost_s for culprit in together)
            causes = ", ".join(dict.fromkeys(culprit.cause for culprit in together))
            change = f"{ranks} as fast as the others ({causes})"
            changes.append(_Effect(change, step_s * (1 - cost_s / diagnosis.step_s)))
    return changes


# ---- the recorded steps


class _StepsOfShape(NamedTuple):
    """Steps of one shape, in seconds from the end of the gradients' allreduces before each, which ranks share.

    Columns are gradients in the order in which they get ready, or calls; where there are three axes, steps by ranks by
    gradients. A call starts when its last rank comes; `calls_s` has its start and stop. `alone_s`, ranks by gradients,
    is how long each takes to compute in steps under ``no_sync``, nan without such steps. `skipped_steps` are the
    numbers of steps that have a late stamp on some rank.
    """

    sizes: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    step_s: Seconds
    loader_s: Seconds
    begin_s: Seconds
    ready_s: Seconds
    calls_s: tuple[Seconds, Seconds]
    alone_s: Seconds
    skipped_steps: tuple[int, ...]


class _StepOfRank(NamedTuple):
    """A step of one rank; see `_StepsOfShape`."""

    sizes: tuple[int, ...]
    num_bytes: tuple[int, ...]
    step_s: float
    loader_s: float
    begin_s: float
    ready_s: Seconds
    calls_s: Seconds


class _StepsOfRank(NamedTuple):
    """The steps of one rank, by their numbers.

    `alone_s` has the steps without allreduces: the seconds that each gradient takes to compute. `skipped` are the
    numbers of steps whose backward begins before the allreduces of the step before it end: a thread of Gloo stamps this
    end, and is late if it has no core.
    """

    steps: dict[int, _StepOfRank]
    alone_s: list[Seconds]
    skipped: set[int]


def _recorded_steps(traces: Sequence[Trace]) -> _StepsOfShape:
    """Return the steps whose shape is the most common one, of those that have the same shape on every rank."""
    ranks = [_steps_of_rank(trace) for trace in traces]
    skipped_steps = tuple(sorted({number for rank in ranks for number in rank.skipped}))
    shapes = _shapes(ranks)
    num_alike = Counter(shapes.values())
    if not num_alike or num_alike.most_common(1)[0][1] < _LEAST_STEPS:
        wanted = f"at least {_LEAST_STEPS + 1} steps with the same allreduces of gradients on every rank"
        late = f", and {count_of(len(skipped_steps), 'step')} with late stamps" if skipped_steps else ""
        number = count_of(sum(num_alike.values()), "such step")
        raise ValueError(f"traces must have {wanted}, and have {number}{late}")
    shape = num_alike.most_common(1)[0][0]
    num_gradients = len(shape.sizes)
    num_calls = len(shape.num_bytes)
    num_pairs = max(num_gradients, num_calls) * num_calls  # each gradient and each call is compared with all calls
    if num_pairs > _MOST_PAIRS:
        wanted = f"at most {_MOST_PAIRS} pairs of gradients and allreduces"
        raise ValueError(f"a step must have {wanted}, and has {num_pairs}")
    most_steps = max(_MOST_PAIRS_OF_STEPS // num_pairs, _LEAST_STEPS)
    numbers = [number for number, known in shapes.items() if known == shape][-most_steps:]
    steps = [[rank.steps[number] for rank in ranks] for number in numbers]
    # a call starts, and ends, when it does so on the last rank; the last axis but one has start and stop
    calls_s = np.array([np.max([row.calls_s for row in step], axis=0) for step in steps])
    return _StepsOfShape(
        sizes=np.array(shape.sizes, dtype=np.int64),
        num_bytes=np.array(shape.num_bytes, dtype=np.int64),
        step_s=np.array([np.mean([row.step_s for row in step]) for step in steps]),
        loader_s=np.array([[row.loader_s for row in step] for step in steps]),
        begin_s=np.array([[row.begin_s for row in step] for step in steps]),
        ready_s=np.array([[row.ready_s for row in step] for step in steps]),
        calls_s=(calls_s[:, 0], np.maximum(calls_s[:, 0], calls_s[:, 1])),
        alone_s=np.array([_median_alone(rank.alone_s, num_gradients) for rank in ranks]),
        skipped_steps=skipped_steps,
    )


class _Shape(NamedTuple):
    """The bytes of a step's gradients, and of its allreduces."""

    sizes: tuple[int, ...]
    num_bytes: tuple[int, ...]


def _shapes(ranks: Sequence[_StepsOfRank]) -> dict[int, _Shape]:
    """Return the shape of each step that every rank has, and that has the same shape on all of them, by its number."""
    if not ranks:
        return {}
    numbers_on_all = set.intersection(*(set(rank.steps) for rank in ranks))
    shapes = {}
    for number in sorted(numbers_on_all):
        different = {_Shape(rank.steps[number].sizes, rank.steps[number].num_bytes) for rank in ranks}
        if len(different) == 1:
            shapes[number] = different.pop()
    return shapes


def _median_alone(alone_s: list[Seconds], num_gradients: int) -> Seconds:
    """The median over the steps with so many gradients, nan without any."""
    alike = [seconds for seconds in alone_s if seconds.size == num_gradients]
    if not alike:
        return np.full(num_gradients, np.nan)
    return np.asarray(np.median(alike, axis=0))


def _gradients_of_last_pass(gradients: Timeline, begin_s: float, end_s: float, num_passes: int) -> Timeline:
    """Return those of the last of so many equal micro-batches, out of the gradients that a backward makes ready."""
    ready = gradients.take(_between(gradients.stop_s, begin_s, end_s))
    ready = ready.take(np.flatnonzero(ready.start_s >= begin_s))
    per_pass = len(ready) // num_passes
    if per_pass == 0:
        return ready
    return ready.take(np.arange(len(ready) - per_pass, len(ready)))


def _steps_of_rank(trace: Trace) -> _StepsOfRank:
    """Return the steps of a rank that follow one with allreduces of gradients."""
    spans = _StepSpans(trace)
    rank = _StepsOfRank({}, [], set())
    previous_end_s: float | None = None  # of the allreduces of the step before, if it had any
    for number, backward in spans.backwards():
        if not backward.calls.size:
            if not spans.on_gpu:
                rank.alone_s.append(backward.computing_s())
            previous_end_s = None
            continue
        if previous_end_s is not None and backward.begin_s < previous_end_s:
            rank.skipped.add(number)
        elif previous_end_s is not None:
            step = spans.step(backward, previous_end_s)
            if step is not None:
                rank.steps[number] = step
        previous_end_s = float(trace.calls.stop_s[backward.calls].max())
    return rank


class _Backward(NamedTuple):
    """The backward of a step: the gradients of its last pass, and the places of its allreduces of gradients."""

    begin_s: float
    gradients: Timeline
    calls: NDArray[np.int64]

    def computing_s(self) -> Seconds:
        """The time of each gradient: from when the one before it was ready, or from the begin of the backward."""
        previous_ready_s = np.append(self.begin_s, self.gradients.stop_s)[:-1]
        return np.asarray(self.gradients.start_s - previous_ready_s)


class _StepSpans:
    """The spans of a trace of which steps are made."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        spans = trace.timeline
        collectives = spans.select(kind=Timeline.COMMUNICATION)
        self.on_gpu = any(lane.startswith("stream") for _, lane in collectives.rank_lanes())
        gradients = spans.select(kind="gradient")
        self.gradients = gradients.take(np.argsort(gradients.stop_s, kind="stable"))
        self.backward = spans.select(kind="backward")
        self.forward = spans.select(kind="forward")
        self.loader = spans.select(kind="loader")
        calls = trace.calls
        self.launch_s = np.where(np.isnan(calls.launch_s), calls.start_s, calls.launch_s)
        self.allreduces = _allreduces(calls, self.launch_s)  # places in `calls`, in the order of their launches

    def backwards(self) -> Iterator[tuple[int, _Backward]]:
        """Yield the number and the backward of each step that has one, in the order of time.

        A step may have a forward and a backward pass per micro-batch. Only the last of them reduces gradients, so only
        its gradients count.
        """
        steps = self.trace.timeline.select(kind="step")
        for place in np.argsort(steps.start_s).tolist():
            step = steps[place]
            in_step = (self.backward.start_s >= step.start_s) & (self.backward.start_s < step.stop_s)
            if not in_step.any():
                continue
            begin_s = float(self.backward.start_s[in_step].min())
            end_s = float(self.backward.stop_s[in_step].max())
            forwards = self.forward.select(between_s=(step.start_s, step.stop_s))
            num_passes = max(len(forwards), 1)
            gradients = _gradients_of_last_pass(self.gradients, begin_s, end_s, num_passes)
            launched_in_backward = _between(self.launch_s[self.allreduces], begin_s, end_s)
            calls = np.sort(self.allreduces[launched_in_backward])  # places in the trace's calls, in their order
            yield step.item, _Backward(begin_s, gradients, calls)

    def step(self, backward: _Backward, previous_end_s: float) -> _StepOfRank | None:
        """Return a step, with times from the end of the allreduces before it; None if some bytes are not known."""
        calls = self.trace.calls
        own = backward.calls
        sizes = self.trace.gradient_bytes[backward.gradients.item]
        ready_s = np.array([backward.gradients.start_s, backward.gradients.stop_s])
        if self.on_gpu or not sizes.size or sizes.min() < 0:  # each bucket counts as one gradient
            sizes = calls.num_bytes[own]
            reach_s = calls.start_s if self.on_gpu else self.launch_s  # when the rank reaches a call
            arrive_s = np.maximum.accumulate(reach_s[own])
            ready_s = np.array([arrive_s, arrive_s])
        if (sizes < 0).any() or (calls.num_bytes[own] < 0).any():
            return None
        loaded = self.loader.select(between_s=(previous_end_s, backward.begin_s))
        return _StepOfRank(
            sizes=tuple(sizes.tolist()),
            num_bytes=tuple(calls.num_bytes[own].tolist()),
            step_s=float(calls.stop_s[own].max()) - previous_end_s,
            loader_s=float((loaded.stop_s - loaded.start_s).sum()),
            begin_s=backward.begin_s - previous_end_s,
            ready_s=ready_s - previous_end_s,
            calls_s=np.array([calls.start_s[own], calls.stop_s[own]]) - previous_end_s,
        )


def _allreduces(calls: Calls, launch_s: Seconds) -> NDArray[np.int64]:
    """The places of the allreduces that ended within the trace, in the order of their launches."""
    kinds = [place for place, kind in enumerate(calls.kinds) if kind == "allreduce"]
    places = np.flatnonzero(np.isfinite(calls.start_s + calls.stop_s) & np.isin(calls.kind, kinds))
    return np.asarray(places[np.argsort(launch_s[places], kind="stable")])


def _between(times_s: Seconds, low_s: float, high_s: float) -> NDArray[np.int64]:
    """The places of the times that are within these bounds, of increasing times."""
    return np.arange(np.searchsorted(times_s, low_s, "left"), np.searchsorted(times_s, high_s, "right"))


# ---- the parameters of the model


def _slowed_by_allreduces(recorded: _StepsOfShape) -> float:
    """Return how many times as long computing takes during allreduces.

    Steps under ``no_sync`` say so. Without them, layers that repeat do. It is 1 if neither is recorded.
    """
    if np.isfinite(recorded.alone_s).all():
        return _slowed_against_no_sync(recorded)
    return _slowed_in_repeated_layers(recorded)


def _slowed_against_no_sync(recorded: _StepsOfShape) -> float:
    """Compare the backward with that of steps without allreduces."""
    # DDP's copies into buckets are in the gradients' own spans, so the time between those spans is compared.
    low_s = np.concatenate([recorded.begin_s[:, :, None], recorded.ready_s[:, :, 1, :-1]], axis=2)
    computing = _intervals(recorded, low_s, recorded.ready_s[:, :, 0])
    busy_s = float(np.median(computing.during_s.sum(axis=2)))
    free_s = float(np.median((computing.length_s - computing.during_s).sum(axis=2)))
    busy_alone_s = float(recorded.alone_s.sum(axis=1).mean()) - free_s
    return max(busy_s / max(busy_alone_s, busy_s / _MOST_SLOWED, 1e-9), 1.0)


def _slowed_in_repeated_layers(recorded: _StepsOfShape) -> float:
    """Compare layers before the first allreduce with equal ones during allreduces.

    Gradients of one size after gradients of one size take equally long to compute.
    """
    gaps = _gaps(recorded)
    share = gaps.during_s / np.maximum(gaps.length_s, 1e-9)
    pairs = list(zip(recorded.sizes[:-1].tolist(), recorded.sizes[1:].tolist(), strict=True))
    free_s = 0.0
    busy_s = 0.0
    for pair in dict.fromkeys(pairs):
        gradients = [place + 1 for place, other in enumerate(pairs) if other == pair]
        lengths_s = gaps.length_s[:, :, gradients]
        shares = share[:, :, gradients]
        without_s = lengths_s[shares < _FREE]
        with_s = lengths_s[shares > _BUSY]
        if min(without_s.size, with_s.size) >= _SAMPLES:
            free_s += float(np.median(without_s))
            busy_s += float(np.median(with_s))
    return max(busy_s / free_s, 1.0) if free_s else 1.0


class _BackwardIntervals(NamedTuple):
    """The lengths of intervals, and how much of each has allreduces; both of the shape steps by ranks by gradients."""

    length_s: Seconds
    during_s: Seconds


def _gaps(recorded: _StepsOfShape) -> _BackwardIntervals:
    """Return the intervals from each gradient to the next, the first from the begin of the backward."""
    edges_s = np.concatenate([recorded.begin_s[:, :, None], recorded.ready_s[:, :, 1]], axis=2)
    return _intervals(recorded, edges_s[:, :, :-1], edges_s[:, :, 1:])


def _intervals(recorded: _StepsOfShape, low_s: Seconds, high_s: Seconds) -> _BackwardIntervals:
    """Return these intervals, whose ends have the shape steps by ranks by gradients."""
    during_s = np.empty(low_s.shape)
    for place, (start_s, stop_s) in enumerate(zip(*recorded.calls_s, strict=True)):
        starts, stops = merge(start_s, stop_s)
        # by rank, gradient and allreduce
        common_s = np.minimum(high_s[place, :, :, None], stops) - np.maximum(low_s[place, :, :, None], starts)
        during_s[place] = np.maximum(common_s, 0.0).sum(axis=-1)
    return _BackwardIntervals(np.maximum(high_s - low_s, 0.0), during_s)


def _local(recorded: _StepsOfShape, slowed: float) -> LocalStep:
    """Return the step of the last rank if no allreduce slowed it; parameters are in reverse order of gradients."""
    gaps = _gaps(recorded)
    lost_s = gaps.during_s * (1 - 1 / slowed)
    own_ready_s = recorded.begin_s[:, :, None] + np.cumsum(gaps.length_s - lost_s, axis=2)
    begin_s = float(np.median(recorded.begin_s.max(axis=1)))
    last_ready_s = np.median(own_ready_s.max(axis=1), axis=0)  # of each gradient, on the last rank, in a usual step
    ready_s = np.maximum.accumulate(np.maximum(last_ready_s - begin_s, 0.0))
    specs = []
    for place in reversed(range(recorded.sizes.size)):
        specs.append(ParameterSpec(f"gradient {place}", int(recorded.sizes[place])))
    return LocalStep(tuple(specs), ready_s[::-1], forward_s=begin_s, backward_s=float(ready_s[-1]))


class _Fit(NamedTuple):
    """The times of an allreduce: α, seconds per byte, and its share of progress during the backward."""

    alpha_s: float
    per_byte_s: float
    share: float

    @property
    def is_plausible(self) -> bool:
        return self.per_byte_s > 0 and self.alpha_s >= 0 and _LEAST_SHARE < self.share < 1 + 1e-6


def _cost(recorded: _StepsOfShape) -> tuple[CostTable, float]:
    """The time of an allreduce by its size while nothing else runs, and how many times as long it takes in backward.

    Calls that run at once share the wire. The seconds of a call after the backward, and a share of those during it, are
    α + bytes / bandwidth: least squares over the medians of each call, relative to its time. Of the fits, which have
    fewer and fewer parameters, the first plausible one counts.
    """
    steps_s = [
        _shares(*calls_s, float(recorded.ready_s[step, :, 1].max()))
        for step, calls_s in enumerate(zip(*recorded.calls_s, strict=True))
    ]
    during_s, after_s = np.median(steps_s, axis=0)
    num_bytes = recorded.num_bytes.astype(float)
    has_spread = num_bytes.max() > _SPREAD * max(num_bytes.min(), 1.0)
    for with_share, with_latency in ((True, True), (True, False), (False, True), (False, False)):
        num_parameters = 1 + with_share + with_latency
        if num_parameters > num_bytes.size or (with_latency and not has_spread):
            continue
        fit = _fit(num_bytes, during_s, after_s, with_share, with_latency)
        if fit.is_plausible:
            break
    cost = CostTable((0.0, 1e6), (fit.alpha_s, fit.alpha_s + 1e6 * fit.per_byte_s))
    return cost, max(float(1 / fit.share), 1.0)


def _fit(num_bytes: Seconds, during_s: Seconds, after_s: Seconds, with_share: bool, with_latency: bool) -> _Fit:
    """The least squares of ``after + share · during = α + bytes / bandwidth``; without a parameter share = 1, α = 0."""
    columns = [num_bytes]
    times_s = after_s + during_s
    if with_share:
        columns.append(-during_s)
        times_s = after_s
    if with_latency:
        columns.append(np.ones_like(num_bytes))
    weight = 1 / np.maximum(during_s + after_s, 1e-9)
    parameters = np.linalg.lstsq(np.stack(columns, axis=1) * weight[:, None], times_s * weight, rcond=None)[0]
    return _Fit(
        alpha_s=parameters[-1] if with_latency else 0.0,
        per_byte_s=parameters[0],
        share=parameters[1] if with_share else 1.0,
    )


def _shares(start_s: Seconds, stop_s: Seconds, backward_s: float) -> tuple[Seconds, Seconds]:
    """The seconds of each call during the backward and after it; calls that run at once share them equally."""
    edges = np.unique([*start_s, *stop_s, backward_s])
    runs = (start_s[:, None] <= edges[:-1]) & (stop_s[:, None] >= edges[1:])
    own_s = runs * np.diff(edges) / np.maximum(runs.sum(axis=0), 1)
    during = edges[1:] <= backward_s
    return own_s[:, during].sum(axis=1), own_s[:, ~during].sum(axis=1)
