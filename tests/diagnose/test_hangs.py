"""`explain_hang`: the rank, the cause, the group and the call are named, from real dumps of Gloo and from made ones."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.common.files import FileError
from rankscope.diagnose import explain_hang, read_dumps
from rankscope.diagnose.figures.hangs import draw_hang
from rankscope.diagnose.hangs import Hang, HangCulprit

from .fr_trace import Answer, compared, fr_trace
from .hang_jobs import Case, run_case
from .made_dumps import CALL, CAUSES, SICK, Job, QueuedCall, blocking, healthy, sick, write


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
        assert hang.culprits[0] == HangCulprit(rank, cause, "default_pg", CALL), str(hang)


@pytest.mark.parametrize("part", [(), (0, 1)])
def test_a_healthy_job_has_no_culprit(tmp_path: Path, part: tuple[int, ...]) -> None:
    hang = explained(tmp_path, healthy(4, part), part)
    assert not hang.culprits
    assert not hang.findings
    assert f"{4 * 15 + 10 if part else 4 * 15} calls" in str(hang)


def test_with_a_ring_buffer_that_has_lost_the_start(tmp_path: Path) -> None:
    """Calls that one rank has forgotten and others have not are not missing."""
    for rank in range(3):
        job = sick("missing", 3, rank)
        hang = explained(tmp_path / str(rank), job, keep=6)
        assert hang.culprits == [HangCulprit(rank, "missing", "default_pg", CALL)]
    assert not explained(tmp_path / "fine", healthy(3), keep=2).culprits


@pytest.mark.parametrize("first_record", [0, -1, 1])
def test_a_dump_is_whole_only_if_its_first_record_is_stated_to_be_the_first(tmp_path: Path, first_record: int) -> None:
    """-1 on every record, as another program may write it, says as little as a number above 0."""
    write(tmp_path, healthy(3), as_json=True)
    for path in tmp_path.iterdir():
        contents = json.loads(path.read_text())
        if path.name.endswith("1"):
            del contents["entries"][:3]
        for index, entry in enumerate(contents["entries"]):
            entry["record_id"] = -1 if first_record == -1 else first_record + index
        path.write_text(json.dumps(contents))
    hang = explain_hang(read_dumps(tmp_path))
    assert [culprit.rank for culprit in hang.culprits] == ([1] if first_record == 0 else []), str(hang)


def test_a_rank_that_waits_elsewhere_is_no_culprit(tmp_path: Path) -> None:
    """Rank 2 is missing in a group of ranks 1 and 2; rank 1 waits there, so ranks 0 and 3 wait for it elsewhere."""
    job = healthy(4, (1, 2))
    for rank, calls in job.items():
        at = next(place for place, call in enumerate(calls) if call.at_s == 10.0 + SICK) + 3
        job[rank] = calls[: at + (rank != 2)]
    hang = explained(tmp_path, job, (1, 2))
    assert hang.culprits == [HangCulprit(2, "missing", "part", SICK + 1)]
    (note,) = hang.notes
    assert "ranks 0 and 3 cannot end collective 13" in note


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("cause", ["dead", "missing"])
def test_a_rank_that_is_missing_in_groups_that_wait_in_a_circle(tmp_path: Path, cause: str, num_ranks: int) -> None:
    """Each rank waits in a group for the next rank, which waits in the next group; a further rank is in all groups."""
    last = num_ranks
    groups: dict[str, Sequence[int]] = {}
    for rank in range(num_ranks):
        groups[str(5 + rank)] = (rank, (rank + 1) % num_ranks, last)
    for earliest in range(num_ranks):
        job: Job = {last: []}
        for rank in range(num_ranks):
            after_s = (rank - earliest) % num_ranks
            job[rank] = [QueuedCall(str(5 + rank), at_s=1.0 + after_s)]
        folder = write(tmp_path / str(earliest), job, groups, without=[last] if cause == "dead" else [])
        hang = explain_hang(read_dumps(folder))
        assert hang.culprits == [HangCulprit(last, cause, f"mesh_tp ({5 + earliest})", 1)], str(hang)


def test_two_that_differ_without_a_past_are_both_named(tmp_path: Path) -> None:
    job = {0: [QueuedCall("0", sizes=(4,), at_s=1.0)], 1: [QueuedCall("0", sizes=(5,), at_s=1.0)]}
    hang = explained(tmp_path, job)
    assert hang.culprits == [HangCulprit(0, "size", "default_pg", 1), HangCulprit(1, "size", "default_pg", 1)]


def test_ranks_that_differ_in_two_ways_are_named_for_what_each_did(tmp_path: Path) -> None:
    job = healthy(5)
    del job[3][CALL - 1]
    job[4][CALL - 1] = job[4][CALL - 1]._replace(sizes=(7,))
    hang = explained(tmp_path, job)
    assert hang.culprits == [
        HangCulprit(3, "left out", "default_pg", CALL),
        HangCulprit(4, "size", "default_pg", CALL),
    ]


def test_the_same_number_of_elements_in_another_shape_and_type_is_another_dtype(tmp_path: Path) -> None:
    job = {0: [QueuedCall("0", sizes=(4,), at_s=1.0)], 1: [QueuedCall("0", sizes=(2, 2), dtype="Half", at_s=1.0)]}
    assert {culprit.cause for culprit in explained(tmp_path, job).culprits} == {"dtype"}


@pytest.mark.parametrize("timeout_ms", [None, 0, -1])
def test_without_a_timeout_no_rank_is_late(tmp_path: Path, timeout_ms: int | None) -> None:
    stated = {"timeout_ms": timeout_ms}
    job = {rank: [QueuedCall("0", at_s=1.0 + rank, fields=stated)] for rank in range(2)}
    assert not explained(tmp_path, job).findings


def test_all_came_and_the_call_does_not_end(tmp_path: Path) -> None:
    job = healthy(3)
    for calls in job.values():
        calls[-1] = calls[-1]._replace(fields={"state": "started", "retired": False})
    hang = explained(tmp_path / "all", job)
    assert [(finding.cause, finding.ranks, finding.call) for finding in hang.findings] == [("stuck", (), 15)]
    assert not hang.culprits
    job[1][-1] = job[1][-1]._replace(fields={"state": "scheduled", "retired": False})
    assert explained(tmp_path / "one", job).culprits == [HangCulprit(1, "stuck", "default_pg", 15)]


def test_calls_whose_sizes_may_differ(tmp_path: Path) -> None:
    """Only one rank scatters, only one gathers, alltoall is uneven, and a matrix has as many elements as its rows."""
    sizes_of = {"scatter": "input_sizes", "gather": "output_sizes", "all_to_all": "input_sizes"}
    job = {
        rank: [QueuedCall("0", kind, at_s=1.0, fields={key: [[rank + 1]]}) for kind, key in sizes_of.items()]
        + [QueuedCall("0", sizes=(4,) if rank else (2, 2), at_s=1.0)]
        for rank in range(2)
    }
    assert not explained(tmp_path, job).culprits


def test_point_to_point_calls_are_counted_and_coalesced_ones_compared(tmp_path: Path) -> None:
    job = healthy(2)
    for rank, calls in job.items():
        calls.append(QueuedCall("0", "send 0->1" if rank == 0 else "recv 1<-0", at_s=20.0, fields={"is_p2p": True}))
        together = {"collective_seq_id": 40}
        calls += [
            QueuedCall("0", "all_gather", (8,), at_s=21.0, fields=together),
            QueuedCall("0", "coalesced", at_s=21.0, fields=together),
        ]
    hang = explained(tmp_path / "fine", job)
    assert not hang.culprits
    assert hang.notes[0].startswith("2 point-to-point calls")
    del job[1][-2]
    assert explained(tmp_path / "odd", job).culprits[0][1:] == ("collective", "default_pg", 40)


@pytest.mark.parametrize("num_ranks", [2, 3])  # without and with a usual call
def test_of_coalesced_calls_the_one_that_differs_is_named(tmp_path: Path, num_ranks: int) -> None:
    job = healthy(num_ranks)
    together = {"collective_seq_id": 40}
    for rank, calls in job.items():
        odd_size = 32 if rank == num_ranks - 1 else 16
        for size in (8, odd_size):
            calls.append(QueuedCall("0", "all_reduce", (size,), at_s=21.0, fields=together))
    hang = explained(tmp_path, job)
    assert {culprit.cause for culprit in hang.culprits} == {"size"}
    words = str(hang)
    assert "all_reduce [16] Float" in words
    assert "all_reduce [32] Float" in words
    assert "all_reduce [8]" not in words


def test_ranks_whose_coalesced_calls_differ_only_later_are_named_together(tmp_path: Path) -> None:
    job = healthy(5)
    together = {"collective_seq_id": 40}
    sizes = {3: (32, 8), 4: (32, 64)}
    for rank, calls in job.items():
        both = sizes.get(rank, (16, 8))
        calls += [QueuedCall("0", "all_reduce", (size,), at_s=21.0, fields=together) for size in both]
    hang = explained(tmp_path, job)
    assert [culprit[:2] for culprit in hang.culprits] == [(3, "size"), (4, "size")]


def test_a_rank_that_coalesced_fewer_calls_made_nothing_more(tmp_path: Path) -> None:
    job = healthy(3)
    together = {"collective_seq_id": 40}
    for rank, calls in job.items():
        sizes = (8,) if rank == 2 else (8, 16)
        calls += [QueuedCall("0", "all_reduce", (size,), at_s=21.0, fields=together) for size in sizes]
    hang = explained(tmp_path, job)
    assert [culprit[:2] for culprit in hang.culprits] == [(2, "collective")]
    assert "nothing more" in str(hang)


def test_groups_of_one_description_have_different_names(tmp_path: Path) -> None:
    job = healthy(4)
    for rank, calls in job.items():
        calls.append(QueuedCall("5" if rank < 2 else "6", at_s=20.0))
    job[3].pop()
    groups = {"0": range(4), "5": (0, 1), "6": (2, 3)}
    hang = explain_hang(read_dumps(write(tmp_path, job, groups)))
    assert hang.culprits == [HangCulprit(3, "missing", "mesh_tp (6)", 1)]


def test_the_drawing(tmp_path: Path) -> None:
    drawing = draw_hang(explained(tmp_path, sick("missing", 3, 1)))
    cells, column = drawing.rects[0], [label for _, label in drawing.x_ticks].index(str(CALL))
    hatched = np.flatnonzero(cells.hatched)
    assert list(zip(cells.x[hatched], cells.y[hatched], strict=True)) == [(column, 1)]


def test_the_drawing_of_many_ranks_shows_those_to_look_at(tmp_path: Path) -> None:
    job = {rank: [QueuedCall("0", at_s=1.0)] for rank in range(99)}
    job[70] = []
    drawing = draw_hang(explained(tmp_path, job))
    assert len(drawing.y_ticks) == 16
    assert "70" in {label for _, label in drawing.y_ticks}
    assert drawing.y_label == "rank (16 of 99 shown)"


def test_of_calls_that_all_differ_each_is_named_and_the_largest_difference_counts(tmp_path: Path) -> None:
    job = {
        0: [QueuedCall("0", "all_reduce", (8,), at_s=1.0)],
        1: [QueuedCall("0", "all_reduce", (16,), at_s=1.0)],
        2: [QueuedCall("0", "broadcast", (16,), at_s=1.0)],
    }
    hang = explained(tmp_path / "three", job)
    words = str(hang)
    assert [culprit[:2] for culprit in hang.culprits] == [(rank, "collective") for rank in range(3)]
    called = re.findall(r"[Rr]ank (\d) (?:called )?(\w+ \[\d+\])", words)
    assert called == [("0", "all_reduce [8]"), ("1", "all_reduce [16]"), ("2", "broadcast [16]")]
    many = {rank: [QueuedCall("0", "all_reduce", (rank + 1,), at_s=1.0)] for rank in range(5)}
    assert "2 more calls differ" in str(explained(tmp_path / "many", many))


def test_a_job_whose_ranks_all_differ_is_one_finding(tmp_path: Path) -> None:
    """Even ranks agree, and each odd rank has a size of its own."""
    num_ranks = 64
    job = {rank: [QueuedCall("0", sizes=(100 + rank % 2 * rank,), at_s=1.0)] for rank in range(num_ranks)}
    hang = explained(tmp_path, job)
    (finding,) = hang.findings
    assert (finding.cause, finding.ranks) == ("size", tuple(range(1, num_ranks, 2)))
    assert f"{num_ranks // 2 - 3} more calls" in finding.words


def test_one_rank_that_differs_in_jobs_of_random_groups(tmp_path: Path) -> None:
    """Each call blocks its host, so most of what the dumps show only follows from what one rank did."""
    draw, num_hung = random.Random(21), 0
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
        assert {culprit.rank for culprit in hang.culprits} == {rank}, f"{trial}, {cause}: {hang}"
        num_hung += 1
    assert num_hung > 30


# ---- reading


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_no_pickle_is_executed(tmp_path: Path, protocol: int) -> None:
    target, dump = tmp_path / "made", tmp_path / "trace_0"
    dump.write_bytes(pickle.dumps({"version": "2.10", "entries": Evil(target)}, protocol))
    with pytest.raises(FileError, match="asks for"):
        read_dumps(dump)
    assert not target.exists()
    pickle.loads(dump.read_bytes())  # which Python's own does
    assert target.exists()


# ---- real ranks


@pytest.mark.slow
def test_real_ranks_that_hang(tmp_path: Path) -> None:
    """Their dumps say less: neither the ranks of a group, nor how a call ended."""
    cases = [
        Case("missing", 3, 1),
        Case("left out", 3, 2, (1, 2), True),
        Case("late", 3, 0),
        Case("group", 3, 1, (0, 1)),
    ]
    for place, case in enumerate(cases):
        folder = run_case(tmp_path / str(place), case)
        for kind in ("gloo", "stated"):
            hang = explain_hang(read_dumps(folder / kind))
            assert hang.culprits[0] == HangCulprit(case.rank, case.cause, case.group, case.call), (
                f"{case}, {kind}: {hang}"
            )
        assert "hang_jobs.py" in str(hang)


@pytest.mark.oracle
def test_torchs_own_program_agrees_where_it_has_an_answer(tmp_path: Path) -> None:
    groups = {"0": range(3), "1": (1, 2)}
    folders = [write(tmp_path / cause, sick(cause, 3, 2, (1, 2)), groups, as_json=True) for cause in CAUSES[:-1]]
    said = dict(zip(CAUSES, fr_trace(folders), strict=False))
    for cause, folder in zip(CAUSES, folders, strict=False):
        words = compared(explain_hang(read_dumps(folder)), said[cause], range(3))
        assert words.partition(":")[0] == ("no answer" if cause == "late" else "agrees"), f"{cause}: {words}"
    wrong = explained(tmp_path / "wrong", sick("missing", 3, 1))
    assert compared(wrong, said["missing"], range(3)).startswith("DIFFERS")
    assert compared(wrong, said["size"], range(3)).startswith("DIFFERS")
    assert compared(wrong, [Answer("default_pg", CALL + 1, "missing", (1,))], range(3)).startswith("DIFFERS")
