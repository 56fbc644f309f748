"""`explain_hang`: the rank, the cause, the group and the call, from made dumps and from those of real ranks."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankscope.common.files import FileError
from rankscope.diagnose import explain_hang, read_dumps
from rankscope.diagnose.hangs.hangs import Hang, HangCulprit

from .fr_trace import fr_trace
from .hang_jobs import Case, run_case
from .made_dumps import CALL, CAUSES, SICK, Job, QueuedCall, blocking, healthy, sick, write

DIFFERENT = ("left out", "order", "collective", "size", "dtype")


def explained(folder: Path, job: Job, part: Sequence[int] = (), **options: Any) -> Hang:
    groups = {"0": range(len(job))} | ({"1": part} if part else {})
    return explain_hang(read_dumps(write(folder, job, groups, **options)))


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_on_each_rank(tmp_path: Path, cause: str, num_ranks: int) -> None:
    for rank in range(num_ranks):
        part = (rank, (rank + 1) % num_ranks) if cause == "group" else ()
        job = sick(cause, num_ranks, rank, part)
        hang = explained(tmp_path / str(rank), job, part, without=[rank] if cause == "dead" else [])
        if cause == "group":  # each waits for another one, so that any of them may be wrong
            assert [finding.cause for finding in hang.findings] == ["group"]
            assert hang.culprits == []
        elif num_ranks == 2 and cause in DIFFERENT:  # either may be wrong
            assert [culprit[::4] for culprit in hang.culprits] == [(0, False), (1, False)]
        else:
            assert hang.culprits == [HangCulprit(rank, cause, "default_pg", CALL)], str(hang)


@pytest.mark.parametrize("part", [(), (0, 1)])
def test_a_healthy_job_has_no_culprit(tmp_path: Path, part: tuple[int, ...]) -> None:
    hang = explained(tmp_path, healthy(4, part), part)
    assert not hang.findings
    assert "No hang" in str(hang)


def test_with_a_ring_buffer_that_has_lost_the_start(tmp_path: Path) -> None:
    """Calls that one rank has forgotten and others have not are not missing."""
    for rank in range(3):
        hang = explained(tmp_path / str(rank), sick("missing", 3, rank), keep=6)
        assert hang.culprits == [HangCulprit(rank, "missing", "default_pg", CALL)]
    assert not explained(tmp_path / "fine", healthy(3), keep=2).culprits


def test_a_rank_that_waits_elsewhere_is_no_culprit(tmp_path: Path) -> None:
    """Rank 2 is missing in a group of ranks 1 and 2; rank 1 waits there, so ranks 0 and 3 wait for it elsewhere."""
    job = healthy(4, (1, 2))
    for rank, calls in job.items():
        at = next(place for place, call in enumerate(calls) if call.at_s == 10.0 + SICK) + 3
        job[rank] = calls[: at + (rank != 2)]
    assert explained(tmp_path, job, (1, 2)).culprits == [HangCulprit(2, "missing", "part", SICK + 1)]


def test_all_came_and_the_call_does_not_end(tmp_path: Path) -> None:
    job = healthy(3)
    for calls in job.values():
        calls[-1] = calls[-1]._replace(fields={"state": "started", "retired": False})
    (finding,) = explained(tmp_path, job).findings
    assert (finding.cause, finding.ranks, finding.call) == ("stuck", (), 15)


def test_calls_whose_sizes_may_differ(tmp_path: Path) -> None:
    """Only one rank scatters, only one gathers, alltoall is uneven, and a matrix has as many elements as its rows."""
    sizes_of = {"scatter": "input_sizes", "gather": "output_sizes", "all_to_all": "input_sizes"}
    job = {
        rank: [QueuedCall("0", kind, at_s=1.0, fields={key: [[rank + 1]]}) for kind, key in sizes_of.items()]
        + [QueuedCall("0", sizes=(4,) if rank else (2, 2), at_s=1.0)]
        for rank in range(2)
    }
    assert not explained(tmp_path, job).culprits


def test_one_rank_that_differs_in_jobs_of_random_groups(tmp_path: Path) -> None:
    """Each call blocks its host, so most of what the dumps show only follows from what one rank did."""
    draw, num_named = random.Random(21), 0
    for trial in range(80):
        num_ranks = draw.randint(2, 5)
        parts = {name: sorted(draw.sample(range(num_ranks), draw.randint(2, num_ranks))) for name in "156"}
        groups = {"0": range(num_ranks)} | parts
        kinds = ("all_reduce", "broadcast")
        step = [(draw.choice("0156"), draw.choice(kinds), (draw.randint(1, 3),)) for _ in range(draw.randint(2, 7))]
        rank, cause = draw.randrange(num_ranks), draw.choice(("missing", "left out", "size", "order"))
        job = {
            r: [QueuedCall(*call, at_s=1.0 + at) for at, call in enumerate(step * 4) if r in groups[call[0]]]
            for r in groups["0"]
        }
        calls = job[rank]
        at = len(calls) // 2 + draw.randrange(len(calls) // 4 or 1)
        if len(calls) < 8 or calls[at][:3] == calls[at + 1][:3]:
            continue
        changed = {"missing": [], "left out": calls[at + 1 :], "order": [calls[at + 1], calls[at], *calls[at + 2 :]]}
        calls[at:] = changed.get(cause, [calls[at]._replace(sizes=(9,)), *calls[at + 1 :]])
        hung = blocking(job, groups)
        if hung == job:  # the change did no harm
            continue
        hang = explain_hang(read_dumps(write(tmp_path / str(trial), hung, groups)))
        assert {culprit.rank for culprit in hang.culprits if culprit.is_certain} <= {rank}, f"{trial}, {cause}: {hang}"
        num_named += bool(hang.culprits)
    assert num_named > 30


# ---- reading


def test_one_damaged_dump_is_left_out_and_named(tmp_path: Path) -> None:
    """The ranks that can be read are compared; of the other one, nothing is said."""
    write(tmp_path, sick("missing", 4, 2))
    damaged = tmp_path / "trace_rank_1"
    damaged.write_bytes(damaged.read_bytes()[:300])
    hang = explain_hang(read_dumps(tmp_path))
    assert hang.culprits == [HangCulprit(2, "missing", "default_pg", CALL)]
    assert "trace_rank_1" in hang.notes[0]
    write(tmp_path, sick("dead", 4, 1))
    damaged.write_bytes(damaged.read_bytes()[:300])
    (culprit,) = explain_hang(read_dumps(tmp_path)).culprits
    assert (culprit.rank, culprit.is_certain) == (1, False)


def test_a_dump_without_entries_says_what_its_status_says(tmp_path: Path) -> None:
    write(tmp_path, sick("missing", 3, 2), as_json=True)
    path = tmp_path / "trace_rank_2"
    contents = json.loads(path.read_text())
    contents |= {"entries": [], "pg_status": {"0": {"last_enqueued_collective": CALL - 1}}}
    path.write_text(json.dumps(contents))
    hang = explain_hang(read_dumps(tmp_path))
    assert hang.culprits == [HangCulprit(2, "missing", "default_pg", CALL)]
    assert "trace_rank_2 has no entries" in hang.notes[0]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_no_pickle_is_executed(tmp_path: Path) -> None:
    target, dump = tmp_path / "made", tmp_path / "trace_0"
    dump.write_bytes(pickle.dumps({"version": "2.10", "entries": Evil(target)}))
    with pytest.raises(FileError, match="asks for"):
        read_dumps(dump)
    assert not target.exists()
    pickle.loads(dump.read_bytes())  # which Python's own does
    assert target.exists()


# ---- real ranks, and torch's own program


@pytest.mark.slow
@pytest.mark.parametrize("what", ["missing", "left out", "group"])
def test_real_ranks_that_hang(tmp_path: Path, what: str) -> None:
    """Dumps of Gloo say less: neither the ranks of a group, nor how a call ended."""
    hang = explain_hang(read_dumps(run_case(tmp_path, Case(what, 3, 1))))
    if what == "group":
        assert [finding.cause for finding in hang.findings] == ["group"]
    else:  # the others block in the call before the one that this rank made instead
        assert hang.culprits[0][:2] == (1, "collective" if what == "left out" else what), str(hang)
        assert "in _train" in str(hang)


@pytest.mark.oracle
def test_torchs_own_program_agrees_where_it_has_an_answer(tmp_path: Path) -> None:
    groups = {"0": range(3), "1": (1, 2)}
    causes = ("missing", "left out", "collective", "size", "dtype")
    folders = [write(tmp_path / cause, sick(cause, 3, 2, (1, 2)), groups, as_json=True) for cause in causes]
    for cause, folder, faults in zip(causes, folders, fr_trace(folders), strict=True):
        (culprit,) = explain_hang(read_dumps(folder)).culprits
        allowed = {2} if cause == "missing" else {0, 1, 2}  # it lists the ranks that differ from the first one
        of_call = [{*ranks} for group, call, ranks in faults if (group, call) == (culprit.group, culprit.call)]
        assert any(2 in ranks <= allowed for ranks in of_call), f"{cause}: {faults}"


def test_a_description_that_is_a_number(tmp_path: Path) -> None:
    folder = write(tmp_path, sick("missing", 3, 2), as_json=True)
    for path in folder.iterdir():
        path.write_text(path.read_text().replace('"default_pg"', "7"))
    assert [culprit.rank for culprit in explain_hang(read_dumps(folder)).culprits] == [2]
