"""The result of `lateness` in words: `sentences` for a recorded job, `headline` for a line while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...common.units import percent_words
from ...common.words import and_joined, listed
from .late_causes import Culprit
from .late_ranks import SHARE_OF_STEP, Lateness
from .trace import PHASES

_MOST_LISTED = 8  # ranks
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
            lines.append(f"{_names(group).capitalize()} are late {_pattern(group)}.")
        for late in group[:_MOST_LISTED]:
            lines.append(f"{_arrives(late)}: {_why(late)}. {_HINTS[late.cause]}")
        lines.append(f"This costs {_of_step(lateness, _cost_s(group))}.")
    return lines


def headline(lateness: Lateness, steps: Sequence[int]) -> str:
    """Return who is late and why, and what that costs, in one line."""
    step = in_ms(lateness.step_s)
    if not lateness.groups:
        balanced = f"balanced, {step} per step"
        return balanced if lateness.is_balanced else _of_nobody(lateness, steps, is_complete=True)[0]
    group = lateness.groups[0]  # the others are late only once these ranks are mended
    causes = dict.fromkeys(_WORDS.get(late.cause, late.cause) for late in group)
    how = f"are late {_pattern(group)}, because of their" if len(group) > 1 else "is late, because of its"
    cost = f"{in_ms(_cost_s(group))} of each step of {step}"
    return f"{_names(group)} {how} {and_joined([*causes])}: {cost}"


def _cost_s(group: Sequence[Culprit]) -> float:
    return sum(late.cost_s for late in group)


def _arrives(late: Culprit) -> str:
    when = f"in {late.in_steps.sum()} of {late.in_steps.size} steps"
    return f"Rank {late.rank} arrives {in_ms(late.late_s)} late {when}"


def _why(late: Culprit) -> str:
    if late.cause == "slower":
        ratio = late.takes_s.sum() / late.usual_s.sum()
        return (
            f"all its phases take {ratio:.1f} times as long as on the others, as with a slower clock of its GPU or "
            "CPU, or with a shared core; the traces do not show which"
        )
    phase = PHASES.index(late.cause)
    takes, usual = in_ms(late.takes_s[phase]), in_ms(late.usual_s[phase])
    return f"its {_WORDS.get(late.cause, late.cause)} takes {takes} in these, compared with {usual} on the other ranks"


def _pattern(group: Sequence[Culprit]) -> str:
    """Return whether these ranks are late in the same steps: whether most late steps are those of several ranks."""
    num_late = np.sum([late.in_steps for late in group], axis=0)
    are_together = (num_late > 1).sum() > (num_late == 1).sum()
    return "together, so that fixing only one of them saves little" if are_together else "in turn"


def _of_nobody(lateness: Lateness, steps: Sequence[int], is_complete: bool) -> list[str]:
    """Return the verdict on a job without late ranks: who may be late, who waits, or that it is balanced."""
    if lateness.is_balanced:
        first = "The job is balanced: no rank" if is_complete else "None of these ranks"
        return [f"{first} makes the others wait. Ranks wait for up to {_of_step(lateness, lateness.longest_wait_s)}."]
    lines = []
    suspicion = lateness.suspicion
    if suspicion is not None:
        who = and_joined([_arrives(late) for late in suspicion.late[:_MOST_LISTED]])
        cost = f"costs {_of_step(lateness, suspicion.cost_s)}"
        if suspicion.is_chance:
            lines.append(
                f"No rank is named. {who}, which {cost}; but ranks that pause or slow down at random can look like "
                "this. A trace of more steps may tell."
            )
        else:
            lines.append(f"{who}, but this only {cost}. A rank is named if it costs {percent_words(SHARE_OF_STEP)}.")
    if lateness.often_last:
        rank, times = lateness.often_last
        lines.append(
            f"Rank {rank} is the last to arrive in {times} of {len(steps)} steps, far more often than chance explains "
            f"among {len(lateness.ranks)} ranks that are alike: look there first."
        )
    waits_s = lateness.waits_s.max(axis=1)  # for the last rank of each step
    last = [lateness.ranks[column] for column in lateness.waits_s.argmin(axis=1)]
    worst = int(waits_s.argmax())
    parts = [f"rank {rank} in {number}" for rank, number in Counter(last).most_common(_MOST_LISTED)]
    lines.append(
        f"Ranks wait for each other, for up to {_of_step(lateness, lateness.longest_wait_s)}; most, "
        f"{in_ms(waits_s[worst])}, in step {steps[worst]}, for rank {last[worst]}. The last to arrive is "
        f"{and_joined(parts)} of {len(steps)} steps."
    )
    return lines


def _names(group: Sequence[Culprit]) -> str:
    return listed("rank", sorted(late.rank for late in group))


def _of_step(lateness: Lateness, seconds: float) -> str:
    return f"{in_ms(seconds)} per step, {percent_words(seconds / max(lateness.step_s, 1e-9))} of the step"


def in_ms(seconds: float) -> str:
    """Return milliseconds with three digits, without an exponent."""
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f} ms" if milliseconds >= 99.5 else f"{milliseconds:.3g} ms"
