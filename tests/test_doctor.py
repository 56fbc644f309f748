"""What the doctor finds: on this machine, and on machines that lack something or have it broken."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from rankscope import cli
from rankscope.cli.commands import doctor as cli_doctor
from rankscope.doctor import CHECKS, Check, Diagnosis, Missing, examine, machine
from tests.tools.execute_notebooks import every_notebook

ROOT = Path(__file__).parents[1]
BY_NAME = {check.name: check for check in CHECKS}


def find(name: str) -> Diagnosis:
    return BY_NAME[name].diagnosis()


# ---- a check


def test_whatever_a_probe_raises_is_a_diagnosis() -> None:
    def fail() -> str:
        raise RuntimeError("line one\nline two")

    def gone() -> str:
        raise Missing("not here")

    check = Check("abacus", "sums", fail, "apt-get install abacus beads; or fingers")
    asked: list[str] = []
    broken, absent = examine(asked.append, [check, Check("slide rule", "products", gone, "buy one")])
    assert (broken.is_installed, broken.detail) == (False, "RuntimeError: line one")
    assert broken.remedy == "apt-get install abacus beads; or fingers"
    assert (absent.detail, absent.remedy) == ("not here", "buy one")
    assert asked == ["abacus", "slide rule"]
    assert Check("abacus", "sums", lambda: "10 rows", "apt-get install abacus").diagnosis().remedy == ""


def test_every_check_says_what_it_is_for_and_what_to_do() -> None:
    assert len(BY_NAME) == len(CHECKS)
    notebooks = {path.name[:2] for path in every_notebook()}
    for check in CHECKS:
        assert check.used_by
        assert check.remedy
        assert set(re.findall(r"\b(?:\d|a)\d\b", check.used_by)) <= notebooks, check.name


def test_commands_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {
        command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback
    }
    said = " ".join(check.used_by for check in CHECKS)
    assert set(re.findall(r"`make (\w+)", said)) <= targets
    assert set(re.findall(r"`rankscope (\w+)", said)) <= commands


def test_packages_are_those_that_ci_installs() -> None:
    wanted = re.findall(r"wanted\+=\(([^)]+)\)", (ROOT / ".ci" / "run").read_text())
    named = re.findall(r"apt-get install ([^;]+)", "; ".join(check.remedy for check in CHECKS))
    without_doctor = {"make", "python3-venv", "fonts-dejavu-core"}  # set rankscope up, or only change how letters look
    assert set(" ".join(named).split()) | without_doctor == set(" ".join(wanted).split())


# ---- this machine


def test_what_this_interpreter_has() -> None:
    about = machine()
    assert about["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert about["torch"] == str(torch.__version__)
    assert int(about["cores"]) >= 1
    assert re.fullmatch(r"[\d.]+ [KMGT]iB free of [\d.]+ [KMGT]iB", about["memory"])
    for name in ("Gloo", "test packages", "notebook packages"):
        assert find(name).is_installed, find(name)
    assert find("NCCL").is_installed == (dist.is_nccl_available() and torch.cuda.is_available())
    assert find("MPI in torch").is_installed == dist.is_mpi_available()


def test_a_machine_with_gpus_and_one_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(
        os="Linux",
        torch_version="2.13.0",
        cuda_compiled_version="12.8",
        hip_compiled_version="N/A",
        nvidia_gpu_models="GPU 0: Card\nGPU 1: Card",
        nvidia_driver_version="555.1",
        gcc_version=None,
    )
    monkeypatch.setattr("torch.utils.collect_env.get_env_info", lambda: about)
    found = machine()
    assert (found["built for"], found["NVIDIA driver"], found["C compiler"]) == ("CUDA 12.8", "555.1", "none")
    assert found["GPUs"] == "GPU 0: Card GPU 1: Card"
    about.cuda_compiled_version = None
    assert machine()["built for"] == "the CPU only"
    about.cuda_compiled_version, about.hip_compiled_version = "N/A", "6.3.42131"  # as torch for ROCm has them
    assert machine()["built for"] == "ROCm 6.3.42131"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert machine().keys() == {"Python", "system", "cores"}


def test_too_little_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 * 2**20))
    assert find("shared memory").detail == "64 MiB free in /dev/shm, less than 256 MiB"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    assert find("shared memory").detail == "1 GiB free in /dev/shm"


def test_on_an_empty_path_no_program_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = {"C++ compiler": "g++", "Open MPI": "mpirun", "Chromium": "chromium", "iproute2": "ip"}
    for name, program in expected.items():
        found = find(name)
        assert not found.is_installed
        assert program in found.detail
        assert found.remedy.startswith("apt-get install ")


# ---- a Python and a torch that lack something


def test_a_torch_without_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gloo", "nccl", "mpi"):
        monkeypatch.setattr(dist, f"is_{name}_available", lambda: False)
    for name in ("Gloo", "NCCL", "MPI in torch"):
        assert find(name).detail == "this torch was built without it"
    monkeypatch.setattr(dist, "is_available", lambda: False)
    assert not find("Gloo").is_installed


def test_a_gloo_that_adds_up_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.ranks.threads.in_threads", lambda *given, **more: [3.0, 2.0])
    assert find("Gloo").detail == "two ranks that add 1 and 2 got [3.0, 2.0]"


def test_packages_of_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=1", 'abacus>=2; extra == "notebooks"', 'pytest>=8; extra == "test"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    assert find("notebook packages").detail == "not here: abacus"
    assert find("test packages").detail == "1 package"
    monkeypatch.setattr("importlib.metadata.requires", lambda name: None)
    assert find("test packages").is_installed is False


# ---- the command

PLAIN = (
    Check("abacus", "sums of all kinds that there are", lambda: "10 rows of beads", "apt-get install abacus"),
    Check("slide rule", "products", lambda: shutil.which("no such program") or _gone(), "buy one"),
)


def _gone() -> str:
    raise Missing("none in the drawer")


def command(
    checks: tuple[Check, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(cli_doctor, "examine", lambda report: examine(report, checks))
    monkeypatch.setattr(cli_doctor, "machine", lambda: {"system": "an abacus"})
    monkeypatch.setenv("COLUMNS", "80")
    code = cli.main(["doctor", *words])
    return (code, *capsys.readouterr())


def test_the_command_prints_what_is_here_and_what_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(PLAIN, monkeypatch, capsys)
    assert (code, err) == (0, "")
    here, gone = out.split("Missing")
    assert re.search(r"abacus +10 rows of beads +sums of all kinds", here)
    assert re.search(r"slide rule +none in the drawer *\n +for products *\n +to do: buy one", gone)
    assert re.match(r"This machine *\nproperty +value *\nsystem +an abacus *\n+Found: 1 of 2 parts", here)
    assert max(map(len, out.splitlines())) <= 80


def test_a_compilers_message_has_most_of_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "g++ ended with exit code 1: <stdin>:1:10: fatal error: random: No such file or directory, and " * 2

    def fail() -> str:
        raise Missing(said)

    _, out, _ = command((Check("C++ compiler", "tests", fail, "apt-get install g++"),), monkeypatch, capsys)
    lines = [line.split("C++ compiler")[-1].strip() for line in out.partition("Missing")[2].splitlines()[2:]]
    message = lines[: lines.index("for tests")]
    assert " ".join(message) == said.strip()
    assert len(message) == 3
    assert max(map(len, out.splitlines())) <= 80


def test_the_command_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(PLAIN, monkeypatch, capsys, "--json")
    found = json.loads(out)
    assert (code, found["machine"]) == (0, {"system": "an abacus"})
    assert Diagnosis(**found["diagnoses"][0]) == PLAIN[0].diagnosis()
    assert [one["is_installed"] for one in found["diagnoses"]] == [True, False]


@pytest.mark.slow
def test_a_process_of_its_own_examines_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "doctor", "--json"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["name"] for one in json.loads(done.stdout)["diagnoses"]] == list(BY_NAME)
