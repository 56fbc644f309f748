"""Sweeps over caps: what they say, their file, one measured for real, and the recorded ones against the bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from rankscope.train import ddp
from rankscope.train.ddp import Contention, LocalStep, load_sweeps, recommend, simulate
from rankscope.train.ddp import run as runs
from rankscope.train.ddp.cost import CostTable
from rankscope.train.ddp.sweep import CapSweep, MeasuredCap

from ...benchmarks.ddp_prediction import errors, save_sweeps

RECORDED = Path(__file__).parents[3] / "notebooks" / "profiles" / "ddp_steps.json"
PROVENANCE: dict[str, Any] = {
    "name": "",
    "date": "2026-01-02T03:04:05+00:00",
    "command": "ddp.measure",
    "torch": "2.13.0",
    "backend": "gloo",
    "num_ranks": 2,
    "num_nodes": 1,
    "ranks_per_node": [2],
    "network": "loopback",
}
LOCAL = LocalStep.modelled([2**20, 2**21, 2**22], backward_s=0.3)
COST = CostTable((1024.0, 1e8), (1e-3, 0.5))
BUCKETS = ((2,), (1, 0))


def cap(cap_mb: float, buckets: Any = BUCKETS, step_s: Any = (0.7,), clean: Any = (True,)) -> MeasuredCap:
    return MeasuredCap(cap_mb, buckets, step_s, clean)


def sweep(**changes: Any) -> CapSweep:
    measured = cap(1.0, BUCKETS, (0.5, 0.4, 0.6), (True, True, False)), cap(25.0, ((2, 1, 0),))
    values = {"name": "two caps", "provenance": PROVENANCE, "local": LOCAL, "cost": COST, "measured": measured}
    return CapSweep(**{**values, "contention": Contention(1.5, 2.0), **changes})


def test_a_sweep_predicts_each_cap_with_the_buckets_that_were_there() -> None:
    two_caps = sweep()
    expected = [
        simulate(LOCAL, COST, buckets=measured.buckets, contention=Contention(1.5, 2.0)).makespan_s
        for measured in two_caps.measured
    ]
    assert two_caps.predicted_s().tolist() == expected
    assert two_caps.measured_s.tolist() == [0.5, 0.7]
    faster = two_caps.predicted_s(Contention()) < two_caps.predicted_s()
    assert faster.tolist() == [True, False]  # one bucket overlaps nothing
    assert (two_caps.num_ranks, two_caps.network, two_caps.caps_mb) == (2, "loopback", (1.0, 25.0))


def test_clean_iterations_count_if_there_are_enough() -> None:
    clean = (True, True, True, True, False)
    assert cap(1.0, step_s=(1.0, 1.0, 1.0, 1.0, 9.0), clean=clean).used_s.tolist() == [1.0] * 4
    assert cap(1.0, step_s=(1.0, 9.0), clean=(True, False)).median_s == 5.0


def test_a_file_is_the_same_again_to_seven_digits(tmp_path: Path) -> None:
    saved = sweep(local=replace(LOCAL, ready_s=[np.nan, 0.1, 1 / 30]))
    path = save_sweeps(tmp_path / "sweeps.json", [saved, sweep(name="other")], "a command")
    first, second = load_sweeps(path)
    assert (first.measured, first.cost, first.local.parameters) == (saved.measured, COST, LOCAL.parameters)
    assert second.name == "other"
    assert first.predicted_s() == pytest.approx(saved.predicted_s(), rel=1e-6)
    assert save_sweeps(tmp_path / "again.json", [first, second], "a command").read_bytes() == path.read_bytes()


# ---- measured


@pytest.mark.slow
def test_contention_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "FITTED_MB", (0.02, 0.04))
    monkeypatch.setattr(runs, "_WIDTH", 64)
    contention = ddp.measure_contention(COST, iterations=2, backend="gloo")
    assert min(contention.compute, contention.communication) >= 1.0


def test_contention_is_measured_on_the_backend_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def launched(where: Any, fn: Any, args: Any, num_ranks: int) -> None:
        asked.append((where.backend, "cuda" in args, num_ranks))
        raise ValueError("no GPU is here")

    monkeypatch.setattr(ddp.Where, "launch", launched)
    with pytest.raises(ValueError, match="no GPU is here"):
        ddp.measure_contention(COST, 8, backend="nccl")
    assert asked == [("nccl", True, 8)]


# ---- recorded


SETTINGS = [(2, "loopback"), (4, "loopback"), (2, "emulated: 400 Mbit/s"), (4, "emulated: 400 Mbit/s")]


@pytest.fixture(scope="module")
def recorded() -> dict[tuple[int, str], list[CapSweep]]:
    sweeps = load_sweeps(RECORDED)
    return {where: [sweep for sweep in sweeps if (sweep.num_ranks, sweep.network) == where] for where in SETTINGS}


def median_error(sweeps: list[CapSweep], contention: Contention | None = None) -> float:
    return float(np.median(np.abs(np.concatenate([errors(sweep, contention) for sweep in sweeps]))))


def test_the_recorded_sweeps_are_those_that_were_promised(recorded: Any) -> None:
    for num_ranks in (2, 4):
        assert [sweep.name for sweep in recorded[num_ranks, "loopback"]] == ["MLP", "conv net", "transformer"]
    sweeps = load_sweeps(RECORDED)
    assert {(sweep.num_ranks, sweep.network) for sweep in sweeps} == set(SETTINGS)
    for sweep in sweeps:
        assert sweep.caps_mb == (None, 1.0, 5.0, 25.0, 100.0)
        assert 20 * 2**20 <= sweep.local.num_bytes <= 150 * 2**20
        assert all(sweep.provenance[name] for name in ("cpu", "num_cores", "torch", "system", "date"))


@pytest.mark.parametrize("where", SETTINGS, ids=str)
def test_recorded_steps_are_predicted_and_the_recommended_cap_is_good(where: tuple[int, str], recorded: Any) -> None:
    sweeps = recorded[where]
    assert len({(sweep.cost, sweep.contention) for sweep in sweeps}) == 1  # once for all modules and caps
    assert median_error(sweeps) <= (0.05 if where[1].startswith("emulated") else 0.10)
    for sweep in sweeps:
        caps_mb = [cap_mb for cap_mb in sweep.caps_mb if cap_mb is not None]
        advice = recommend(sweep.local, sweep.cost, caps_mb=caps_mb, contention=sweep.contention)
        measured_s = sweep.measured_s[sweep.caps_mb.index(advice.bucket_cap_mb)]
        assert measured_s <= 1.05 * sweep.measured_s.min(), sweep.name


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_without_contention_the_bar_is_missed_if_cores_are_shared(num_ranks: int, recorded: Any) -> None:
    sweeps = recorded[num_ranks, "loopback"]
    assert median_error(sweeps, Contention()) > 0.12
    assert median_error(sweeps, Contention(4.0, 4.0)) > 0.10
