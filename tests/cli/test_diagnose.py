"""The command: what it prints, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.cli import main
from tests.diagnose.hangs.hang_inputs import stored
from tests.diagnose.hangs.made_dumps import sick, write


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["diagnose", *words]) == 0
    return capsys.readouterr().out


def test_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in stored()["traces, late loaders (0, 0, 0.02, 0), shapes True"]["files"].items():
        (tmp_path / name).write_text(text)
    shown = printed(capsys, str(tmp_path))
    assert shown.startswith("Rank 2 ")
    assert "allreduce in backward" in shown
    write(tmp_path, sick("missing", 2, 1))  # dumps next to traces are left out
    fields = json.loads(printed(capsys, str(tmp_path), "--json"))
    (culprit,) = fields["culprits"]
    assert (culprit["rank"], culprit["cause"]) == (2, "loader")
    assert culprit["cost_s"] == pytest.approx(0.02, rel=0.1)
    assert fields["ranks"] == [0, 1, 2, 3]
    assert len(fields["phase_s"]["loader"]) == 4
    assert fields["step_s"] > fields["exposed_s"] > 0 < fields["hidden_s"]
    assert sum(call["num_calls"] for call in fields["calls"]) == 2


def test_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, sick("missing", 4, 2))
    assert "rank 2" in printed(capsys, str(tmp_path)).lower()
    fields = json.loads(printed(capsys, str(tmp_path), "--json"))
    assert [culprit["rank"] for culprit in fields["culprits"]] == [2]
    assert fields["findings"]


def test_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path)]) != 0
    message = capsys.readouterr().err
    assert all(word in message for word in ("no trace", "no flight-recorder dump", "no log"))
