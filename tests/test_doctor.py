"""What the doctor finds: on this machine, and on machines that lack something or have it broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml

from rankscope import cli, doctor
from rankscope.cli import doctor as cli_doctor
from rankscope.doctor import CHECKS, Check, Diagnosis, Missing, examine, remedy

ROOT = Path(__file__).parents[1]
BY_NAME = {check.name: check for check in CHECKS}


def find(name: str) -> Diagnosis:
    return BY_NAME[name].diagnosis()


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A PATH on which there are only these programs, each a shell script."""

    def change(**scripts: str) -> None:
        for name, body in scripts.items():
            program = tmp_path / name
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        for name in ("CXX", "RANKSCOPE_CHROMIUM"):
            monkeypatch.delenv(name, raising=False)

    return change


# ---- a check


def test_whatever_a_probe_raises_is_a_diagnosis() -> None:
    def fail() -> str:
        raise RuntimeError("line one\nline two")

    def gone() -> str:
        raise Missing("not here")

    check = Check("abacus", "sums", fail, "apt-get install abacus beads; or fingers")
    asked: list[str] = []
    broken, absent = examine(asked.append, [check, Check("slide rule", "products", gone, "buy one", required=True)])
    assert (broken.found, broken.detail) == (False, "RuntimeError: line one")
    assert broken.remedy == "apt-get install abacus beads; or fingers"
    assert (absent.detail, absent.remedy, absent.required) == ("not here", "buy one", True)
    assert asked == ["abacus", "slide rule"]
    assert Check("abacus", "sums", lambda: "10 rows", "apt-get install abacus").diagnosis().remedy == ""


def test_every_check_says_what_it_is_for_and_what_to_do() -> None:
    assert len(BY_NAME) == len(CHECKS)
    notebooks = {path.name[:2] for path in (ROOT / "notebooks").glob("*.ipynb")}
    for check in CHECKS:
        assert check.used_by
        assert check.remedy or check.name == "cores"  # everyone has some
        assert set(re.findall(r"\b\d\d\b", check.used_by)) <= notebooks, check.name


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
    without_doctor |= {"iproute2"}  # for the emulated networks of the tests, which say so themselves
    assert set(" ".join(named).split()) | without_doctor == set(" ".join(wanted).split())


def test_what_is_tested_is_what_ci_and_the_project_say() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert (versions[0], versions[-1]) == doctor.TESTED_PYTHON
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={doctor.TESTED_PYTHON[0]}"
    assert f"torch>={doctor.TESTED_TORCH[0]}" in project["optional-dependencies"]["torch"]
    assert f"torch=={doctor.TESTED_TORCH[1]}." in (ROOT / "constraints.txt").read_text()


def test_headers_and_browsers_are_those_of_the_tests() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert all(f"have {name}" in ci for name in doctor.BROWSERS)
    code = (ROOT / "tests" / "sampling" / "libtorch_oracle.py").read_text()
    assert ", ".join(f'"{name}"' for name in doctor.COMPILERS) in code


# ---- this machine


def test_what_this_interpreter_has() -> None:
    assert find("Python").detail.startswith(".".join(map(str, sys.version_info[:3])))
    assert find("torch").detail.startswith(str(torch.__version__))
    for name in ("Gloo", "loopback ports", "cores", "test packages", "notebook packages", "Jupyter kernel"):
        assert find(name).found, find(name)
    assert "python3" in find("Jupyter kernel").detail.split(", ")
    assert find("CUDA GPUs").found == torch.cuda.is_available()
    assert find("NCCL").found == (dist.is_nccl_available() and torch.cuda.is_available())
    assert find("MPI in torch").found == dist.is_mpi_available()


@pytest.mark.skipif(shutil.which("g++") is None, reason=f"no g++: {remedy('C++ compiler')}")
def test_the_compiler_is_the_one_that_is_here() -> None:
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True, timeout=60)
    detail = find("C++ compiler").detail
    assert detail.endswith(", with libtorch's headers")
    assert os.environ.get("CXX") or version.stdout.strip() in detail


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="this system has no schedulers to choose from")
def test_asking_for_priority_leaves_this_process_as_it_was() -> None:
    before = os.sched_getscheduler(0)
    num_threads = threading.active_count()
    find("real-time priority")
    assert os.sched_getscheduler(0) == before
    assert threading.active_count() == num_threads


