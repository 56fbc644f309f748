"""`what_if`: what a recorded step would take with another bucket cap, a faster link, or without the rank that is late.

Recorded steps become the input of `ddp.recommend`: when the last rank has each gradient ready, the time of an allreduce
by its size once the last rank has arrived, and how much the two slow each other down. The difference between this model
and the recorded step is added to each answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, several
from ..common.frozen import frozen
from ..common.units import percent_words
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
    from .late_ranks import Culprit
    from .trace import Calls, Trace

_LEAST_STEPS = 2  # of the same shape, so that there is a median
_MOST_PAIRS = 1 << 21  # of gradients and allreduces, or of two allreduces, in a step: arrays have an entry for each
# The same for all steps together: if there are more, only the last steps are used, which are at least 32.
_MOST_PAIRS_OF_STEPS = 32 * _MOST_PAIRS
_LEAST_SPREAD = 4.0  # the largest allreduce divided by the smallest: closer sizes do not show the latency
_UNDISTURBED_SHARE = 0.1  # a gradient is undisturbed if allreduces run in less than this share of its time …
_DISTURBED_SHARE = 0.9  # … and disturbed if they run in more than this share of it
_LEAST_SAMPLES = 3  # of undisturbed and of disturbed gradients of one kind; with fewer, their medians mean little
_LEAST_PROGRESS = 0.1  # of an allreduce during the backward, by its usual progress; a fit with less is not plausible
_MOST_SLOWED = 8.0  # allreduces slow computing down by at most this factor; larger ones come from noise
_LEAST_SAVING = 0.01  # of a step: the model cannot resolve smaller savings
_FASTER = 2  # the link of the forecast is so many times as fast as the recorded one
_LEAST_SECONDS = 1e-9  # instead of 0 in a denominator


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
    missed_s = step_s - modelled_s  # what the model omits; assumed to be the same with other settings
    caps = _caps(local, cost, contention, caps_mb, missed_s)
    changes = [_best_cap(caps, recorded, step_s)]
    changes.append(_Effect(f"a link {_FASTER} times as fast", model_s(_FASTER) + missed_s))
    without_allreduces_s = local.forward_s + local.backward_s + missed_s
    changes.append(_Effect("allreduces that take no time (lower bound)", without_allreduces_s))
    if recorded.loader_s.any():
        without_waiting_s = step_s - _waited_for_loaders_s(recorded)
        changes.append(_Effect("a loader that never keeps a rank waiting", without_waiting_s))
    if diagnosis:
        changes += _without_culprits(diagnosis, step_s)
    answers = []
    for change in changes:
        seconds = max(change.step_s, 0.0)  # negative if the model of the recorded step is far too long
        answers.append(Answer(change.what, seconds, saved_share=1 - seconds / step_s))
    return SavingsForecast(step_s, modelled_s, local, cost, contention, caps, tuple(answers), recorded.skipped_steps)


def _recorded_launches(local: LocalStep, num_bytes: NDArray[np.int64]) -> Launches:
    """Return when the recorded buckets, of so many bytes each, are launched: as soon as their last gradient is ready.

    Buckets are filled with gradients in the order in which they get ready, which is the reverse of the parameters'. So
    the last gradient of a bucket is the first one at which the gradients so far have as many bytes as the buckets so
    far.
    """
    ready_s = local.ready_s[::-1]
    bytes_of_gradients = np.cumsum(local.sizes[::-1])
    bytes_of_buckets = np.cumsum(num_bytes)
    last_gradient = np.searchsorted(bytes_of_gradients, bytes_of_buckets)
    # if a parameter got no gradient, buckets have more bytes than gradients: the last ones wait for the last gradient
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
    """Return the step with DDP's default cap and with each of these, with the seconds added that the model misses."""
    recommendation = recommend(local, cost, caps_mb=caps_mb, contention=contention)
    caps = []
    for cap in (recommendation.default, *recommendation.candidates):
        step_s = max(cap.step_s + missed_s, 0.0)  # negative if the model of the recorded step is far too long
        caps.append(cap._replace(step_s=step_s))
    return tuple(caps)


