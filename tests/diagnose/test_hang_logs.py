"""A hang from what people paste: a rank is named only if the text shows it, and never a wrong one."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.diagnose import explain_hang, read_dumps, read_hang_text, read_logs
from rankscope.diagnose.hangs import Hang, HangCulprit

from .hang_checks import problem
from .hang_texts import RecordedHang, recorded
from .made_dumps import CALL, healthy, sick, write
from .made_logs import FORMS, MADE, MadeLog, closed, signal, status, uncaught, watchdog

RECORDED = recorded()
LEAST_NAMED = 28  # of the recorded hangs; what the others print shows no rank


def explained(text: str) -> Hang:
    return explain_hang(logs=read_hang_text(text))


def files_of(folder: Path, logs: dict[str, str]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, text in logs.items():
        (folder / name).write_text(text)
    return sorted(folder.iterdir())


def mixed(logs: dict[str, str], draw: random.Random) -> list[str]:
    """The lines of several logs in one, in a random order that keeps that of each log, with srun's labels."""
    left = {name: text.splitlines() for name, text in logs.items()}
    labels = {name: re.sub(r"\D", "", name) for name in logs}
    lines = []
    while left:
        name = draw.choice(sorted(left))
        if not left[name]:
            del left[name]
            continue
        line = left[name].pop(0)
        lines.append(f"{labels[name]}: {line}" if labels[name] else line)
    return lines


# ---- real hangs


@pytest.mark.parametrize("hang", RECORDED, ids=lambda hang: str(hang.case))
def test_a_recorded_hang(hang: RecordedHang, tmp_path: Path) -> None:
    from_files = explain_hang(logs=read_logs(files_of(tmp_path, hang.logs)))
    assert problem(from_files, hang.case.truths) == ""
    in_one = explained("\n".join(mixed(hang.logs, random.Random(3))) + "\n")
    assert problem(in_one, hang.case.truths) == ""
    assert in_one.culprits == from_files.culprits


def test_most_recorded_hangs_are_explained(tmp_path: Path) -> None:
    assert len(RECORDED) == 73
    named = []
    for place, hang in enumerate(RECORDED):
        if explain_hang(logs=read_logs(files_of(tmp_path / str(place), hang.logs))).culprits:
            named.append(str(hang.case))
    assert len(named) >= LEAST_NAMED, named


# ---- texts from torch's format strings


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.name)
def test_a_made_log(made: MadeLog) -> None:
    hang = explained(f"{made.text}\n")
    assert problem(hang, made.truths) == ""
    assert bool(hang.culprits) == made.is_clear, str(hang)


@pytest.mark.parametrize("seed", range(4))
def test_lines_that_are_missing_or_out_of_order_make_no_verdict_wrong(seed: int) -> None:
    draw = random.Random(seed)
    texts = [(made.name, made.text.split("\n"), made.truths) for made in MADE]
    for hang in RECORDED:
        lines = mixed(hang.logs, draw)
        if lines:
            texts.append((str(hang.case), lines, frozenset(hang.case.truths)))
    for name, lines, truths in texts:
        for _ in range(6):
            part = draw.sample(lines, draw.randint(1, len(lines)))
            if draw.random() < 0.3:
                part = [line for line in lines if line in {*part}]  # in their order
            if draw.random() < 0.3:
                part[-1] = part[-1][: draw.randrange(len(part[-1]) + 1)]
            assert problem(explained("\n".join(part)), truths) == "", f"{name}:\n" + "\n".join(part)


def test_the_check_of_a_verdict_finds_a_wrong_one() -> None:
    made = MADE[0]
    wrong = explained(made.text.replace("[rank2]", "[rank3]").replace("Rank 2]", "Rank 3]").replace("rank3]:[E816", ""))
    assert problem(explained(made.text), made.truths) == ""
    assert problem(explained(made.text), frozenset({(1, "missing")})) != ""
    assert problem(explained(made.text), frozenset({(2, "error")})) != ""
    assert wrong.culprits != explained(made.text).culprits


@pytest.mark.parametrize("form", FORMS[1:])
def test_what_is_said_of_a_rank_that_is_missing(form: str) -> None:
    lines = [watchdog(0, 808, form=form), status(0, 808, 811, form), signal(2, 807, 0, form)]
    hang = explained("\n".join(lines))
    assert hang.culprits == [HangCulprit(2, "missing", "default_pg", 808)]
    for words in ("number 807", "Rank 0 was waiting", "9,801,523 elements"):
        assert words in str(hang)


