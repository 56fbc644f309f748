"""The command line: what it prints of a profile, and one line for whatever is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import rankscope
from rankscope.box import Profile, bank
from rankscope.box.measuring.plan import Protocol
from rankscope.box.profile import WHAT, Point
from rankscope.cli import app, main
from rankscope.cli.program import EXAMPLES
from rankscope.common import extensions as extensions_module
from rankscope.common.units import cell_words, rate_words
from rankscope.ranks.errors import MachineError, RankError, WorkerError
from rankscope.timeline import Timeline
from tests.box import logs_made
from tests.box.gpu_made import CALL_S, HOST_BYTES_PER_S, LATENCY_S, RATES, Made, copies
from tests.box.made import as_predicted, collective, links, profile
from tests.box.nccl import nccl_plugin

QUICK = Protocol(warm_up=0, iterations=4, budget_s=0.001)
NAMES = ("ring", "recursive_doubling", "halving_doubling")
MADE = collective(as_predicted(profile(links()), NAMES), {"native": lambda size: 3e-4 + 3e-9 * size})


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return str(MADE.save(tmp_path / "made.json"))


def output(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), prog_name="rankscope", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "rankscope", *words],
        env=plain | {"PYTHONPATH": str(Path(__file__).parents[1] / "lib")} | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=200,
    )


# ---- what is printed


def test_help_names_the_commands_and_loads_nothing_heavy() -> None:
    code = "import sys; from rankscope.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert all(name in done.stdout for name in ("show", "predict", "compare", "trace"))
    assert not {"torch", "numpy", "pandas"} & set(done.stderr.split())


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert output("--version") == f"rankscope {rankscope.__version__}\n"
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"rankscope {rankscope.__version__}\n", "")


def test_every_example_of_the_help_is_a_command_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    examples = [line.split("  ")[1] for line in EXAMPLES.splitlines() if line.startswith("  rankscope ")]
    assert len(examples) >= 6
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for example in examples:
        _, name, *words = shlex.split(example)
        commands[name].make_context(name, words)  # raises for a word or an option that the command does not know
        assert example in output("--help")
    assert main(["--help"]) == 0
    help_text = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == help_text
    with pytest.raises(SystemExit, match="^0$"):
        app([], prog_name="rankscope")
    assert capsys.readouterr().out == help_text


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["sho", "bank:h100_8"], "Did you mean 'show'?"),
        (["diagnoes", "traces"], "Did you mean 'diagnose'?"),
        (["show", "--num-byte", "1KiB", "bank:h100_8"], "--num-bytes"),
        (["show", "bank:h100_88"], "Did you mean h100_8, h100_4 or h100_2? `rankscope bank`"),
        (["show", "bank:dgxh100"], "Did you mean dgx_h100_8? `rankscope bank`"),
    ],
)
def test_a_near_name_is_suggested(words: list[str], suggested: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert suggested in capsys.readouterr().err


def test_for_an_unknown_machine_the_command_that_lists_all_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "bank:xyz"]) == 2
    lists = "`rankscope bank`, or box.bank() in Python, lists all machines"
    assert capsys.readouterr().err == f"rankscope: the bank has no 'xyz'. {lists}\n"
    listed = output("bank")
    assert all(f"bank:{name} " in listed for name in bank())
    assert "DGX H100: 8 × H100 80GB HBM3, NVLink 4 and" in listed
    assert max(map(len, listed.splitlines())) <= 80


def test_show_says_where_it_is_from_and_what_is_fastest(saved: str) -> None:
    shown = output("show", saved)
    assert "made up: 4 ranks on 1 node, gloo, loopback" in shown
    assert "a processor, 8 cores, 16 GiB, 1 × a card" in shown
    assert re.search(r"intra, together  +α \S+ µs \(\S+ µs to \S+ µs\), B \S+ [MG]B/s", shown)
    assert re.search(r"^ *1 KiB +recursive_doubling .* 9/9", shown, re.MULTILINE)
    assert "allreduce: use recursive_doubling from 1 KiB" in shown


def test_show_writes_a_picture_next_to_machines_like_it(tmp_path: Path) -> None:
    shown = output("show", "bank:runpod_a100_2_no_p2p", "--picture", str(tmp_path / "box.svg"))
    assert "box.svg" in shown.replace("\n", "")
    text = (tmp_path / "box.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert all(f">{name}</text>" in text for name in ("yours", "a100_80gb_2", "runpod_a100_2"))


def test_show_of_a_size_has_every_algorithm_with_its_prediction(saved: str) -> None:
    shown = output("show", saved, "--num-bytes", "1MiB", "--num-bytes", "1 KiB")
    assert shown.index("allreduce, 1 MiB") < shown.index("allreduce, 1 KiB")
    assert len(re.findall(r"^ring .* [+-]\d% +9/9", shown, re.MULTILINE)) == 2
    (point,) = MADE.select("allreduce", 1024, algorithm="native")
    assert re.search(rf"^native +{re.escape(cell_words(point.median_s))}", shown, re.MULTILINE)


def test_show_of_a_size_that_was_not_measured_has_native_by_its_curve(saved: str) -> None:
    curve = MADE.curve("allreduce")
    times = [cell_words(seconds) for seconds in (curve.seconds(3072), *curve.interval_s(3072))]
    assert re.search(rf"^allreduce +{' +'.join(times)} ", output("show", saved, "--num-bytes", "3KiB"), re.MULTILINE)


def test_show_of_copies_has_rates_and_the_calls_time(tmp_path: Path) -> None:
    points = copies(Made(num_gpus=2), QUICK, 2**12, 2**22)
    path = str(profile(points, topology="GPU0: PCIe 4 x16").save(tmp_path / "gpu.json"))
    shown = output("show", path)
    rates = [rate_words(2**22 / (CALL_S + LATENCY_S + 2**22 / RATES[kind])) for kind in ("pageable", "pinned")]
    to_gpu, to_host = shown.split("copies to the GPU")[1].split("copies to the host")
    for part in (to_gpu, to_host):
        row = next(line for line in part.splitlines() if line.strip().startswith("4 MiB"))
        assert row.split()[2:8] == [*rates[0].split(), *rates[1].split(), *rates[1].split()]
        assert row.endswith(cell_words(CALL_S))
    others = shown.split("copies in other ways")[1].split("copies between GPUs")[0]
    assert cell_words(2**22 / HOST_BYTES_PER_S) in others
    peer = 2**22 / (CALL_S + LATENCY_S + 2**22 / RATES["p2p"]) / 1e9
    assert re.search(rf"^ +1 +{peer:.3g}", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80
    assert "copies" not in output("show", str(profile(points[:0]).save(tmp_path / "none.json")))


def test_show_has_no_table_and_no_row_of_copies_without_a_figure(tmp_path: Path) -> None:
    assert "copies in other ways" not in output("show", "bank:mi100_copies")  # which has only pinned copies
    one_way = {"direction": "h2d", "method": "pinned_non_blocking", "pieces": 1, "both": False}
    points = [
        Point("transfer", 2**20, [1e-3], [True], one_way | {"both": True}),
        Point("transfer", 2**22, [1e-3], [True], one_way),
    ]
    shown = output("show", str(profile(points).save(tmp_path / "gpu.json")))
    to_gpu, others = shown.split("copies to the GPU")[1].split("copies in other ways")
    assert re.findall(r"^ *(\d+ MiB)", to_gpu, re.MULTILINE) == ["4 MiB"]
    assert re.findall(r"^ *(\d+ MiB)", others, re.MULTILINE) == ["1 MiB", "4 MiB"]


def test_show_of_copies_has_the_sizes_of_every_kind(tmp_path: Path) -> None:
    """At which pin_memory() or the call was measured, and no copy was."""
    call = {"direction": "h2d", "method": "pinned_non_blocking", "pieces": 1, "both": False}
    points = [
        Point("pin", 2**20, [2e-3], [True], {"cached": True}),
        Point("transfer_host", 2**22, [3e-3], [True], call),
    ]
    shown = output("show", str(profile(points).save(tmp_path / "gpu.json")))
    to_gpu, others = shown.split("copies to the GPU")[1].split("copies in other ways")
    assert re.search(rf"^ *4 MiB +{re.escape(cell_words(3e-3))}$", to_gpu, re.MULTILINE)
    assert re.search(rf"^ *1 MiB +{re.escape(cell_words(2e-3))}$", others, re.MULTILINE)


def test_predict_sorts_by_time_and_has_the_bound(saved: str) -> None:
    shown = output("predict", saved, "--num-bytes", "4MiB")
    rows = re.findall(r"^(\w+) +(\S+ \wm?s) +(\d+\.\d\d)", shown, re.MULTILINE)
    ratios = [float(ratio) for *_, ratio in rows]
    assert len(ratios) > 8
    assert ratios == sorted(ratios)
    assert ratios[0] >= 1
    assert "lower bound" in shown


def test_predict_takes_what_is_asked_for(saved: str) -> None:
    shown = output("predict", saved, "--algorithm", "ring", "--num-bytes", "64KiB", "--num-bytes", "999")
    assert shown.count("\nring ") == 2
    assert "swing" not in shown
    assert "allreduce, 996 B" in shown  # whole elements
    seconds = MADE.predict("allreduce", "ring", 65536).makespan_s
    assert f"{seconds * 1e6:.0f} µs" in shown
    assert "broadcast, 1 MiB" in output("predict", saved, "--collective", "broadcast", "--num-bytes", "1MiB")


def test_predict_has_native_by_its_curve_and_it_alone_where_no_link_was_measured(saved: str, tmp_path: Path) -> None:
    words = cell_words(MADE.predicted_s("allreduce", 3 * 2**18))
    assert re.search(rf"^native +{words} +\d+\.\d\d$", output("predict", saved, "--num-bytes", "768KiB"), re.MULTILINE)
    alone = str(Profile(MADE.provenance, {}, MADE.select(algorithm="native")).save(tmp_path / "alone.json"))
    shown = output("predict", alone, "--num-bytes", "768KiB")
    assert re.search(rf"^native +{words} +$", shown, re.MULTILINE)
    assert "90 % interval" in " ".join(shown.split())
    assert "ring" not in shown
    assert "lower bound" not in shown
    assert main(["predict", alone, "--algorithm", "ring", "--num-bytes", "768KiB"]) == 2


def test_compare_shows_what_differs(saved: str, tmp_path: Path) -> None:
    other = MADE
    for one in MADE.select(algorithm="ring"):
        other = other.add(Point(one.what, one.num_bytes, [s / 2 for s in one.seconds], one.clean, one.options))
    other = other.add(Point("copy", 8, [1.0], [True]))
    shown = output("compare", saved, str(other.save(tmp_path / "other.json")))
    assert shown.count("allreduce ring ") == shown.count(" 0.50  faster") == 15
    assert shown.startswith("A: made up, 2030-01-02T03:04:05+00:00\nB: made up")
    counts = "Of 105 points in both profiles, B is faster at 15 and slower at none; 90 are within the noise, where the"
    assert counts in " ".join(shown.split())
    assert shown.index("Of 105 points") < shown.index("Only in B") < shown.index("Median times")  # the verdict first
    assert "Only in B: 1 point, of copy." in shown
    assert len(output("compare", saved, saved).splitlines()) == 5
    assert output("compare", saved, saved, "--all").count(" 1.00") == 105


def test_compare_cannot_tell_without_a_spread() -> None:
    shown = output("compare", "bank:dgx_h100_8", "bank:aws_p5_8")
    words = " ".join(shown.split())
    assert "64 points have fewer than 4 iterations in A or B, so their noise is unknown" in words
    assert "`compare` cannot judge them (B/A 0.33 to 1.07). Import at least 4 runs of each." in words
    table = shown.partition("Mean times")[2].partition("expected and measured performance")[0]
    assert not re.search("slower|faster", table)
    assert " 1.00 " not in table
    assert len(re.findall(r" 0\.33  \?$", table, re.MULTILINE)) == 1
    shown = output("compare", "bank:dgx_h100_8", "bank:aws_p5_8", "--all")
    assert not re.search(
        "slower|faster", shown.partition("Mean times")[2].partition("expected and measured performance")[0]
    )


def test_compare_says_it_of_one_point_too(tmp_path: Path) -> None:
    path = str(profile([Point("copy", 8, [1.0], [True])]).save(tmp_path / "one.json"))
    words = " ".join(output("compare", path, path).split())
    assert "1 point has fewer than 4 iterations in A or B, so its noise is unknown" in words
    assert "`compare` cannot judge it (B/A 1.00). Import at least 4 runs of each." in words


def test_compare_without_a_common_point_says_so(tmp_path: Path) -> None:
    one, other = (profile([Point("copy", size, [1.0] * 4, [True] * 4)]) for size in (8, 16))
    shown = output("compare", str(one.save(tmp_path / "a.json")), str(other.save(tmp_path / "b.json")))
    assert "The profiles have no points in common." in shown
    assert "Only in A: 1 point, of copy." in shown


def test_compare_names_points_in_place_and_out_of_place() -> None:
    lines = output("compare", "bank:h100_fleet_4", "bank:h100_fleet_8", "--all").splitlines()
    rows = [re.match(r"(allreduce|allgather|reduce_scatter|all_to_all) native.*? [KMG]iB ", line) for line in lines]
    named = [" ".join(row[0].split()) for row in rows if row is not None]
    assert any(name.startswith("allgather native in place ") for name in named)
    assert any(name.startswith("allreduce native out of place ") for name in named)
    assert len(named) == len(set(named))


def test_columns_are_named_after_what_they_hold(saved: str) -> None:
    shown = output("show", "bank:dgx_h100_8")
    assert re.search(r"^ +size +mean +got", shown, re.MULTILINE)
    assert "median" not in shown.partition("Verdict")[0]
    at_size = output("show", "bank:dgx_h100_8", "--num-bytes", "1MiB")
    assert re.search(r"^algorithm +mean +busbw +model +off *$", at_size, re.MULTILINE)
    assert re.search(r"^ *size +fastest +median ", output("show", saved), re.MULTILINE)
    assert re.search(r"^algorithm +median +IQR +p99 ", output("show", saved, "--num-bytes", "1MiB"), re.MULTILINE)


def test_a_column_of_times_changes_its_unit_at_one_of_the_next() -> None:
    shown = output("show", "bank:dgx_h100_8")
    assert "1.11 ms" in shown
    assert not re.search(r"\b\d{4} (µs|ms)", shown)
    compared = output("compare", "bank:dgx_h100_8", "bank:aws_p5_8", "--all")
    units = re.findall(r"[\d.]+ ([µm]?s)  +[\d.]+ ([µm]?s)  ", compared)
    assert len(units) >= 64
    assert all(one == other for one, other in units)


def test_shares_of_the_link_that_say_nothing_are_left_out() -> None:
    shown = output("show", "bank:dgx_h100_8")
    assert "0%" not in re.findall(r"\s(\d+%)", shown)
    assert "blank below 1 %" in " ".join(shown.split())
    assert re.search(r"^ *1 MiB .* 15%$", shown, re.MULTILINE)


def test_trace_is_the_predicted_timeline(saved: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    shown = output("trace", saved, "--algorithm", "ring", "--num-bytes", "1MiB", "-o", str(path))
    assert "allreduce by ring of 1 MiB" in shown
    expected = MADE.predict("allreduce", "ring", 2**20)
    assert Timeline.from_chrome_trace(path).makespan_s == expected.makespan_s
    assert len(json.loads(path.read_text())["traceEvents"]) > len(expected)


@pytest.mark.parametrize(
    "words",
    [["show", "{}"], ["show", "{}", "--num-bytes", "1MiB"], ["predict", "{}"], ["compare", "{}", "{}", "--all"]],
)
def test_lines_fit_into_80_columns(words: list[str], saved: str) -> None:
    assert max(map(len, output(*(word.format(saved) for word in words)).splitlines())) <= 80


@pytest.mark.slow
def test_without_a_terminal_lines_fit_into_80_columns_and_have_no_colour_unless_it_is_wanted(saved: str) -> None:
    done = process("predict", saved)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert "\x1b[1;32m" in process("predict", saved, FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b[1;32m" not in process("predict", saved, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color").stdout


@pytest.mark.slow
def test_a_terminal_without_greek_letters_gets_something_else(saved: str) -> None:
    done = process("show", saved, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "intra, together  ? " in done.stdout


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(saved: str) -> None:
    command = f"'{sys.executable}' -m rankscope predict '{saved}' | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=200)
    assert done.stderr == ""


# ---- what is wrong

WRONG: dict[str, tuple[list[str], str]] = {
    "no such file": (["show", "none.json"], "none.json: No such file or directory"),
    "a folder": (["show", "."], ". not a readable rankscope profile: it is not a file"),
    "damaged": (["predict", "damaged.json"], "damaged.json: not a readable rankscope profile: .*cut short"),
    "no path": (["show"], "Missing argument 'PATH'"),
    "no such command": (["sow", "{}"], "No such command 'sow'"),
    "no such algorithm": (["predict", "{}", "--algorithm", "rung"], "--algorithm of allreduce must be .*got 'rung'"),
    "no such collective": (["predict", "{}", "--collective", "barter"], "--collective must be .*got 'barter'"),
    "no size": (["predict", "{}", "--num-bytes", "much"], "--num-bytes must be bytes like .*got 'much'"),
    "no bytes": (["predict", "{}", "--num-bytes", "0"], "--num-bytes must be a whole number from 1 to 1099511627776"),
    "no end of bytes": (
        ["predict", "{}", "--num-bytes", "9999999TiB"],
        "--num-bytes must be a whole number from 1 to ",
    ),
    "a size not measured": (
        ["show", "bare.json", "--num-bytes", "3KiB"],
        "--num-bytes must be a size that was measured",
    ),
    "not for so many ranks": (["predict", "uneven.json", "--algorithm", "ring"], "ranks_per_node must be the same"),
    "no links": (["predict", "bare.json"], "this profile has no link"),
    "a trace of nothing": (
        ["trace", "{}", "--algorithm", "rung", "--num-bytes", "1", "-o", "t.json"],
        "--algorithm of allreduce must be .*got 'rung'",
    ),
    "a trace to nowhere": (
        ["trace", "{}", "--algorithm", "ring", "--num-bytes", "1KiB", "-o", "none/t.json"],
        "none/t.json: No such file or directory",
    ),
    "a trace in the place of a device": (
        ["trace", "{}", "--algorithm", "ring", "--num-bytes", "1KiB", "-o", "/dev/null"],
        "--output must be a file, got '/dev/null'",
    ),
    "a picture of another kind": (["show", "{}", "--picture", "box.png"], "--picture must end in .svg, got 'box.png'"),
    "a picture in the place of a folder": (["show", "{}", "--picture", "."], "--picture must be a file, got '.'"),
    "a profile in the place of a folder": (["import", "{}", "-o", "."], "--output must be a file, got '.'"),
    "a trace into a loop of links": (
        ["trace", "{}", "--algorithm", "ring", "--num-bytes", "1KiB", "-o", "loop.json"],
        "loop.json: Too many levels of symbolic links",
    ),
    "an escape in a path": (["show", "a\x1b[31m\udcff.json"], r"a\\x1b\[31m\\udcff.json: No such file"),
    "a trace without a size": (["trace", "{}", "--algorithm", "ring", "-o", "t.json"], "Missing option '--num-bytes'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_line(
    name: str, saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = WRONG[name]
    folder = Path(saved).parent
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (folder / "damaged.json").write_text(Path(saved).read_text()[:500])
    (folder / "loop.json").symlink_to("loop.json")
    profile().save("bare.json")
    profile(links(), num_nodes=2, ranks_per_node=[3, 1]).save("uneven.json")
    before = sorted(folder.iterdir())
    assert main([word.format(saved) for word in words]) == 2
    told = capsys.readouterr()
    assert re.match(rf"rankscope: .*{expected}", told.err)
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert sorted(folder.iterdir()) == before


REPLACING: dict[str, list[str]] = {
    "a log by its profile": ["import", "all_reduce.log", "-o", "all_reduce.log"],
    "a log by its profile, through a link": ["import", "all_reduce.log", "-o", "link.json"],
    "the second log": ["import", "made.json", "all_reduce.log", "-o", "all_reduce.log"],
    "a profile by its picture": ["show", "box.svg", "--picture", "box.svg"],
    "a profile by its trace": [
        *("trace", "made.json", "--algorithm", "ring", "--num-bytes", "1KiB", "-o", "./made.json"),
    ],
    "a topology by its picture": ["nccl", "h100x8", "--topo", "box.svg", "--picture", "box.svg"],
    "a profile by the file for the tuner": ["nccl", "h100x4", "--profile", "made.json", "--tuner-csv", "made.json"],
    "a log by the file for the tuner": [
        *("nccl", "h100x4", "--profile", "made.json", "--log", "all_reduce.log", "--tuner-csv", "all_reduce.log"),
    ],
}


@pytest.mark.parametrize("name", REPLACING)
def test_no_command_replaces_a_file_that_it_reads(
    name: str, saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(saved).parent
    monkeypatch.chdir(folder)
    Path("all_reduce.log").write_text("\n".join(logs_made.table()))
    Path("link.json").symlink_to("all_reduce.log")
    Path("box.svg").write_text(Path(saved).read_text())
    before = {path: path.read_bytes() for path in folder.iterdir()}
    words = REPLACING[name]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f" must be a new file, and {words[-1].removeprefix('./')} is one of those to read")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_process_ends_with_2_and_the_line_on_stderr(tmp_path: Path) -> None:
    done = process("show", str(tmp_path / "none.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"rankscope: .*none\.json: No such file or directory\n", done.stderr)


KNOWN: list[tuple[Exception, str]] = [
    (MemoryError("Unable to allocate 8 TiB"), "there is not enough memory: Unable to allocate 8 TiB"),
    (MemoryError(), "there is not enough memory"),
    (MachineError("it needs Linux"), "it needs Linux"),
    (WorkerError("the server was killed:\nwords\nof its own"), "the server was killed:"),
    (RankError("rank 1 failed: KeyError: 'a'\n\nTraceback", 1), "rank 1 failed: KeyError: 'a'"),
    (
        ModuleNotFoundError("No module named 'torch'", name="torch"),
        "this command needs torch, which is not installed: pip install 'rankscope[torch]'",
    ),
    (ModuleNotFoundError("No module named 'abacus'", name="abacus"), "No module named 'abacus'"),
]
BUGS = [ZeroDivisionError(), KeyError("a"), RuntimeError(), RecursionError(), ModuleNotFoundError(name="rankscope.a")]


@pytest.mark.parametrize(("error", "expected"), KNOWN)
def test_what_a_machine_lacks_is_one_line(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Profile, "load", Mock(side_effect=error))
    assert main(["show", "any"]) == 2
    assert capsys.readouterr().err == f"rankscope: {expected}\n"


def test_a_file_of_any_name_gives_a_profile_a_printable_one(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Mock(side_effect=MachineError("called"))
    monkeypatch.setattr("rankscope.box.measuring.run.measure", measure)
    assert main(["profile", "-o", "a\x1b[31m\udce9.json"]) == 2
    said = {name: measure.call_args.kwargs[name] for name in ("name", "command")}
    assert said == {"name": r"a\x1b[31m\udce9", "command": r"rankscope profile --output a\x1b[31m\udce9.json"}
    assert profile(**said).provenance["name"] == said["name"]


@pytest.mark.parametrize("error", BUGS)
def test_an_error_of_ours_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "load", Mock(side_effect=error))
    with pytest.raises(type(error)):
        main(["show", "any"])


@pytest.mark.parametrize("what", WHAT)
def test_points_whose_options_say_little_are_shown_all_the_same(what: str, tmp_path: Path) -> None:
    little: list[dict[str, Any]] = [
        {},
        {"method": "pinned_non_blocking"},
        {"method": "pinned_non_blocking", "num_wrong": "many"},
        {"algorithm": True, "link": 3},
        {"pin_memory": True},
        {"pin_memory": False, "num_workers": "a"},
        {"direction": "p2p", "both": False},
        {"direction": "p2p", "both": False, "src": "a", "dst": 1},
        {"direction": "h2d", "method": "pageable", "pieces": 1, "both": False},
    ]
    path = profile([Point(what, 2**22, [1.0] * 4, [True] * 4, options) for options in little]).save(tmp_path / "a")
    assert "Verdict" in output("show", str(path))
    assert "9 points in both" in output("compare", str(path), str(path), "--all")


# ---- nccl


def test_nccl_says_what_is_chosen_and_what_public_machines_took() -> None:
    text = output("nccl", "h100x8", "--version", "2.29")
    lines = {" ".join(line.split()[:2]): line for line in text.splitlines()}
    assert "ring ll" in lines["1 KiB"]
    assert "nvls simple" in lines["1 GiB"]
    assert "4 to 4.26 ms" in lines["1 GiB"]
    assert "dgx_h100_8" in text
    assert max(map(len, text.splitlines())) <= 80


def test_nccl_names_only_machines_on_which_the_collective_was_measured() -> None:
    gathered = " ".join(output("nccl", "h100x8", "--collective", "allgather").split())
    assert "times measured on h100_8, h100_fleet_8" in gathered  # dgx_h100_8 and aws_p5_8 have only allreduces
    reduced = " ".join(output("nccl", "h100x8", "--collective", "reduce").split())
    assert "the bank has no times of reduce on a machine like it" in reduced


def test_nccl_of_several_nodes_says_which_network_is_meant() -> None:
    text = output("nccl", "H100x8", "--nodes", "4", "--collective", "allgather", "--num-bytes", "1GiB")
    assert "ring simple" in text
    assert "the median error is 2 to 59 %, no better than NCCL's own" in " ".join(text.split())
    assert "Inter-node times assume InfiniBand" in " ".join(text.split())
    assert "the bank has no machine like it" in " ".join(text.split())


def test_nccl_writes_a_file_for_the_tuner(tmp_path: Path) -> None:
    path = tmp_path / "tuner.csv"
    text = output(
        "nccl", "b200x8", "--version", "2.28.9", "--profile", "bank:b200_nccl_2_28_8", "--tuner-csv", str(path)
    )
    written = path.read_text()
    assert written.startswith("# collective,min_bytes,max_bytes,algorithm,protocol,channels")
    rows = nccl_plugin.rules(written)
    assert f"{len(rows)} range" in " ".join(text.split())
    assert rows
    for row in rows:
        assert row.collective in ("allreduce", "allgather", "reducescatter")
        assert row.min_bytes <= row.max_bytes
        choices = [("ring", "ll"), ("ring", "ll128"), ("ring", "simple"), ("nvls", "simple")]
        assert (row.algorithm, row.protocol) in choices
        assert row.channels >= 1
        assert row[6:] == (1, 8, -1, -1)
    assert "plug-in slows down collectives that no line matches" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["h300x8"], "BOX must be a GPU and the number of GPUs per node, as in h100x8"),
        (["h100x8", "--nodes", "0"], "num_nodes must be a whole number from 1 to 4096, got 0"),
        (["h100x8", "--version", "new"], "version must be from NCCL 2.19 to 2.99"),
        (["h100x8", "--collective", "all_to_all"], "collective must be one of"),
        (["h100x8", "--tuner-csv", "x.csv"], "--tuner-csv requires --profile"),
        (["h100x8", "--profile", "bank:h100_4"], "profile must be of 8 ranks, got 4"),
        (["h100x8", "--log", "nowhere.log"], "nowhere.log"),
    ],
)
def test_nccl_refuses_in_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nccl", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_an_unknown_command_says_which_modules_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(extensions_module._left_out, "rankscope.box.commands.profile", "nowhere")
    monkeypatch.setitem(extensions_module._left_out, "rankscope.box.explorers.boxes", "nowhere")
    assert main(["sow", "{}"]) == 2
    err = capsys.readouterr().err
    assert "No such command 'sow'" in err
    assert "rankscope.box.commands.profile needs nowhere, which is not installed" in err
    assert "explorers" not in err