def _best_cap(caps: Sequence[CapCandidate], recorded: _StepsOfShape, step_s: float) -> _Effect:
    """Return the effect of the cap with the shortest step, or of no change if that saves too little."""
    best = min(caps, key=lambda cap: cap.step_s)
    if best.step_s >= (1 - _LEAST_SAVING) * step_s:
        least = percent_words(_LEAST_SAVING)
        return _Effect(f"the recorded bucket_cap_mb, because no other saves {least}", step_s)
    cap = "DDP's default cap" if best.bucket_cap_mb is None else f"bucket_cap_mb={best.bucket_cap_mb:g}"
    buckets = f"{count_of(best.num_buckets, 'bucket')} instead of {recorded.num_bytes.size}"
    return _Effect(f"{cap}, {buckets}", best.step_s)


def _without_culprits(diagnosis: JobDiagnosis, step_s: float) -> list[_Effect]:
    """Return a step without each culprit of the diagnosis.

    The causes of one late rank are removed one by one. Ranks that are late together are made faster together, because
    the others wait for the last of them: to mend one alone saves little.
    """
    effects = []
    for group in diagnosis.lateness.groups:
        culprits = [culprit for late in group for culprit in late.culprits]
        if len(group) == 1:
            for culprit in culprits:
                effects.append(_without([culprit], f"rank {culprit.rank}", diagnosis, step_s))
        else:
            ranks = listed("rank", [culprit.rank for culprit in culprits])
            effects.append(_without(culprits, ranks, diagnosis, step_s))
    return effects


def _without(culprits: Sequence[Culprit], ranks: str, diagnosis: JobDiagnosis, step_s: float) -> _Effect:
    """Return a step of `step_s` without what these culprits cost; `ranks` are their ranks in words."""
    cost_s = sum(culprit.cost_s for culprit in culprits)
    causes: list[str] = []
    for culprit in culprits:
        if culprit.cause not in causes:
            causes.append(culprit.cause)
    # the diagnosis has its own mean step, so the cost counts as a share of that
    cost_share = cost_s / diagnosis.step_s
    return _Effect(f"{ranks} as fast as the others ({', '.join(causes)})", step_s * (1 - cost_share))


# ---- the recorded steps


class _StepsOfShape(NamedTuple):
    """Steps of one shape on all ranks.

    Times are in seconds from the end of the allreduces of the step before, a moment that all ranks share. Gradients are
    in the order in which they get ready, calls (the allreduces of gradients) in the order of their launches.
    """

    sizes: NDArray[np.int64]  # the bytes of each gradient
    num_bytes: NDArray[np.int64]  # the bytes of each call
    step_s: Seconds  # the length of each step, up to the end of its last call; the mean over ranks
    loader_s: Seconds  # steps by ranks: the time that the rank waits for its loader before the backward
    begin_s: Seconds  # steps by ranks: the begin of the backward
    # steps by ranks by two by gradients: when autograd starts to accumulate the gradient, and when it is ready
    ready_s: Seconds
    calls_start_s: Seconds  # steps by calls: the arrival of the last rank
    calls_stop_s: Seconds  # steps by calls: the end on the last rank
    # ranks by gradients: the time to compute each gradient in steps under ``no_sync``; nan without such steps
    alone_s: Seconds
    skipped_steps: tuple[int, ...]  # the numbers of the steps that have a late stamp on some rank


