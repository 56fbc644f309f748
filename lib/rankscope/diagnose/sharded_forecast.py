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


_MOST_RECORDED_PREFETCH = 4  # groups ahead: deeper prefetching is not looked for in a trace
_MOST_MISSED = 0.1  # of a step: a replay of the recorded settings that misses it by more predicts nothing
_LEAST_SPREAD = 4.0  # the largest collective divided by the smallest: closer sizes do not show the latency
_RANGE = (0.05, 0.95)  # quantiles of the savings of the recorded steps, between which 90 % of them are
_SIGMAS_OF_90_PERCENT = 1.64  # a normal variable is within so many standard deviations in 90 % of all cases
_SIGMAS_PER_MAD = 1.4826  # standard deviations per median absolute deviation, of a normal distribution
_SIGMAS_OF_MEDIAN = 1.2533  # the standard deviation of a median of n normal values, times the root of n
_FASTER = 2.0  # the link of the forecast is so many times as fast as the recorded one
_MOST_FACTOR = 1e6  # of a link's bandwidth or latency
_LEAST_SECONDS = 1e-12  # instead of 0 in a denominator


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
        share = percent_words(_RANGE[1] - _RANGE[0])
        notes = [
            f"Recorded with {_words_of(self.settings)}. A range covers what {share} of the recorded steps would save, "
            "and how much two such recordings differ by chance; it does not cover a machine that changes between two "
            "runs."
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
        range covers both extremes. Raises ValueError for factors that are not positive or above 1,000,000, for a
        `reshard_after_forward` that is not a bool, and for a `prefetch` that is not from 0 to 1000.
        """
        bandwidth = number("times_bandwidth", times_bandwidth, above=0, high=_MOST_FACTOR)
        latency = number("times_latency", times_latency, above=0, high=_MOST_FACTOR)
        reshard = self.settings.reshard_after_forward
        depth = self.settings.prefetch
        words = []
        if reshard_after_forward is not None:
            reshard = truth("reshard_after_forward", reshard_after_forward)
            words.append(f"reshard_after_forward={reshard}")
        if prefetch is not None:
            depth = whole("prefetch", prefetch, 0, MOST_PREFETCH)
            words.append(f"prefetch={depth}")
        if (bandwidth, latency) != (1.0, 1.0):
            words.append(f"{bandwidth:g} times the bandwidth and {latency:g} times the latency")
        what = ", ".join(words) or "the recorded settings"
        settings = ShardSettings(self.steps.num_ranks, reshard_after_forward=reshard, prefetch=depth)
        return self._answer(what, settings, _LinkFactors(bandwidth, latency))

    def _answer(
        self, what: str, settings: ShardSettings, link: _LinkFactors, late_columns: Sequence[int] = ()
    ) -> RangedAnswer:
        """Return the step with these settings, on this link, and with these late ranks as fast as the others.

        Each recorded step is replayed with and without the changes, and the difference is what it saves. If the share
        of latency in the recorded collectives is unknown, it is replayed with both extremes, and what it saves is their
        mean. The median saving of all steps is subtracted from the recorded step.

        The answer has two independent errors: the savings of single steps differ from their median, and a recording
        differs by chance. Each has a range for 90 % of all cases; for the first, both extremes of latency count. Their
        squares add up to that of the answer's range, so it would hold in 90 % of all cases, too, if both errors were
        normal.
        """
        recorded_s = _replayed_s(self.steps, self.settings)
        program = _program(self.steps, settings)
        steps = _without_lateness(self.steps, late_columns)
        savings = []
        for factors in _time_factors(self.steps, link):
            savings.append(recorded_s - _clocked_s(steps, program, factors))
        savings_s = np.stack(savings)  # a row for each result of `_time_factors`, a column per step
        saved_s = float(np.median(savings_s.mean(axis=0)))
        least_saved_s, most_saved_s = np.quantile(savings_s, _RANGE).tolist()  # over both extremes and all steps
        step_s = max(self.step_s - saved_s, 0.0)
        chance_s = _chance_s(self.steps)
        low_s = step_s - math.hypot(most_saved_s - saved_s, chance_s)
        high_s = step_s + math.hypot(saved_s - least_saved_s, chance_s)
        saved_share = 1 - step_s / self.step_s
        return RangedAnswer(what, step_s, saved_share, low_s=max(low_s, 0.0), high_s=high_s)


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
    bare = ShardedForecast(step_s, model_s, settings, steps, answers=())  # without answers yet: it predicts them
    answers = []
    if settings.reshard_after_forward is not False:  # True, or None, which is True for all groups but the root
        answers.append(bare.with_changes(reshard_after_forward=False))
    else:
        answers.append(bare.with_changes(reshard_after_forward=True))
    if settings.prefetch < len(steps.shape.groups):  # otherwise each group prefetches all others already
        answers.append(bare.with_changes(prefetch=settings.prefetch + 1))
    faster = bare.with_changes(times_bandwidth=_FASTER, times_latency=1 / _FASTER)
    answers.append(faster._replace(what=f"a link {_FASTER:g} times as fast"))
    free = _LinkFactors(times_bandwidth=np.inf, times_latency=0.0)
    answers.append(bare._answer("collectives that take no time (lower bound)", settings, free))
    if diagnosis is not None:
        answers += _without_late_ranks(bare, diagnosis)
    return ShardedForecast(step_s, model_s, settings, steps, tuple(answers), steps.skipped_steps)


def _chance_s(steps: ShardedSteps) -> float:
    """Return by how much the medians of two recordings of so many steps differ at most, in 90 % of all cases."""
    window_s = steps.window_s.mean(axis=1)
    deviation_s = _SIGMAS_PER_MAD * float(np.median(np.abs(window_s - np.median(window_s))))
    deviation_of_median_s = _SIGMAS_OF_MEDIAN * deviation_s / math.sqrt(window_s.size)
    deviation_of_difference_s = math.sqrt(2) * deviation_of_median_s  # of two independent medians
    return _SIGMAS_OF_90_PERCENT * deviation_of_difference_s


def _without_late_ranks(forecast: ShardedForecast, diagnosis: JobDiagnosis) -> list[RangedAnswer]:
    """Return a step for each group of late ranks, in which these ranks do all their work as fast as the others.

    Ranks that are late together are made faster together, because the others wait for the last of them.
    """
    answers = []
    for group in diagnosis.lateness.groups:
        columns = [late.column for late in group]
        ranks = [diagnosis.ranks[column] for column in columns]
        causes: list[str] = []
        for late in group:
            for culprit in late.culprits:
                if culprit.cause not in causes:
                    causes.append(culprit.cause)
        what = f"{listed('rank', ranks)} as fast as the others ({', '.join(causes)})"
        answers.append(forecast._answer(what, forecast.settings, _LinkFactors(), columns))
    return answers


def _without_lateness(steps: ShardedSteps, late_columns: Sequence[int]) -> ShardedSteps:
    """Return steps in which the ranks in these columns take at most as long for each piece of work as the others do.

    The others' time is their median.
    """
    other_columns = [column for column in range(steps.num_ranks) if column not in late_columns]
    if not late_columns or not other_columns:
        return steps
    piece_s = []
    for recorded_s in steps.piece_s:  # steps by ranks
        usual_s = np.median(recorded_s[:, other_columns], axis=1, keepdims=True)
        changed_s = recorded_s.copy()
        changed_s[:, late_columns] = np.minimum(recorded_s[:, late_columns], usual_s)
        piece_s.append(changed_s)
    return steps._replace(piece_s=piece_s)


def _words_of(settings: ShardSettings) -> str:
    return f"reshard_after_forward={settings.reshard_after_forward} and prefetch={settings.prefetch}"


# ---- settings


class _Instruction(NamedTuple):
    """The next thing that every rank does: a piece of own work, or, if there is a `part`, this part of FSDP's.

    `piece` is the index of that piece of work; for a part it is the index of the next one, which is also the number of
    pieces before the part.
    """

    piece: int
    part: PartKey | None = None


def _program(steps: ShardedSteps, settings: ShardSettings) -> list[_Instruction]:
    """Return what every rank does in a step with these settings, in order, as `train.fsdp` predicts it."""
    shape = steps.shape
    wrapped = tuple(group for group in shape.groups if group)  # the root, "", is always wrapped
    modules = ("", *wrapped)
    step = ModuleStep(parameters_of(shape, steps.num_ranks), modules, shape.events)
    replay = Replay(step, wrapped, settings).run()
    num_parts_of: Counter[tuple[str, str]] = Counter()  # parts of a kind and group, so far
    program = []
    piece = 0
    for action in replay.actions:
        if action.kind in ("forward", "backward"):
            program.append(_Instruction(piece))
            piece += 1
        elif action.kind in ("gather", "copy_out", "reduce"):
            group = replay.groups[action.group].name
            order = num_parts_of[action.kind, group]
            program.append(_Instruction(piece, PartKey(action.kind, group, order)))
            num_parts_of[action.kind, group] += 1
        # other actions, such as "reshard", are no parts: their time is in the recorded pieces and parts
    return program


def _placed(program: Sequence[_Instruction]) -> tuple[PlacedPart, ...]:
    """Return the parts of a program that have a collective, and how many pieces of own work precede each."""
    placed = []
    for instruction in program:
        part = instruction.part
        if part is not None and part.kind != "copy_out":  # a "copy_out" has no collective
            placed.append(PlacedPart(part.kind, part.group, instruction.piece))
    return tuple(placed)


def _recorded_settings(steps: ShardedSteps) -> ShardSettings:
    """Return the settings that give the recorded collectives, in their order and between the same pieces of work.

    Of several settings that give the same, the simplest counts: True before None, which only makes an exception of the
    root, and as few groups ahead as possible.
    """
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
    """Return how long each recorded step takes by its replay with these settings, on the recorded link."""
    unchanged = dict.fromkeys(steps.call_bytes, 1.0)
    return _clocked_s(steps, _program(steps, settings), unchanged)


def _clocked_s(steps: ShardedSteps, program: Sequence[_Instruction], time_factors: dict[PartKey, float]) -> Seconds:
    """Return how long each step takes if the ranks follow this program: one time per step, the mean over ranks.

    A step counts from the mean of the times at which its ranks begin to the mean of those at which its last collective
    ends on them. In a collective, each rank waits for the last one. `time_factors` multiply the time of each
    collective from the arrival of this last rank on; see `_scaled`.
    """
    # steps by ranks: how far each rank is, counted from the mean of their begins, as `begin_s` is
    now_s = steps.begin_s
    end_s = steps.begin_s  # steps by ranks: the end of the last collective so far
    for instruction in program:
        if instruction.part is None:
            now_s = now_s + steps.piece_s[instruction.piece]
            continue
        key = _recorded_part(steps, instruction.part)
        now_s = now_s + steps.before_s[key]
        collective_s = steps.collective_s.get(key)
        if collective_s is not None:
            last_arrival_s = now_s.max(axis=1, keepdims=True)
            end_s = last_arrival_s + _scaled(collective_s, time_factors[key])
            now_s = end_s + steps.after_s[key]
    return np.asarray(end_s.mean(axis=1))


def _scaled(collective_s: Seconds, factor: float) -> Seconds:
    """Return the times of a collective, steps by ranks, on a link on which it takes `factor` times as long.

    The factor applies to the rank on which the collective ends first. How much later it ends on other ranks, whose
    threads wait for a core, does not depend on the link. A collective that takes no time has no such thread, either.
    """
    if factor == 0:
        return np.zeros_like(collective_s)
    first_end_s = collective_s.min(axis=1, keepdims=True)
    return np.asarray(collective_s + (factor - 1) * first_end_s)


def _recorded_part(steps: ShardedSteps, key: PartKey) -> PartKey:
    """Return the recorded part whose times stand for a part of a program.

    It is the part itself. With other settings, a group may have more parts of a kind than were recorded; the last
    recorded one stands for those.
    """
    order = key.order
    while order > 0 and key._replace(order=order) not in steps.before_s:
        order -= 1
    return key._replace(order=order)


def _time_factors(steps: ShardedSteps, link: _LinkFactors) -> list[dict[PartKey, float]]:
    """Return by which factor the time of each collective changes on another link.

    If bandwidth and latency do not change alike, the factor depends on the share of latency in the recorded time. Where
    that share is unknown, the first result assumes no latency, and the second one nothing but latency; where it is
    known, both have the same factor.
    """
    bytes_factor = 1 / link.times_bandwidth
    if bytes_factor == link.times_latency:
        return [dict.fromkeys(steps.call_bytes, bytes_factor)]
    without_latency: dict[PartKey, float] = {}
    only_latency: dict[PartKey, float] = {}
    for kind in ("gather", "reduce"):  # each has a latency and a time per byte of its own
        keys = [key for key in steps.call_bytes if key.kind == kind]
        shares = _latency_shares(steps, keys)
        for key in keys:
            if shares is None:
                without_latency[key] = bytes_factor
                only_latency[key] = link.times_latency
            else:
                factor = shares[key] * link.times_latency + (1 - shares[key]) * bytes_factor
                without_latency[key] = factor
                only_latency[key] = factor
    return [without_latency, only_latency]


def _latency_shares(steps: ShardedSteps, keys: Sequence[PartKey]) -> dict[PartKey, float] | None:
    """Return the share of latency in the time of each of these collectives, or None if it is unknown.

    It follows from a straight line through the median times by size. It is unknown if sizes are unknown, or so close to
    each other that no line is certain, or if noise makes the line's latency or its time per byte negative.
    """
    num_bytes = np.array([steps.call_bytes[key] for key in keys], float)
    if not num_bytes.size or num_bytes.min() <= 0 or num_bytes.max() < _LEAST_SPREAD * num_bytes.min():
        return None
    # a collective's own time is the one on the rank on which it ends first
    median_s = np.array([float(np.median(steps.collective_s[key].min(axis=1))) for key in keys])
    per_byte_s, alpha_s = np.polyfit(num_bytes, median_s, 1)
    if per_byte_s < 0 or alpha_s < 0:
        return None
    shares = alpha_s / np.maximum(alpha_s + per_byte_s * num_bytes, _LEAST_SECONDS)
    return dict(zip(keys, shares.tolist(), strict=True))
