"""`what_if`: what a recorded step would take with another bucket cap, a faster link, or without the rank that is late.

Recorded steps become what `ddp.recommend` takes: when the last rank has each gradient ready, what an allreduce takes by
its size once the last rank has come, and how much the two slow each other down. What this model misses of the recorded
step is added to each answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import count_of, several
from ..common.frozen import frozen
from ..common.units import times_in_one_unit
from ..common.words import listed
from ..timeline import Timeline
from ..timeline.timeline import merge
from ..train.ddp import Contention, LocalStep, recommend
from ..train.ddp.buckets import ParameterSpec
from ..train.ddp.cost import CostTable, Seconds
from ..train.ddp.recommend import DEFAULT_CAPS_MB, CapCandidate
from ..train.ddp.step import Launches, last_backward

if TYPE_CHECKING:
    import pandas as pd

    from .diagnosis import JobDiagnosis
    from .trace import Trace

_LEAST_STEPS = 2
_MOST_PAIRS = 1 << 21  # of gradients and allreduces, or of two allreduces, in a step
_MOST_PAIRS_OF_STEPS = 1 << 26  # of all steps; where there are more, the last steps are taken
_SPREAD = 4.0  # of sizes that say what an allreduce takes without any bytes
_FREE, _BUSY = 0.1, 0.9  # shares of a gradient's time in which allreduces run
_SAMPLES = 3
_LEAST_SHARE, _MOST_SLOWED = 0.1, 8.0
_WORTH = 0.01  # of a step: smaller than what the model can resolve
_OF_RANKS = ("loader_s", "begin_s", "ready_s")
_FASTER = 2  # times as fast as the link is


class Answer(NamedTuple):
    """One change, the seconds of a step with it, and the share of the recorded step that it saves."""

    what: str
    step_s: float
    saved_share: float


@frozen(eq=False)
class SavingsForecast:
    """What changes to a recorded job are predicted to give, and the model that says so.

    `step_s` is the recorded step, `model_s` the same step by the model; their difference is in every answer.
    ``ddp.simulate(local, cost, contention=contention)`` draws the model's step with DDP's default cap. `caps` has each
    cap that was asked for, and None, DDP's default. `skipped_steps` are the numbers of steps in which some rank's
    stamps came late: its backward seems to begin before the allreduces of the step before it end.
    """

    step_s: float
    model_s: float
    local: LocalStep
    cost: CostTable
    contention: Contention
    caps: tuple[CapCandidate, ...]
    answers: tuple[Answer, ...]
    skipped_steps: tuple[int, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each answer: what, step_s, saved_share."""
        import pandas as pd

        return pd.DataFrame(self.answers, columns=Answer._fields)

    def __str__(self) -> str:
        now, *times = times_in_one_unit(self.step_s, *(one.step_s for one in self.answers))
        lines = [f"The median step takes {now}. It would take"]
        for one, step in zip(self.answers, times, strict=True):
            change = f" ({change_words(one.saved_share)})" if change_words(one.saved_share) else ""
            lines.append(f"  {step}{change} with {one.what}")
        return "\n".join([*lines, *self.notes])

    @property
    def notes(self) -> list[str]:
        """Sentences on what was left out."""
        if not self.skipped_steps:
            return []
        number = count_of(len(self.skipped_steps), "step")
        why = "a stamp came late, so that backward seems to begin before the allreduces of the step before it end"
        return [f"{number} {'was' if len(self.skipped_steps) == 1 else 'were'} skipped, because {why}."]


def change_words(saved_share: float) -> str:
    """Return by how much a step gets shorter or longer; nothing for a change that would be printed as 0.0%.

    >>> change_words(0.5), change_words(-0.02), change_words(0.0004)
    ('-50.0%', '+2.0%', '')
    """
    words = f"{-saved_share:+.1%}"
    return "" if words in ("+0.0%", "-0.0%") else words


