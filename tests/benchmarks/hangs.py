"""Jobs that hang on purpose: is the rank named, and what does torch's `fr_trace` say of the same dumps?

    python -m tests.benchmarks.hangs

30 jobs are real ranks on Gloo (where sizes or types differ, the dump of one rank is edited: Gloo ends the process).
Their dumps are explained as they are; `fr_trace`, which fails on them, gets the ranks of each group added. 8 more are
made by code as NCCL has them, with calls queued ahead. It agrees if it names the same call of the same group, and the
same ranks; where the first rank differs it lists all others, by its own account, and that counts as the same.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.diagnose import explain_hang, read_dumps
from rankscope.diagnose.hangs import HangCulprit
from tests.diagnose.fr_trace import compared, fr_trace
from tests.diagnose.hang_jobs import Case, run_case
from tests.diagnose.made_dumps import CALL as MADE_CALL
from tests.diagnose.made_dumps import CAUSES, sick, write

CASES = [
    *(Case("missing", 2, 1), Case("missing", 2, 0), Case("left out", 2, 1), Case("late", 2, 1), Case("dead", 2, 1)),
    *(Case("size", 2, 0), Case("collective", 2, 1), Case("group", 2, 0, (0, 1))),
    *(Case("missing", 3, 1), Case("missing", 3, 1, (0, 1), True), Case("left out", 3, 2), Case("late", 3, 0)),
    *(Case("left out", 3, 1, (0, 1), True), Case("group", 3, 1, (0, 1)), Case("dead", 3, 2), Case("collective", 3, 0)),
    *(Case("size", 3, 1), Case("dtype", 3, 2), Case("late", 3, 2, (1, 2), True)),
    *(Case("missing", 4, 3), Case("missing", 4, 2, (1, 2, 3), True), Case("left out", 4, 0), Case("dead", 4, 0)),
    *(Case("late", 4, 2, (0, 2), True), Case("dead", 4, 3, (1, 3), True), Case("size", 4, 1, (1, 2), True)),
    *(Case("collective", 4, 2), Case("dtype", 4, 3, (2, 3), True), Case("group", 4, 3, (2, 3)), Case("late", 4, 1)),
]
MADE = [(cause, num_ranks, num_ranks - 1) for num_ranks, cause in zip((3, 4) * 4, CAUSES, strict=True)]


def main() -> None:
    rows: list[tuple[str, bool, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ran: list[tuple[int, str, HangCulprit, Path, Path, Sequence[int]]] = []
        for place, case in enumerate(CASES):
            one = run_case(root / str(place), case)
            truth = HangCulprit(case.rank, case.cause, case.group, case.call)
            members = case.part if case.in_part else range(case.num_ranks)
            ran.append((case.num_ranks, str(case), truth, one / "gloo", one / "stated", members))
        for cause, num_ranks, rank in MADE:
            part = (rank - 1, rank) if cause == "group" else ()
            groups: dict[str, Any] = {"0": range(num_ranks)} | ({"1": part} if part else {})
            silent = [rank] if cause == "dead" else []
            made = write(
                root / f"made {cause}", sick(cause, num_ranks, rank, part), groups, without=silent, as_json=True
            )
            truth = HangCulprit(rank, cause, "default_pg", MADE_CALL)
            ran.append((num_ranks, f"NCCL: {cause}, rank {rank} of {num_ranks}", truth, made, made, range(num_ranks)))
        answers = fr_trace([stated for *_, stated, _ in ran])
        for (num_ranks, name, truth, dumps, _, members), said in zip(ran, answers, strict=True):
            hang = explain_hang(read_dumps(dumps, num_ranks=num_ranks))
            rows.append((name, hang.culprits == [truth], compared(hang, said, members)))
    for name, is_named, words in rows:
        print(f"{'named' if is_named else 'WRONG':6} {name:45} fr_trace {words}")
    print_sums(rows[: len(CASES)], "real ranks on Gloo")
    print_sums(rows[len(CASES) :], "made as on NCCL")


def print_sums(rows: Sequence[tuple[str, bool, str]], what: str) -> None:
    counts = Counter(words.partition(":")[0] for *_, words in rows)
    named = sum(is_named for _, is_named, _ in rows)
    print(f"{what}: {named} of {len(rows)} named; fr_trace: {', '.join(f'{n} {word}' for word, n in counts.items())}")


if __name__ == "__main__":
    main()
