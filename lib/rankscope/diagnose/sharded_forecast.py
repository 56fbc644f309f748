"""`what_if` for FSDP on Gloo: what recorded steps would take with other settings of `fully_shard`, or on a faster link.

The recorded own work of all ranks is replayed together with the collectives that `train.fsdp` predicts for the changed
settings. On the CPU, FSDP has one thread and no streams: whatever it does, it does after what it did before, and in a
collective each rank waits for the last one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..common.checks import count_of, number, truth, whole
from ..common.frozen import frozen
from ..common.units import percent_words
from ..common.words import listed
from ..train.fsdp.replay import MOST_PREFETCH, Replay, ShardSettings
from ..train.fsdp.step import ModuleStep
from .forecasts import Forecast, RangedAnswer
from .late_ranks import Seconds
from .sharded_steps import PartKey, PlacedPart, ShardedSteps, parameters_of, sharded_steps

if TYPE_CHECKING:
    from .diagnosis import JobDiagnosis
    from .trace import Trace


_MOST_RECORDED_PREFETCH = 4  # groups ahead: deeper ones are not looked for in a trace
_MOST_MISSED = 0.1  # of a step: a replay of the recorded settings that misses it by more cannot say anything
_SPREAD = 4.0  # the largest size by the smallest: sizes that are closer do not show the latency
_RANGE = (0.1, 0.9)  # quantiles over steps: between them are the savings that a range has
_SIGMAS = 1.64  # within so many standard deviations is a normal variable in 90 % of all cases
_SIGMAS_PER_MAD = 1.4826  # of a normal distribution
_SIGMAS_OF_MEDIAN = 1.2533  # the standard deviation of a median of n normal values, times the root of n
_FASTER = 2.0  # times as fast as the recorded link
_MOST_FACTOR = 1e6


@frozen(eq=False)
class ShardedForecast(Forecast):
    """The predicted effects of changes to a recorded FSDP job, and the replay behind them.

    `step_s` is the median of the recorded steps, `model_s` that of their replay with the recorded `settings`. The
    difference is in every answer. `skipped_steps` are steps with other collectives than most, or not on every rank.
    """

    step_s: float
    model_s: float
    settings: ShardSettings
    steps: ShardedSteps
    answers: tuple[RangedAnswer, ...]
    skipped_steps: tuple[int, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences on the recorded settings, and on steps that were left out."""
        notes = [
            f"Recorded with {_words_of(self.settings)}. A range covers what 80 % of the recorded steps would save, and "
            "how much two such recordings differ by chance; it does not cover a machine that changes between two runs."
        ]
        if self.skipped_steps:
            were = "was" if len(self.skipped_steps) == 1 else "were"
            steps = count_of(len(self.skipped_steps), "step")
            notes.append(f"{steps} {were} skipped, because the ranks did not record the same collectives there.")
        return notes

    def with_changes(
        self,
        *,
        reshard_after_forward: bool | None = None,
        prefetch: int | None = None,
        times_bandwidth: float = 1.0,
        times_latency: float = 1.0,
    ) -> RangedAnswer:
        """Return the step with other settings, which by default are the recorded ones.

        `times_bandwidth` and `times_latency` are factors of the link: 2 and 0.5 are twice the bandwidth and half the
        latency. Where the recorded collectives are too much alike to show which part of their time is latency, the
        range covers both extremes. Raises ValueError for factors that are not positive.
        """
        bandwidth = number("times_bandwidth", times_bandwidth, above=0, high=_MOST_FACTOR)
        latency = number("times_latency", times_latency, above=0, high=_MOST_FACTOR)
        settings = self.settings
        words = []
        if reshard_after_forward is not None:
            reshard = truth("reshard_after_forward", reshard_after_forward)
            words.append(f"reshard_after_forward={reshard}")
            settings = ShardSettings(self.steps.num_ranks, reshard_after_forward=reshard, prefetch=settings.prefetch)
        if prefetch is not None:
            depth = whole("prefetch", prefetch, 0, MOST_PREFETCH)
            words.append(f"prefetch={depth}")
            settings = ShardSettings(
                self.steps.num_ranks, reshard_after_forward=settings.reshard_after_forward, prefetch=depth
            )
        if (bandwidth, latency) != (1.0, 1.0):
            words.append(f"{bandwidth:g} times the bandwidth and {latency:g} times the latency")
        what = ", ".join(words) or "the recorded settings"
        return self._answer(what, settings, _LinkFactors(bandwidth, latency))

    def _answer(
        self, what: str, settings: ShardSettings, link: _LinkFactors, mended: Sequence[int] = ()
    ) -> RangedAnswer:
        recorded_s = _replayed_s(self.steps, self.settings)
        program = _program(self.steps, settings)
        steps = _mended(self.steps, mended)
        extremes_s = [recorded_s - _clocked_s(steps, program, scale) for scale in _scales(self.steps, link)]
        saved_s = np.mean(extremes_s, axis=0)
        least_s, most_s = np.quantile(np.stack(extremes_s), _RANGE)
        step_s = max(self.step_s - float(np.median(saved_s)), 0.0)
        chance_s = _chance_s(self.steps)
        low_s = step_s - math.hypot(float(most_s) - float(np.median(saved_s)), chance_s)
        high_s = step_s + math.hypot(float(np.median(saved_s)) - float(least_s), chance_s)
        return RangedAnswer(what, step_s, 1 - step_s / self.step_s, max(low_s, 0.0), high_s)


