"""How often `explain_hang` is right, wrong, or cannot tell, by kind of evidence: the table in docs/slow_or_stuck.md.

    python -m tests.benchmarks.hangs

The inputs are logs of jobs that hung on purpose on Gloo, logs made from NCCL's format strings, some of them damaged,
made dumps, pastes in the form of public issues, and what 2,000 pairs of the logs say if their lines are mixed.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from rankscope.diagnose import explain_hang, read_dumps, read_hang_text
from tests.diagnose.hangs.hang_checks import CANNOT_TELL, RIGHT, WRONG, judged
from tests.diagnose.hangs.hang_inputs import interleaved, made, recorded
from tests.diagnose.hangs.made_dumps import CAUSES, sick, write
from tests.diagnose.hangs.pastes import PASTES
from tests.diagnose.hangs.public import PUBLIC
from tests.diagnose.hangs.reports import REPORTS

MIXED = 2000


def main() -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    draw = random.Random(1)
    jobs = recorded() + made()
    for job in jobs:
        hang = explain_hang(logs=read_hang_text("\n".join(job.mixed(draw))))
        counts[f"log: {job.kind}"][judged(hang, job.truths)] += 1
    for _ in range(MIXED):
        first, second = draw.sample(jobs, 2)
        lines = interleaved(draw, [first.mixed(draw), second.mixed(draw)])
        hang = explain_hang(logs=read_hang_text("\n".join(lines)))
        counts["log: two jobs in one"][judged(hang, first.truths | second.truths)] += 1
    for kind, pastes in (("pastes", PASTES), ("reports and errors", REPORTS), ("public threads", PUBLIC)):
        for paste in pastes:
            hang = explain_hang(logs=read_hang_text(paste.text))
            is_right = {culprit.rank for culprit in hang.culprits} == {*paste.ranks}
            says_more = hang.culprits or any(finding.is_certain for finding in hang.findings)
            answer = RIGHT if says_more else CANNOT_TELL
            counts[f"log: {kind}"][answer if is_right else WRONG] += 1
    with tempfile.TemporaryDirectory() as name:
        for num_ranks in (2, 3, 4, 8):
            for rank in range(num_ranks):
                for cause in CAUSES:
                    part = (rank, (rank + 1) % num_ranks) if cause == "group" else ()
                    groups = {"0": range(num_ranks)} | ({"1": part} if part else {})
                    folder = Path(name) / f"{num_ranks} {rank} {cause}"
                    silent = [rank] if cause == "dead" else []
                    write(folder, sick(cause, num_ranks, rank, part), groups, without=silent)
                    hang = explain_hang(read_dumps(folder))
                    counts[f"dumps: {cause}"][judged(hang, {(rank, cause)})] += 1
    print(f"| evidence | {RIGHT} | {WRONG} | {CANNOT_TELL} |\n|---|---|---|---|")
    for kind, answers in counts.items():
        print(f"| {kind} | {answers[RIGHT]} | {answers[WRONG]} | {answers[CANNOT_TELL]} |")


if __name__ == "__main__":
    main()
