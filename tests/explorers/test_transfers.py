"""The explorer of copies, driven without a browser: every control reaches the pictures and the report."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pytest

from rankscope.explorers import transfers
from rankscope.explorers.transfers import _LABELS, DEFAULTS, LINKS, Copies, between
from rankscope.machine import Profile
from rankscope.machine.link_facts import METHODS
from rankscope.transfer import overlap_share, simulate
from rankscope.values.units import time_words

from ..machine.made import point, profile
from .controls import parts

OTHER = {"link": "PCIe 3 x16", "direction": "d2h", "method": "pinned", "log2_bytes": 22, "load_ms": 50,
         "num_workers": 5, "step_ms": 21, "prefetched": True}  # fmt: skip
SIZES = [2**power for power in (12, 20, 28)]
TOPOLOGY = "GPU0: PCIe 4 x16"


@pytest.fixture(scope="module")
def measured() -> Profile:
    """Copies to the GPU at 8 GB/s, twice as quick from pinned memory, and pinning at 4 GB/s."""
    rates = {"pageable": 8e9, "pinned": 16e9, "pinned_non_blocking": 16e9}
    copies = [
        point("transfer", size, size / rate, direction="h2d", method=method, pieces=1, both=False)
        for method, rate in rates.items()
        for size in SIZES
    ]
    return profile([*copies, *(point("pin", size, size / 4e9, cached=True) for size in SIZES)], topology=TOPOLOGY)


def test_it_opens_on_facts_and_says_so() -> None:
    controls, shown, told = parts(transfers(), _LABELS)
    assert {name: control.value for name, control in controls.items()} == DEFAULTS
    assert tuple(controls["link"].options) == tuple(LINKS)
    copies = Copies()
    assert shown.value == copies.ranking() + copies.timeline()
    assert escape(copies.report()) in told.value
    assert "from facts, nothing here is measured" in copies.report()
    assert "at best, by facts" in copies.ranking()


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_control_repaints_what_it_says(name: str) -> None:
    controls, shown, told = parts(transfers(), _LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    copies, now = Copies(), {name: OTHER[name]}
    assert shown.value == copies.ranking(**now) + copies.timeline(**now) != before[0]
    assert escape(copies.report(**now)) in told.value
    assert told.value != before[1] or name == "num_workers"  # one would do


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_copy_takes_what_the_facts_say(method: str, direction: str) -> None:
    lines = Copies().report(link="PCIe 4 x16", method=method, direction=direction, log2_bytes=24).splitlines()
    facts = LINKS["PCIe 4 x16"]
    seconds = facts.seconds(2**24, direction, method)
    share = 2**24 / seconds / facts.bytes_per_s(direction)
    assert lines[1].startswith(f"copy: 16 MiB by {method} in {time_words(seconds)}, ")
    assert lines[1].endswith(f", {share:.0%} of the link")


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_batch_takes_what_the_loop_does(prefetched: bool) -> None:
    copies = Copies()
    lines = copies.report(method="pageable", load_ms=0, step_ms=5, prefetched=prefetched).splitlines()
    copy_s = LINKS[DEFAULTS["link"]].seconds(2 ** DEFAULTS["log2_bytes"], "h2d", "pageable")
    batch_s = max(copy_s, 0.005) if prefetched else copy_s + 0.005
    bound = "copies" if prefetched else "copy + step"
    assert lines[2] == f"loop: {time_words(batch_s)} a batch; {bound} alone would take {time_words(batch_s)}"
    loop = simulate(300, 0.0, copy_s, 0.005, num_workers=2, prefetched=prefetched)
    assert lines[3].endswith(f"max(copy, step) is {time_words(copy_s)}, achieved to {overlap_share(loop):.0%}")


def test_loading_and_pinning_can_bound_the_loop() -> None:
    slow = Copies().report(load_ms=60, num_workers=1).splitlines()[2]
    assert slow == "loop: 60 ms a batch; loading alone would take 60 ms"
    pinning = Copies().report(load_ms=0, method="pinned", step_ms=0, prefetched=True).splitlines()[2]
    pin_s = 2**26 / LINKS[DEFAULTS["link"]].host_copy_bytes_per_s
    assert pinning.endswith(f"pinning alone would take {time_words(pin_s)}")


def test_with_a_profile_times_are_the_measured_ones(measured: Profile) -> None:
    controls, shown, told = parts(transfers(measured), _LABELS)
    assert controls["link"].value == "measured: made up"
    assert "64 MiB to the GPU, measured" in shown.value
    assert "nothing here is measured" not in told.value
    lines = Copies(measured).report(load_ms=0, step_ms=0, prefetched=True).splitlines()
    assert lines[1].startswith(f"copy: 64 MiB by pageable in {time_words(2**26 / 8e9)}, 8 GB/s, ")
    pinned = Copies(measured).report(load_ms=0, step_ms=0, prefetched=True, method="pinned").splitlines()
    assert pinned[2].endswith(f"pinning alone would take {time_words(2**26 / 4e9)}")
    controls["link"].value = "PCIe 5 x16"
    assert "by facts" in shown.value


def test_what_a_profile_does_not_have_is_said(measured: Profile) -> None:
    copies = Copies(measured)
    assert copies.report(direction="d2h") == "the profile has no copies of d2h by pageable"
    assert copies.ranking(direction="d2h") == ""
    assert copies.ranking().count("pin_on_the_fly") == 0
    unknown = Copies(Profile(dict(measured.provenance) | {"topology": ""}, {}, measured.points))
    assert "how its GPU is joined is not known" in unknown.report()
    assert "of the link" not in unknown.report()


def test_times_lie_on_lines_between_measured_sizes() -> None:
    points = [point("pin", size, size / 1e9, cached=True) for size in SIZES]
    for size in (2**12, 2**15, 2**21, 2**28, 2**30):
        assert between(points, size) == pytest.approx(size / 1e9, rel=1e-5)
    assert between(points, 2**4) == pytest.approx(2**12 / 1e9)
    assert between([], 1024) is None
    times = [between(points, 2**power) for power in range(10, 31)]
    assert (np.diff(np.array(times, dtype=float)) >= 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2}, "settings are link, .*; got nodes"),
        ({"log2_bytes": 31}, "log2_bytes must be a whole number from 10 to 30, got 31"),
        ({"link": "wire"}, "link must be one of .*, got 'wire'"),
        ({"direction": "d2d"}, "direction must be one of 'h2d', 'd2h', got 'd2d'"),
        ({"method": "magic"}, "method must be one of .*, got 'magic'"),
        ({"prefetched": 1}, "prefetched must be True or False, got 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    copies = Copies()
    for function in (copies.ranking, copies.timeline, copies.report, lambda **now: transfers(**now)):
        with pytest.raises(ValueError, match=message):
            function(**settings)


def test_bad_profiles_are_refused() -> None:
    with pytest.raises(ValueError, match="profile must have copies to or from a GPU .*, got none"):
        transfers(profile([]))
    with pytest.raises(ValueError, match=r"profile must be a Profile, got 'gpu.json'"):
        transfers("gpu.json")  # type: ignore[arg-type]