def what_if(
    traces: Sequence[Trace], diagnosis: JobDiagnosis | None = None, *, caps_mb: Iterable[float] = DEFAULT_CAPS_MB
) -> SavingsForecast:
    """Return what other settings are predicted to give, from the traces of all ranks of a DDP job.

    A cap is predicted from the sizes of gradients, so record with ``record_shapes=True``; without them, and on a GPU,
    whose gradients are ready at times that no trace has, each recorded bucket counts as one gradient: larger caps join
    buckets, smaller ones change nothing. How much allreduces slow computing down is known best if some of the recorded
    steps run under ``no_sync``; else from layers that repeat. From allreduces that are all of about one size no latency
    is known: the step with a small cap is then a lower bound. With a `diagnosis` each of its culprits is taken out in
    turn, and ranks that are late next to each other are taken out together. How many workers a loader needs only its
    recording can say: see `pipeline.advise`. Steps with a late stamp are skipped; see `SavingsForecast.skipped_steps`.

    Raises ValueError where no steps with allreduces of gradients are in all traces.
    """
    seen = _seen(several("traces", traces))
    slowed = _slowed_by_allreduces(seen)
    cost, slows = _cost(seen)
    contention, local = Contention(slowed, slows), _local(seen, slowed)
    ready, sizes = local.ready_s[::-1], local.sizes[::-1]
    last = np.searchsorted(np.cumsum(sizes), np.cumsum(seen.num_bytes))
    recorded = Launches(ready[np.minimum(last, sizes.size - 1)], seen.num_bytes)

    def model_s(faster: float = 1.0) -> float:
        linked = CostTable(cost.num_bytes, tuple(seconds / faster for seconds in cost.seconds))
        return local.forward_s + last_backward(local, recorded, linked, contention).end_s

    step_s, modelled_s = float(np.median(seen.step_s)), model_s()
    found = recommend(local, cost, caps_mb=caps_mb, contention=contention)
    missed_s = step_s - modelled_s
    caps = tuple(one._replace(step_s=max(one.step_s + missed_s, 0.0)) for one in (found.default, *found.candidates))
    best = min(caps, key=lambda one: one.step_s)
    if best.step_s < (1 - _WORTH) * step_s:
        cap = "DDP's default cap" if best.bucket_cap_mb is None else f"bucket_cap_mb={best.bucket_cap_mb:g}"
        buckets = f"{count_of(best.num_buckets, 'bucket')} instead of {seen.num_bytes.size}"
        changes = [(f"{cap}, {buckets}", best.step_s)]
    else:
        changes = [("the recorded bucket_cap_mb: no other saves 1 % or more", step_s)]
    changes += [(f"a link {_FASTER} times as fast", model_s(_FASTER) + missed_s)]
    changes += [("allreduces that take no time (lower bound)", local.forward_s + local.backward_s + missed_s)]
    if seen.loader_s.any():
        without_s = seen.begin_s.max(axis=1) - (seen.begin_s - seen.loader_s).max(axis=1)
        changes += [("a loader that never keeps a rank waiting", step_s - float(np.median(without_s)))]
    if diagnosis:
        changes += _mended(diagnosis, step_s)
    answers = tuple(Answer(what, max(seconds, 0.0), 1 - max(seconds, 0.0) / step_s) for what, seconds in changes)
    return SavingsForecast(step_s, modelled_s, local, cost, contention, caps, answers, seen.skipped_steps)


def _mended(diagnosis: JobDiagnosis, step_s: float) -> list[tuple[str, float]]:
    """What a step takes without each culprit; ranks that are late together are taken out together."""
    changes = []
    for group in diagnosis.lateness.groups:
        culprits = [culprit for late in group for culprit in late.culprits]
        if len(group) == 1:
            saved_s = [(f"rank {rank} as fast as the others ({cause})", cost_s) for rank, cause, cost_s in culprits]
        else:
            who = listed("rank", [culprit.rank for culprit in culprits])
            causes = ", ".join(dict.fromkeys(culprit.cause for culprit in culprits))
            saved_s = [(f"{who} as fast as the others ({causes})", sum(culprit.cost_s for culprit in culprits))]
        changes += [(what, step_s * (1 - cost_s / diagnosis.step_s)) for what, cost_s in saved_s]
    return changes


