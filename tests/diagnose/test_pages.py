"""The command: what it prints, its JSON, and the trace for Perfetto."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankscope.cli.program import program
from rankscope.timeline import Timeline

from .made_dumps import sick, write
from .made_traces import write_traces

LATE_S = (0.0, 0.0, 0.05, 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    return write_traces(folder, LATE_S)


def output(*words: str) -> str:
    done = CliRunner().invoke(program("diagnose"), ["diagnose", *words], prog_name="rankscope", env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_says_who_is_late_and_writes_what_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "job.json.gz"
    shown = output(str(folder), "--perfetto", str(trace))
    assert shown.startswith("Rank 2 ")
    assert re.search(r"^ +2 +52 ms .* 50 ms *$", shown, re.MULTILINE)
    assert Timeline.from_chrome_trace(trace).makespan_s > 0


def test_json_has_what_it_promises_in_seconds_and_bytes(folder: Path) -> None:
    fields = json.loads(output(str(folder), "--json"))
    (culprit,) = fields["culprits"]
    assert (culprit["rank"], culprit["cause"]) == (2, "loader")
    assert culprit["cost_s"] == pytest.approx(0.05, rel=0.1)
    assert fields["ranks"] == [0, 1, 2, 3]
    assert fields["steps"] == [1, 2, 3, 4, 5]
    assert fields["step_s"] > fields["exposed_s"] > 0 < fields["hidden_s"]
    assert fields["phase_s"]["loader"][2] == pytest.approx(0.052)
    assert sum(call["num_calls"] for call in fields["calls"]) == 2


def test_dumps_of_a_hang_name_the_rank_that_did_not_come(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    write(tmp_path / "dumps", sick("missing", 4, 2))
    shown = output(str(tmp_path / "dumps"))
    assert "rank 2" in shown.lower()
    fields = json.loads(output(str(tmp_path / "dumps"), "--json"))
    assert [culprit["rank"] for culprit in fields["culprits"]] == [2]
    assert fields["ranks"] == [0, 1, 2, 3]
    assert fields["findings"]


def test_a_folder_with_more_than_traces(folder: Path, tmp_path: Path) -> None:
    job = shutil.copytree(folder, tmp_path / "job")
    alone = output(str(job), "--json")
    for name in ("all.json", "all.json.gz"):  # written twice: ours may be replaced
        for _ in range(2):
            output(str(job), "--perfetto", str(job / name))
    assert output(str(job), "--json") == alone
    write(job, sick("missing", 2, 1))
    assert "left out 2 files" in output(str(job), "--json")
