"""Copies on a GPU that was made up: what it is known to take is found, and data that are wrong are caught."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from rankscope.box import Profile, measure
from rankscope.box.measuring.plan import DIRECTIONS, Protocol
from rankscope.box.measuring.transfers import Gpu, transfer_points

from ..made import PROVENANCE
from .gpu_made import CALL_S, HOST_BYTES_PER_S, LATENCY_S, PIN_BYTES_PER_S, RATES, Made, copies, put_into_ranks, ways

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
QUICK = Protocol(iterations=4)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


# ---- what is known is found


def test_rate_and_latency_are_recovered() -> None:
    known = Profile(PROVENANCE, {}, tuple(copies(Made(), QUICK, 2**12, 2**16, 2**20)))
    for direction, size in itertools.product(DIRECTIONS, (2**12, 2**16, 2**20)):
        sent_s = CALL_S + LATENCY_S + size / RATES["pinned"]
        pinned_s = size / PIN_BYTES_PER_S
        if direction == "h2d":
            pinned_s += size / HOST_BYTES_PER_S
        expected_s = {
            "pageable": CALL_S + LATENCY_S + size / RATES["pageable"],
            "pinned": sent_s,
            "pin_on_the_fly": pinned_s + sent_s,
        }
        for method, seconds in expected_s.items():
            (point,) = known.select("transfer", size, direction=direction, method=method)
            assert len(point.seconds) == 4
            assert point.median_s == pytest.approx(seconds, rel=1e-5)


# ---- what is wrong is caught


class Short(Made):
    """Loses the last element of a copy."""

    def copy(self, target: Any, source: Any) -> None:
        super().copy(target[:-1], source[:-1])


class Lazy(Made):
    """Forgets copies from or to pageable memory."""

    def copy(self, target: Any, source: Any) -> None:
        if "pageable" not in {self.kinds[tensor.data_ptr()] for tensor in (target, source)}:
            super().copy(target, source)


class BadPin(Made):
    """Pins without copying."""

    def pin(self, tensor: Any) -> Any:
        return self.memory(tensor.numel() * 4, "pinned").zero_()


def caught(made: Any) -> set[tuple[Any, Any]]:
    """Return direction and method of the copies whose data are found to be wrong."""
    wrong = set()
    for key in ways(2**12):
        try:
            transfer_points([key], QUICK, made)
        except RuntimeError:
            options = dict(key.options)
            wrong.add((options["direction"], options["method"]))
    return wrong


def test_a_copy_that_brings_wrong_data_is_caught_whatever_is_wrong() -> None:
    assert caught(Made()) == set()
    assert len(caught(Short())) == len(ways(2**12))
    assert caught(Lazy()) == {("h2d", "pageable"), ("d2h", "pageable")}
    assert caught(BadPin()) == {("h2d", "pin_on_the_fly")}
    with pytest.raises(RuntimeError, match="transfer h2d pageable, 4 KiB delivered wrong data"):
        copies(Short(), QUICK, 4096)


# ---- in a profile


def test_a_profile_has_the_copies_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_ranks(monkeypatch)
    profile = measure(tmp_path / "a.json", replace(QUICK, sizes=[2**16], algorithms=["native"]), num_ranks=2)
    assert {point.num_bytes for point in profile.select("transfer")} == {2**12, 2**14, 2**16}
    assert Profile.load(tmp_path / "a.json") == profile
    (pinned,) = profile.select("transfer", 2**16, direction="h2d", method="pinned")
    assert pinned.algbw_bytes_per_s == pytest.approx(4.94e9, rel=0.01)


@pytest.mark.oracle
def test_what_ranks_are_forked_from_does_not_ask_for_gpus() -> None:
    """CUDA that a process has begun to use cannot be used in a fork of it; modules that ranks are sent are imported."""
    code = (
        "import importlib, torch\n"
        "from rankscope.ranks.server import PRELOAD\n"
        "import rankscope.box\n"
        "def asked(*_): raise RuntimeError('asked')\n"
        "for name in ('_lazy_init', 'init', 'is_available', 'device_count', 'current_device'):\n"
        "    setattr(torch.cuda, name, asked)\n"
        "assert 'rankscope.box.measuring.rank' in PRELOAD\n"
        "for name in PRELOAD: importlib.import_module(name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


# ---- on a GPU


@gpu
@pytest.mark.gpu
def test_pinned_bandwidth_is_that_of_a_plain_loop() -> None:
    size = 2**28
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    event: Any = torch.cuda.Event
    times = []
    for _ in range(4):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(10):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-4)
    (key,) = [key for key in ways(size) if {("direction", "h2d"), ("method", "pinned")} <= set(key.options)]
    (point,) = transfer_points([key], Protocol(iterations=10, budget_s=1.0), Gpu())
    assert point.median_s == pytest.approx(sorted(times)[1], rel=0.05)


@gpu
@pytest.mark.gpu
def test_a_gpu_does_all_that_a_made_one_does() -> None:
    points = copies(Gpu(), QUICK, 2**12, 2**20)
    assert {point.key for point in points} == {*ways(2**12), *ways(2**20)}
