"""What torch's own `fr_trace` says of folders of dumps: run as a program, as it ends the process on some of them.

Each line is JSON, [group, call, what, ranks]: the first call of each group with a fault. It wants the ranks of a group
stated. Pickles are not loaded: the folders hold JSON, which is given to its `build_db` in the place of its loader.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.common.words import listed
from rankscope.diagnose.hangs import Hang

_WORDS = {
    "size": "SIZE_OR_SYNTAX_MISMATCH",
    "dtype": "COLLECTIVE_DTYPE_MISMATCH",
    "collective": "COLLECTIVE_TYPE_MISMATCH",
    "left out": "COLLECTIVE_TYPE_MISMATCH",
}


class Answer(NamedTuple):
    """The first fault of a group: ranks that are "missing", or that differ from the first rank in this way."""

    group: str
    call: int
    what: str
    ranks: tuple[int, ...]


def fr_trace(folders: Sequence[Path]) -> list[list[Answer] | str]:
    """Return the answers for each folder, or the name of the error that it ended with."""
    command = [sys.executable, "-W", "ignore", "-m", __name__, *map(str, folders)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        answers if isinstance(answers, str) else [Answer(*row[:3], tuple(row[3])) for row in answers]
        for answers in rows
    ]


def compared(hang: Hang, answers: list[Answer] | str, members: Sequence[int]) -> str:
    """Return what `fr_trace` says of a group of these ranks, next to what is named here."""
    if isinstance(answers, str) or not answers:
        return f"no answer: {answers or 'no fault found'}"
    _, cause, group, call = hang.culprits[0]
    ours = {culprit.rank for culprit in hang.culprits if culprit[1:] == (cause, group, call)}
    for answer in answers:
        if answer[:2] == (group, call) and answer.what == _WORDS.get(cause, "missing"):
            is_same = (
                ours <= {*answer.ranks} if answer.what == "missing" else {*answer.ranks} in (ours, {*members} - ours)
            )
            if is_same:
                return f"agrees: {answer.what}, ranks {list(answer.ranks)}"
    follows = [
        f"call {answer.call} of {answer.group}: {listed('rank', answer.ranks)} did not come" for answer in answers
    ]
    if all(any(words in note for note in hang.notes) for words in follows):
        return f"says what follows: {'; '.join(follows)}"
    return f"DIFFERS: {answers}"


def _answers(folder: Path) -> list[tuple[str, int, str, list[int]]] | str:
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    details = {}
    for path in folder.iterdir():
        rank = int(path.stem.rpartition("_")[2])
        details[path.name] = {"rank": rank, "host_name": f"host_{rank}", **json.loads(path.read_bytes())}
    details = dict(sorted(details.items(), key=lambda item: item[1]["rank"]))
    try:
        args = JobConfig().parse_args([str(folder), "--allow-incomplete-ranks"])
        calls = build_db(details, args, next(iter(details.values()))["version"]).collectives
    except (Exception, SystemExit) as error:
        return type(error).__name__
    first: dict[str, tuple[str, int, str, list[int]]] = {}
    for call in calls:
        group = call.pg_desc.rpartition(":")[2]
        if call.missing_ranks:
            first.setdefault(group, (group, call.collective_seq_id, "missing", sorted(call.missing_ranks)))
        elif call.mismatch_collectives:
            kinds = sorted({mismatch.type_of_mismatch.state.name for mismatch in call.mismatch_collectives.values()})
            ranks = sorted(call.mismatch_collectives)
            first.setdefault(group, (group, call.collective_seq_id, ", ".join(kinds), ranks))
    return list(first.values())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(_answers(Path(name))))
