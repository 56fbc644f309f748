"""A hang from what people paste: a rank is named only if the text shows it, and never a wrong one."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from rankscope.cli import main
from rankscope.diagnose import explain_hang, read_hang_text, read_logs
from rankscope.diagnose.hangs.hangs import Hang
from rankscope.diagnose.hangs.log_evidence import facts_of
from rankscope.diagnose.hangs.log_kinds import KINDS
from rankscope.diagnose.hangs.log_lines import clean_lines

from .hang_checks import CANNOT_TELL, RIGHT, WRONG, judged
from .hang_inputs import HangLog, interleaved, made, recorded
from .made_dumps import sick, write
from .pastes import PASTES, Paste
from .public import PUBLIC
from .reports import REPORTS
from .samples import SAMPLES

JOBS = recorded() + made()
MISSING = next(job for job in JOBS if job.name == "rank 2 put 807 calls into the queue, torch 2.8").logs["log.txt"]


def explained(text: str) -> Hang:
    return explain_hang(logs=read_hang_text(text))


def files_of(folder: Path, logs: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in logs.items():
        (folder / name).write_text(text)
    return folder


def test_each_kind_of_evidence_is_found() -> None:
    for kind, text in SAMPLES.items():
        assert len(facts_of(clean_lines({"": text}))[kind]) == 1
        assert KINDS[kind].cause in [finding.cause for finding in explained(text).findings]
    texts = ["\n".join(job.mixed(random.Random(3))) for job in JOBS]
    texts += [paste.text for paste in PASTES + REPORTS + PUBLIC]
    all_facts = [facts_of(clean_lines({"": text})) for text in [*texts, *SAMPLES.values()]]
    assert [kind for kind in KINDS if not any(facts[kind] for facts in all_facts)] == []


@pytest.mark.parametrize("paste", PASTES + REPORTS + PUBLIC, ids=lambda paste: paste.name)
def test_a_paste(paste: Paste) -> None:
    hang = explained(paste.text)
    assert {culprit.rank for culprit in hang.culprits} == {*paste.ranks}, str(hang)
    assert any(finding.is_certain for finding in hang.findings) == paste.is_certain, str(hang)
    assert re.search(paste.words, str(hang)), str(hang)


def test_a_line_that_is_cut_takes_in_few_others() -> None:
    """Otherwise each further line would be searched together with all before it."""
    assert len(clean_lines({"": "Watchdog caught\n" + "step\n" * 9000})) > 8000


# ---- recorded and made jobs


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_that_hung(job: HangLog, tmp_path: Path) -> None:
    from_files = explain_hang(logs=read_logs(files_of(tmp_path, job.logs)))
    in_one = explained("\n".join(job.mixed(random.Random(3))))
    for hang in (from_files, in_one):
        assert judged(hang, job.truths) != WRONG, str(hang)
        assert not job.is_clear or judged(hang, job.truths) == RIGHT, str(hang)


@pytest.mark.parametrize("seed", range(3))
def test_lines_that_are_missing_or_out_of_order_make_no_answer_wrong(seed: int) -> None:
    draw = random.Random(seed)
    for job in JOBS:
        lines = job.mixed(draw)
        for _ in range(3):
            part = draw.sample(lines, draw.randint(min(1, len(lines)), len(lines)))
            if draw.random() < 0.5:
                part = [line for line in lines if line in {*part}]  # in their order
            if part and draw.random() < 0.3:
                part[-1] = part[-1][: draw.randrange(len(part[-1]) + 1)]
            hang = explained("\n".join(part))
            assert judged(hang, job.truths) != WRONG, "\n".join([job.name, str(hang), *part])


def test_the_lines_of_two_jobs_in_one_log_make_no_answer_wrong() -> None:
    draw = random.Random(5)
    for _ in range(300):
        first, second = draw.sample(JOBS, 2)
        lines = interleaved(draw, [first.mixed(draw), second.mixed(draw)])
        hang = explained("\n".join(lines))
        assert judged(hang, first.truths | second.truths) != WRONG, "\n".join([first.name, second.name, str(hang)])


def test_the_check_of_an_answer_finds_a_wrong_one() -> None:
    hang = explained(MISSING)
    assert judged(hang, {(2, "missing")}) == RIGHT
    assert judged(hang, {(1, "missing")}) == WRONG
    assert judged(hang, {(2, "error")}) == WRONG
    assert judged(explained("step 3"), set()) == CANNOT_TELL


# ---- evidence that conflicts


def test_two_attempts_are_not_compared() -> None:
    """torchrun starts the ranks again, or the whole timeout passes in between."""
    *waits, behind = MISSING.splitlines()
    assert explained("\n".join([*waits, behind])).culprits
    restart = "INFO: 3/3 attempts left; will restart worker group"
    later = behind.replace("01:45:", "02:45:")
    for lines in ([*waits, restart, behind], [*waits, later]):
        assert not explained("\n".join(lines)).culprits


def test_the_last_attempt_counts_unless_it_states_nothing() -> None:
    error = "[rank0]: KeyError: 'x'"
    restart = "INFO: 3/3 attempts left; will restart worker group"
    assert [culprit.rank for culprit in explained("\n".join([error, restart, MISSING])).culprits] == [2]
    assert [culprit.rank for culprit in explained("\n".join([error, restart, "step 1"])).culprits] == [0]


def test_a_rank_that_is_far_behind_or_waits_elsewhere_is_not_accused() -> None:
    assert not explained(MISSING.replace("807", "500")).culprits
    elsewhere = (
        "[rank2]:[E816 01:45:40.1 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID 5(tp) Rank 0]  failure detected by "
    )
    elsewhere += "watchdog at work sequence id: 9 PG status: last enqueued work: 9, last completed work: 8"
    assert not explained(f"{MISSING}\n{elsewhere}").culprits


def test_a_group_is_compared_if_each_rank_has_its_own_number_in_it() -> None:
    old = MISSING.replace("PG ID 0 PG GUID 0(default_pg)", "PG 1")
    assert [culprit.rank for culprit in explained(old).culprits] == [2]
    assert not explained(old.replace("[PG 1 Rank 3]", "[PG 1 Rank 1]")).culprits
    assert not explained(old.replace("[rank3]:", "")).culprits


# ---- files and the command


def test_how_a_log_is_stored(tmp_path: Path) -> None:
    stored = {
        "job.log": MISSING.encode(),
        "job.log.gz": gzip.compress(MISSING.encode()),
        "marked.log": MISSING.encode("utf-8-sig"),
        "lines.log": MISSING.replace("\n", "\r\n").encode(),
    }
    for name, raw in stored.items():
        (tmp_path / name).write_bytes(raw)
        hang = explain_hang(logs=read_logs(tmp_path / name))
        assert [culprit.rank for culprit in hang.culprits] == [2], name


def test_a_log_per_rank_with_an_empty_and_a_damaged_one(tmp_path: Path) -> None:
    folder = files_of(tmp_path, {f"rank{place}.log": line for place, line in enumerate(MISSING.splitlines())})
    (folder / "rank900.log").write_text("")
    (folder / "rank901.log.gz").write_bytes(gzip.compress(b"step")[:-4])
    hang = explain_hang(logs=read_logs(folder))
    assert [culprit.rank for culprit in hang.culprits] == [2]
    assert "rank901.log.gz" in hang.notes[0]


@pytest.mark.parametrize(
    ("names", "rank"),
    [
        (["rank0.log", "rank1.log"], [1]),
        (["lora_rank16.log", "lora_rank16.log"], []),  # one log
        (["node0/rank0.log", "node1/rank0.log"], []),
        (["rank_4/a.log", "rank_4/b.log"], []),
    ],
)
def test_when_the_name_of_a_log_states_the_rank(names: list[str], rank: list[int], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("step 3\n")
    (tmp_path / names[1]).write_text("Traceback (most recent call last):\n  x\nKeyError: 4\n")
    hang = explain_hang(logs=read_logs(sorted({tmp_path / name for name in names})))
    assert [culprit.rank for culprit in hang.culprits] == rank


def test_the_last_attempt_in_the_folder_of_torchrun_counts(tmp_path: Path) -> None:
    for local_rank, line in enumerate(MISSING.splitlines()):
        for attempt, text in enumerate(["[rank0]: KeyError: 3", line]):
            folder = tmp_path / "run" / f"attempt_{attempt}" / str(local_rank)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(text)
    assert [culprit.rank for culprit in explain_hang(logs=read_logs(tmp_path)).culprits] == [2]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["diagnose", "--json", *words]) == 0
    fields: dict[str, object] = json.loads(capsys.readouterr().out)
    return fields


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    culprit = {"rank": 2, "cause": "missing", "group": "default_pg", "call": 808, "is_certain": True}
    for name in ("job.log", "slurm-12", "job.pasted"):
        (tmp_path / name).write_text(MISSING)
        assert printed(capsys, str(tmp_path / name))["culprits"] == [culprit]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MISSING.encode())))
    assert printed(capsys, "-")["culprits"] == [culprit]


def test_logs_say_why_a_rank_left_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, sick("missing", 3, 2), {"0": range(3)}, without=[2])
    (tmp_path / "job.log").write_text("[rank2]: ValueError: no samples\n")
    culprits: Any = printed(capsys, str(tmp_path))["culprits"]
    assert [(culprit["rank"], culprit["cause"]) for culprit in culprits] == [(2, "error"), (2, "dead")]


def test_a_log_that_may_not_be_opened_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = files_of(tmp_path, {"job.log": MISSING, "rank9.log": "step 1"})
    is_open = open

    def refuse(path: Any, *arguments: Any) -> Any:
        if str(path).endswith("rank9.log"):
            raise PermissionError(13, "Permission denied", str(path))
        return is_open(path, *arguments)

    monkeypatch.setattr("builtins.open", refuse)
    hang = explain_hang(logs=read_logs(folder))
    assert [culprit.rank for culprit in hang.culprits] == [2]
    assert "rank9.log" in hang.notes[0]
    with pytest.raises(PermissionError):
        read_logs([folder / "rank9.log"])


def test_the_watchdogs_lines_say_more_of_who_waits_than_a_last_line() -> None:
    wait = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=5, "
    wait += "NumelOut=5, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
    lost = "[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.\n"
    last = "[rank1]: step 7\n"
    assert explained(wait.format(0) + wait.format(1) + lost + last).culprits == []
    group = "[PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure detected by watchdog at work sequence id: 7 "
    group += "PG status: last enqueued work: 7, last completed work: 6.\n"
    said = "".join([f"[rank{rank}]: {line.format(rank)}" for rank in (0, 2, 3) for line in (wait, group)])
    assert [culprit.rank for culprit in explained(said + lost + last).culprits] == [1]


def test_lines_pass_through_what_counts_them() -> None:
    seen: list[int] = []

    def count(lines: Any) -> Any:
        seen.append(len(lines))
        return lines

    assert explain_hang(logs=read_hang_text(MISSING, count)).culprits == explained(MISSING).culprits
    assert seen == [len(MISSING.splitlines())]