def sharded_forecast(traces: Sequence[Trace], diagnosis: JobDiagnosis | None = None) -> ShardedForecast:
    """Return what other settings, a faster link, and ranks that are not late would give.

    Raises ValueError for what `sharded_steps` refuses, for all-gathers in an order that no setting of `ShardSettings`
    gives, and where the replay of the recorded settings misses the recorded step.
    """
    steps = sharded_steps(traces)
    settings = _recorded_settings(steps)
    step_s = float(np.median(steps.window_s.mean(axis=1)))
    model_s = float(np.median(_replayed_s(steps, settings)))
    missed = model_s / step_s - 1
    if abs(missed) > _MOST_MISSED:
        error = percent_words(missed, signed=True)
        most = percent_words(_MOST_MISSED)
        raise ValueError(
            f"traces cannot be replayed accurately enough to predict other settings: with the recorded settings, the "
            f"replayed step differs by {error} from the recorded one (limit: {most})"
        )
    bare = ShardedForecast(step_s, model_s, settings, steps, ())
    answers = []
    if settings.reshard_after_forward is not False:
        answers.append(bare.with_changes(reshard_after_forward=False))
    else:
        answers.append(bare.with_changes(reshard_after_forward=True))
    if settings.prefetch < len(steps.shape.groups):
        answers.append(bare.with_changes(prefetch=settings.prefetch + 1))
    faster = bare.with_changes(times_bandwidth=_FASTER, times_latency=1 / _FASTER)
    answers.append(faster._replace(what=f"a link {_FASTER:g} times as fast"))
    free = bare._answer("collectives that take no time (lower bound)", settings, _LinkFactors(np.inf, 0.0))
    answers.append(free)
    if diagnosis is not None:
        answers += _without_late_ranks(bare, diagnosis)
    return ShardedForecast(step_s, model_s, settings, steps, tuple(answers), steps.skipped_steps)


def _chance_s(steps: ShardedSteps) -> float:
    """By how much the medians of two recordings of so many steps differ by chance at most, in 90 % of all cases."""
    window_s = steps.window_s.mean(axis=1)
    deviation_s = _SIGMAS_PER_MAD * float(np.median(np.abs(window_s - np.median(window_s))))
    return _SIGMAS * math.sqrt(2 / window_s.size) * _SIGMAS_OF_MEDIAN * deviation_s


def _without_late_ranks(forecast: ShardedForecast, diagnosis: JobDiagnosis) -> list[RangedAnswer]:
    """A step in which late ranks do everything as fast as the others; those that are late together are so together."""
    answers = []
    for group in diagnosis.lateness.groups:
        places = [late.place for late in group]
        ranks = [diagnosis.ranks[place] for place in places]
        causes = ", ".join(dict.fromkeys(culprit.cause for late in group for culprit in late.culprits))
        words = f"rank {ranks[0]}" if len(ranks) == 1 else listed("rank", ranks)
        what = f"{words} as fast as the others ({causes})"
        answers.append(forecast._answer(what, forecast.settings, _LinkFactors(), places))
    return answers


def _mended(steps: ShardedSteps, places: Sequence[int]) -> ShardedSteps:
    """The steps in which these ranks take no longer for each piece of their own work than the median of the others."""
    num_ranks = steps.window_s.shape[1]
    others = [place for place in range(num_ranks) if place not in places]
    if not places or not others:
        return steps
    piece_s = []
    for seconds in steps.piece_s:
        mended_s = seconds.copy()
        usual_s = np.median(seconds[:, others], axis=1, keepdims=True)
        mended_s[:, places] = np.minimum(seconds[:, places], usual_s)
        piece_s.append(mended_s)
    return steps._replace(piece_s=piece_s)


def _words_of(settings: ShardSettings) -> str:
    return f"reshard_after_forward={settings.reshard_after_forward} and prefetch={settings.prefetch}"


# ---- settings


class _Instruction(NamedTuple):
    """The next thing that every rank does: a piece of own work, by its place, or a part of FSDP's."""

    piece: int
    part: PartKey | None = None


def _program(steps: ShardedSteps, settings: ShardSettings) -> list[_Instruction]:
    """What ranks do with these settings, in order."""
    shape = steps.shape
    modules = ("", *(group for group in shape.groups if group))
    wrapped = modules[1:]
    step = ModuleStep(parameters_of(shape, steps.num_ranks), modules, shape.events)
    replay = Replay(step, wrapped, settings).run()
    order: Counter[tuple[str, str]] = Counter()
    program = []
    piece = 0
    for action in replay.actions:
        if action.kind in ("forward", "backward"):
            program.append(_Instruction(piece))
            piece += 1
        elif action.kind in ("gather", "copy_out", "reduce"):
            group = replay.groups[action.group].name
            program.append(_Instruction(piece, PartKey(action.kind, group, order[action.kind, group])))
            order[action.kind, group] += 1
    return program