class _StepOfRank(NamedTuple):
    """A step of one rank; the fields have the meanings that they have in `_StepsOfShape`."""

    sizes: tuple[int, ...]
    num_bytes: tuple[int, ...]
    step_s: float
    loader_s: float
    begin_s: float
    ready_s: Seconds  # two by gradients
    calls_start_s: Seconds
    calls_stop_s: Seconds


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
    shape = _commonest_shape(shapes, len(skipped_steps))
    num_pairs = _num_pairs(shape)
    if num_pairs > _MOST_PAIRS:
        wanted = f"at most {_MOST_PAIRS} pairs of gradients and allreduces"
        raise ValueError(f"a step must have {wanted}, and has {num_pairs}")
    most_steps = _MOST_PAIRS_OF_STEPS // num_pairs
    numbers = [number for number, shape_of_step in shapes.items() if shape_of_step == shape]
    # steps[i][r] is the i-th step of rank r
    steps = [[rank.steps[number] for rank in ranks] for number in numbers[-most_steps:]]
    # a call starts when the last rank arrives, and it counts as ended when it has ended on the last rank
    calls_start_s = np.array([[of_rank.calls_start_s for of_rank in step] for step in steps]).max(axis=1)
    calls_stop_s = np.array([[of_rank.calls_stop_s for of_rank in step] for step in steps]).max(axis=1)
    return _StepsOfShape(
        sizes=np.array(shape.sizes, dtype=np.int64),
        num_bytes=np.array(shape.num_bytes, dtype=np.int64),
        step_s=np.array([np.mean([of_rank.step_s for of_rank in step]) for step in steps]),
        loader_s=np.array([[of_rank.loader_s for of_rank in step] for step in steps]),
        begin_s=np.array([[of_rank.begin_s for of_rank in step] for step in steps]),
        ready_s=np.array([[of_rank.ready_s for of_rank in step] for step in steps]),
        calls_start_s=calls_start_s,
        calls_stop_s=np.maximum(calls_start_s, calls_stop_s),  # by errors of stamps, a call may seem to end before
        alone_s=np.array([_median_alone(rank.alone_s, len(shape.sizes)) for rank in ranks]),
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
        shapes_on_ranks = {_Shape(rank.steps[number].sizes, rank.steps[number].num_bytes) for rank in ranks}
        if len(shapes_on_ranks) == 1:
            shapes[number] = shapes_on_ranks.pop()
    return shapes


def _commonest_shape(shapes: dict[int, _Shape], num_late: int) -> _Shape:
    """Return the shape of most steps. Raises ValueError if too few steps have it; `num_late` steps had late stamps."""
    num_steps_of = Counter(shapes.values())
    if num_steps_of:
        shape, num_steps = num_steps_of.most_common(1)[0]
        if num_steps >= _LEAST_STEPS:
            return shape
    # one more than `_LEAST_STEPS`: the first step has no end of earlier allreduces to count from, so `shapes` lacks it
    wanted = f"at least {_LEAST_STEPS + 1} steps with the same allreduces of gradients on every rank"
    late = f", and {count_of(num_late, 'step')} with late stamps" if num_late else ""
    most_alike = max(num_steps_of.values(), default=0)
    raise ValueError(f"traces must have {wanted}, and have {count_of(most_alike, 'such step')} after the first{late}")


def _num_pairs(shape: _Shape) -> int:
    """Return the entries of the largest array of a step: each gradient, and each call, is compared with all calls."""
    num_calls = len(shape.num_bytes)
    return max(len(shape.sizes), num_calls) * num_calls


def _median_alone(alone_s: list[Seconds], num_gradients: int) -> Seconds:
    """Return the median time of each gradient, over the steps with so many gradients; nan if there are none.

    A step with another number of gradients has another shape, and its gradients cannot be compared one by one.
    """
    alike = [seconds for seconds in alone_s if seconds.size == num_gradients]
    if not alike:
        return np.full(num_gradients, np.nan)
    return np.asarray(np.median(alike, axis=0))


def _steps_of_rank(trace: Trace) -> _StepsOfRank:
    """Return the steps of a rank that follow one with allreduces of gradients, from whose end their times count."""
    spans = _StepSpans(trace)
    rank = _StepsOfRank(steps={}, alone_s=[], skipped=set())
    previous_end_s: float | None = None  # of the allreduces of the step before; None if it had none
    for number, backward in spans.backwards():
        if not backward.calls.size:  # a step under ``no_sync``
            if not spans.on_gpu:  # a trace of a GPU does not show when gradients are ready
                rank.alone_s.append(backward.computing_s())
            previous_end_s = None
            continue
        if previous_end_s is not None:
            if backward.begin_s < previous_end_s:  # no rank can do this, so the stamp of the end is late
                rank.skipped.add(number)
            else:
                step = spans.step(backward, previous_end_s)
                if step is not None:
                    rank.steps[number] = step
        previous_end_s = float(trace.calls.stop_s[backward.calls].max())
    return rank


class _Backward(NamedTuple):
    """The backward of a step: the gradients of its last pass, and its allreduces of gradients by their index."""

    begin_s: float
    gradients: Timeline
    calls: NDArray[np.int64]

    def computing_s(self) -> Seconds:
        """The time of each gradient: from when the one before it was ready, or from the begin of the backward."""
        previous_ready_s = np.append(self.begin_s, self.gradients.stop_s)[:-1]
        return np.asarray(self.gradients.start_s - previous_ready_s)


class _StepSpans:
    """The spans of a trace that make up steps; `step` turns those of a backward into a `_StepOfRank`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        spans = trace.timeline
        collectives = spans.select(kind=Timeline.COMMUNICATION)
        self.on_gpu = any(lane.startswith("stream") for _rank, lane in collectives.rank_lanes())
        gradients = spans.select(kind="gradient")
        self.gradients = gradients.take(np.argsort(gradients.stop_s, kind="stable"))
        self.backward = spans.select(kind="backward")
        self.forward = spans.select(kind="forward")
        self.loader = spans.select(kind="loader")
        calls = trace.calls
        # of each call; its start if the trace does not show the launch
        self.launch_s = np.where(np.isnan(calls.launch_s), calls.start_s, calls.launch_s)
        self.allreduces = _finished_allreduces(calls, self.launch_s)  # indices of `calls`, in the order of launches

    def backwards(self) -> Iterator[tuple[int, _Backward]]:
        """Yield the number and the backward of each step that has one, in the order of time.

        A step may have a forward and a backward pass per micro-batch. Only the last of them reduces gradients, so only
        its gradients count. The backward begins with the first pass, so the first of these gradients seems to take as
        long as all passes before it.
        """
        steps = self.trace.timeline.select(kind="step")
        for index in np.argsort(steps.start_s).tolist():
            step = steps[index]
            in_step = (self.backward.start_s >= step.start_s) & (self.backward.start_s < step.stop_s)
            if not in_step.any():
                continue
            begin_s = float(self.backward.start_s[in_step].min())
            end_s = float(self.backward.stop_s[in_step].max())
            forwards = self.forward.select(between_s=(step.start_s, step.stop_s))
            num_passes = max(len(forwards), 1)  # there was one even if the trace does not show its forward
            gradients = _gradients_of_last_pass(self.gradients, begin_s, end_s, num_passes)
            launched_in_backward = _indices_between(self.launch_s[self.allreduces], begin_s, end_s)
            calls = self.allreduces[launched_in_backward]
            yield step.item, _Backward(begin_s, gradients, calls)

    def step(self, backward: _Backward, previous_end_s: float) -> _StepOfRank | None:
        """Return a step, with times from the end of the allreduces before it; None if some bytes are unknown."""
        calls = self.trace.calls
        num_bytes = calls.num_bytes[backward.calls]
        start_s = calls.start_s[backward.calls]
        stop_s = calls.stop_s[backward.calls]
        gradients = backward.gradients
        sizes = self.trace.gradient_bytes[gradients.item]  # the item of a gradient is its index there
        are_sizes_known = sizes.size > 0 and sizes.min() >= 0  # an unknown size is -1
        if are_sizes_known and not self.on_gpu:
            ready_s = np.array([gradients.start_s, gradients.stop_s])
        else:
            # A GPU computes gradients after autograd has recorded them on the CPU, so their spans do not show when they
            # are ready; and without `record_shapes` their sizes are unknown. What is known are the bytes of a bucket,
            # and when the rank reaches its allreduce, because then its last gradient is ready. So each bucket counts
            # as one gradient.
            sizes = num_bytes
            reached_s = start_s if self.on_gpu else self.launch_s[backward.calls]
            bucket_ready_s = np.maximum.accumulate(reached_s)  # buckets are launched in order
            ready_s = np.array([bucket_ready_s, bucket_ready_s])
        if (sizes < 0).any() or (num_bytes < 0).any():
            return None
        loader = self.loader.select(between_s=(previous_end_s, backward.begin_s))  # spans are cut to this window
        return _StepOfRank(
            sizes=tuple(sizes.tolist()),
            num_bytes=tuple(num_bytes.tolist()),
            step_s=float(stop_s.max()) - previous_end_s,
            loader_s=float((loader.stop_s - loader.start_s).sum()),
            begin_s=backward.begin_s - previous_end_s,
            ready_s=ready_s - previous_end_s,
            calls_start_s=start_s - previous_end_s,
            calls_stop_s=stop_s - previous_end_s,
        )


def _gradients_of_last_pass(gradients: Timeline, begin_s: float, end_s: float, num_passes: int) -> Timeline:
    """Return the gradients of the last of so many micro-batches, out of those between the begin and the end.

    `gradients` are in the order in which they get ready. Each micro-batch has equally many.
    """
    ready = gradients.take(_indices_between(gradients.stop_s, begin_s, end_s))
    ready = ready.take(np.flatnonzero(ready.start_s >= begin_s))  # the line above has chosen them by their stops
    num_per_pass = len(ready) // num_passes
    if num_per_pass == 0:  # fewer gradients than forward passes: some of these had no backward, so none is left out
        return ready
    return ready.take(np.arange(len(ready) - num_per_pass, len(ready)))


def _finished_allreduces(calls: Calls, launch_s: Seconds) -> NDArray[np.int64]:
    """Return the indices of the allreduces that ended within the trace, in the order of their launches."""
    is_kind_allreduce = np.array([kind == "allreduce" for kind in calls.kinds], dtype=bool)
    is_allreduce = is_kind_allreduce[calls.kind]  # by call
    is_finished = np.isfinite(calls.start_s) & np.isfinite(calls.stop_s)
    indices = np.flatnonzero(is_allreduce & is_finished)
    return np.asarray(indices[np.argsort(launch_s[indices], kind="stable")])


def _indices_between(times_s: Seconds, low_s: float, high_s: float) -> NDArray[np.int64]:
    """Return the indices of the times within these bounds; `times_s` increase."""
    return np.arange(np.searchsorted(times_s, low_s, "left"), np.searchsorted(times_s, high_s, "right"))


# ---- the parameters of the model


def _slowed_by_allreduces(recorded: _StepsOfShape) -> float:
    """Return how many times as long computing takes during allreduces.

    Steps under ``no_sync`` show it. Without them, layers that repeat do. It is 1 if neither is recorded.
    """
    if np.isfinite(recorded.alone_s).all():
        return _slowed_against_no_sync(recorded)
    return _slowed_in_repeated_layers(recorded)


def _slowed_against_no_sync(recorded: _StepsOfShape) -> float:
    """Compare the backward with that of steps without allreduces: how many times as long its disturbed part takes."""
    # DDP copies gradients into buckets within the gradients' own spans, and does not under ``no_sync``. So only the
    # time between those spans is compared: from when one gradient is ready to the start of the next span.
    previous_ready_s = np.concatenate([recorded.begin_s[:, :, None], recorded.ready_s[:, :, 1, :-1]], axis=2)
    computing = _intervals(recorded, previous_ready_s, recorded.ready_s[:, :, 0])
    disturbed_s = float(np.median(computing.during_s.sum(axis=2)))  # sums over gradients, medians over steps and ranks
    undisturbed_s = float(np.median((computing.length_s - computing.during_s).sum(axis=2)))
    # the disturbed part, too, has a time without allreduces: all of the backward alone, less the undisturbed part
    disturbed_alone_s = float(recorded.alone_s.sum(axis=1).mean()) - undisturbed_s
    disturbed_alone_s = max(disturbed_alone_s, disturbed_s / _MOST_SLOWED, _LEAST_SECONDS)
    return max(disturbed_s / disturbed_alone_s, 1.0)


def _slowed_in_repeated_layers(recorded: _StepsOfShape) -> float:
    """Compare layers before the first allreduce with equal ones during allreduces; 1 if there are none to compare.

    A gradient takes as long to compute as another one if both have the same size, and so have the ones before them.
    """
    gaps = _gaps(recorded)
    shares = gaps.during_s / np.maximum(gaps.length_s, _LEAST_SECONDS)
    # the gradients by the size of the one before and their own size
    gradients_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for gradient in range(1, recorded.sizes.size):  # not the first one, which has none before it
        sizes = (int(recorded.sizes[gradient - 1]), int(recorded.sizes[gradient]))
        gradients_of[sizes].append(gradient)
    undisturbed_s = 0.0
    disturbed_s = 0.0
    for gradients in gradients_of.values():
        alike_s = gaps.length_s[:, :, gradients]  # over all steps and ranks
        alike_shares = shares[:, :, gradients]
        alike_undisturbed_s = alike_s[alike_shares < _UNDISTURBED_SHARE]
        alike_disturbed_s = alike_s[alike_shares > _DISTURBED_SHARE]
        if min(alike_undisturbed_s.size, alike_disturbed_s.size) >= _LEAST_SAMPLES:
            undisturbed_s += float(np.median(alike_undisturbed_s))
            disturbed_s += float(np.median(alike_disturbed_s))
    if not undisturbed_s:
        return 1.0
    return max(disturbed_s / undisturbed_s, 1.0)


class _BackwardIntervals(NamedTuple):
    """The lengths of intervals, and how much of each has allreduces; both of the shape steps by ranks by gradients."""

    length_s: Seconds
    during_s: Seconds


def _gaps(recorded: _StepsOfShape) -> _BackwardIntervals:
    """Return the intervals from each gradient to the next, the first from the begin of the backward."""
    edges_s = np.concatenate([recorded.begin_s[:, :, None], recorded.ready_s[:, :, 1]], axis=2)
    return _intervals(recorded, edges_s[:, :, :-1], edges_s[:, :, 1:])


def _intervals(recorded: _StepsOfShape, low_s: Seconds, high_s: Seconds) -> _BackwardIntervals:
    """Return the intervals from `low_s` to `high_s`, which both have the shape steps by ranks by gradients."""
    during_s = np.empty(low_s.shape)
    for step in range(len(low_s)):
        # calls may overlap each other: time with several of them counts once
        busy_start_s, busy_stop_s = merge(recorded.calls_start_s[step], recorded.calls_stop_s[step])
        # ranks by gradients by busy times: what an interval and a busy time have in common, negative if that is nothing
        common_start_s = np.maximum(low_s[step, :, :, None], busy_start_s)
        common_stop_s = np.minimum(high_s[step, :, :, None], busy_stop_s)
        during_s[step] = np.maximum(common_stop_s - common_start_s, 0.0).sum(axis=-1)
    # an interval has no length if a gradient starts before the one before it is ready
    length_s = np.maximum(high_s - low_s, 0.0)
    return _BackwardIntervals(length_s, during_s)


def _local(recorded: _StepsOfShape, slowed: float) -> LocalStep:
    """Return the usual step of the last rank, as it would be if no allreduce slowed it down.

    Everything before the backward counts as its forward. The parameters are in reverse order of the gradients.
    """
    gaps = _gaps(recorded)
    # what is computed during allreduces would take `during_s / slowed` without them
    lost_s = gaps.during_s * (1 - 1 / slowed)
    ready_without_s = recorded.begin_s[:, :, None] + np.cumsum(gaps.length_s - lost_s, axis=2)
    begin_s = float(np.median(recorded.begin_s.max(axis=1)))
    # of each gradient, the time on the last rank, in the median step
    last_ready_s = np.median(ready_without_s.max(axis=1), axis=0)
    # The begin and each gradient have a maximum and a median of their own. So a gradient may come before the begin, or
    # before the gradient that it follows.
    ready_s = np.maximum.accumulate(np.maximum(last_ready_s - begin_s, 0.0))
    specs = []
    for gradient in reversed(range(recorded.sizes.size)):
        specs.append(ParameterSpec(f"gradient {gradient}", int(recorded.sizes[gradient])))
    return LocalStep(tuple(specs), ready_s[::-1], forward_s=begin_s, backward_s=float(ready_s[-1]))


class _AllreduceFit(NamedTuple):
    """The time of an allreduce, ``alpha_s + bytes * per_byte_s``, and its progress during the backward.

    `progress` is how much of its usual work an allreduce does per second while the backward runs; 1 is undisturbed.
    """

    alpha_s: float
    per_byte_s: float
    progress: float

    @property
    def is_plausible(self) -> bool:
        is_progress_plausible = _LEAST_PROGRESS < self.progress < 1 + 1e-6  # 1 with an error of rounding
        return self.per_byte_s > 0 and self.alpha_s >= 0 and is_progress_plausible


def _cost(recorded: _StepsOfShape) -> tuple[CostTable, float]:
    """Return the time of an allreduce by its size while nothing else runs, and its slowdown during the backward.

    The slowdown is how many times as long an allreduce takes while the backward runs.
    """
    parts = []
    for step in range(len(recorded.step_s)):
        backward_end_s = float(recorded.ready_s[step, :, 1].max())  # the last gradient of the last rank
        parts.append(_split_at(backward_end_s, recorded.calls_start_s[step], recorded.calls_stop_s[step]))
    usual = _CallSeconds(
        during_s=np.median([part.during_s for part in parts], axis=0),
        after_s=np.median([part.after_s for part in parts], axis=0),
    )
    fit = _first_plausible_fit(recorded.num_bytes.astype(float), usual)
    # a straight line needs two points: 0 bytes and 1 MB
    cost = CostTable((0.0, 1e6), (fit.alpha_s, fit.alpha_s + 1e6 * fit.per_byte_s))
    slowdown = max(float(1 / fit.progress), 1.0)  # a plausible progress may be above 1 by an error of rounding
    return cost, slowdown


class _CallSeconds(NamedTuple):
    """The seconds that each call of a step takes during the backward and after it."""

    during_s: Seconds
    after_s: Seconds


def _split_at(backward_end_s: float, start_s: Seconds, stop_s: Seconds) -> _CallSeconds:
    """Return the seconds of the calls before and after the end of the backward.

    Calls that run at once share the wire, so each of n such calls gets 1/n of the time.
    """
    # the calls by the intervals between neighbouring starts, stops, and the end of the backward
    edges_s = np.unique([*start_s, *stop_s, backward_end_s])
    is_running = (start_s[:, None] <= edges_s[:-1]) & (stop_s[:, None] >= edges_s[1:])
    num_running = np.maximum(is_running.sum(axis=0), 1)  # no division by 0 where no call runs
    shared_s = is_running * np.diff(edges_s) / num_running
    is_during = edges_s[1:] <= backward_end_s
    return _CallSeconds(shared_s[:, is_during].sum(axis=1), shared_s[:, ~is_during].sum(axis=1))


def _first_plausible_fit(num_bytes: Seconds, usual: _CallSeconds) -> _AllreduceFit:
    """Fit models with fewer and fewer parameters, and return the first plausible fit, or the one of the last model.

    Few calls, or calls of similar sizes, do not determine all parameters, and the fits show it: a bandwidth or a
    latency below 0, or an allreduce that is faster during the backward than after it.
    """
    has_spread = num_bytes.max() > _LEAST_SPREAD * num_bytes.min()
    # of the two models with two parameters, the one comes first that calls of any sizes determine
    for with_progress, with_latency in ((True, True), (True, False), (False, True)):
        num_parameters = 1 + with_progress + with_latency  # one is the time per byte
        num_calls = num_bytes.size
        if num_parameters > num_calls or (with_latency and not has_spread):
            continue
        fit = _fit(num_bytes, usual, with_progress, with_latency)
        if fit.is_plausible:
            return fit
    return _fit(num_bytes, usual, with_progress=False, with_latency=False)


def _fit(num_bytes: Seconds, usual: _CallSeconds, with_progress: bool, with_latency: bool) -> _AllreduceFit:
    """Return the least squares of ``after_s + progress * during_s = alpha_s + num_bytes * per_byte_s``.

    A progress that is not fitted is 1, and a latency that is not fitted is 0.
    """
    unknowns = ["per_byte_s"]
    columns = [num_bytes]  # the factor of each unknown
    times_s = usual.after_s + usual.during_s
    if with_progress:  # then the time during the backward has an unknown factor, and moves to the right-hand side
        unknowns.append("progress")
        columns.append(-usual.during_s)
        times_s = usual.after_s
    if with_latency:
        unknowns.append("alpha_s")
        columns.append(np.ones_like(num_bytes))
    # errors count relative to the time of a call, or the largest call would decide alone
    weight = 1 / np.maximum(usual.during_s + usual.after_s, _LEAST_SECONDS)
    factors = np.stack(columns, axis=1)  # calls by unknowns
    solution = np.linalg.lstsq(factors * weight[:, None], times_s * weight, rcond=None)[0]
    values = dict(zip(unknowns, solution, strict=True))
    return _AllreduceFit(values.get("alpha_s", 0.0), values["per_byte_s"], values.get("progress", 1.0))
