"""Sweeps over caps: what they say, their file, one measured for real, and the recorded ones against the bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

from rankscope.common import storage
from rankscope.train import ddp
from rankscope.train.ddp import Contention, LocalStep, Where, load_sweeps, recommend, simulate
from rankscope.train.ddp import run as runs
from rankscope.train.ddp.cost import CostTable
from rankscope.train.ddp.sweep import CapSweep, MeasuredCap

from ...benchmarks import ddp_prediction
from ...benchmarks.ddp_prediction import errors, joined, main, measure_round, save_sweeps, sweeps_of

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
    measured = cap(1.0, BUCKETS, (0.5, 0.4, 0.6), (True, True, False)), cap(25.0, [[2, 1, 0]])
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
    saved = sweep(local=evolve(LOCAL, ready_s=[np.nan, 0.1, 1 / 30]))
    path = save_sweeps(tmp_path / "sweeps.json", [saved, sweep(name="other")], "a command")
    first, second = load_sweeps(path)
    assert (first.measured, first.cost, first.local.parameters) == (saved.measured, COST, LOCAL.parameters)
    assert second.name == "other"
    assert first.predicted_s() == pytest.approx(saved.predicted_s(), rel=1e-6)
    assert save_sweeps(tmp_path / "again.json", [first, second], "a command").read_bytes() == path.read_bytes()


def test_a_parameter_in_a_file_that_cannot_be_is_named_with_its_place(tmp_path: Path) -> None:
    stored = Path(__file__).parents[1] / "stored"
    run = json.loads((stored / "ddp_run.v1.json").read_text())
    run["parameters"][1][1] = -16
    sweeps = json.loads((stored / "cap_sweeps.v1.json").read_text())
    sweeps["sweeps"][0]["local"]["parameters"][0][1] = -16
    for fields, load, place in (
        (run, ddp.DDPRun.load, r"parameters\[1\]"),
        (sweeps, load_sweeps, r"sweeps\[0\]: local: parameters\[0\]"),
    ):
        del fields["crc32"]
        path = storage.save(tmp_path / "damaged.json", **fields)
        with pytest.raises(ValueError, match=rf"damaged.json.*: {place}: num_bytes must be .*, got -16"):
            load(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sweep(name=3), "name must be a str, got 3"),
        (lambda: sweep(measured=()), "measured is empty; it needs at least one cap"),
        (lambda: sweep(measured=(3,)), "measured must be a MeasuredCap, got 3"),
        (lambda: sweep(cost=3), "cost must be a CostTable, got 3"),
        (lambda: sweep(provenance={"name": "me"}), "provenance must have 'backend', but lacks it"),
        (lambda: cap(0), "bucket_cap_mb must be a finite number above 0, got 0"),
        (lambda: cap(1, buckets=3), "buckets must be a list of buckets, got 3"),
        (lambda: cap(1, step_s=0.1), "step_s must be a list, got 0.1"),
        (lambda: cap(1, clean=True), "clean must be a list, got True"),
        (lambda: cap(1, clean=(True, True)), "clean must say True or False of each of 1 iterations, got 2"),
    ],
)
def test_bad_input_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---- measured


def loss(module: nn.Module, rank: int, number: int) -> Tensor:
    out: Tensor = module(torch.ones(2, 32)).sum()
    return out


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    for where, name, value in (
        (ddp_prediction, "SIZES", (2**12, 2**14)),
        (ddp_prediction, "BUDGET_S", 0.1),
        (runs, "FITTED_MB", (0.02, 0.04)),
        (runs, "_WIDTH", 64),
    ):
        monkeypatch.setattr(where, name, value)
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))


@pytest.mark.slow
def test_a_sweep_is_measured_in_rounds(small: nn.Module) -> None:
    turn = measure_round({"small": (small, loss)}, 2, 2, Where(), caps_mb=(0.001, None))
    (measured_twice,) = sweeps_of([turn, turn])
    assert [len(cap.buckets) for cap in measured_twice.measured] == [3, 1]
    assert [len(cap.step_s) for cap in measured_twice.measured] == [4, 4]
    assert measured_twice.cost.num_bytes == (2**12, 2**14)
    assert measured_twice.local.num_bytes == 3 * 4 * (32 * 32 + 32)
    assert (measured_twice.predicted_s() > 0).all()
    alone, run = turn.modules["small"][:2]
    assert joined([run, run]).step_s == run.step_s * 2
    with pytest.raises(ValueError, match="runs must be of one module, setting and number of ranks"):
        joined([run, alone])
    turned = evolve(run, steps=tuple(evolve(step, buckets=step.buckets[::-1]) for step in run.steps))
    with pytest.raises(ValueError, match="runs must end with the same buckets, got"):
        joined([run, turned])


@pytest.mark.slow
def test_contention_is_measured(small: nn.Module) -> None:
    contention = ddp.measure_contention(COST, iterations=2, backend="gloo")
    assert min(contention.compute, contention.communication) >= 1.0


def test_contention_and_allreduce_are_measured_on_the_backend_that_is_named(monkeypatch: Any) -> None:
    asked: list[Any] = []

    def launched(where: Any, fn: Any, args: Any, num_ranks: int) -> None:
        asked.append((where.backend, "cuda" in args, num_ranks))
        raise ValueError("no GPU is here")

    monkeypatch.setattr(ddp.Where, "launch", launched)
    for measured in (
        lambda: ddp.measure_contention(COST, 8, backend="nccl"),
        lambda: ddp_prediction.measure_allreduce(8, ddp.Where(), "nccl"),
    ):
        with pytest.raises(ValueError, match="no GPU is here"):
            measured()
    assert asked == [("nccl", True, 8)] * 2
    with pytest.raises(ValueError, match="backend must be one of"):
        ddp.measure_contention(COST, backend="tcp")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ddp.measure_contention(3), "cost must be a function of bytes, .*, got 3"),
        (lambda: ddp.measure_contention(lambda num_bytes: -1.0), "cost must give finite seconds of at least 0"),
        (lambda: ddp.measure_contention(lambda num_bytes: 1.0, iterations=0), "iterations must be .* to 5000, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_ranks_are_started(call: Any, message: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(runs, "launch", lambda *_: pytest.fail("ranks would have been started"))
    with pytest.raises(ValueError, match=message):
        call()


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


def test_the_benchmark_prints_the_recorded_table(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["ddp_prediction"])
    main()
    assert "2 ranks, loopback: Contention(compute=1.27" in capsys.readouterr().out
