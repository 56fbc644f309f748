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

from rankscope.common.storage import StorageError
from rankscope.diagnose import explain_hang, read_dumps
from rankscope.diagnose.figures.hangs import draw_hang
from rankscope.diagnose.figures.jobs import hang_page
from rankscope.diagnose.hangs import Hang, HangCulprit
from rankscope.figures.palette import ALARM
from rankscope.figures.svg import to_svg

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
        assert str(hang).startswith(f"Rank {rank} "), str(hang)


@pytest.mark.parametrize("part", [(), (0, 1)])
def test_a_healthy_job_has_no_culprit(tmp_path: Path, part: tuple[int, ...]) -> None:
    hang = explained(tmp_path, healthy(4, part), part)
    assert not hang.culprits
    assert not hang.findings
    calls = 4 * 15 + 10 if part else 4 * 15
    assert (
        str(hang) == f"No hang: in {calls} calls of {'2 groups' if part else '1 group'} no rank is missing or differs."
    )


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


def test_a_rank_that_stops_is_named_also_if_its_records_have_no_numbers(tmp_path: Path) -> None:
    write(tmp_path, sick("missing", 3, 1), as_json=True)
    for path in tmp_path.iterdir():
        contents = json.loads(path.read_text())
        for entry in contents["entries"]:
            entry["record_id"] = -1
        path.write_text(json.dumps(contents))
    assert explain_hang(read_dumps(tmp_path)).culprits == [HangCulprit(1, "missing", "default_pg", CALL)]


def test_entries_in_any_order_and_a_group_that_does_not_state_its_ranks(tmp_path: Path) -> None:
    """As another program may have written a dump again."""
    write(tmp_path, healthy(3), without=[2], as_json=True)
    before = read_dumps(tmp_path)
    for path in tmp_path.iterdir():
        contents = json.loads(path.read_text())
        contents["entries"].reverse()
        contents["pg_config"]["7"] = {"name": "7", "desc": "default_pg", "ranks": "[]"}
        path.write_text(json.dumps(contents))
    after = read_dumps(tmp_path)
    assert [dump.calls for dump in after] == [dump.calls for dump in before]
    assert [(dump.num_ranks, dump.is_whole) for dump in after] == [(3, True), (3, True)]


def test_a_rank_that_waits_elsewhere_is_no_culprit(tmp_path: Path) -> None:
    """Rank 2 is missing in a group of ranks 1 and 2; rank 1 waits there, so ranks 0 and 3 wait for it elsewhere."""
    job = healthy(4, (1, 2))
    for rank, calls in job.items():
        at = next(place for place, call in enumerate(calls) if call.at_s == 10.0 + SICK) + 3
        job[rank] = calls[: at + (rank != 2)]
    hang = explained(tmp_path, job, (1, 2))
    assert hang.culprits == [HangCulprit(2, "missing", "part", SICK + 1)]
    assert hang.notes == (
        "So ranks 0 and 3 cannot end collective 13 of the default group: ranks 1 and 2 did not reach it.",
    )


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


def test_words_of_a_dump_that_is_not_there_and_of_a_time_that_is_short(tmp_path: Path) -> None:
    hang = explained(tmp_path / "dead", sick("dead", 4, 1), without=[1, 2])
    assert "Ranks 1 and 2 left no dump" in str(hang)
    assert "Ranks 1 and 2 ended or were killed" in str(hang)
    job = {0: [QueuedCall("0", at_s=1.0), QueuedCall("0", at_s=2.0)], 1: [QueuedCall("0", at_s=2.0 - 1e-6)]}
    assert "The last call of rank 1 came 1 µs before the first of them" in str(explained(tmp_path / "short", job))


def test_two_that_differ_without_a_past_are_both_named(tmp_path: Path) -> None:
    job = {0: [QueuedCall("0", sizes=(4,), at_s=1.0)], 1: [QueuedCall("0", sizes=(5,), at_s=1.0)]}
    hang = explained(tmp_path, job)
    assert hang.culprits == [HangCulprit(0, "size", "default_pg", 1), HangCulprit(1, "size", "default_pg", 1)]
    assert str(hang).startswith("Ranks 0 and 1 disagree on the size of collective 1 of the default group.")


def test_of_three_that_all_differ_none_is_said_to_agree_with_another(tmp_path: Path) -> None:
    job = {rank: [QueuedCall("0", sizes=(4 + rank,), at_s=1.0)] for rank in range(3)}
    assert "Rank 0 called all_reduce [4] Float at train.py:12 in step, rank 1 all_reduce [5] Float" in str(
        explained(tmp_path, job)
    )