# ---- programs that are not there, or broken


def test_on_an_empty_path_no_program_is_found(only: Callable[..., None]) -> None:
    only()
    expected = {"C++ compiler": "g++", "SimGrid": "g++", "Open MPI": "mpirun", "Chromium": "chromium"}
    for name, program in expected.items():
        found = find(name)
        assert not found.found
        assert program in found.detail
        assert found.remedy.startswith("apt-get install ")


HEADER = "echo 'fatal error: {}: No such file' >&2; exit 1"


@pytest.mark.parametrize(
    ("name", "scripts", "found", "detail"),
    [
        ("C++ compiler", {"g++": HEADER.format("random")}, False, "exit code 1: fatal error: random: No such file"),
        (
            "SimGrid",
            {"g++": HEADER.format("simgrid/version.h")},
            False,
            "exit code 1: fatal error: simgrid/version.h: No such file",
        ),
        ("SimGrid", {"g++": "printf '3 36\\n'"}, True, "3.36"),
        (
            "Open MPI",
            {"mpirun": "echo 'cannot open libopen-rte' >&2; exit 127", "mpicc": "exit 0"},
            False,
            "mpirun ended with exit code 127: cannot open libopen-rte",
        ),
        (
            "Open MPI",
            {"mpirun": "echo 'HYDRA build:'", "mpicc": "exit 0"},
            False,
            "mpirun is another MPI's: HYDRA build:",
        ),
        ("Open MPI", {"mpirun": "echo 'mpirun (Open MPI) 4.1.4'"}, False, "no mpicc on the PATH"),
        (
            "Open MPI",
            {"mpirun": "echo 'mpirun (Open MPI) 4.1.4'", "mpicc": "exit 3"},
            False,
            "mpicc ended with exit code 3",
        ),
        ("Open MPI", {"mpirun": "echo 'mpirun (Open MPI) 5.0.7'", "mpicc": "exit 0"}, True, "5.0.7, mpirun and mpicc"),
    ],
)
def test_programs_that_do_or_do_not_what_they_should(
    only: Callable[..., None], name: str, scripts: dict[str, str], found: bool, detail: str
) -> None:
    only(**scripts)
    diagnosis = find(name)
    assert (diagnosis.found, diagnosis.remedy) == (found, "" if found else remedy(name))
    assert diagnosis.detail.endswith(detail)


def test_a_program_that_never_answers_is_given_up(only: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = shutil.which("sleep")
    only(mpirun=f"exec {sleep} 600")
    monkeypatch.setattr("rankscope.doctor.PATIENCE_S", 0.2)
    assert find("Open MPI").detail.endswith("mpirun did not answer within 0.2 s")


def test_a_browser_that_is_named(only: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(mine="echo 'Mine 12.3.4.5'")
    monkeypatch.setenv("RANKSCOPE_CHROMIUM", str(tmp_path / "mine"))
    assert find("Chromium").detail == "12.3.4.5"
    monkeypatch.setenv("RANKSCOPE_CHROMIUM", "nowhere")
    assert find("Chromium").detail == "RANKSCOPE_CHROMIUM names nowhere, which is no program"


# ---- a Python and a torch that lack something


def test_a_torch_without_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gloo", "nccl", "mpi"):
        monkeypatch.setattr(dist, f"is_{name}_available", lambda: False)
    for name in ("Gloo", "NCCL", "MPI in torch"):
        assert find(name).detail == "this torch was built without it"
    monkeypatch.setattr(dist, "is_available", lambda: False)
    assert not find("Gloo").found


def test_a_gloo_that_adds_up_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.workers.threads.in_threads", lambda *given, **more: [3.0, 2.0])
    assert find("Gloo").detail == "two ranks that add 1 and 2 got [3.0, 2.0]"


def test_a_torch_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = find("torch")
    assert not found.found
    assert not found.required  # models, schedules and explorers work without it
    assert found.detail.startswith("ModuleNotFoundError: ")
    assert "'.[torch]'" in found.remedy
    for name in ("Gloo", "NCCL", "CUDA GPUs"):
        assert not find(name).found


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "2.5.1": "2.5.1, which is older than 2.6",
        "2.6.0": "2.6.0, built",
        "3.0.0a1": "3.0.0a1, newer than the tested",
    }
    for version, words in told.items():
        monkeypatch.setattr(torch, "__version__", version)
        assert find("torch").detail.startswith(words)
        assert find("torch").found == (version != "2.5.1")


def test_packages_of_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=1", 'abacus>=2; extra == "notebooks"', 'pytest>=8; extra == "test"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    assert find("notebook packages").detail == "not here: abacus"
    assert find("test packages").detail == "1 package"
    monkeypatch.setattr("importlib.metadata.requires", lambda name: None)
    assert find("test packages").found is False


# ---- a machine that lacks something


def test_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=64 * 2**20))
    found = find("shared memory")
    assert (found.found, found.required) == (False, False)
    assert found.detail == f"64 MiB free in {tmp_path}, less than 256 MiB"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    assert find("shared memory").detail == f"1 GiB free in {tmp_path}"
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "none")
    assert find("shared memory").detail.startswith(f"no {tmp_path / 'none'} to write to")


