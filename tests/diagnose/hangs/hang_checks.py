"""Whether an answer on a hang is right, says that it cannot tell, or names a wrong rank."""

from __future__ import annotations

from collections.abc import Set

from rankscope.diagnose.hangs.hangs import Hang

RIGHT = "right"
WRONG = "wrong"
CANNOT_TELL = "cannot tell"
_CALLS = ("collective", "size", "dtype", "left out")


def judged(hang: Hang, truths: Set[tuple[int, str]]) -> str:
    """Compare an answer with what is true: the ranks and causes that it may name; none if nothing can be told.

    Ranks of which it says that it cannot tell which is wrong must include a right one, and so must a rank that it says
    to look at because it has no line.
    """
    answers = {CANNOT_TELL}
    for finding in hang.findings:
        ranks = {*finding.ranks}
        if not ranks:
            if not finding.is_certain and CANNOT_TELL not in finding.words:
                return WRONG
        elif not finding.is_certain:
            if not ranks & {rank for rank, _ in truths}:
                return WRONG
        elif all(any(_agrees(finding.cause, cause) for true, cause in truths if true == rank) for rank in ranks):
            answers.add(RIGHT)
        else:
            return WRONG
    return max(answers, key=(CANNOT_TELL, RIGHT).index)


def _agrees(said: str, cause: str) -> bool:
    """Return whether two names of a cause are the same; "call" is any difference of a call."""
    return said == cause or (said == "call" and cause in _CALLS)