def test_ranks_that_differ_in_two_ways_are_named_for_what_each_did(tmp_path: Path) -> None:
    job = healthy(5)
    del job[3][CALL - 1]
    job[4][CALL - 1] = job[4][CALL - 1]._replace(sizes=(7,))
    hang = explained(tmp_path, job)
    assert hang.culprits == [
        HangCulprit(3, "left out", "default_pg", CALL),
        HangCulprit(4, "size", "default_pg", CALL),
    ]


@pytest.mark.parametrize("num_ranks", [64, 1024])
def test_a_job_whose_ranks_all_differ_is_one_finding_whose_words_grow_with_its_ranks(
    tmp_path: Path, num_ranks: int
) -> None:
    """Even ranks agree, and each odd rank has a size of its own."""
    job = {rank: [QueuedCall("0", sizes=(100 + rank % 2 * rank,), at_s=1.0)] for rank in range(num_ranks)}
    hang = explained(tmp_path, job)
    (finding,) = hang.findings
    assert (finding.cause, finding.ranks) == ("size", tuple(range(1, num_ranks, 2)))
    assert len(str(hang)) < 1000 + 15 * num_ranks  # each rank is named once or twice
    _verdict, calls, others = finding.words.split("\n  ")
    where = "at train.py:12 in step"
    assert calls.startswith(
        f"Rank 1 called all_reduce [101] Float {where}, rank 3 all_reduce [103] Float {where}, "
        f"rank 5 all_reduce [105] Float {where}, ranks 0, 2, 4,"
    )
    assert others == f"{num_ranks // 2 - 3} more calls differ, too."
    assert hang_page("job", hang).count("<svg") == 1


def test_a_finding_with_several_calls_says_which_rank_made_which(tmp_path: Path) -> None:
    job = healthy(9)
    for rank, size in ((1, 7), (4, 9), (6, 7), (7, 9), (8, 7)):
        job[rank][CALL - 1] = job[rank][CALL - 1]._replace(sizes=(size,))
    (finding,) = explained(tmp_path, job).findings
    where = "at train.py:14 in step"
    assert finding.words.split("\n  ")[1].startswith(
        f"Ranks 1, 6 and 8 called all_reduce [7] Float {where}, ranks 4 and 7 all_reduce [9] Float {where}, ranks 0, 2"
    )


def test_a_drawing_shows_what_other_findings_of_the_same_stop_name(tmp_path: Path) -> None:
    job = healthy(6)
    del job[3][CALL - 1]
    job[4][CALL - 1] = job[4][CALL - 1]._replace(sizes=(7,))
    job[5][CALL - 1] = job[5][CALL - 1]._replace(dtype="Half")
    hang = explained(tmp_path, job)
    assert [finding.cause for finding in hang.findings] == ["left out", "size", "dtype"]
    for index in range(3):
        drawing = draw_hang(hang, index)
        cells, column = drawing.rects[0], [label for _, label in drawing.x_ticks].index(str(CALL))
        fills = {int(y): fill for x, y, fill in zip(cells.x, cells.y, cells.fill, strict=True) if x == column}
        assert {rank for rank, fill in fills.items() if fill == ALARM} == {3, 4, 5}
        assert [key.label for key in drawing.legend if key.fill == ALARM] == ["left out, other size or other dtype"]
        assert ">all_reduce [32] Half<" in to_svg(drawing)
    assert hang_page("job", hang).count("<svg") == 1  # three would be alike


def test_dumps_without_a_collective_do_not_say_that_there_is_no_hang(tmp_path: Path) -> None:
    hang = explained(tmp_path, {0: [], 1: []})
    assert str(hang) == "The dumps contain no collective, so they do not show whether the job hangs."
    assert hang.culprits == []


def test_the_drawing_of_many_ranks_shows_some_of_each_cause(tmp_path: Path) -> None:
    job = healthy(99)
    for rank in range(40):
        job[rank][CALL - 1] = job[rank][CALL - 1]._replace(sizes=(7,))
    del job[70][CALL - 1]
    drawing = draw_hang(explained(tmp_path, job))
    assert [label for _, label in drawing.y_ticks] == [*map(str, range(14)), "40", "70"]  # 40 did nothing wrong


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
    assert hang.notes == ("2 point-to-point calls not compared.",)
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
    drawing = to_svg(draw_hang(hang))
    assert ">all_reduce [16]<" in drawing
    assert ">all_reduce [32]<" in drawing
    assert ">all_reduce [8]<" not in drawing


def test_ranks_whose_coalesced_calls_differ_only_later_are_named_together(tmp_path: Path) -> None:
    job = healthy(5)
    together = {"collective_seq_id": 40}
    sizes = {3: (32, 8), 4: (32, 64)}
    for rank, calls in job.items():
        both = sizes.get(rank, (16, 8))
        calls += [QueuedCall("0", "all_reduce", (size,), at_s=21.0, fields=together) for size in both]
    hang = explained(tmp_path, job)
    assert [culprit[:2] for culprit in hang.culprits] == [(3, "size"), (4, "size")]
    words = str(hang)
    assert words.count("all_reduce [32]") == 1
    assert "Rank 3 called all_reduce [32] Float at " in words


