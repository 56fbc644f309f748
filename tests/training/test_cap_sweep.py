"""Sweeps over caps: what they say, their file, one measured for real, and the recorded ones against the bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankscope.ddp import measure_sweep as sweeping
from rankscope.ddp.cap_sweep import CapSweep, MeasuredCap, load_sweeps, save_sweeps
from rankscope.ddp.cost import CostTable
from rankscope.ddp.local_step import Contention, LocalStep
from rankscope.ddp.overlap import simulate_step
from rankscope.ddp.recommend import recommend_bucket_cap

RECORDED = Path(__file__).parents[2] / "notebooks" / "profiles" / "ddp_steps.json"
PROVENANCE: dict[str, Any] = {
    "name": "", "date": "2026-01-02T03:04:05+00:00", "command": "measure_ddp", "torch": "2.13.0", "backend": "gloo",
    "num_ranks": 2, "num_nodes": 1, "ranks_per_node": [2], "network": "loopback",
}  # fmt: skip
LOCAL = LocalStep.modelled([2**20, 2**21, 2**22], backward_s=0.3)
COST = CostTable((1024.0, 1e8), (1e-3, 0.5))
BUCKETS = ((2,), (1, 0))


def sweep(**changes: Any) -> CapSweep:
    measured = (
        MeasuredCap(1.0, BUCKETS, (0.5, 0.4, 0.6), (True, True, False)),
        MeasuredCap(25.0, ((2, 1, 0),), (0.7,), (True,)),
    )
    given = {"name": "made", "provenance": PROVENANCE, "local": LOCAL, "cost": COST, "contention": Contention(1.5, 2.0)}
    return CapSweep(**{**given, "measured": measured, **changes})


def test_a_sweep_predicts_each_cap_with_the_buckets_that_were_there() -> None:
    found = sweep()
    expected = [
        simulate_step(LOCAL, COST, buckets=one.buckets, contention=Contention(1.5, 2.0)).makespan_s
        for one in found.measured
    ]
    assert found.predicted_s().tolist() == expected
    assert found.measured_s.tolist() == [0.5, 0.7]
    assert found.errors == pytest.approx(np.array(expected) / [0.5, 0.7] - 1)
    assert (found.predicted_s(Contention()) < found.predicted_s()).tolist() == [
        True,
        False,
    ]  # one bucket overlaps nothing
    assert (found.num_ranks, found.network, found.caps_mb) == (2, "loopback", (1.0, 25.0))


def test_clean_iterations_count_where_there_are_enough() -> None:
    clean = (True, True, True, True, False)
    assert MeasuredCap(1.0, BUCKETS, (1.0, 1.0, 1.0, 1.0, 9.0), clean).used_s.tolist() == [1.0] * 4
    assert MeasuredCap(1.0, BUCKETS, (1.0, 9.0), (True, False)).median_s == 5.0


def test_sweeps_are_stored_and_read_again(tmp_path: Path) -> None:
    path = save_sweeps(tmp_path / "sweeps.json", [sweep(), sweep(name="other")], "python -m made")
    first, second = load_sweeps(path)
    assert second.name == "other"
    assert first.measured == sweep().measured
    assert first.cost == COST
    assert first.local.parameters == LOCAL.parameters
    assert first.predicted_s() == pytest.approx(sweep().predicted_s(), rel=1e-6)
    assert save_sweeps(tmp_path / "again.json", [first, second], "python -m made").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rankscope cap sweeps", "something", "format must be 'rankscope cap sweeps', got 'something'"),
        ('"version": 1', '"version": 7', "version 7 is newer than 1"),
        ("[0.5,0.4", "[0.1,0.4", "it was damaged or changed by hand"),
        ('"made"', '"made', "it is damaged, cut short or no JSON"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = save_sweeps(tmp_path / "sweeps.json", [sweep()], "python -m made")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"sweeps.json has no readable sweeps: .*{message}"):
        load_sweeps(path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": 3}, "name must be a str, got 3"),
        ({"measured": ()}, "measured must have at least one cap, and has none"),
        ({"measured": (3,)}, "measured must be a MeasuredCap, got 3"),
        ({"cost": 3}, "cost must be a CostTable, got 3"),
        ({"provenance": {"name": "me"}}, "provenance must say date, and does not"),
    ],
)
def test_bad_input_is_told(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(**wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sweeping.measure_round({}), "modules must be a dict of one .module, loss. or more by name, got {}"),
        (
            lambda: sweeping.measure_round({"a": nn.Linear(1, 1)}),
            "modules must be a dict of one .module, loss. or more",
        ),
        (lambda: sweeping.measure_round({"a": (3, abs)}), "module must be a Module, got 3"),
        (lambda: sweeping.measure_round({"a": (nn.Linear(1, 1), 3)}), "loss must be a function, got 3"),
        (
            lambda: sweeping.measure_round({"a": (nn.Linear(1, 1), abs)}, caps_mb=5),
            "caps_mb must be a list of caps, got 5",
        ),
        (
            lambda: sweeping.measure_round({"a": (nn.Linear(1, 1), abs)}, iterations=0),
            "iterations must be .* 1 to 2500, got 0",
        ),
        (lambda: sweeping.measure_contention(3), "cost must be a function of bytes, .*, got 3"),
        (lambda: sweeping.measure_contention(lambda num_bytes: -1.0), "cost must give finite seconds of at least 0"),
        (
            lambda: sweeping.measure_contention(lambda num_bytes: 1.0, iterations=None),
            "iterations must be .*, got None",
        ),
    ],
)
def test_a_sweep_is_refused_before_anything_is_measured(call: Any, message: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(sweeping, "launcher", lambda *_: pytest.fail("ranks would have been started"))
    monkeypatch.setattr(sweeping, "measure_ddp", lambda *_, **__: pytest.fail("ranks would have been started"))
    with pytest.raises(ValueError, match=message):
        call()


def test_what_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    for sweeps, command, message in (
        (3, "make", "sweeps must be a list of CapSweep values, got 3"),
        ([3], "make", "sweeps must be a CapSweep, got 3"),
        ([sweep()], None, "command must be a str, got None"),
    ):
        with pytest.raises(ValueError, match=message):
            save_sweeps(tmp_path / "sweeps.json", sweeps, command)  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((3, (0.1,), (True,)), "buckets must be lists of places of parameters, got 3"),
        ((BUCKETS, 0.1, (True,)), "step_s must be a list of seconds, got 0.1"),
        ((BUCKETS, (0.1,), True), "clean must be a list of True or False, got True"),
    ],
)
def test_a_bad_measurement_is_told(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeasuredCap(1.0, *wrong)


def loss(module: nn.Module, rank: int, number: int) -> Tensor:
    out: Tensor = module(torch.ones(2, 32)).sum()
    return out


def test_a_sweep_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SIZES", (2**12, 2**14))
    monkeypatch.setattr(sweeping, "_WIDTH", 64)
    monkeypatch.setattr(sweeping, "_FITTED_MB", (0.02, 0.04))
    monkeypatch.setattr(sweeping, "_BUDGET_S", 0.1)
    module = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    turn = sweeping.measure_round({"small": (module, loss)}, iterations=2, caps_mb=(0.001, None))
    (found,) = sweeping.sweeps_of([turn, turn])
    assert [len(one.buckets) for one in found.measured] == [3, 1]
    assert [len(one.step_s) for one in found.measured] == [4, 4]
    assert found.cost.num_bytes == (2**12, 2**14)
    assert found.local.num_bytes == 3 * 4 * (32 * 32 + 32)
    assert (found.predicted_s() > 0).all()
    with pytest.raises(ValueError, match="rounds must be a whole number of at least 1, got 0"):
        sweeping.sweep_caps({"small": (module, loss)}, rounds=0)
    with pytest.raises(ValueError, match="caps_mb must be a finite number above 0, got 0"):
        sweeping.sweep_caps({"small": (module, loss)}, caps_mb=[0])


# ---- what was recorded


SETTINGS = [(2, "loopback"), (4, "loopback"), (2, "emulated: 400 Mbit/s"), (4, "emulated: 400 Mbit/s")]


def chosen(num_ranks: int, network: str) -> list[CapSweep]:
    return [one for one in load_sweeps(RECORDED) if (one.num_ranks, one.network) == (num_ranks, network)]


def bar(network: str) -> float:
    return 0.05 if network.startswith("emulated") else 0.10


def median_error(sweeps: list[CapSweep], contention: Contention | None = None) -> float:
    errors = [sweep.predicted_s(contention) / sweep.measured_s - 1 for sweep in sweeps]
    return float(np.median(np.abs(np.concatenate(errors))))


def test_the_recorded_sweeps_are_those_that_were_promised() -> None:
    found = load_sweeps(RECORDED)
    assert {(one.num_ranks, one.network) for one in found} == set(SETTINGS)
    assert {one.caps_mb for one in found} == {(None, 1.0, 5.0, 25.0, 100.0)}
    for num_ranks in (2, 4):
        sweeps = chosen(num_ranks, "loopback")
        assert [one.name for one in sweeps] == ["MLP", "conv net", "transformer"]
    assert all(20 * 2**20 <= one.local.num_bytes <= 150 * 2**20 for one in found)
    for one in found:
        assert all(one.provenance[name] for name in ("cpu", "num_cores", "torch", "system", "date"))


@pytest.mark.parametrize("where", SETTINGS, ids=str)
def test_the_recorded_steps_are_predicted(where: tuple[int, str]) -> None:
    sweeps = chosen(*where)
    assert len({(one.cost, one.contention) for one in sweeps}) == 1  # once for all modules and caps
    assert median_error(sweeps) <= bar(where[1])


@pytest.mark.parametrize("where", SETTINGS, ids=str)
def test_the_recommended_cap_is_the_best_or_near(where: tuple[int, str]) -> None:
    for one in chosen(*where):
        caps = [cap for cap in one.caps_mb if cap is not None]
        found = recommend_bucket_cap(one.local, one.cost, caps_mb=caps, contention=one.contention)
        measured_s = one.measured_s[one.caps_mb.index(found.bucket_cap_mb)]
        assert measured_s <= 1.05 * one.measured_s.min(), one.name


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_without_contention_the_bar_is_missed_where_cores_are_shared(num_ranks: int) -> None:
    sweeps = chosen(num_ranks, "loopback")
    assert median_error(sweeps, Contention()) > 0.12
    assert median_error(sweeps, Contention(4.0, 4.0)) > 0.10
