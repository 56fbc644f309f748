"""The result of `lateness` in words: `sentences` for a recorded job, `headline` for a line while it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.units import percent_words
from ..common.words import and_joined, count_of, listed
from .late_ranks import LEAST_S, Lateness, LateRank, Seconds, median_of_others
from .trace import PHASES

_SELDOM_SHARE = 0.2  # of a step: a rank that is later than this is mentioned, though it is late too seldom …
_SELDOM_NOISE = 2.0  # … and later than so many times the noise
_QUANTILE = 0.9  # of how far ranks are from each other: the noise that a verdict states
_AT_ONCE = 0.5  # two ranks are late together if more than this share of their late steps is common
_MOST_OF_IT = 0.5  # of all waiting
_FEW = 0.25  # of the steps: if most of the waiting is in so few of them, they are listed one by one
_MOST_LISTED = 4  # ranks, steps or phases in a sentence
_LEAST_SAVED = 0.01  # of a step: a verdict calls a smaller saving nothing
_LEAST_LISTED = 0.1  # of the extra time: a phase with less is not mentioned
_LEAST_SECONDS = 1e-9  # instead of 0 in a denominator
_HINTS = {
    "loader": "Look at {its} storage, and give {its} DataLoader more workers.",
    "h2d": "Look at {its} PCIe link, and at whether {its} batches lie in pinned memory.",
    "zero_grad": "Look for other work on {its} device.",
    "forward": "Look for longer samples, other input shapes or a slower device there.",
    "backward": "Look for longer samples, other input shapes or a slower device there.",
    "optimizer": "Look for parameters or states that no other rank has.",
    "host": "Look for logging, checkpoints, .item() and garbage collection there.",
    "starved": "Look for other processes on {its} cores.",
    "slower": "Compare clocks, power limits and temperatures; look for other processes on {its} cores and {its} GPU.",
}


# ---- a recorded job


def sentences(lateness: Lateness, steps: Sequence[int], host_s: Seconds, is_complete: bool) -> list[str]:
    """Return the verdict on who is late, a sentence or a few per line.

    `steps` are the numbers of the steps; `host_s`, steps by ranks by phases, is the time of the phase "host" by the
    phase before it. A job is called balanced only if it `is_complete`, with a trace of each rank.
    """
    words = _VerdictWords(lateness, steps, host_s)
    if not lateness.groups:
        return words.of_nobody(is_complete)
    lines = []
    for group in lateness.groups:
        if len(group) == 1:
            lines += words.of_late_rank(group[0])
        else:
            lines += words.of_late_ranks(group)
    return lines


class _MeanTimes(NamedTuple):
    """How long phases take on a late rank and on the calm ranks, in the mean of its late steps."""

    takes_s: float
    usual_s: float


class _VerdictWords:
    """Sentences on one job. `its` is always "its" or "their", for one rank or several."""

    def __init__(self, lateness: Lateness, steps: Sequence[int], host_s: Seconds) -> None:
        self._lateness = lateness
        self._steps = steps
        self._host_s = host_s
        self._late_s = lateness.late_s

    # ---- late ranks

    def of_late_rank(self, late: LateRank) -> list[str]:
        """Return a line for each cause of a rank that is late alone."""
        rank = self._lateness.ranks[late.column]
        mean_s = self._mean_late_s(late)
        if mean_s > 0:
            arrives = f"arrives {in_ms(mean_s)} late {self._when(late)}"
        else:  # ranks that are named before this one are at least as late, so it is not behind the others yet
            arrives = f"would be the next that is late, {self._when(late)}"
        lines = []
        for culprit in late.culprits:
            why = self._why([late], culprit.cause, "its")
            cost = f"This costs {self._of_step(culprit.cost_s)}."
            lines.append(f"Rank {rank} {arrives}: {why}. {cost} {_hint(culprit.cause, 'its')}")
        return lines

    def of_late_ranks(self, group: Sequence[LateRank]) -> list[str]:
        """Return a line on what ranks that are late next to each other cost together, and a line for each cause."""
        cost_s = sum(culprit.cost_s for late in group for culprit in late.culprits)
        lines = [
            f"{self._ranks('Rank', group)} are late {_pattern(group)}. They cost {self._of_step(cost_s)}; fixing only "
            f"one of them saves {self._saved_by_one(group)}."
        ]
        by_cause = defaultdict[str, list[LateRank]](list)
        for late in group:
            for culprit in late.culprits:
                by_cause[culprit.cause].append(late)
        least_s = self._least_late_s(group)
        for cause, ranks in by_cause.items():
            late_now = [late for late in ranks if self._mean_late_s(late) > least_s]
            next_ranks = [late for late in ranks if self._mean_late_s(late) <= least_s]
            if late_now:
                late_s = [self._mean_late_s(late) for late in late_now]
                arrive = f"{'arrives' if len(late_now) == 1 else 'arrive'} {_range(late_s)} late"
                lines.append(self._of_cause(late_now, cause, arrive))
            if next_ranks:
                arrive = f"would be the next {'that is' if len(next_ranks) == 1 else 'that are'} late,"
                lines.append(self._of_cause(next_ranks, cause, arrive))
        return lines

    def _least_late_s(self, group: Sequence[LateRank]) -> float:
        """Return how late a rank of a group must be; one that is less late is late only once others are mended.

        `late_s` leaves out only the first group. Ranks of a later group are compared with each other, too, and one that
        is less late than the others may have less own time than their median.
        """
        if min(self._mean_late_s(late) for late in group) > 0:
            return 0.0
        # of ranks that are late alike, about half are a little above the median of the others
        return _LEAST_SAVED * self._lateness.step_s

    def _of_cause(self, ranks: Sequence[LateRank], cause: str, arrive: str) -> str:
        """Return a line on ranks with the same cause; `arrive` says how late they are."""
        its = "its" if len(ranks) == 1 else "their"
        when = self._when(ranks[0])
        if any(self._when(late) != when for late in ranks):
            when = "in their late steps"
        return f"{self._ranks('Rank', ranks)} {arrive} {when}: {self._why(ranks, cause, its)}. {_hint(cause, its)}"

    def _saved_by_one(self, group: Sequence[LateRank]) -> str:
        """Return how much time per step is saved at most if only one of these ranks becomes as fast as usual."""
        own_s = self._lateness.phase_s.sum(axis=2)  # steps by ranks; the last rank of a step decides how long it takes
        most_saved_s = 0.0
        for late in group:
            changed_s = own_s.copy()
            changed_s[:, late.column] = np.minimum(own_s[:, late.column], late.usual_s.sum(axis=1))
            saved_s = float((own_s.max(axis=1) - changed_s.max(axis=1)).mean())
            most_saved_s = max(most_saved_s, saved_s)
        if most_saved_s < _LEAST_SAVED * self._lateness.step_s:
            return "nothing"
        return f"at most {in_ms(most_saved_s)}"

    def _mean_late_s(self, late: LateRank) -> float:
        """Return how late the rank arrives in its late steps on average."""
        return float(self._late_s[late.in_steps, late.column].mean())

    def _when(self, late: LateRank) -> str:
        if late.in_steps.all():
            return "in each step"
        return f"in {late.in_steps.sum()} of {len(late.in_steps)} steps"

    def _why(self, ranks: Sequence[LateRank], cause: str, its: str) -> str:
        """Return what takes longer on these ranks, and how long it takes on the others."""
        if cause == "starved":
            return _why_starved(ranks, its)
        if cause == "slower":
            return self._why_slower(ranks, its)
        means = [self._mean_times(late, [cause]) for late in ranks]
        when = "" if _are_late_in_all_steps(ranks) else " in these"  # the begin of the sentence says in how many steps
        before_host = ""
        if cause == "host":
            before_host = self._phase_before_host(ranks)
        phase_takes = _takes(cause, its, before_host)
        usual = in_ms(float(np.mean([mean.usual_s for mean in means])))
        takes = _range([mean.takes_s for mean in means])
        return f"{phase_takes} {takes}{when}, compared with {usual} on the other ranks"

    def _why_slower(self, ranks: Sequence[LateRank], its: str) -> str:
        """Return how much longer all phases take on these ranks, and what may be the reason."""
        ratios = []
        for late in ranks:
            takes_s, usual_s = self._mean_times(late, PHASES)
            ratios.append(takes_s / max(usual_s, _LEAST_SECONDS))
        times = _from_to(f"{min(ratios):.1f}", f"{max(ratios):.1f}")
        return (
            f"all {its} phases take {times} times as long as on the others, as with a slower clock of {its} GPU or "
            "CPU, or with a shared core; the traces do not show which"
        )

    def _mean_times(self, late: LateRank, phases: Sequence[str]) -> _MeanTimes:
        """Return how long these phases take together in the late steps of a rank, on it and on the calm ranks."""
        columns = [PHASES.index(phase) for phase in phases]
        on_rank_s = self._lateness.phase_s[late.in_steps, late.column]  # steps by phases
        on_others_s = late.usual_s[late.in_steps]
        return _MeanTimes(
            takes_s=float(on_rank_s[:, columns].sum(axis=1).mean()),
            usual_s=float(on_others_s[:, columns].sum(axis=1).mean()),
        )

    def _phase_before_host(self, ranks: Sequence[LateRank]) -> str:
        """Return the phase after which these ranks lose most of their time on the host."""
        longer_s = np.zeros(len(PHASES))
        for late in ranks:
            usual_s = median_of_others(self._host_s)[:, late.column]
            longer_s += (self._host_s[:, late.column] - usual_s)[late.in_steps].sum(axis=0)
        return PHASES[int(longer_s.argmax())]

    # ---- nobody is late, or nobody can be named

    def of_nobody(self, is_complete: bool) -> list[str]:
        """Return the verdict on a job without late ranks: who waits, who is late sometimes, or that it is balanced."""
        lines = []
        if not self._lateness.is_balanced:
            lines.append(self._unattributed())
        seldom = self._seldom()
        if seldom:
            lines.append(f"No rank makes the others wait in most steps. {seldom}")
        if lines:
            return lines
        first = "The job is balanced: no rank" if is_complete else "None of these ranks"
        noise = in_ms(float(np.quantile(np.abs(self._late_s), _QUANTILE)))
        often = f"{percent_words(_QUANTILE)} of the time, a rank is within {noise} of the others' median."
        return [f"{first} stands out above the noise. {often}"]

    def _unattributed(self) -> str:
        """How long ranks wait for each other, and how that is distributed over steps, ranks and phases."""
        lateness = self._lateness
        first = (
            f"Ranks wait for each other, for up to {self._of_step(lateness.longest_wait_s)}, but no rank is late "
            "consistently enough to be named."
        )
        few_steps = _few_steps(lateness, self._steps)
        if few_steps:
            return f"{first} {few_steps}"
        return f"{first} {_last_ranks(lateness)} {_phases_of_the_last(lateness)}".rstrip()

    def _seldom(self) -> str:
        """Ranks that are late in some steps, which does not suffice to name them."""
        seldom_late = _seldom_late(self._lateness)
        if not seldom_late:
            return ""
        # steps by ranks by phases
        phase_longer_s = self._lateness.phase_s - median_of_others(self._lateness.phase_s)
        host_longer_s = self._host_s - median_of_others(self._host_s)
        sentences = []
        for rank in seldom_late:
            cause = PHASES[int(phase_longer_s[rank.in_steps, rank.column].sum(axis=0).argmax())]
            before_host = ""
            if cause == "host":
                before_host = PHASES[int(host_longer_s[rank.in_steps, rank.column].sum(axis=0).argmax())]
            phase = _noun(cause, "its", before_host)
            sentence = f"{_late_in(self._lateness, rank)} ({phase}), which is not consistent enough to be named."
            sentences.append(sentence[0].upper() + sentence[1:])
        return " ".join(sentences)

    # ---- parts of sentences

    def _ranks(self, noun: str, late: Sequence[LateRank]) -> str:
        return listed(noun, [self._lateness.ranks[rank.column] for rank in late])

    def _of_step(self, seconds: float) -> str:
        share = seconds / max(self._lateness.step_s, _LEAST_SECONDS)
        return f"{in_ms(seconds)} per step, {percent_words(share)} of the step"


def _why_starved(ranks: Sequence[LateRank], its: str) -> str:
    """Return how much longer these ranks wait for a core than the others."""
    longer = _range([late.starved_s for late in ranks])
    when = "per step" if _are_late_in_all_steps(ranks) else "in each of these steps"
    it_was = "it was" if its == "its" else "they were"
    return f"{it_was} ready to run but waited {longer} longer {when} for a core than the others"


def _are_late_in_all_steps(ranks: Sequence[LateRank]) -> bool:
    return all(late.in_steps.all() for late in ranks)


# ---- while a job runs


def headline(lateness: Lateness, steps: Sequence[int]) -> str:
    """Return who is late and why, and what that costs, in one line."""
    if not lateness.groups:
        return _headline_of_nobody(lateness, steps)
    group = lateness.groups[0]  # the others are late only once these ranks are mended
    if len(group) > 1:
        return _headline_of_late_ranks(lateness, group)
    culprit = group[0].culprits[0]  # the most important cause; `sentences` has the others
    cost = f"{_whole_ms(culprit.cost_s)} of each step of {_whole_ms(lateness.step_s)}"
    return f"rank {culprit.rank} is late, {_because(culprit.cause, 'its')}: {cost}"


def _headline_of_late_ranks(lateness: Lateness, group: Sequence[LateRank]) -> str:
    """Return a line on several ranks that are late next to each other."""
    cost_s = sum(culprit.cost_s for late in group for culprit in late.culprits)
    cost = f"{_whole_ms(cost_s)} of each step of {_whole_ms(lateness.step_s)}"
    ranks = listed("rank", [lateness.ranks[late.column] for late in group])
    ranks_by_cause = defaultdict[str, list[int]](list)  # by the most important cause, which is the first one
    for late in group:
        ranks_by_cause[late.culprits[0].cause].append(lateness.ranks[late.column])
    # the cost is that of all causes, also of those that the line does not name
    mostly = "mostly " if any(len(late.culprits) > 1 for late in group) else ""
    if len(ranks_by_cause) == 1:
        (cause,) = ranks_by_cause
        return f"{ranks} are late {_pattern(group)}, {mostly}{_because(cause, 'their')}: {cost}"
    reasons = []
    for cause, with_cause in ranks_by_cause.items():
        its = "its" if len(with_cause) == 1 else "their"
        reasons.append(f"{listed('rank', with_cause)} {mostly}{_because(cause, its)}")
    return f"{ranks} are late {_pattern(group)}, {and_joined(reasons)}: {cost}"


def _headline_of_nobody(lateness: Lateness, steps: Sequence[int]) -> str:
    """Return a line on steps without late ranks; see `of_nobody`."""
    step = _whole_ms(lateness.step_s)
    if not lateness.is_balanced:
        distribution = _few_steps(lateness, steps) or _last_ranks(lateness)
        wait = f"ranks wait for each other, for up to {_whole_ms(lateness.longest_wait_s)} of each step of {step}"
        return f"{wait}, but no rank is late consistently enough to be named. {distribution}"
    seldom = sorted(_seldom_late(lateness), key=lambda rank: -rank.in_steps.sum())  # the most often late first
    if seldom:
        parts = [_late_in(lateness, rank) for rank in seldom[:_MOST_LISTED]]
        num_others = len(seldom) - _MOST_LISTED
        if num_others > 0:
            parts.append(f"{count_of(num_others, 'other')} in as many steps or fewer")
        return f"no rank is late in most steps of {step}; {and_joined(parts)}"
    return f"balanced, {step} per step"


def _because(cause: str, its: str) -> str:
    it_is = "it is" if its == "its" else "they are"
    if cause == "starved":
        cores = "core" if its == "its" else "cores"
        return f"because {it_is} starved of {its} {cores}"
    if cause == "slower":
        return f"because all {its} phases take longer alike (a slower clock, or a shared core)"
    return f"because of {_phase(cause, its)}"


# ---- how lateness is distributed


def _pattern(group: Sequence[LateRank]) -> str:
    """Return whether these ranks are late in the same steps, by each pair of them."""
    shares = []
    for late, other in combinations(group, 2):
        num_common = (late.in_steps & other.in_steps).sum()
        # as a share of the fewer steps: a rank that is late seldom, but always with the other one, is late together
        num_fewer = min(late.in_steps.sum(), other.in_steps.sum())
        shares.append(num_common / num_fewer)
    if min(shares) > _AT_ONCE:
        return "together"
    if max(shares) < _AT_ONCE:
        return "in turn"
    return "partly together and partly in turn"


class _SeldomLate(NamedTuple):
    """A rank, by its column, that is very late in some steps, but in too few to be named as late."""

    column: int
    in_steps: NDArray[np.bool_]


def _seldom_late(lateness: Lateness) -> list[_SeldomLate]:
    """Return the ranks that are the last ones, and very late, in at least two steps."""
    if len(lateness.ranks) < 2:  # a single rank makes nobody wait, and there is no noise of others
        return []
    late_s = lateness.late_s  # steps by ranks
    last = lateness.phase_s.sum(axis=2).argmax(axis=1)  # the column of the last rank of each step
    seldom = []
    for column in range(len(lateness.ranks)):
        noise_s = float(np.quantile(np.abs(np.delete(late_s, column, axis=1)), _QUANTILE))  # of the other ranks
        least_s = max(LEAST_S, _SELDOM_SHARE * float(np.median(lateness.window_s)), _SELDOM_NOISE * noise_s)
        in_steps = (late_s[:, column] > least_s) & (last == column)
        if in_steps.sum() > 1:  # any rank may pause once
            seldom.append(_SeldomLate(column, in_steps))
    return seldom


def _late_in(lateness: Lateness, rank: _SeldomLate) -> str:
    mean = in_ms(float(lateness.late_s[rank.in_steps, rank.column].mean()))
    number = lateness.ranks[rank.column]
    return f"rank {number} is late in {rank.in_steps.sum()} of {len(rank.in_steps)} steps, by {mean}"


def _few_steps(lateness: Lateness, steps: Sequence[int]) -> str:
    """Return the few steps that most of the waiting is in, with their last ranks; "" if it is not in few steps."""
    waits_s = lateness.waits_s.mean(axis=1)  # by step
    longest_first = np.argsort(-waits_s, kind="stable")
    waits_so_far_s = np.cumsum(waits_s[longest_first])
    # the smallest number of steps that have most of the waiting
    num_steps = int(np.searchsorted(waits_so_far_s, _MOST_OF_IT * waits_s.sum())) + 1
    most_steps = min(max(_FEW * len(waits_s), 1), _MOST_LISTED)  # one step is always few
    if num_steps > most_steps:
        return ""
    own_s = lateness.phase_s.sum(axis=2)
    usual_s = median_of_others(lateness.phase_s)  # steps by ranks by phases
    parts = []
    for row in sorted(longest_first[:num_steps].tolist()):
        last = int(own_s[row].argmax())
        longer_s = lateness.phase_s[row, last] - usual_s[row, last]
        phase = _phase(PHASES[int(longer_s.argmax())], "its")
        longer = in_ms(float(longer_s.sum()))
        parts.append(f"rank {lateness.ranks[last]} takes {longer} longer in step {steps[row]}, mostly in {phase}")
    in_steps = "one step" if num_steps == 1 else f"{num_steps} steps"
    words = f"Most of it is in {in_steps} of {len(waits_s)}: {and_joined(parts)}."
    other_steps = longest_first[num_steps:]
    if not other_steps.size:
        return words
    longest_s = float(lateness.waits_s[other_steps].mean(axis=0).max())
    return f"{words} In the other steps they wait for up to {in_ms(longest_s)}."


def _last_ranks(lateness: Lateness) -> str:
    """How often each rank has the most own time."""
    num_last = Counter(lateness.phase_s.sum(axis=2).argmax(axis=1).tolist())
    parts = [f"rank {lateness.ranks[column]} in {number}" for column, number in num_last.most_common(_MOST_LISTED)]
    num_others = len(num_last) - _MOST_LISTED  # ranks that are last somewhere and not listed
    if num_others == 1:
        parts.append("1 other in the rest")
    elif num_others > 1:
        parts.append(f"{num_others} others in the rest")
    return f"The last to arrive is {and_joined(parts)} of {len(lateness.phase_s)} steps."


def _phases_of_the_last(lateness: Lateness) -> str:
    """Return in which phases the last rank of each step takes longer than the others; "" if in none."""
    own_s = lateness.phase_s.sum(axis=2)
    last = own_s.argmax(axis=1)  # the column of the last rank of each step
    longer_s = np.maximum(lateness.phase_s - median_of_others(lateness.phase_s), 0.0)
    last_longer_s = longer_s[np.arange(len(own_s)), last].sum(axis=0)  # by phase
    if not last_longer_s.any():
        return ""
    shares = last_longer_s / last_longer_s.sum()
    parts = []
    for phase in np.argsort(-shares, kind="stable").tolist()[:_MOST_LISTED]:  # the largest first
        # The largest share is at least that of equal phases, 1 / len(PHASES), so one or more are listed.
        if shares[phase] >= _LEAST_LISTED:
            parts.append(f"{_phase(PHASES[phase], 'its')} ({percent_words(shares[phase])})")
    return f"Its extra time is spent in {and_joined(parts)}."


# ---- words


def _phase(cause: str, its: str) -> str:
    if cause == "h2d":
        return f"{its} copies to the GPU"
    if cause == "host":
        return f"Python between {its} phases"
    return f"{its} {cause}"


def _noun(cause: str, its: str, before_host: str) -> str:
    """The phase; "host" by the phase before it, if that is known."""
    if cause == "host" and before_host not in ("", "host"):
        return f"Python after {its} {before_host}"
    return _phase(cause, its)


def _takes(cause: str, its: str, before_host: str) -> str:
    return f"{_noun(cause, its, before_host)} {'take' if cause == 'h2d' else 'takes'}"


def _hint(cause: str, its: str) -> str:
    return _HINTS[cause].format(its=its)


def _range(seconds: Sequence[float]) -> str:
    """The shortest and the longest time, or only one if they are equal in words."""
    least = in_ms(min(seconds)).removesuffix(" ms")
    most = in_ms(max(seconds)).removesuffix(" ms")
    return f"{_from_to(least, most)} ms"


def _from_to(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def in_ms(seconds: float) -> str:
    """Milliseconds with three digits, in whole microseconds and without an exponent."""
    milliseconds = round(seconds * 1e3, 3)
    if abs(milliseconds) >= 999.5:  # rounded to three digits, it would have an exponent
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds:.3g} ms"


def _whole_ms(seconds: float) -> str:
    """Return whole milliseconds, unless that would be fewer than two digits."""
    if seconds < 0.00995:  # this and more is at least 10 ms, rounded to two digits
        return in_ms(seconds)
    return f"{seconds * 1e3:.0f} ms"
