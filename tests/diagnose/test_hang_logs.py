"""A hang from what people paste: a rank is named only if the text shows it, and never a wrong one."""

from __future__ import annotations

import io
import json
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankscope.cli import main
from rankscope.common.storage import StorageError
from rankscope.diagnose import explain_hang, log_lines, read_dumps, read_hang_text, read_logs
from rankscope.diagnose.figures.hangs import draw_hang
from rankscope.diagnose.figures.jobs import hang_page
from rankscope.diagnose.hangs import Hang, HangCulprit
from rankscope.diagnose.log_lines import LINE_READERS, LogLine

from ..extents import first_in_test
from .hang_checks import problem
from .hang_texts import CASES, RecordedHang, TextCase, record, recorded
from .made_dumps import CALL, healthy, sick, write
from .made_logs import FORMS, MADE, MadeLog, closed, fingerprint, mismatch, signal, status, uncaught, watchdog

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
    assert [hang.case for hang in RECORDED] == CASES
    named = []
    for place, hang in enumerate(RECORDED):
        if explain_hang(logs=read_logs(files_of(tmp_path / str(place), hang.logs))).culprits:
            named.append(str(hang.case))
    assert len(named) >= LEAST_NAMED, named


@pytest.mark.slow
@pytest.mark.parametrize("case", first_in_test(1, [CASES[place] for place in (4, 16, 28, 37)]), ids=str)
def test_a_hang_recorded_anew(case: TextCase, tmp_path: Path) -> None:
    """The texts of the torch that is installed."""
    hang = record(case)
    verdict = explain_hang(logs=read_logs(files_of(tmp_path, hang.logs)))
    assert verdict.culprits, str(verdict)
    assert problem(verdict, case.truths) == ""


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
    assert str(hang) == (
        "Rank 2 did not reach collective 808 of the default group.\n"
        "  Rank 2's last call in that group was number 807.\n"
        "  Rank 0 was waiting in that collective, an allreduce of 9,801,523 elements."
    )


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
    assert "ValueError: no samples" in str(explain_hang(dumps, error))
    silent = read_hang_text("step 3 loss 0.5")
    assert str(explain_hang(dumps, silent)) == str(explain_hang(dumps))
    fine = read_dumps(write(tmp_path / "fine", healthy(3), groups))
    assert str(explain_hang(fine, silent)) == str(explain_hang(fine))
    whole = read_dumps(write(tmp_path / "whole", sick("size", 3, 1), groups))
    assert explain_hang(whole, read_hang_text(closed(0))).culprits == explain_hang(whole).culprits
    with pytest.raises(ValueError, match="logs must be a HangLogs"):
        explain_hang(dumps, "text")  # type: ignore[arg-type]


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
    capsys.readouterr()
    assert main(["diagnose", str(folder), "--perfetto", str(tmp_path / "all.json")]) == 2
    assert "--perfetto is for traces, and these are logs" in capsys.readouterr().err
    assert main(["diagnose", str(folder / "rank0.log"), "-o", str(folder / "rank0.log")]) == 2


def test_the_command_joins_logs_with_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, sick("missing", 3, 2), {"0": range(3)}, without=[2])
    (tmp_path / "job.log").write_text(signal(2, CALL - 1, 0))
    fields = printed(capsys, [str(tmp_path)])
    assert fields["culprits"] == [{"rank": 2, "cause": "missing", "group": "default_pg", "call": CALL}]
    assert fields["ranks"] == [0, 1]


