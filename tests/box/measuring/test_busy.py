"""A busy machine: the verdict says so, and nothing is called the fastest."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rankscope.box import Profile, Protocol, measure
from rankscope.box.judging.verdict import judge
from rankscope.box.measuring import run
from rankscope.box.points import Point, PointKey
from rankscope.cli.tables import overview
from tests.box.made import ALPHA_S, PROVENANCE, collective, links, profile

QUIET = [1.0, 1.01, 1.02, 1.03]
WIDE = [1.0, 1.2, 3.0, 9.0]
ALGORITHMS = {"ring": lambda size: 1e-4 + size / 1e9, "swing": lambda size: 2e-4 + size / 1e9}


def printed(one: Profile) -> str:
    console = Console(file=io.StringIO(), width=200)
    for part in overview(one, everything=True):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_on_a_quiet_machine_the_fastest_is_named_and_nothing_else_said() -> None:
    quiet = collective(profile(), ALGORITHMS)
    assert quiet.disturbed == ()
    assert judge(quiet) == []
    assert "ring" in printed(quiet)
    alike = collective(profile(), {"ring": lambda size: 1e-4, "swing": lambda size: 1.001e-4})
    assert "ring" not in printed(alike), "their times are within the noise"


def test_a_busy_machine_is_called_busy_and_no_algorithm_the_fastest() -> None:
    points = collective(profile(), ALGORITHMS).points
    busy = profile([Point(p.what, p.num_bytes, [p.median_s * s for s in WIDE], [True] * 4, p.options) for p in points])
    assert len(busy.disturbed) == len(points)
    assert [finding.kind for finding in judge(busy)] == ["busy"]
    assert "unclear" in printed(busy)
    assert "ring" not in printed(busy)
    log = Profile({**busy.provenance, "source": {"program": "another"}}, busy.protocol, busy.points)
    assert log.disturbed == (), "its calls vary for other reasons"
    one = profile(links(sizes=[2**power for power in range(10, 24)], noise=0.0)).add(
        Point("add", 2**9, [ALPHA_S * share for share in WIDE], [True] * 4)
    )
    assert one.disturbed == (), "one point is no busy machine"


def test_the_time_left_follows_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Sequence[PointKey]] = []
    machine = {name: PROVENANCE[name] for name in ("system", "cpu", "num_cores", "memory_bytes")} | {"gpus": []}

    def launch(function: Any, num_ranks: int, arguments: list[Any], *others: Any) -> list[Any]:
        if function.__name__ == "survey":
            return [(machine, [0, 0])]
        launched.append(arguments[0])
        return [[Point(key.what, key.num_bytes, [1e-3], [True], dict(key.options)) for key in arguments[0]]]

    monkeypatch.setattr(run, "launch", launch)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 0.0, 0.0))
    monkeypatch.setattr(run, "num_cores", lambda: 2)
    reports: list[run.Progress] = []
    protocol = Protocol(algorithms=["ring"], sizes=[1024])
    found = measure(tmp_path / "a.json", protocol, num_ranks=2, backend="gloo", report=reports.append)
    (keys,) = launched
    assert [point.key for point in found.points] == list(keys)
    assert [(one.num_done, one.num_points) for one in reports] == [(0, len(keys))]
    assert reports[0].left_s == pytest.approx(4 * run.guess_s(keys, protocol, "gloo")), "eight want two cores"
