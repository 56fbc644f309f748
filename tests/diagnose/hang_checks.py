"""Whether a verdict on a hang is right, cannot tell, or names a wrong rank."""

from __future__ import annotations

from rankscope.diagnose.hangs import Hang

CANNOT_TELL = "cannot tell"


def problem(hang: Hang, truths: frozenset[tuple[int, str]] | set[tuple[int, str]]) -> str:
    """Say what is wrong with a verdict; ranks that are only said to differ from each other include the right one."""
    for finding in hang.findings:
        named = {(rank, finding.cause) for rank in finding.ranks}
        ranks = {rank for rank, _ in truths}
        if finding.cause == "call":  # the text shows that a call differs, and not how
            named = {
                truth for truth in truths if truth[0] in finding.ranks and truth[1] in ("collective", "size", "dtype")
            }
            named |= {(rank, "call") for rank in finding.ranks if rank not in {rank for rank, _ in named}}
        if finding.ranks and f"{CANNOT_TELL} which of them" in finding.words:
            if not ranks & {*finding.ranks}:
                return f"{finding.words} but it is {truths}"
        elif not named <= {*truths}:
            return f"{finding.words} but it is {truths}"
        if not finding.ranks and CANNOT_TELL not in finding.words:
            return f"no rank is named, and it does not say so: {finding.words}"
    return "" if hang.findings else "no finding"