def test_a_page_draws_no_finding_from_logs() -> None:
    hang = explained(MADE[0].text)
    assert "<svg" not in hang_page("job", hang)
    with pytest.raises(ValueError, match="finding must be one from dumps, and finding 0 comes from logs"):
        draw_hang(hang)


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no log, a file whose name ends in \.log"):
        read_logs(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_logs(tmp_path / "none.log")
    with pytest.raises(StorageError, match="it is not a file"):
        read_logs(["/dev/zero"])
    (tmp_path / "binary.log").write_bytes(bytes(random.Random(1).randbytes(1 << 16)))
    assert "cannot tell" in str(explain_hang(logs=read_logs(tmp_path)))


def test_names_in_a_log_are_text() -> None:
    text = "\n".join([closed(0), uncaught(2, "ValueError: \x1b]0;x\x07")])
    assert "\x1b" not in str(explained(text))
    assert "\\x1b" in str(explained(text))


def test_many_errors_hide_neither_the_one_that_explains_the_hang_nor_later_ones() -> None:
    """As torchrun prints them when it restarts a large job again and again."""
    own_error = "[rank2]: ValueError: bad sample"
    many = "[rank0]: RuntimeError: NCCL communicator was aborted\n" * (1 << 15)
    later = "[rank5]: RuntimeError: NCCL communicator was aborted"
    for text in (f"{own_error}\n{many}{later}", f"{many}{later}\n{own_error}"):
        (finding,) = explained(text).findings
        assert (finding.cause, finding.ranks, finding.came) == ("error", (2,), (0, 5))


# ---- hostile lines

_PIECES = (
    "[rank3]:",
    "[PG ID 0 PG GUID 0(a) Rank 1]",
    "Rank 1, 2, ",
    "CollectiveFingerPrint(",
    "1, ",
    " ",
    "[",
    "9",
    "a",
)


@pytest.mark.oracle
@pytest.mark.parametrize("name", LINE_READERS)
def test_a_reader_takes_time_in_proportion_to_the_line(name: str) -> None:
    """Lines of 16 KiB and of a quarter of that, which repeat what a pattern may begin with."""
    reader = LINE_READERS[name]
    marks = [mark.decode() if isinstance(mark, bytes) else "]: KeyError" for mark in reader.marks]
    texts = [made.text for made in MADE] + [text for hang in RECORDED for text in hang.logs.values()]
    lines = [line for text in texts for line in text.split("\n")]
    examples = [line for line in lines if any(mark in line for mark in marks)]
    assert examples, "made_logs or a recorded hang must have a line that this reader reads"
    pieces = [*_PIECES, *marks, *(line[:place] for line in examples[:4] for place in range(20, len(line), 60))]
    for piece in pieces:
        seconds = [cost(reader.read, f"{piece * (size // len(piece))}{marks[0]}") for size in (1 << 12, 1 << 14)]
        assert seconds[1] < max(0.05, 8 * seconds[0]), f"{piece!r}: {seconds}"


def cost(read: object, text: str) -> float:
    line = LogLine(text, None, "", is_cut=False)
    best = 1e9
    for _ in range(3):
        begin = time.process_time()
        list(read(line))  # type: ignore[operator]
        best = min(best, time.process_time() - begin)
    return best


HOSTILE = {
    "errors": lambda n: uncaught(n, "KeyError: 3").splitlines()[-1] + "\n" + closed(n + 10**6).splitlines()[-1],
    "watchdog": lambda n: watchdog(n, n + 1, form="2.6") + "\n" + status(n, n + 1, n, "2.6"),
    "groups": lambda n: status(n % 7, 5, 4 + n % 3, group=(f"{n}", "mesh")),
    "mismatch": lambda n: mismatch(n, fingerprint("ALLREDUCE", [n]), n + 1, fingerprint("ALLGATHER", [4])),
    "barrier": lambda n: f"[Rank 0]: Rank {n} failed to pass monitoredBarrier in 3 ms",
    "lags": lambda n: f"[{n}] finished collective #{n}, but didn't join collective #{n + 1} (count from 1)",
    "addresses": lambda n: f"[default{n}]:wait timeout after 3ms, keys: /default_pg/0//cpu//0/{n + 1}",
    "numbers": lambda n: "1, " * 300 + f"{n}",
    "restarts": lambda n: f"W0816 01:{n // 60 % 60:02}:{n % 60:02}.3 will restart worker group\n" + status(n, n + 1, n),
    "joins": lambda n: (
        f"store based barrier on rank {n}, for key: store_based_barrier_key:{n} (world_size=60000, worker_count=1, t"
    ),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", HOSTILE)
def test_a_verdict_takes_time_in_proportion_to_the_log(name: str) -> None:
    """Each line adds a rank, a group or a number."""

    def cpu_s(num_lines: int) -> float:
        text = "\n".join(HOSTILE[name](number) for number in range(num_lines))
        begin = time.process_time()
        str(explained(text))
        return time.process_time() - begin

    small_s = min(cpu_s(1500) for _ in range(2))
    assert min(cpu_s(6000) for _ in range(2)) < max(1.0, 7 * small_s)


def test_lines_are_read_in_pieces_of_bounded_length() -> None:
    line = watchdog(0, 808) + " " + status(0, 808, 811)
    text = "\n".join(["x" * (1 << 20) + line, line, signal(2, 807, 0)])
    assert explained(text).culprits == [HangCulprit(2, "missing", "default_pg", 808)]


def test_every_pattern_is_ascii_and_bounded() -> None:
    """A repetition without a bound could take a whole line, from each of its places."""
    patterns = [value for value in vars(log_lines).values() if isinstance(value, re.Pattern)]
    assert len(patterns) > 15
    for pattern in patterns:
        text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
        assert not re.search(r"(?<!\\)[*+]", text), text
