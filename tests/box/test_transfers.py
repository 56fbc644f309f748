"""Copies on a GPU that was made up: what it is known to take is found, and data that are wrong are caught."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from rankscope import provenance
from rankscope.box import Profile, measure, verdict
from rankscope.box.measuring.plan import ON_THE_FLY, TRANSFER_METHODS, Protocol, key_of, transfer_keys
from rankscope.box.measuring.transfers import (
    CopyBuffers,
    MeasuredGpu,
    check,
    most_bytes,
    move_of,
    sampled,
)
from rankscope.box.profile import Point

from .gpu_made import CALL_S, HOST_BYTES_PER_S, LATENCY_S, PIN_BYTES_PER_S, RATES, Made, copies, put_into_ranks
from .made import PROVENANCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUICK = Protocol(warm_up=1, iterations=4, budget_s=0.001)
SIZES = (2**12, 2**16, 2**20)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def measured(device: Made, *sizes: int) -> Profile:
    return Profile(PROVENANCE, {}, tuple(copies(device, QUICK, *(sizes or SIZES))))


def only_point(profile: Profile, what: str, num_bytes: int, **options: Any) -> Point:
    defaults = {"pieces": 1, "both": False} if what != "pin" else {}
    (point,) = profile.select(what, num_bytes, **defaults | options)
    return point


def nearly(seconds: Any) -> Any:
    """What a point has, whose seconds are kept to six digits."""
    return pytest.approx(seconds, rel=1e-5)


@pytest.fixture(scope="module")
def known() -> Profile:
    return measured(Made())


# ---- what is known is found


def test_there_is_a_point_of_each_method_direction_and_size_and_the_hosts_beside_it(known: Profile) -> None:
    keys = [key for size in SIZES for key in transfer_keys(size)]
    assert {point.key for point in known.points if point.what != "transfer_host"} == set(keys)
    for point in known.select("transfer"):
        assert known.select("transfer_host", point.num_bytes, **point.options)[0].clean == point.clean
    assert all(len(point.seconds) == 4 for point in known.points)


def test_rate_and_latency_are_recovered(known: Profile) -> None:
    for direction, method, size in itertools.product(("h2d", "d2h"), TRANSFER_METHODS, SIZES):
        took_s = CALL_S + LATENCY_S + size / RATES[method.split("_")[0]]
        assert only_point(known, "transfer", size, direction=direction, method=method).median_s == nearly(took_s)
        held_s = CALL_S if method == "pinned_non_blocking" else took_s
        assert only_point(known, "transfer_host", size, direction=direction, method=method).median_s == nearly(held_s)


def test_copies_on_the_gpu_and_to_its_peers_go_by_their_own_rates() -> None:
    profile = measured(Made(num_gpus=3), 2**16)
    within = only_point(profile, "transfer", 2**16, direction="d2d")
    assert within.median_s == nearly(CALL_S + LATENCY_S + 2**16 / RATES["d2d"])
    alone_s = CALL_S + LATENCY_S + 2**16 / RATES["p2p"]
    for src, dst in itertools.permutations(range(3), 2):
        assert only_point(profile, "transfer", 2**16, src=src, dst=dst).median_s == nearly(alone_s)
    both = profile.select("transfer", direction="p2p", both=True)
    assert [(point.options["src"], point.options["dst"]) for point in both] == [(0, 1), (0, 2), (1, 2)]
    assert all(point.median_s == nearly(alone_s + CALL_S) for point in both)


@pytest.mark.parametrize(("duplex", "times"), [(True, 1), (False, 2)])
def test_both_directions_overlap_where_there_is_an_engine_for_each(duplex: bool, times: int) -> None:
    profile = measured(Made(duplex=duplex), 2**20)
    copy_s = LATENCY_S + 2**20 / RATES["pinned"]
    for direction in ("h2d", "d2h"):
        both = only_point(profile, "transfer", 2**20, direction=direction, method="pinned_non_blocking", both=True)
        assert both.median_s == nearly(CALL_S * (3 - times) + times * copy_s)
        pageable = only_point(profile, "transfer", 2**20, direction=direction, method="pageable", both=True)
        assert pageable.median_s == nearly(2 * (CALL_S + LATENCY_S + 2**20 / RATES["pageable"]))


def test_many_pieces_take_a_latency_each(known: Profile) -> None:
    pieces = only_point(known, "transfer", 2**20, direction="h2d", method="pinned_non_blocking", pieces=256)
    assert pieces.median_s == nearly(CALL_S + 256 * LATENCY_S + 2**20 / RATES["pinned"])
    assert not known.select("transfer", 2**16, pieces=256)


def test_pinning_is_told_cold_from_cached(known: Profile) -> None:
    for size in SIZES:
        copied_s, pinned_s = size / HOST_BYTES_PER_S, size / PIN_BYTES_PER_S
        sent_s = CALL_S + LATENCY_S + size / RATES["pinned"]
        assert only_point(known, "pin", size, cached=True).median_s == nearly(copied_s)
        assert only_point(known, "pin", size, cached=False).median_s == nearly(copied_s + pinned_s)
        cold, cached = (
            {d: only_point(known, "transfer", size, direction=d, method=m).median_s for d in ("h2d", "d2h")}
            for m in ON_THE_FLY
        )
        assert cold["h2d"] == nearly(pinned_s + copied_s + sent_s)
        assert cached["h2d"] == nearly(copied_s + sent_s)
        assert cold["d2h"] == nearly(pinned_s + sent_s)
        assert cached["d2h"] == nearly(sent_s)


def test_sizes_that_do_not_fit_lack_and_none_is_kept() -> None:
    device = Made(free=(12 * 2**16, 1 << 40))
    assert most_bytes(device) == 2**16
    assert {point.num_bytes for point in measured(device).points} == {2**12, 2**16}
    assert device.forgot
    assert most_bytes(Made(free=(1 << 40, 8 * 2**16))) == 2**16


def test_iterations_from_which_the_host_took_time_are_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = itertools.count()
    monkeypatch.setattr("rankscope.box.measuring.transfers.stolen_ticks", lambda: int(next(reads) >= 2 * 4 + 1))
    device = Made()
    key = key_of("pin", 4096, cached=True)
    samples = sampled({key: move_of(key, CopyBuffers(4096, device))}, device, Protocol(0, 6, 1.0))[key]
    assert [sample.clean for sample in samples] == [True, True, False, True, True, True]


# ---- what is wrong is caught


class Short(Made):
    """Loses the last piece, or what would be its last element."""

    def copy(self, pairs: Any, non_blocking: bool, lane: int) -> None:
        to, source = pairs[-1]
        last = [] if len(pairs) > 1 else [(to[:-1], source[:-1])]
        super().copy([*pairs[:-1], *last], non_blocking, lane)


class Shifted(Made):
    """Puts everything an element too far."""

    def copy(self, pairs: Any, non_blocking: bool, lane: int) -> None:
        super().copy([(to, source.roll(1)) for to, source in pairs], non_blocking, lane)

    def _kind(self, tensor: torch.Tensor) -> str | int:
        return self._kinds.get(tensor.untyped_storage().data_ptr(), "pinned")


class OneWay(Made):
    """Forgets what the second lane is given."""

    def copy(self, pairs: Any, non_blocking: bool, lane: int) -> None:
        if lane == 0:
            super().copy(pairs, non_blocking, lane)


class Crossed(Made):
    """Swaps the first two pieces."""

    def copy(self, pairs: Any, non_blocking: bool, lane: int) -> None:
        if len(pairs) > 1:
            (first, a), (second, b), *_ = pairs
            pairs = [(first, b), (second, a), *pairs[2:]]
        super().copy(pairs, non_blocking, lane)


class BadPin(Made):
    """Pins without copying."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.pinned(tensor.numel() * 4).zero_()