def test_what_the_system_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "create_server", refuse)
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    loopback, priority = find("loopback ports"), find("real-time priority")
    assert (loopback.found, loopback.required) == (False, True)
    assert loopback.detail == "PermissionError: [Errno 1] Operation not permitted"
    assert priority.detail == "Operation not permitted"


def test_gpus_of_a_cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [{"name": "Card", "memory_bytes": 80 * 2**30, "driver": "555.1", "cuda": "12.8", "nccl": "2.27.3"}] * 2
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr("rankscope.machine.provenance.gpus", lambda: cards)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: one < other)
    assert find("CUDA GPUs").detail == "2 × Card (80 GiB), driver 555.1, peer access between 1 of 2 pairs"
    monkeypatch.setattr("rankscope.machine.provenance.gpus", list)
    assert find("CUDA GPUs").detail == "torch sees none"


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
    monkeypatch.setenv("COLUMNS", "80")
    code = cli.main(["doctor", *words])
    return (code, *capsys.readouterr())


def test_the_command_prints_what_is_here_and_what_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(PLAIN, monkeypatch, capsys)
    assert (code, err) == (0, "")
    here, gone = out.split("Not here")
    assert re.search(r"abacus +10 rows of beads +sums of all kinds", here)
    assert re.search(r"slide rule +none in the drawer *\n +for products *\n +to do: buy one", gone)
    assert here.startswith("Here: 1 of 2 things")
    assert max(map(len, out.splitlines())) <= 80


def test_a_compilers_message_has_most_of_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "g++ ended with exit code 1: <stdin>:1:10: fatal error: random: No such file or directory, and " * 2

    def fail() -> str:
        raise Missing(said)

    _, out, _ = command((Check("C++ compiler", "tests", fail, "apt-get install g++"),), monkeypatch, capsys)
    lines = [line.split("C++ compiler")[-1].strip() for line in out.partition("Not here")[2].splitlines()[2:]]
    message = lines[: lines.index("for tests")]
    assert " ".join(message) == said.strip()
    assert len(message) == 3
    assert max(map(len, out.splitlines())) <= 80


def test_the_command_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(PLAIN, monkeypatch, capsys, "--json")
    found = json.loads(out)
    assert (code, found["usable"]) == (0, True)
    assert Diagnosis(**found["diagnoses"][0]) == PLAIN[0].diagnosis()
    assert [one["found"] for one in found["diagnoses"]] == [True, False]


def test_what_is_required_and_missing_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = Check("head", "thinking", _gone, required=True)
    code, out, err = command((*PLAIN, needed), monkeypatch, capsys)
    assert (code, err) == (1, "rankscope: required, but missing: head\n")
    assert "head" in out
    assert json.loads(command((needed,), monkeypatch, capsys, "--json")[1])["usable"] is False


def test_a_process_of_its_own_examines_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "doctor", "--json"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["name"] for one in json.loads(done.stdout)["diagnoses"]] == list(BY_NAME)
