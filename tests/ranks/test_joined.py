"""`launch` in processes that torchrun or mpirun has started."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import NOT_HANGING_S

from .test_ends import ENVIRONMENT, script

pytestmark = pytest.mark.slow

JOINED = """
import os
from tests.ranks import functions
from rankscope.ranks import RankError, launch, joined
rank = joined.place().rank
first = launch(functions.total, None, (10,))
try:
    launch(functions.rank, 3)
except ValueError as error:
    problem = str(error)
try:
    launch(functions.lose, 2)
except RankError as error:
    assert error.rank == rank and ("KeyError: 'lost'" in str(error)) == (rank == 1), error
try:
    launch(lambda: functions.OfTheRank() if functions.rank() else 0, 2)
except RankError as error:
    assert error.rank == 1 and "OSError: no such device" in str(error), error
open(os.path.join(os.environ["PLACE"], str(rank)), "w").write(f"{first} {launch(functions.rank, 2)} {problem}")
"""
EXPECTED = "[21, 21] [0, 1] num_ranks must be None or WORLD_SIZE=2"


def started(tmp_path: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**ENVIRONMENT, "PLACE": str(tmp_path / "out"), "GLOO_SOCKET_IFNAME": "lo", **variables}
    (tmp_path / "out").mkdir(exist_ok=True)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def torchrun(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    return started(tmp_path, sys.executable, "-m", "torch.distributed.run", *options, str(tmp_path / "script.py"))


def finish(*runs: subprocess.Popen[str]) -> None:
    try:
        for run in runs:
            said = run.communicate(timeout=2 * NOT_HANGING_S)[0]
            assert run.returncode == 0, said
    finally:
        for run in runs:
            run.kill()


def written(tmp_path: Path) -> list[str]:
    return [path.read_text() for path in sorted((tmp_path / "out").iterdir())]


@pytest.mark.parametrize("num_nodes", [1, pytest.param(2, marks=pytest.mark.oracle)])
def test_processes_of_torchrun_are_the_ranks(tmp_path, num_nodes):
    script(tmp_path, JOINED)
    if num_nodes == 1:
        finish(torchrun(tmp_path, "--standalone", "--nproc-per-node", "2"))
    else:
        port = str(free_port())
        where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
        finish(*(torchrun(tmp_path, *where, "--node-rank", str(node)) for node in range(2)))
    assert all(text.startswith(EXPECTED) for text in written(tmp_path))
    assert len(written(tmp_path)) == 2


@pytest.mark.oracle
def test_after_an_elastic_restart_launches_begin_anew(tmp_path):
    """The agent's store still has the keys of the first attempt, in which rank 1 ends in its second launch."""
    script(
        tmp_path,
        """
import os, sys
from tests.ranks import functions
from rankscope.ranks import launch
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
def work():
    if is_first and functions.rank() == 1:
        os._exit(1)
    return functions.total(10)
results = launch(functions.total, 2), launch(work, 2)
open(os.path.join(os.environ["PLACE"], os.environ["RANK"]), "w").write(str(results))
""",
    )
    finish(torchrun(tmp_path, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"))
    assert written(tmp_path) == ["([1, 1], [21, 21])"] * 2


@pytest.mark.oracle
def test_the_variables_of_mpich_do_as_well(tmp_path):
    command = script(tmp_path, JOINED)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    finish(*(started(tmp_path, *command, **address, PMI_RANK=str(rank), PMI_SIZE="2") for rank in range(2)))
    assert [text[: len(EXPECTED)] for text in written(tmp_path)] == [EXPECTED] * 2


@pytest.mark.oracle
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI")
def test_processes_of_mpirun_are_the_ranks(tmp_path):
    options = ["--allow-run-as-root", "--oversubscribe", "-x", "MASTER_ADDR=127.0.0.1"]
    options += ["-x", f"MASTER_PORT={free_port()}", "-np", "2"]
    finish(started(tmp_path, "mpirun", *options, *script(tmp_path, JOINED)))
    assert [text[: len(EXPECTED)] for text in written(tmp_path)] == [EXPECTED] * 2
