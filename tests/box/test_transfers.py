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

from rankscope.box import Profile, measure, verdict
from rankscope.box.measuring import transfers
from rankscope.box.measuring.plan import ON_THE_FLY, TRANSFER_METHODS, Protocol, key_of, transfer_keys
from rankscope.box.measuring.transfers import Gpu, check, move_of, transfer_points

from .gpu_made import CALL_S, HOST_BYTES_PER_S, LATENCY_S, PIN_BYTES_PER_S, RATES, Made, copies, put_into_ranks
from .made import PROVENANCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUICK = Protocol(warm_up=1, iterations=4, budget_s=0.001)
SIZES = (2**12, 2**16, 2**20)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(scope="module")
def known() -> Profile:
    return Profile(PROVENANCE, {}, tuple(copies(Made(), QUICK, *SIZES)))


def median_s(profile: Profile, what: str, num_bytes: int, **options: Any) -> float:
    (point,) = profile.select(what, num_bytes, **options)
    assert len(point.seconds) == 4
    return point.median_s


def nearly(seconds: float) -> Any:
    """What a point has, whose seconds are kept to six digits."""
    return pytest.approx(seconds, rel=1e-5)


# ---- what is known is found


def test_rate_and_latency_are_recovered(known: Profile) -> None:
    for direction, method, size in itertools.product(("h2d", "d2h"), TRANSFER_METHODS, SIZES):
        took_s = CALL_S + LATENCY_S + size / RATES[method.split("_")[0]]
        assert median_s(known, "transfer", size, direction=direction, method=method) == nearly(took_s)


def test_pinning_is_told_cold_from_cached(known: Profile) -> None:
    for size in SIZES:
        copied_s, pinned_s = size / HOST_BYTES_PER_S, size / PIN_BYTES_PER_S
        sent_s = CALL_S + LATENCY_S + size / RATES["pinned"]
        assert median_s(known, "pin", size, cached=True) == nearly(copied_s)
        assert median_s(known, "pin", size, cached=False) == nearly(copied_s + pinned_s)
        for method, new_s in zip(ON_THE_FLY, (pinned_s, 0.0), strict=True):
            to_gpu_s = median_s(known, "transfer", size, direction="h2d", method=method)
            to_host_s = median_s(known, "transfer", size, direction="d2h", method=method)
            assert (to_gpu_s, to_host_s) == (nearly(new_s + copied_s + sent_s), nearly(new_s + sent_s))


def test_iterations_from_which_the_host_took_time_are_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = itertools.count()
    monkeypatch.setattr(transfers, "stolen_ticks", lambda: int(next(reads) >= 2 * 4 + 1))
    (point,) = transfer_points([key_of("pin", 4096, cached=True)], Protocol(0, 6, 1.0), Made())  # type: ignore[arg-type]
    assert point.clean == (True, True, False, True, True, True)


# ---- what is wrong is caught


class Short(Made):
    """Loses the last element of a copy."""

    def copy(self, target: Any, source: Any, non_blocking: bool) -> None:
        super().copy(target[:-1], source[:-1], non_blocking)


class Shifted(Made):
    """Puts everything an element too far."""

    def copy(self, target: Any, source: Any, non_blocking: bool) -> None:
        rolled = source.roll(1)
        self.kinds[rolled.data_ptr()] = self.kinds[source.data_ptr()]
        super().copy(target, rolled, non_blocking)


class Lazy(Made):
    """Forgets copies that do not hold the host."""

    def copy(self, target: Any, source: Any, non_blocking: bool) -> None:
        if not non_blocking:
            super().copy(target, source, non_blocking)


class BadPin(Made):
    """Pins without copying."""

    def pin(self, tensor: Any) -> Any:
        return self.memory(tensor.numel() * 4, "pinned")


def caught(made: Any) -> set[Any]:
    """The keys whose check fails, the second time: the first has left right data everywhere."""
    sources = {kind: Made.memory(made, 2**12, kind).random_() for kind in transfers.KINDS}
    targets = {kind: sources[kind].clone() for kind in sources}
    made.kinds |= {targets[kind].data_ptr(): kind for kind in targets}
    wrong_keys = set()
    for key in transfer_keys(2**12):
        try:
            check(key, move_of(key, sources, targets, made), made)
        except RuntimeError:
            wrong_keys.add(key)
    return wrong_keys


def test_a_copy_that_brings_wrong_data_is_caught_whatever_is_wrong() -> None:
    keys = {key: dict(key.options) for key in transfer_keys(2**12)}
    copied = {key for key in keys if key.what == "transfer"}
    assert caught(Made()) == set()
    assert caught(Short()) == caught(Shifted()) == copied
    assert caught(Lazy()) == {key for key in copied if keys[key]["method"] not in transfers.BLOCKING}
    assert caught(BadPin()) == {
        key
        for key in keys
        if key not in copied or (keys[key]["method"] in ON_THE_FLY and keys[key]["direction"] == "h2d")
    }
    with pytest.raises(RuntimeError, match="transfer h2d pageable, 4 KiB delivered wrong data: 1 of"):
        copies(Short(), QUICK, 4096)


# ---- in a profile


def test_a_profile_has_the_copies_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_ranks(monkeypatch)
    protocol = replace(QUICK, sizes=[2**16], algorithms=["native"])
    plain = measure(tmp_path / "a.json", replace(protocol, transfers=False), num_ranks=2)
    assert not plain.select("transfer")
    profile = measure(tmp_path / "a.json", protocol, num_ranks=2)
    assert profile.points[: len(plain.points)] == plain.points
    assert {point.num_bytes for point in profile.select("transfer")} == {2**12, 2**14, 2**16}
    assert Profile.load(tmp_path / "a.json") == profile
    assert any("4.94 GB/s with pinned memory at 64 KiB" in said for said in verdict(profile))


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
    key = key_of("transfer", size, direction="h2d", method="pinned_non_blocking", pieces=1, both=False)
    (point,) = transfer_points([key], Protocol(iterations=10, budget_s=1.0), Gpu())
    assert point.median_s == pytest.approx(sorted(times)[1], rel=0.05)


@gpu
@pytest.mark.gpu
def test_a_gpu_does_all_that_a_made_one_does() -> None:
    points = copies(Gpu(), QUICK, 2**12, 2**20)
    keys = {key for size in (2**12, 2**20) for key in transfer_keys(size)}
    assert {point.key for point in points} == keys
