"""The recorded sweeps over caps, against the bars of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankscope.train.ddp import Contention, recommend
from tests.benchmarks._ddp_sweeps import CapSweep, load_sweeps

RECORDED = Path(__file__).parents[3] / "notebooks" / "profiles" / "ddp_steps.json"
SWEEPS = load_sweeps(RECORDED)
SETTINGS = [(2, "loopback"), (4, "loopback"), (2, "emulated: 400 Mbit/s"), (4, "emulated: 400 Mbit/s")]


def sweeps_of(num_ranks: int, network: str) -> list[CapSweep]:
    return [sweep for sweep in SWEEPS if (sweep.num_ranks, sweep.network) == (num_ranks, network)]


def median_error(sweeps: list[CapSweep], contention: Contention | None = None) -> float:
    return float(np.median([np.abs(sweep.predicted_s(contention) / sweep.measured_s - 1) for sweep in sweeps]))


@pytest.mark.parametrize(("num_ranks", "network"), SETTINGS)
def test_recorded_steps_are_predicted_and_the_recommended_cap_is_good(num_ranks: int, network: str) -> None:
    sweeps = sweeps_of(num_ranks, network)
    assert len({(sweep.cost, sweep.contention) for sweep in sweeps}) == 1  # once for all modules and caps
    assert median_error(sweeps) <= 0.03
    for sweep in sweeps:
        caps_mb = [cap_mb for cap_mb, _ in sweep.measured]
        tried_mb = [cap_mb for cap_mb in caps_mb if cap_mb is not None]
        advice = recommend(sweep.local, sweep.cost, caps_mb=tried_mb, contention=sweep.contention)
        measured_s = sweep.measured_s[caps_mb.index(advice.bucket_cap_mb)]
        assert measured_s <= 1.05 * sweep.measured_s.min(), sweep.name


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_without_contention_the_bar_is_missed_if_cores_are_shared(num_ranks: int) -> None:
    sweeps = sweeps_of(num_ranks, "loopback")
    assert [sweep.name for sweep in sweeps] == ["MLP", "conv net", "transformer"]
    assert median_error(sweeps, Contention()) > 0.12
    assert median_error(sweeps, Contention(4.0, 4.0)) > 0.10