def _placed(program: Sequence[_Instruction]) -> tuple[PlacedPart, ...]:
    """The collectives of a program, and how many pieces of own work precede each."""
    placed = []
    for instruction in program:
        part = instruction.part
        if part is not None and part.kind != "copy_out":
            placed.append(PlacedPart(part.kind, part.group, instruction.piece))
    return tuple(placed)


def _recorded_settings(steps: ShardedSteps) -> ShardSettings:
    """Return the settings that give the recorded collectives, in their order and between the same pieces of work."""
    deepest = min(len(steps.shape.groups), _MOST_RECORDED_PREFETCH)
    for reshard in (True, None, False):
        for prefetch in range(deepest + 1):
            settings = ShardSettings(steps.num_ranks, reshard_after_forward=reshard, prefetch=prefetch)
            if _placed(_program(steps, settings)) == steps.shape.placed:
                return settings
    raise ValueError(
        "traces must be of fully_shard with one setting of reshard_after_forward for all modules, and with prefetching "
        f"in the order of the forward, at most {_MOST_RECORDED_PREFETCH} groups ahead; the recorded all-gathers are in "
        "another order"
    )


# ---- time


class _LinkFactors(NamedTuple):
    """By how many times the bandwidth and the latency of a link are those of the recorded one."""

    times_bandwidth: float = 1.0
    times_latency: float = 1.0


def _replayed_s(steps: ShardedSteps, settings: ShardSettings) -> Seconds:
    return _clocked_s(steps, _program(steps, settings), dict.fromkeys(steps.call_bytes, 1.0))


def _clocked_s(steps: ShardedSteps, program: Sequence[_Instruction], scale: dict[PartKey, float]) -> Seconds:
    """Return how long each step takes, up to the end of its last collective: the mean over ranks.

    A collective begins when the last rank arrives. `scale` are factors of its time on the rank on which it ends first.
    How much later it ends on other ranks, whose threads wait for a core, does not depend on the link. With a factor of
    0 there is no collective at all.
    """
    now_s = steps.begin_s
    end_s = now_s
    for instruction in program:
        if instruction.part is None:
            now_s = now_s + steps.piece_s[instruction.piece]
            continue
        key = _recorded_key(steps, instruction.part)
        for place, seconds in enumerate(steps.part_s[key]):
            if place % 2 == 0:
                now_s = now_s + seconds
                continue
            now_s = np.broadcast_to(now_s.max(axis=1, keepdims=True), now_s.shape)
            if scale[key]:
                now_s = now_s + seconds + (scale[key] - 1) * seconds.min(axis=1, keepdims=True)
            end_s = now_s
    return np.asarray(end_s.mean(axis=1))


def _recorded_key(steps: ShardedSteps, key: PartKey) -> PartKey:
    """The part itself, or where it was recorded less often, the last one of its kind and group."""
    order = key.order
    while order > 0 and key._replace(order=order) not in steps.part_s:
        order -= 1
    return key._replace(order=order)


def _scales(steps: ShardedSteps, link: _LinkFactors) -> list[dict[PartKey, float]]:
    """By how much the time of each collective changes: once if that is known, else for both extremes.

    The share of latency follows from a straight line through the median times by size. It is unknown where sizes are
    unknown, or so close to each other that no line is certain.
    """
    by_bytes = 1 / link.times_bandwidth
    if by_bytes == link.times_latency:
        return [dict.fromkeys(steps.call_bytes, by_bytes)]
    scales: list[dict[PartKey, float]] = [{}, {}]
    for kind in ("gather", "reduce"):
        keys = [key for key in steps.call_bytes if key.kind == kind]
        shares = _latency_shares(steps, keys)
        for key in keys:
            for scale, extreme in zip(scales, (0.0, 1.0), strict=True):
                share = extreme if shares is None else shares[key]
                scale[key] = share * link.times_latency + (1 - share) * by_bytes
    return scales


def _latency_shares(steps: ShardedSteps, keys: Sequence[PartKey]) -> dict[PartKey, float] | None:
    """The share of latency in the time of each collective, or None if it is unknown."""
    num_bytes = np.array([steps.call_bytes[key] for key in keys], float)
    if not num_bytes.size or num_bytes.min() <= 0 or num_bytes.max() < _SPREAD * num_bytes.min():
        return None
    typical_s = np.array([float(np.median(steps.part_s[key][1].min(axis=1))) for key in keys])
    per_byte_s, alpha_s = np.polyfit(num_bytes, typical_s, 1)
    if per_byte_s < 0 or alpha_s < 0:
        return None
    shares = alpha_s / np.maximum(alpha_s + per_byte_s * num_bytes, 1e-12)
    return dict(zip(keys, shares.tolist(), strict=True))