def caught(device: Made, num_bytes: int = 2**20) -> set[tuple[str, ...]]:
    """The keys whose check fails, by what tells them apart."""
    buffers, wrong_keys = CopyBuffers(num_bytes, device), set()
    for key in transfer_keys(num_bytes):
        try:
            check(key, move_of(key, buffers), buffers)
        except RuntimeError as error:
            if re.search(r" delivered wrong data: \d+ of \d+ elements differ", str(error)):
                wrong_keys.add(key)
    return wrong_keys


def test_a_copy_that_brings_wrong_data_is_caught_whatever_is_wrong() -> None:
    keys = transfer_keys(2**20)
    copies = {key for key in keys if key[0] == "transfer"}
    assert caught(Made()) == set()
    assert caught(Short()) == copies
    assert caught(Shifted()) == copies
    assert caught(OneWay()) == {key for key in copies if dict(key[2])["both"]}
    assert caught(Crossed()) == {key for key in copies if dict(key[2])["pieces"] > 1}
    on_the_fly = {key for key in copies if dict(key[2])["method"] in ON_THE_FLY and dict(key[2])["direction"] == "h2d"}
    assert caught(BadPin()) == on_the_fly | (set(keys) - copies)


def test_nothing_wrong_is_timed() -> None:
    with pytest.raises(RuntimeError, match="transfer of 4 KiB .*wrong data: 1 of"):
        copies(Short(), QUICK, 4096)


