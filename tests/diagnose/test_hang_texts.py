"""Texts that say less than they seem to: no rank is named that they do not support, and what they show is listed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.diagnose import explain_hang, read_hang_text, read_logs
from rankscope.diagnose.hangs import Hang

from .hang_checks import CANNOT_TELL, problem
from .made_logs import MADE, closed, fingerprint, mismatch, signal, status, uncaught, watchdog

AUG = "E816 01:45:40.183009389"  # the time in made_logs


def explained(*lines: str) -> Hang:
    return explain_hang(logs=read_hang_text("\n".join(lines) + "\n"))


def named(hang: Hang) -> list[tuple[int, str]]:
    return [(culprit.rank, culprit.cause) for culprit in hang.culprits]


def cannot_tell(hang: Hang) -> str:
    assert not hang.culprits, str(hang)
    assert CANNOT_TELL in str(hang)
    return str(hang)


def at(stamp: str, *lines: str) -> list[str]:
    """The same lines at another time."""
    return [line.replace(AUG, stamp) for line in lines]


WAITING = [watchdog(0, 808), status(0, 808, 811)]


# ---- lines that ran into each other, or lost a digit


def test_halves_of_two_lines() -> None:
    alarm = signal(2, 807, 0)
    failure = status(3, 808, 811)
    begin, end = alarm.split("Last enqueued")
    first, last = failure.split("PG status: ")
    cannot_tell(explained(*WAITING, f"{begin}{first}PG Last enqueued{end}", f"status: {last}"))
    head = first.split(" failure")[0]
    rest = failure[len(head) :]
    cannot_tell(explained(*WAITING, f"{begin}{head}Last enqueued{end}", rest))
    assert named(explained(*WAITING, alarm)) == [(2, "missing")]


def test_a_rank_that_is_far_behind_is_of_another_time_or_group() -> None:
    """All ranks made call 807, or it would not have ended on rank 0."""
    cannot_tell(explained(*WAITING, signal(2, 500, 0)))


def test_a_rank_that_waits_in_a_later_call_is_not_said_to_wait_in_the_first() -> None:
    """The root of a broadcast may leave it before all ranks come, and wait in the next call."""
    hang = explained(*WAITING, watchdog(1, 809), status(1, 809, 811), signal(2, 807, 0))
    assert named(hang) == [(2, "missing")]


def test_a_group_in_front_of_the_line_of_another() -> None:
    """Two lines ran into one; 33 is a number of the other group."""
    first = status(0, 5, 5).partition(" failure")[0] + " First PG on this rank to signal dumping."
    cannot_tell(explained(first + watchdog(0, 33), signal(1, 32, 0), signal(0, 32, 0)))


def test_the_line_that_states_the_group_of_a_timeout() -> None:
    """`Watchdog::run` prints the group right before the timeout."""
    lines = []
    for rank in (0, 1, 2):
        caught = watchdog(rank, 5, "BROADCAST" if rank == 2 else "ALLREDUCE", (9, 9)).partition("] [")[2]
        head = status(rank, 5, 5).partition("  failure")[0]
        lines.append(f"{head} Process group watchdog thread terminated with exception: [{caught}")
    assert named(explained(*lines)) == [(2, "collective")]


# ---- groups


def test_groups_that_share_a_name() -> None:
    """Before names were hashed, `split_group` gave the groups of one parent the same number."""
    lines = []
    for rank in range(6):
        operation = "BROADCAST" if rank in (2, 3) else "ALLREDUCE"
        lines.append(watchdog(rank, 5, operation, (100, 100), in_group=rank % 2))
        lines.append(status(rank, 5, 5, group=("1", "mesh_tp"), in_group=rank % 2))
    cannot_tell(explained(*lines))


def old_status(rank: int, failed: int, last: int, number: int) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1537] [PG {number} Rank {rank % 2}] Timeout at NCCL work: {failed}, "
        f"last enqueued NCCL work: {last}, last completed NCCL work: {failed - 1}."
    )


def test_a_group_that_is_a_counter_of_the_process() -> None:
    cannot_tell(explained(old_status(0, 40, 44, 1), old_status(3, 38, 39, 1)))
    cannot_tell(explained(old_status(1, 40, 44, 0), old_status(1, 40, 44, 1)))


def test_timeout_at_nccl_work() -> None:
    late = signal(2, 39, 0, "2.6")
    assert named(explained(old_status(0, 40, 44, 0), old_status(1, 40, 44, 0), late)) == [(2, "missing")]


def test_lines_without_a_group() -> None:
    """They may be the first calls of two groups."""
    cannot_tell(explained(watchdog(0, 1, "BROADCAST", (9, 9)), watchdog(1, 1, sizes=(500, 500))))


def test_a_desync_report_of_a_group() -> None:
    report = "\t     [1] finished collective #4, but didn't join collective #5 (count from 1)"
    cannot_tell(explained(watchdog(4, 5, in_group=0), report))
    assert named(explained(watchdog(0, 5), report)) == [(1, "missing")]


@pytest.mark.parametrize(
    "report",
    [
        "ranks [123456789] are the lagging ranks that caused this timeout",
        "[123456789] finished collective #4, but didn't join collective #5 (count from 1)",
    ],
)
def test_a_desync_report_without_a_legible_rank_says_nothing(report: str) -> None:
    cannot_tell(explained(report))


# ---- attempts, and lines from other times


def test_a_periodic_line_is_not_the_state_at_the_end() -> None:
    line = status(1, 808, 811).partition(" failure")[0] + (
        "NCCL Work update periodically: last enqueued NCCL work: 807, last completed NCCL work: 806."
    )
    cannot_tell(explained(*WAITING, line))


def test_attempts_hours_apart() -> None:
    later = at("E816 04:11:09.183009389", signal(2, 807, 0))
    assert "Aug 16, 04:11:09" in cannot_tell(explained(*WAITING, *later))
    one = [watchdog(0, 5, "BROADCAST", (9, 9)), status(0, 5, 5)]
    other = at("E817 09:45:40.183009389", watchdog(1, 5), status(1, 5, 5))
    cannot_tell(explained(*one, *other))


def test_each_attempt_is_explained() -> None:
    first = [*WAITING, signal(3, 807, 0)]
    second = at("E816 04:45:40.183009389", watchdog(0, 12), status(0, 12, 13), signal(1, 11, 0))
    hang = explained(*second, *first)
    assert [(culprit.rank, culprit.call) for culprit in hang.culprits] == [(3, 808), (1, 12)]


def test_a_restart_separates_what_is_close() -> None:
    second = at("E816 01:46:20.183009389", signal(2, 807, 0))
    assert named(explained(*WAITING, *second)) == [(2, "missing")]
    restart = (
        "W0816 01:46:10.301000 4711 torch/distributed/elastic/agent/server/api.py:900] [default] Worker group FAILED. "
        "3/3 attempts left; will restart worker group"
    )
    cannot_tell(explained(*WAITING, restart, *second))
    undated = at("E", *WAITING, signal(2, 807, 0))
    assert named(explained(*undated)) == [(2, "missing")]
    cannot_tell(explained(*undated, restart))


# ---- the start


def store_barrier(rank: int, key: str, num_ranks: int, joined: int, word: str = "num_workers_joined") -> str:
    """`_store_based_barrier` in torch/distributed/distributed_c10d.py."""
    return (
        "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank "
        f"{rank}, for key: store_based_barrier_key:{key} (world_size={num_ranks}, {word}={joined}, timeout=0:00:30 "
        "error=wait timeout after 10000ms, keys: /default_pg/0/)"
    )


def test_a_barrier_of_a_group_does_not_count_the_ranks_of_the_job() -> None:
    cannot_tell(explained(store_barrier(1, "5f2b", 2, 1)))
    lines = [store_barrier(rank, "1", 4, 3) for rank in (0, 1, 3)]
    hang = explained(*lines)
    assert named(hang) == [(2, "missing")]
    assert hang.culprits[0].group == ""  # the number says nothing of which group it is
    cannot_tell(explained(*lines[:2]))
    old = [store_barrier(rank, "1", 4, 3, "worker_count") for rank in (0, 1, 3)]
    assert named(explained(*old)) == [(2, "missing")]


def test_counts_of_two_attempts() -> None:
    lines = [store_barrier(rank, "0", 4, 2) for rank in (0, 1)]
    assert named(explained(*lines)) == [(2, "missing"), (3, "missing")]
    cannot_tell(explained(*lines, store_barrier(2, "0", 4, 3)))
    cannot_tell(explained(*lines, "INFO: 3/3 attempts left; will restart worker group"))


def test_torchruns_prefix_counts_within_a_node() -> None:
    """On the second node of two, [default0] is rank 2."""
    said = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. {} clients joined."
    cannot_tell(explained(f"[default0]:{said.format('1/2')}"))
    confirmed = f"[default0]:{uncaught(0, 'x').splitlines()[0]}\n[default0]:{closed(0).splitlines()[-1]}"
    assert named(explained(f"[default0]:{said.format('1/2')}", confirmed)) == [(1, "missing")]


def test_a_rank_that_waits_for_the_id_of_nccl() -> None:
    said = (
        "[rank2]: torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId "
        "from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys"
    )
    assert "Rank 2" in cannot_tell(explained(said))
    reached = "[rank2]: RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors"
    words = cannot_tell(explained(reached, said))  # the two facts have the same values
    assert "monitored_barrier" in words
    assert "NCCL" in words


# ---- errors


def root_cause(rank: int, minute: int, exit_code: int) -> str:
    """`_FAILURE_FORMAT_TEMPLATE` in torch/distributed/elastic/multiprocessing/errors."""
    said = f"Signal {-exit_code} (SIGKILL) received by PID 881" if exit_code < 0 else "To enable traceback see: https"
    return (
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-24_01:{minute}:00\n  host      : node1\n"
        f"  rank      : {rank} (local_rank: 2)\n  exitcode  : {exit_code} (pid: 881)\n  error_file: <N/A>\n"
        f"  traceback : {said}"
    )


def test_reports_of_two_nodes() -> None:
    """A rank that was killed when the job was cleaned up is not the cause."""
    cannot_tell(explained(root_cause(3, 50, 1), root_cause(6, 53, -9)))
    assert named(explained(root_cause(3, 53, 1), root_cause(6, 50, -9))) == [(6, "dead")]
    damaged = root_cause(3, 50, 1).replace("  host", "  hos")
    cannot_tell(explained(damaged, root_cause(6, 53, -9)))


def test_errors_that_another_rank_causes() -> None:
    assert named(explained("[rank0]: ValueError: bad sample", "[rank2]: EOFError", closed(1))) == [(0, "error")]
    assert named(explained("[rank1]: StopIteration", closed(0))) == [(1, "error")]
    for cut in ("[[rank1]:[E816", "Det[default0]", "Detected mism", ""):
        cannot_tell(explained(f"[rank0]: RuntimeError: {cut}", closed(1)))
    assert named(explained("[rank0]: RuntimeError: shape [4]", closed(1))) == [(0, "error")]


def test_lines_that_show_no_rank_are_listed() -> None:
    async_error = WATCHDOG_ERROR.format("raised the following async exception: NCCL error: remote process exited")
    assert "Rank 1" in cannot_tell(explained(async_error))
    blocking = "[rank1]:[E816 01:45:40.1 ProcessGroupNCCL.cpp:538] [Rank 1] Work WorkNCCL(SeqNum=88, OpType=ALLREDUCE, "
    blocking += "NumelIn=1, NumelOut=1, Timeout(ms)=600000) timed out in blocking wait."
    assert "number 88" in cannot_tell(explained(blocking))
    part = "[rank4]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"
    assert "monitored_barrier" in cannot_tell(explained(part))
    assert "recognises no line" in cannot_tell(explained("step 3 loss 0.5"))


WATCHDOG_ERROR = (
    "[rank1]:[E816 01:45:40.1 ProcessGroupNCCL.cpp:538] [Rank 1] Collective WorkNCCL(SeqNum=88, OpType=ALLREDUCE, "
    "NumelIn=100, NumelOut=100, Timeout(ms)=600000) {}"
)


def test_a_report_in_the_middle_of_another() -> None:
    """What rank 8 called is not what stands after the line of rank 6."""
    reduce, gather = fingerprint("ALLREDUCE", [400]), fingerprint("ALLGATHER", [400])
    usual = [mismatch(rank, reduce, 6, gather) for rank in (0, 1, 3)]
    broken = mismatch(8, reduce, 6, gather)
    inner = mismatch(6, gather, 0, reduce)
    hang = explained(*usual, broken[:150] + inner, broken[150:])
    assert set(named(hang)) <= {(6, "collective")}, str(hang)


def test_a_digit_that_a_report_of_detail_lost() -> None:
    """torch also lists what differs, and here the size does not."""
    line = mismatch(0, fingerprint("ALLREDUCE", [400]), 1, fingerprint("ALLREDUCE", [400], "Double"))
    assert {cause for _, cause in named(explained(line))} == {"dtype"}
    assert {cause for _, cause in named(explained(line.replace("[400]", "[40]", 1)))} == {"call"}


def test_colours_of_grep() -> None:
    text = MADE[0].text
    for word in ("Watchdog", "failure", "enqueued"):
        text = text.replace(word, f"\x1b[01;31m\x1b[K{word}\x1b[m\x1b[K")
    assert named(explained(text)) == [(2, "missing")]


def test_the_check_of_a_verdict_finds_a_wrong_one() -> None:
    hang = explained(*WAITING, signal(2, 807, 0))
    assert problem(hang, {(2, "missing")}) == ""
    assert problem(hang, {(1, "missing")}) != ""


# ---- files


def diagnosed(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["diagnose", *map(str, paths)]) == 0
    return capsys.readouterr().out


LATE = "Rank 2 did not reach collective 808 of the default group."


def test_an_empty_log_is_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = MADE[0].text.split("\n")
    for rank, text in enumerate(("\n".join(lines[:-1]), "", lines[-1])):
        (tmp_path / f"rank{rank}.log").write_text(text)
    assert LATE in diagnosed(sorted(tmp_path.iterdir()), capsys)
    assert CANNOT_TELL in diagnosed([tmp_path / "rank1.log"], capsys)


@pytest.mark.parametrize("begin", ['{"loss": 2.31}\n', "[{'loss': 1}]\n"])
def test_logs_that_begin_like_traces(begin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.log").write_text(begin + MADE[0].text)
    assert LATE in diagnosed([tmp_path / "job.log"], capsys)


def test_how_a_log_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MADE[0].text + "\n"
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "marked.log").write_text(text, encoding="utf-8-sig")
    (tmp_path / "lines.log").write_bytes(text.replace("\n", "\r\n").encode())
    for path in sorted(tmp_path.iterdir()):
        assert LATE in diagnosed([path], capsys), path


def test_the_folder_of_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torchrun --log-dir: the last attempt counts."""
    lines = MADE[0].text.split("\n")
    for attempt in (0, 1):
        for local_rank in range(4):
            folder = tmp_path / "none_x1" / f"attempt_{attempt}" / str(local_rank)
            folder.mkdir(parents=True)
            text = "\n".join(line for line in lines if f"[rank{local_rank}]" in line)
            (folder / "stderr.log").write_text(text if attempt else uncaught(local_rank, "KeyError: 3"))
    assert LATE in diagnosed([tmp_path], capsys)
    assert len(read_logs(tmp_path).sources) == 4