def test_a_rank_that_coalesced_fewer_calls_made_nothing_more(tmp_path: Path) -> None:
    job = healthy(3)
    together = {"collective_seq_id": 40}
    for rank, calls in job.items():
        sizes = (8,) if rank == 2 else (8, 16)
        calls += [QueuedCall("0", "all_reduce", (size,), at_s=21.0, fields=together) for size in sizes]
    hang = explained(tmp_path, job)
    assert [culprit[:2] for culprit in hang.culprits] == [(2, "collective")]
    assert "Rank 2 called nothing more, ranks 0 and 1 all_reduce [16] Float at " in str(hang)
    assert ">nothing more<" in to_svg(draw_hang(hang))


def test_of_calls_that_all_differ_each_is_named_and_the_largest_difference_counts(tmp_path: Path) -> None:
    job = {
        0: [QueuedCall("0", "all_reduce", (8,), at_s=1.0)],
        1: [QueuedCall("0", "all_reduce", (16,), at_s=1.0)],
        2: [QueuedCall("0", "broadcast", (16,), at_s=1.0)],
    }
    words = str(explained(tmp_path / "three", job))
    assert words.startswith("Ranks 0 to 2 disagree on the collective of collective 1 of the default group.")
    called = re.findall(r"[Rr]ank (\d) (?:called )?(\w+ \[\d+\])", words)
    assert called == [("0", "all_reduce [8]"), ("1", "all_reduce [16]"), ("2", "broadcast [16]")]
    many = {rank: [QueuedCall("0", "all_reduce", (rank + 1,), at_s=1.0)] for rank in range(5)}
    assert "2 more calls differ, too." in str(explained(tmp_path / "many", many))


def test_groups_of_one_description_have_different_names(tmp_path: Path) -> None:
    job = healthy(4)
    for rank, calls in job.items():
        calls.append(QueuedCall("5" if rank < 2 else "6", at_s=20.0))
    job[3].pop()
    groups = {"0": range(4), "5": (0, 1), "6": (2, 3)}
    hang = explain_hang(read_dumps(write(tmp_path, job, groups)))
    assert hang.culprits == [HangCulprit(3, "missing", "mesh_tp (6)", 1)]


def test_the_table_and_the_drawing(tmp_path: Path) -> None:
    hang = explained(tmp_path, sick("missing", 3, 1))
    frame = hang.to_frame()
    assert frame.columns.tolist() == ["group", "call", "rank", "what", "state", "where", "after_s", "cause"]
    missing = frame[frame.cause == "missing"]
    assert missing[["call", "rank", "what"]].values.tolist() == [[CALL, 1, ""]]
    assert missing.after_s.isna().all()
    assert set(frame.what) >= {"all_reduce [32] Float", "broadcast [8] Float"}
    assert "train.py:13 in step" in set(frame["where"])
    drawing = draw_hang(hang)
    cells, column = drawing.rects[0], [label for _, label in drawing.x_ticks].index(str(CALL))
    hatched = np.flatnonzero(cells.hatched)
    assert list(zip(cells.x[hatched], cells.y[hatched], strict=True)) == [(column, 1)]
    assert drawing.title == f"Rank 1 did not reach collective {CALL} of the default group"
    assert drawing.x_label == "collective of the default group, by number"
    assert "no call" in to_svg(drawing)
    with pytest.raises(ValueError, match="finding must be the place of one of 0 findings, got 0"):
        draw_hang(Hang((), (), ()))


@pytest.mark.parametrize("nothing", [(), ([],), ([], None)])
def test_nothing_is_no_evidence_that_there_is_no_hang(nothing: Any) -> None:
    """A list of dumps is empty if a pattern matched no file."""
    with pytest.raises(ValueError, match="^explain_hang needs dumps or logs, got neither$"):
        explain_hang(*nothing)


def test_the_drawing_of_many_ranks_shows_those_to_look_at(tmp_path: Path) -> None:
    job = {rank: [QueuedCall("0", at_s=1.0)] for rank in range(99)}
    job[70] = []
    drawing = draw_hang(explained(tmp_path, job))
    assert len(drawing.y_ticks) == 16
    assert "70" in {label for _, label in drawing.y_ticks}
    assert drawing.y_label == "rank (16 of 99 shown)"
    assert [key.label for key in drawing.legend] == ["waits", "did not call it"]  # all stop at their first call


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
    with pytest.raises(StorageError, match=r"trace_0: .* asks for (posix|nt)\.system.* nothing was executed"):
        read_dumps(dump)
    assert not target.exists()
    pickle.loads(dump.read_bytes())  # which Python's own does
    assert target.exists()