def test_the_rank_of_a_file_a_label_and_a_line() -> None:
    lines = [f"3: {uncaught(3, 'KeyError: 4').splitlines()[-1]}", f"0: {closed(0).splitlines()[-1]}"]
    assert [culprit.rank for culprit in explained("\n".join(lines)).culprits] == [3]
    wait = "torch.distributed.DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//cpu//0/2\n"
    assert explained(f"[default1]:{wait}").culprits == [HangCulprit(2, "missing", "default_pg", 0)]
    assert not explained(f"[default1]:{wait.rstrip()}").culprits  # which may be cut: rank 23
    assert not explained(wait.replace("default_pg/0//", "default_pg/0//1//")).culprits  # of another group
    assert not explained(wait.replace("0/2", "0/0")).culprits  # which may serve the store


def test_logs_are_joined_with_dumps(tmp_path: Path) -> None:
    """A rank without a dump is missing if its log shows how far it got, and an error explains why."""
    groups = {"0": range(3)}
    dumps = read_dumps(write(tmp_path / "dumps", sick("missing", 3, 2), groups, without=[2]))
    assert explain_hang(dumps).culprits == [HangCulprit(2, "dead", "default_pg", CALL)]
    last = read_hang_text(signal(2, CALL - 1, 0))
    assert explain_hang(dumps, last).culprits == [HangCulprit(2, "missing", "default_pg", CALL)]
    error = read_hang_text("\n".join([uncaught(2, "ValueError: no samples"), closed(0)]))
    assert explain_hang(dumps, error).culprits == [HangCulprit(2, "error", "", 0)]
    silent = read_hang_text("step 3 loss 0.5")
    assert str(explain_hang(dumps, silent)) == str(explain_hang(dumps))
    fine = read_dumps(write(tmp_path / "fine", healthy(3), groups))
    assert str(explain_hang(fine, silent)) == str(explain_hang(fine))
    whole = read_dumps(write(tmp_path / "whole", sick("size", 3, 1), groups))
    assert explain_hang(whole, read_hang_text(closed(0))).culprits == explain_hang(whole).culprits


# ---- the command, and files


def printed(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> dict[str, object]:
    assert main(["diagnose", "--json", *words]) == 0
    fields: dict[str, object] = json.loads(capsys.readouterr().out)
    return fields


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = MADE[0]
    culprit = {"rank": 2, "cause": "missing", "group": "default_pg", "call": 808}
    for name in ("job.log", "slurm-12", "job.pasted"):
        (tmp_path / name).write_text(made.text)
        assert printed(capsys, [str(tmp_path / name)])["culprits"] == [culprit]
    lines = made.text.split("\n")
    folder = tmp_path / "logs"
    files_of(folder, {f"rank{place}.log": line for place, line in enumerate(lines)})
    (folder / "notes.md").write_text(made.text)
    assert printed(capsys, [str(folder)])["culprits"] == [culprit]
    assert printed(capsys, [str(path) for path in sorted(folder.iterdir())])["culprits"] == [culprit]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(made.text.encode())))
    assert printed(capsys, ["-"])["culprits"] == [culprit]
    assert main(["diagnose", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert "Rank 2 did not reach collective 808" in (tmp_path / "page.html").read_text()


def test_the_command_joins_logs_with_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, sick("missing", 3, 2), {"0": range(3)}, without=[2])
    (tmp_path / "job.log").write_text(signal(2, CALL - 1, 0))
    fields = printed(capsys, [str(tmp_path)])
    assert fields["culprits"] == [{"rank": 2, "cause": "missing", "group": "default_pg", "call": CALL}]
    assert fields["ranks"] == [0, 1]


def test_many_errors_hide_neither_the_one_that_explains_the_hang_nor_later_ones() -> None:
    """As torchrun prints them when it restarts a large job again and again."""
    own_error = "[rank2]: ValueError: bad sample"
    many = "[rank0]: RuntimeError: NCCL communicator was aborted\n" * (1 << 15)
    later = "[rank5]: RuntimeError: NCCL communicator was aborted"
    for text in (f"{own_error}\n{many}{later}", f"{many}{later}\n{own_error}"):
        (finding,) = explained(text).findings
        assert (finding.cause, finding.ranks, finding.came) == ("error", (2,), (0, 5))
