"""`explain_hang`: why a job hangs or has ended, from flight-recorder dumps and from logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ...common.checks import of_type, several
from ...common.words import count_of
from .dumps import Dump, groups_of
from .groups import HangFinding, explain_groups
from .log_evidence import UNKNOWN
from .log_rules import explain_facts
from .logs import HangLogs

_MORE = (
    "To learn more: lines of all ranks, with their ranks; flight-recorder dumps of the next run "
    "(TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_TRACE_BUFFER_SIZE=2000); or py-spy dump of each rank while it hangs."
)


class HangCulprit(NamedTuple):
    """A rank to look at, and what it did at the `call`-th collective of a group."""

    rank: int
    cause: str
    group: str
    call: int
    is_certain: bool = True


class Hang(msgspec.Struct, frozen=True, eq=False):
    """The result of `explain_hang`: the findings, and further sentences."""

    findings: tuple[HangFinding, ...]
    notes: tuple[str, ...]

    @property
    def culprits(self) -> list[HangCulprit]:
        """The ranks to look at, by finding; empty if no rank differs from the others."""
        return [
            HangCulprit(rank, finding.cause, finding.group, finding.call, finding.is_certain)
            for finding in self.findings
            for rank in finding.ranks
        ]

    def __str__(self) -> str:
        lines = []
        for finding in self.findings:
            lines += [finding.words, *(f"  | {line}" for line in finding.lines)]
        if not any(finding.is_certain for finding in self.findings) and self.findings:
            lines.append(_MORE)
        return "\n".join([*lines, *self.notes])


def explain_hang(dumps: Sequence[Dump] = (), logs: HangLogs | None = None) -> Hang:
    """Explain why a job hangs, from the results of `read_dumps` and `read_logs`. Print it, or use its `culprits`.

    The causes are "error" (the rank ended with an error of its own), "dead" (it was killed, or left no dump), "missing"
    (it did not reach the call), "left out" (it made the next call instead), "late" (it arrived after the others timed
    out), "collective", "size" and "dtype" (its call differs from that of the others), "group" (groups
    wait for each other), "elsewhere" (its stack is not in a collective, and those of others are), and others that the
    words explain. Of two ranks that differ, both are named.

    A finding that is not certain says so. Where the evidence conflicts, the cause is "unknown", no rank is named, and
    the words say what the text shows.

    Raises ValueError if the arguments are not dumps and logs, or there are neither.

    >>> from rankscope.diagnose import read_hang_text
    >>> print(explain_hang(logs=read_hang_text("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms")))
    Rank 2 of its group did not reach monitored_barrier in time.
      | [Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms
    """
    dumps = [of_type("a dump", dump, Dump, "read_dumps") for dump in several("dumps", dumps, "what read_dumps returns")]
    if logs is None and not dumps:
        raise ValueError("explain_hang needs dumps or logs, got neither")
    groups = groups_of(dumps)
    damaged = {dump.rank for dump in dumps if dump.problem}
    findings = []
    for finding in explain_groups(groups):
        is_certain = finding.is_certain and not (finding.cause == "dead" and damaged & {*finding.ranks})
        findings.append(finding._replace(is_certain=is_certain))
    notes = [f"Left out: {dump.source}, {dump.problem}." for dump in dumps if dump.problem]
    notes += [dump.note for dump in dumps if dump.note]
    if dumps and not findings:
        notes.insert(0, f"No hang: in {count_of(len(groups), 'group')} no rank waits for another one.")
    if logs is None:
        return Hang(tuple(findings), tuple(notes))
    notes += [f"Left out: {reason}." for reason in of_type("logs", logs, HangLogs).left_out]
    from_logs = explain_facts(logs.facts)
    if dumps:  # these say more of calls than lines do, and less of why a rank ended
        from_logs = [finding for finding in from_logs if finding.cause in ("error", "dead") and finding.is_certain]
    elif not from_logs:
        words = "No line that rankscope knows shows why the job hangs or has ended, so it cannot tell."
        from_logs = [HangFinding(UNKNOWN, (), words, is_certain=False)]
    return Hang((*from_logs, *findings), tuple(notes))