# ---- what the traces say


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


def _seen(traces: Sequence[Trace]) -> _StepsOfShape:
    ranks, alone, skipped = zip(*map(_rows, traces), strict=True) if traces else ((), (), ())
    skipped_steps = tuple(sorted(set().union(*skipped)))
    shapes: dict[int, set[tuple[tuple[int, ...], ...]]] = {}
    for number in sorted(set.intersection(*map(set, ranks))) if ranks else ():
        shapes[number] = {(rows[number].sizes, rows[number].num_bytes) for rows in ranks}
    alike = Counter(shape for found in shapes.values() if len(found) == 1 for shape in found)
    if not alike or alike.most_common(1)[0][1] < _LEAST_STEPS:
        wanted = f"at least {_LEAST_STEPS + 1} steps with the same allreduces of gradients on every rank"
        late = f", and {count_of(len(skipped_steps), 'step')} with late stamps" if skipped_steps else ""
        raise ValueError(f"traces must have {wanted}, and have {count_of(sum(alike.values()), 'such step')}{late}")
    common = alike.most_common(1)[0][0]
    num, unknown = len(common[0]), np.full(len(common[0]), np.nan)
    num_pairs = max(num, len(common[1])) * len(common[1])  # each gradient and each call is compared with all calls
    if num_pairs > _MOST_PAIRS:
        wanted = f"at most {_MOST_PAIRS} pairs of gradients and allreduces"
        raise ValueError(f"a step must have {wanted}, and has {num_pairs}")
    most_steps = max(_MOST_PAIRS_OF_STEPS // num_pairs, _LEAST_STEPS)
    chosen = [number for number, found in shapes.items() if found == {common}][-most_steps:]
    steps = [[rows[number] for rows in ranks] for number in chosen]
    loader_s, begin_s, ready_s = (
        np.array([[getattr(row, name) for row in step] for step in steps]) for name in _OF_RANKS
    )
    calls_s = np.array([np.max([row.calls_s for row in step], axis=0) for step in steps])
    return _StepsOfShape(
        np.array(common[0], dtype=np.int64),
        np.array(common[1], dtype=np.int64),
        np.array([np.mean([row.step_s for row in step]) for step in steps]),
        loader_s,
        begin_s,
        ready_s,
        (calls_s[:, 0], np.maximum(calls_s[:, 0], calls_s[:, 1])),
        np.array([np.median([one for one in found if one.size == num] or [unknown], axis=0) for found in alone]),
        skipped_steps,
    )


def _rows(trace: Trace) -> tuple[dict[int, _StepOfRank], list[Seconds], set[int]]:
    """The steps of a rank that follow one with allreduces of gradients, by their numbers; those without; and those left
    out.

    Of those without, the seconds from the gradient before until each is computed. Left out, by their numbers, are those
    whose backward begins before the allreduces of the step before it end: a thread of Gloo stamps this end, and is late
    where it has no core.
    """
    spans, calls = trace.timeline, trace.calls
    gradients, backward, loader = (spans.select(kind=kind) for kind in ("gradient", "backward", "loader"))
    gradients = gradients.take(np.argsort(gradients.stop_s, kind="stable"))
    on_gpu = any(lane.startswith("stream") for _, lane in spans.select(kind=Timeline.COMMUNICATION).rank_lanes())
    asked_s = np.where(np.isnan(calls.launch_s), calls.start_s, calls.launch_s)
    sums = [place for place, kind in enumerate(calls.kinds) if kind == "allreduce"]
    summing = np.flatnonzero(np.isfinite(calls.start_s + calls.stop_s) & np.isin(calls.kind, sums))
    summing = summing[np.argsort(asked_s[summing], kind="stable")]
    forward = spans.select(kind="forward")
    rows = dict[int, _StepOfRank]()
    alone = list[Seconds]()
    skipped = set[int]()
    before_s: float | None = None
    steps = spans.select(kind="step")
    for place in np.argsort(steps.start_s).tolist():
        step = steps[place]
        inside = (backward.start_s >= step.start_s) & (backward.start_s < step.stop_s)
        if not inside.any():
            continue
        begin_s, end_s = float(backward.start_s[inside].min()), float(backward.stop_s[inside].max())
        own = np.sort(summing[_between(asked_s[summing], begin_s, end_s)])
        ready = gradients.take(_between(gradients.stop_s, begin_s, end_s))
        ready = ready.take(np.flatnonzero(ready.start_s >= begin_s))
        passes = max(len(forward.select(between_s=(step.start_s, step.stop_s))), 1)
        ready = ready.take(np.arange(len(ready))[-(len(ready) // passes) :])  # the last micro-batch's
        if not own.size:
            alone += [ready.start_s - np.append(begin_s, ready.stop_s)[:-1]] * (not on_gpu)
            before_s = None
            continue
        sizes, ready_s = trace.gradient_bytes[ready.item], np.array([ready.start_s, ready.stop_s])
        if on_gpu or not sizes.size or sizes.min() < 0:
            came_s = np.maximum.accumulate((calls.start_s if on_gpu else asked_s)[own])
            sizes, ready_s = calls.num_bytes[own], np.array([came_s, came_s])
        stop_s = float(calls.stop_s[own].max())
        if before_s is not None and begin_s < before_s:
            skipped.add(step.item)
        elif before_s is not None and (sizes >= 0).all() and (calls.num_bytes[own] >= 0).all():
            loaded = loader.select(between_s=(before_s, begin_s))
            rows[step.item] = _StepOfRank(
                tuple(sizes.tolist()),
                tuple(calls.num_bytes[own].tolist()),
                stop_s - before_s,
                float((loaded.stop_s - loaded.start_s).sum()),
                begin_s - before_s,
                ready_s - before_s,
                np.array([calls.start_s[own], calls.stop_s[own]]) - before_s,
            )
        before_s = stop_s
    return rows, alone, skipped


def _between(times_s: Seconds, low_s: float, high_s: float) -> NDArray[np.int64]:
    """The places of the times that are within these bounds, of increasing times."""
    return np.arange(np.searchsorted(times_s, low_s, "left"), np.searchsorted(times_s, high_s, "right"))


# ---- what it says about the model


def _slowed_by_allreduces(seen: _StepsOfShape) -> float:
    """How many times as long computing takes during allreduces.

    Steps under ``no_sync`` say so. Without them, layers that repeat do: gradients of one size after gradients of one
    size take equally long to compute, and the first of them are computed before the first allreduce. It is 1 where
    neither is recorded.
    """
    if np.isfinite(seen.alone_s).all():  # DDP's copies into buckets, in the gradients' own spans, are not in these
        low_s = np.concatenate([seen.begin_s[:, :, None], seen.ready_s[:, :, 1, :-1]], axis=2)
        length_s, during_s = _lengths(seen, low_s, seen.ready_s[:, :, 0])
        busy_s, free_s = (float(np.median(one.sum(axis=2))) for one in (during_s, length_s - during_s))
        return max(busy_s / max(float(seen.alone_s.sum(axis=1).mean()) - free_s, busy_s / _MOST_SLOWED, 1e-9), 1.0)
    length_s, during_s = _gaps(seen)
    share = during_s / np.maximum(length_s, 1e-9)
    pairs = list(zip(seen.sizes[:-1].tolist(), seen.sizes[1:].tolist(), strict=True))
    free_s = busy_s = 0.0
    for pair in dict.fromkeys(pairs):
        own = [place + 1 for place, one in enumerate(pairs) if one == pair]
        lengths_s, shares = length_s[:, :, own], share[:, :, own]
        free, busy = lengths_s[shares < _FREE], lengths_s[shares > _BUSY]
        if min(free.size, busy.size) >= _SAMPLES:
            free_s, busy_s = free_s + float(np.median(free)), busy_s + float(np.median(busy))
    return max(busy_s / free_s, 1.0) if free_s else 1.0


def _gaps(seen: _StepsOfShape) -> tuple[Seconds, Seconds]:
    """Of each gradient of each step and rank the seconds after the one before, and how many of them have allreduces."""
    edges = np.concatenate([seen.begin_s[:, :, None], seen.ready_s[:, :, 1]], axis=2)
    return _lengths(seen, edges[:, :, :-1], edges[:, :, 1:])


def _lengths(seen: _StepsOfShape, low_s: Seconds, high_s: Seconds) -> tuple[Seconds, Seconds]:
    """The lengths of these intervals, steps by ranks by gradients, and how much of each has allreduces."""
    during_s = np.empty(low_s.shape)
    for place, (start_s, stop_s) in enumerate(zip(*seen.calls_s, strict=True)):
        starts, stops = merge(start_s, stop_s)
        both = np.minimum(high_s[place, :, :, None], stops) - np.maximum(low_s[place, :, :, None], starts)
        during_s[place] = np.maximum(both, 0.0).sum(axis=-1)
    return np.maximum(high_s - low_s, 0.0), during_s


def _local(seen: _StepsOfShape, slowed: float) -> LocalStep:
    """The step of the last rank if no allreduce slowed it; parameters stand in reverse order of their gradients."""
    length_s, during_s = _gaps(seen)
    own_s = seen.begin_s[:, :, None] + np.cumsum(length_s - during_s * (1 - 1 / slowed), axis=2)
    begin_s = float(np.median(seen.begin_s.max(axis=1)))
    ready_s = np.maximum.accumulate(np.maximum(np.median(own_s.max(axis=1), axis=0) - begin_s, 0.0))
    names = [f"gradient {place}" for place in range(seen.sizes.size)]
    specs = tuple(map(ParameterSpec, names[::-1], seen.sizes[::-1].tolist()))
    return LocalStep(specs, ready_s[::-1], forward_s=begin_s, backward_s=float(ready_s[-1]))


def _cost(seen: _StepsOfShape) -> tuple[CostTable, float]:
    """What an allreduce takes by its size while nothing else runs, and how many times as long during the backward.

    Calls that run at once share the wire. The seconds of a call after the backward, and a share of those during it, are
    α + bytes / bandwidth: least squares over the medians of each call, relative to its time.
    """
    both = [
        _shares(*calls, float(seen.ready_s[step, :, 1].max()))
        for step, calls in enumerate(zip(*seen.calls_s, strict=True))
    ]
    during_s, after_s = np.median(both, axis=0)
    num_bytes = seen.num_bytes.astype(float)
    weight = 1 / np.maximum(during_s + after_s, 1e-9)
    bytes_only, latency, slow = num_bytes, np.ones_like(num_bytes), -during_s
    spread = num_bytes.max() > _SPREAD * max(num_bytes.min(), 1.0)
    for columns, times_s in (
        ((bytes_only, slow, latency), after_s),
        ((bytes_only, slow), after_s),
        ((bytes_only, latency), after_s + during_s),
        ((bytes_only,), after_s + during_s),
    ):
        if len(columns) > num_bytes.size or (columns[-1] is latency and not spread):
            continue
        found = np.linalg.lstsq(np.stack(columns, axis=1) * weight[:, None], times_s * weight, rcond=None)[0]
        per_byte_s, alpha_s = found[0], found[-1] if columns[-1] is latency else 0.0
        share = found[1] if slow is columns[min(1, len(columns) - 1)] else 1.0
        if per_byte_s > 0 and alpha_s >= 0 and _LEAST_SHARE < share < 1 + 1e-6:
            break
    return CostTable((0.0, 1e6), (alpha_s, alpha_s + 1e6 * per_byte_s)), max(float(1 / share), 1.0)


def _shares(start_s: Seconds, stop_s: Seconds, backward_s: float) -> tuple[Seconds, Seconds]:
    """The seconds of each call during the backward and after it, each call with its share of those that it shares."""
    edges = np.unique([*start_s, *stop_s, backward_s])
    runs = (start_s[:, None] <= edges[:-1]) & (stop_s[:, None] >= edges[1:])
    own_s = runs * np.diff(edges) / np.maximum(runs.sum(axis=0), 1)
    during = edges[1:] <= backward_s
    return own_s[:, during].sum(axis=1), own_s[:, ~during].sum(axis=1)
