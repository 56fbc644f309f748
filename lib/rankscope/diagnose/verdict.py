"""The result of `lateness` in words: `sentences` for a recorded job, `headline` for a line while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..common.units import percent_words
from ..common.words import and_joined, listed
from .late_causes import LateRank
from .late_ranks import SHARE_OF_STEP, Lateness
from .trace import PHASES

_MOST_LISTED = 8  # ranks
_MOST_OF_IT = 0.5  # of all waiting
_WORDS = {
    "h2d": "copies to the GPU",
    "host": "Python code between phases",
    "slower": "slowness in all phases",
}  # of causes
_HINTS = {
    "loader": "Look at its storage, and give its DataLoader more workers.",
    "h2d": "Look at its PCIe link, and at whether its batches lie in pinned memory.",
    "zero_grad": "Look for other work on its device.",
    "forward": "Look for longer samples, other input shapes or a slower device there.",
    "backward": "Look for longer samples, other input shapes or a slower device there.",
    "optimizer": "Look for parameters or states that no other rank has.",
    "host": "Look for logging, checkpoints, .item() and garbage collection there.",
    "slower": "Compare clocks, power limits and temperatures; look for other processes on its cores and its GPU.",
}


def sentences(lateness: Lateness, steps: Sequence[int], is_complete: bool) -> list[str]:
    """Return the verdict on who is late, a sentence or a few per line.

    `steps` are the numbers of the steps. A job is called balanced only if it `is_complete`, with a trace of each rank.
    """
    if not lateness.groups:
        return _of_nobody(lateness, steps, is_complete)
    lines = []
    for group in lateness.groups:
        if len(group) > 1:
            cost = _of_step(lateness, sum(culprit.cost_s for late in group for culprit in late.culprits))
            lines.append(f"{_names(lateness, group).capitalize()} are late {_pattern(group)}. This costs {cost}.")
        for late in group[:_MOST_LISTED]:
            for culprit in late.culprits:
                words = [f"{_arrives(lateness, late)}: {_why(late, culprit.cause)}."]
                if len(group) == 1:
                    words.append(f"This costs {_of_step(lateness, culprit.cost_s)}.")
                lines.append(" ".join([*words, _HINTS[culprit.cause]]))
    return lines


def headline(lateness: Lateness, steps: Sequence[int]) -> str:
    """Return who is late and why, and what that costs, in one line."""
    step = in_ms(lateness.step_s)
    if not lateness.groups:
        balanced = f"balanced, {step} per step"
        return balanced if lateness.is_balanced else _of_nobody(lateness, steps, is_complete=True)[0]
    group = lateness.groups[0]  # the others are late only once these ranks are mended
    cost_s = sum(culprit.cost_s for late in group for culprit in late.culprits)
    cost = f"{in_ms(cost_s)} of each step of {step}"
    causes = list(dict.fromkeys(late.culprits[0].cause for late in group))  # the most important cause of each
    if len(group) == 1:
        return f"{_names(lateness, group)} is late, because of its {_word(causes[0])}: {cost}"
    parts = []
    for cause in causes:
        ranks = [late for late in group if late.culprits[0].cause == cause]
        parts.append(f"{_names(lateness, ranks)} because of {_word(cause)}")
    return f"{_names(lateness, group)} are late {_pattern(group)}, {and_joined(parts)}: {cost}"


def _arrives(lateness: Lateness, late: LateRank) -> str:
    when = f"in {late.in_steps.sum()} of {late.in_steps.size} steps"
    if late.in_steps.all():
        when = "in each step"
    return f"Rank {lateness.ranks[late.column]} arrives {in_ms(late.late_s)} late {when}"


def _why(late: LateRank, cause: str) -> str:
    if cause == "slower":
        ratio = late.takes_s.sum() / late.usual_s.sum()
        return (
            f"all its phases take {ratio:.1f} times as long as on the others, as with a slower clock of its GPU or "
            "CPU, or with a shared core; the traces do not show which"
        )
    phase = PHASES.index(cause)
    takes, usual = in_ms(late.takes_s[phase]), in_ms(late.usual_s[phase])
    return f"its {_word(cause)} takes {takes} in these, compared with {usual} on the other ranks"


def _pattern(group: Sequence[LateRank]) -> str:
    """Return whether these ranks are late in the same steps: whether most late steps are those of several ranks."""
    num_late = np.sum([late.in_steps for late in group], axis=0)
    are_together = (num_late > 1).sum() > (num_late == 1).sum()
    return "together, so that fixing only one of them saves little" if are_together else "in turn"


# ---- nobody is late, or nobody can be named


def _of_nobody(lateness: Lateness, steps: Sequence[int], is_complete: bool) -> list[str]:
    """Return the verdict on a job without late ranks: who may be late, who waits, or that it is balanced."""
    if lateness.is_balanced:
        first = "The job is balanced: no rank" if is_complete else "None of these ranks"
        return [f"{first} makes the others wait. Ranks wait for up to {_of_step(lateness, lateness.longest_wait_s)}."]
    lines = []
    suspicion = lateness.suspicion
    if suspicion is not None:
        cost = _of_step(lateness, suspicion.cost_s)
        if suspicion.is_chance:
            lines.append(
                f"No rank is named: {_names(lateness, suspicion.late)} may be late, which would cost {cost}; but ranks "
                "that pause or slow down at random can look like this. A trace of more steps may tell."
            )
        else:
            who = and_joined([_arrives(lateness, late) for late in suspicion.late[:_MOST_LISTED]])
            lines.append(f"{who}, but this costs only {cost}. A rank is named from {percent_words(SHARE_OF_STEP)} on.")
    waits_s = lateness.waits_s.mean(axis=1)  # by step
    last = lateness.waits_s.argmin(axis=1)  # the last rank of each step
    wait = f"Ranks wait for each other, for up to {_of_step(lateness, lateness.longest_wait_s)}."
    worst = int(waits_s.argmax())
    if waits_s[worst] > _MOST_OF_IT * waits_s.sum():
        longer_s = lateness.phase_s[worst, last[worst]] - np.median(lateness.phase_s[worst], axis=0)
        rank, word = lateness.ranks[last[worst]], _word(PHASES[int(longer_s.argmax())])
        lines.append(
            f"{wait} Most of it is in step {steps[worst]}, in which rank {rank} takes {in_ms(longer_s.sum())} longer, "
            f"mostly in {word}."
        )
    else:
        most_often = Counter(last.tolist()).most_common(_MOST_LISTED)
        parts = [f"rank {lateness.ranks[column]} in {number}" for column, number in most_often]
        lines.append(f"{wait} The last to arrive is {and_joined(parts)} of {len(steps)} steps.")
    return lines


# ---- words


def _names(lateness: Lateness, group: Sequence[LateRank]) -> str:
    return listed("rank", sorted(lateness.ranks[late.column] for late in group))


def _word(cause: str) -> str:
    return _WORDS.get(cause, cause)


def _of_step(lateness: Lateness, seconds: float) -> str:
    return f"{in_ms(seconds)} per step, {percent_words(seconds / max(lateness.step_s, 1e-9))} of the step"


def in_ms(seconds: float) -> str:
    """Return milliseconds with three digits, without an exponent."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f} ms" if milliseconds >= 99.5 else f"{milliseconds:.3g} ms"