# ---- in a profile


def test_a_profile_has_the_copies_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_ranks(monkeypatch)
    protocol = replace(QUICK, sizes=[2**16], algorithms=["native"])
    plain = measure(tmp_path / "a.json", replace(protocol, transfers=False), num_ranks=2)
    assert not [point for point in plain.points if point.what == "transfer"]
    reports: list[Any] = []
    profile = measure(tmp_path / "a.json", protocol, num_ranks=2, report=reports.append)
    assert profile.points[: len(plain.points)] == plain.points
    assert {point.num_bytes for point in profile.select("transfer")} == {2**12, 2**14, 2**16}
    assert (reports[-1].num_done, reports[-1].num_points) == (len(plain.points) + 3 * 23, len(plain.points) + 3 * 23)
    assert Profile.load(tmp_path / "a.json") == profile
    assert measure(tmp_path / "a.json", protocol, num_ranks=2) == profile
    assert any("4.94 GB/s with pinned memory at 64 KiB" in said for said in verdict(profile))


def test_links_of_gpus_are_told_without_their_addresses(tmp_path: Path) -> None:
    place = tmp_path / "0000:3b:00.0"
    place.mkdir()
    (place / "numa_node").write_text("1\n")
    rows = "0, 5, 16, 00000000:3B:00.0\n1, 4, 8, 00000000:AF:00.0\n2, [N/A], [N/A], ?\nfailed\n"
    assert provenance.pcie(rows, tmp_path) == "GPU0: PCIe 5 x16, NUMA node 1\nGPU1: PCIe 4 x8"


@pytest.mark.oracle
def test_what_ranks_are_forked_from_does_not_ask_for_gpus() -> None:
    """CUDA that a process has begun to use cannot be used in a fork of it; modules that ranks are sent are imported."""
    library = ROOT / "lib"
    ours = [
        ".".join(path.relative_to(library).with_suffix("").parts)
        for path in sorted(library.rglob("*.py"))
        if re.search(r"^(import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert "rankscope.box.measuring.transfers" in ours
    code = (
        "import importlib, torch\n"
        "from rankscope.ranks.server import PRELOAD\n"
        "def asked(*_): raise RuntimeError('asked')\n"
        "for name in ('_lazy_init', 'init', 'is_available', 'device_count', 'current_device'):\n"
        "    assert hasattr(torch.cuda, name)\n"
        "    setattr(torch.cuda, name, asked)\n"
        "torch.accelerator.is_available = torch.accelerator.current_accelerator = asked\n"
        f"for name in [*PRELOAD, *{ours}]: importlib.import_module(name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


# ---- on a GPU


@gpu
@pytest.mark.gpu
def test_pinned_bandwidth_is_that_of_a_plain_loop() -> None:
    size, number = 2**28, 10
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device="cuda")
    event: Any = torch.cuda.Event
    times = []
    for _ in range(4):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(number):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / number)
    key = key_of("transfer", size, direction="h2d", method="pinned_non_blocking", pieces=1, both=False)
    device = MeasuredGpu()
    samples = sampled({key: move_of(key, CopyBuffers(size, device))}, device, Protocol(iterations=10))[key]
    assert math.isclose(sorted(sample.device_s for sample in samples)[5], sorted(times)[1], rel_tol=0.05)


@gpu
@pytest.mark.gpu
def test_a_gpu_does_all_that_a_made_one_does() -> None:
    points = copies(MeasuredGpu(), QUICK, 2**12, 2**20)
    assert {point.key for point in points if point.what in ("transfer", "pin")} == {
        key for size in (2**12, 2**20) for key in transfer_keys(size, torch.cuda.device_count())
    }
