"""The command line: what it prints of a profile, and one line for whatever is wrong."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import rankscope
from rankscope.box import Profile
from rankscope.box.measuring.plan import Protocol
from rankscope.cli import main
from rankscope.cli.program import COMMANDS, EXAMPLES, program
from rankscope.common.units import rate_words
from rankscope.ranks.errors import MachineError, RankError
from tests.box.logs import logs_made
from tests.box.made import as_predicted, collective, links, profile
from tests.box.measuring.gpu_made import CALL_S, LATENCY_S, RATES, Made, copies

QUICK = Protocol(iterations=4)
NAMES = ("ring", "recursive_doubling", "halving_doubling")
MADE = collective(as_predicted(profile(links()), NAMES), {"native": lambda size: 3e-4 + 3e-9 * size})


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return str(MADE.save(tmp_path / "made.json"))


def output(*words: str) -> str:
    done = CliRunner().invoke(program(words[0]), list(words), prog_name="rankscope", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


# ---- what is printed


def test_help_has_the_version_and_loads_nothing_heavy() -> None:
    code = "import sys; from rankscope.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert not {"torch", "numpy", "pandas"} & set(done.stderr.split())
    assert output("--version") == f"rankscope {rankscope.__version__}\n"


def test_every_example_of_the_help_is_a_command_with_its_options() -> None:
    examples = [line.split("  ")[1] for line in EXAMPLES.splitlines() if line.startswith("  rankscope ")]
    assert [example.split()[1] for example in examples] == list(COMMANDS)
    for example in examples:
        _, name, *words = shlex.split(example)
        command = get_command(program(name)).commands[name]  # type: ignore[attr-defined]
        command.make_context(name, words)  # raises for a word or an option that the command does not know


SHOWN: dict[str, tuple[list[str], list[str]]] = {  # a command, and what stands in a line of its output
    "a profile": (
        ["show", "{}", "--all"],
        [r"^ *1 KiB +recursive_doubling .* \d+%$", r"link intra: α \S+ µs, B \S+ [MG]B/s"],
    ),
    "a machine of the bank": (  # its verdict is one line of a file or a pipe
        ["show", "bank:dgx_h100_8"],
        [r"480 GB/s, 107 % of the 450 GB/s .* reach 482 GB/s to 483 GB/s\.$", r"62\.6 ms"],
    ),
    "a faulty one": (["show", "bank:runpod_a100_2_no_p2p"], [r"13\.6 GB/s", r"Unset NCCL_P2P_DISABLE"]),
    "a comparison with itself": (["compare", "{}", "{}"], [r"no change"]),
    "choices": (["nccl", "h100x8", "--version", "2.29"], [r"^ *1 KiB +ring LL ", r"^ *1 GiB +NVLS .* 3\.97 ms"]),
    "between nodes": (
        ["nccl", "H100x8", "--nodes", "4", "--collective", "allgather", "--num-bytes", "1GiB"],
        [r"^ *1 GiB +ring Simple"],
    ),
    "nccl-tests' unit": (["nccl", "h100x8", "--num-bytes", "64M"], [r"^ *64 MiB "]),
    "sixteen GPUs": (["nccl", "h100x16"], [r"in one node; .*h100x8 --nodes 2"]),
    "the bank": (["bank"], [r"^bank:dgx_h100_8 +DGX H100"]),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_command_prints_its_figures(name: str, saved: str) -> None:
    words, patterns = SHOWN[name]
    shown = output(*[word.format(saved) for word in words])
    for pattern in patterns:
        assert re.search(pattern, shown, re.MULTILINE), pattern


def test_a_log_comes_through_a_pipe() -> None:
    log = "\n".join(logs_made.table())
    done = CliRunner().invoke(program("import"), ["import", "-"], input=log)
    assert "8 ranks" in done.output


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), [("rankscope sh", "show"), ("rankscope show --pi", "--picture")])
def test_a_shell_completes_commands_and_their_options(words: str, expected: str) -> None:
    variables = {"_RANKSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = "from rankscope.cli import main; main([])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "lib"), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == [expected], done.stderr


def test_show_of_copies_has_rates_and_the_calls_time(tmp_path: Path) -> None:
    points = copies(Made(), QUICK, 2**12, 2**22)
    shown = output("show", str(profile(points, topology="GPU0: PCIe 4 x16").save(tmp_path / "gpu.json")), "--all")
    for direction in ("h2d", "d2h"):
        for kind in ("pageable", "pinned"):
            rate = rate_words(2**22 / (CALL_S + LATENCY_S + 2**22 / RATES[kind]))
            assert re.search(rf"^{direction} {kind} +4 MiB +{rate}", shown, re.MULTILINE)


# ---- what is wrong

WRONG: dict[str, tuple[list[str], str]] = {
    "no such file": (["show", "none.json"], "none.json"),
    "damaged": (["show", "damaged.json"], "damaged.json"),
    "no path": (["show"], "PATH"),
    "an example": (["show", "a", "b"], "(for example: rankscope show box.json)"),
    "a near command": (["sho", "{}"], "'show'"),
    "a near option": (["show", "--pictur", "box.svg", "{}"], "--picture"),
    "no size": (["nccl", "h100x8", "--num-bytes", "much"], "much"),
    "a picture of another kind": (["show", "{}", "--picture", "box.txt"], ".svg"),
    "a profile in the place of a folder": (["import", "{}", "-o", "."], "--output"),
    "an escape in a path": (["show", "a\x1b[31m\udcff.json"], r"a\x1b[31m\udcff.json"),
    "no log": (["import", "bare.json"], "bare.json"),
    "no nodes": (["nccl", "h100x8", "--nodes", "0"], "num_nodes"),
    # No command replaces a file that it reads.
    "a log by its profile": (["import", "all_reduce.log", "-o", "link.json"], "link.json"),
    "a profile by its picture": (["show", "box.svg", "--picture", "box.svg"], "box.svg"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_line_and_no_file_changes(
    name: str, saved: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = WRONG[name]
    folder = Path(saved).parent
    monkeypatch.chdir(folder)
    (folder / "damaged.json").write_text(Path(saved).read_text()[:500])
    profile().save("bare.json")
    Path("all_reduce.log").write_text("\n".join(logs_made.table()))
    Path("link.json").symlink_to("all_reduce.log")
    Path("box.svg").write_text(Path(saved).read_text())
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main([word.format(saved) for word in words]) == 2
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("rankscope: ")
    assert expected in line
    assert told.out == ""
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_and_a_terminal_without_greek_letters_are_no_errors(saved: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "lib"), "PYTHONIOENCODING": "ascii"}
    command = f"'{sys.executable}' -m rankscope show '{saved}' | head -n 1"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=200)
    assert done.stderr == ""


KNOWN: list[tuple[Exception, str]] = [
    (MemoryError("Unable to allocate 8 TiB"), "8 TiB"),
    (MachineError("it needs Linux"), "it needs Linux"),
    (RankError("rank 1 failed: KeyError: 'a'\n\nTraceback", 1), "rank 1 failed: KeyError: 'a'"),
    (ModuleNotFoundError("No module named 'torch'", name="torch"), "rankscope[torch]"),
]
BUGS = [ZeroDivisionError(), KeyError("a"), RuntimeError(), ModuleNotFoundError(name="rankscope.a")]


@pytest.mark.parametrize(("error", "expected"), KNOWN)
def test_what_a_machine_lacks_is_one_line(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Profile, "load", Mock(side_effect=error))
    assert main(["show", "any"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize("error", BUGS)
def test_an_error_of_ours_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Profile, "load", Mock(side_effect=error))
    with pytest.raises(type(error)):
        main(["show", "any"])