def test_what_a_pickle_may_not_cost(tmp_path: Path) -> None:
    """Neither memory for a memo of 2³² places, nor the stack for a key of tuples in tuples."""
    deep = b"\x80\x02}" + b"N" + b"N\x86" * 10**5 + b"K\x00s."
    deeper = b"\x80\x02})" + b"\x85" * 10**5 + b"K\x00s."
    memo = b"\x80\x02}r\xff\xff\xff\xff."
    longer = b"\x80\x02X\xff\xff\xff\x7fabc."
    for place, raw in enumerate((deep, deeper, memo, longer, b"\x80", b"\x80\x02.", b"\x80\x02e.", b"\x80\x02h\x07.")):
        path = tmp_path / f"trace_{place}"
        path.write_bytes(raw)
        with pytest.raises(StorageError, match=f"trace_{place}: not a readable flight-recorder dump"):
            read_dumps(path)


def test_damaged_dumps_are_refused_or_read(tmp_path: Path) -> None:
    """Never another error, and never a crash in what follows."""
    draw = random.Random(21)
    files = sorted(write(tmp_path, sick("size", 2, 1)).iterdir())
    whole = [path.read_bytes() for path in files]
    num_refused = 0
    for trial in range(120):
        raw = bytearray(whole[trial % 2])
        for _ in range(draw.choice((1, 1, 3, 30))):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        files[trial % 2].write_bytes(raw[: draw.randrange(len(raw))] if trial % 5 == 0 else raw)
        try:
            str(explain_hang(read_dumps(tmp_path)))
        except ValueError:
            num_refused += 1
        files[trial % 2].write_bytes(whole[trial % 2])
    assert 30 < num_refused < 120


def test_folders_that_are_not_one_job(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found no dumps, which are files whose names end in the number of a rank"):
        read_dumps(tmp_path)
    write(tmp_path, healthy(2))
    (tmp_path / "train.log").write_text("not read")
    assert [dump.rank for dump in read_dumps(tmp_path)] == [0, 1]
    (tmp_path / "trace_rank_1.json").write_bytes((tmp_path / "trace_rank_1").read_bytes())
    with pytest.raises(
        ValueError, match=r"trace_rank_1.json and trace_rank_1 are both of rank 1; pass one dump per rank"
    ):
        read_dumps(tmp_path)
    other = write(tmp_path / "other", healthy(3))
    with pytest.raises(ValueError, match="trace_rank_0 is of a job of 2 ranks and trace_rank_2 is of a job of 3 ranks"):
        read_dumps([tmp_path / "trace_rank_0", other / "trace_rank_2"])
    for num_ranks in (2, 4):
        with pytest.raises(ValueError, match=f"^num_ranks must be 3, as trace_rank_2 states, got {num_ranks}$"):
            read_dumps([other / "trace_rank_2"], num_ranks=num_ranks)
    file = json.loads((write(tmp_path / "json", healthy(3), as_json=True) / "trace_rank_2").read_text())
    del file["pg_config"]
    silent = tmp_path / "silent_2"
    silent.write_text(json.dumps(file))
    with pytest.raises(StorageError, match="must be a whole number from 0 to 1, got 2"):
        read_dumps(silent, num_ranks=2)
    assert [dump.num_ranks for dump in (*read_dumps(silent), *read_dumps(silent, num_ranks=4))] == [0, 4]
    with pytest.raises(StorageError, match="its name must end in the number of its rank"):
        read_dumps(tmp_path / "train.log")
    with pytest.raises(FileNotFoundError):
        read_dumps(tmp_path / "none_0")


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ({"version": "1.4", "entries": []}, "version must be 2.x, of torch 2.4 or later, got '1.4'"),
        ({"entries": []}, "missing required field `version`"),
        ({"version": "2.1", "entries": [{}]}, "missing required field"),
        ({"version": "2.1", "pg_config": {"0": {"ranks": "[0, x]"}}}, "JSON is malformed"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, dump: Any, message: str) -> None:
    for place, raw in enumerate((json.dumps(dump).encode(), pickle.dumps(dump))):
        path = tmp_path / f"trace_{place}"
        path.write_bytes(raw)
        with pytest.raises(StorageError) as error:
            read_dumps(path)
        assert message in str(error.value)


def test_names_of_others_are_text(tmp_path: Path) -> None:
    job = sick("missing", 2, 1)
    for calls in job.values():
        calls[:] = [
            call._replace(kind="\x1b[31m\n<b>", fields={"process_group": ["0", "\x1b]0;x\x07"]}) for call in calls
        ]
    text = str(explained(tmp_path, job))
    assert "\x1b" not in text
    assert "\\x1b[31m" in text


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
