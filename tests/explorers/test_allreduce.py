"""The allreduce explorer, driven without a browser: every control reaches the pictures and the report."""

from __future__ import annotations

import sys
from html import escape

import ipywidgets as widgets
import pytest

from rankscope.collectives import ALGORITHMS, best, simulate, verify
from rankscope.collectives.schedule import Schedule
from rankscope.explorers import allreduce
from rankscope.explorers.allreduce import (
    _LABELS,
    DEFAULTS,
    RANGES,
    cluster,
    picture,
    ranking,
    report,
    schedule,
)
from rankscope.values.units import time_words

from .controls import parts

OTHER = {"algorithm": "segmented_ring", "num_nodes": 3, "gpus_per_node": 2, "log2_bytes": 24, "intra_us": 9,
         "inter_us": 20, "intra_gb_per_s": 50, "inter_gb_per_s": 5, "gamma_ps": 100, "num_segments": 3,
         "shared_nic": True, "step": 5}  # fmt: skip


def test_it_opens_on_the_defaults():
    controls, shown, told = parts(allreduce(), _LABELS)
    assert {name: control.value for name, control in controls.items()} == DEFAULTS
    assert isinstance(shown, widgets.HTML)
    assert shown.value == picture() + ranking()
    assert escape(report()) in told.value
    assert list(controls["algorithm"].options) == list(ALGORITHMS["allreduce"])


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_control_repaints_what_it_says(name):
    start = {"algorithm": "double_binary_tree", "num_nodes": 4} if name in ("num_segments", "shared_nic") else {}
    controls, shown, told = parts(allreduce(**start), _LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    now = {**start, name: OTHER[name]}
    assert shown.value == picture(**now) + ranking(**now) != before[0]
    assert escape(report(**now)) in told.value
    assert (told.value != before[1]) is (name != "step")


def test_what_is_drawn_is_what_is_verified_and_simulated():
    for name in ALGORITHMS["allreduce"]:
        settings = {"algorithm": name, "num_nodes": 3, "gpus_per_node": 4, "num_segments": 3}
        drawn = schedule(**settings)
        seconds = simulate(drawn, 2**20, cluster(**settings)).makespan_s
        lines = report(**settings).splitlines()
        assert lines[0] == f"verified: {verify(drawn)}"
        assert lines[1].startswith(f"predicted: {time_words(seconds)}; lower bound on the quickest link: ")
        assert f"allreduce {name}, 12 ranks, step 0 of" in picture(**settings)


def test_shapes_follow_the_nodes_and_segments_the_slider():
    torus = schedule(algorithm="torus_2d", num_nodes=2, gpus_per_node=4)
    assert torus == ALGORITHMS["allreduce"]["torus_2d"](8, shape=(2, 4))
    assert schedule(algorithm="segmented_ring", num_segments=5).num_chunks == 8 * 5
    assert schedule(algorithm="double_binary_tree", num_segments=5).num_chunks == 2 * 5


def test_the_report_names_the_quickest():
    now = {"num_nodes": 4, "log2_bytes": 12}
    ranked = best(2**12, cluster(**now))
    last = report(**now).splitlines()[-1]
    assert last == (
        f"quickest here: {ranked.algorithm}, {time_words(ranked.seconds)}; then {ranked.candidates[1].algorithm}, "
        f"{ranked.margin:.0%} more"
    )


def test_the_step_slider_goes_to_the_end_and_no_further():
    controls, shown, _ = parts(allreduce(step=14), _LABELS)
    assert controls["step"].max == 14
    assert "after 14 steps" in shown.value
    controls["algorithm"].value = "recursive_doubling"
    assert (controls["step"].max, controls["step"].value) == (3, 3)
    assert shown.value == picture(algorithm="recursive_doubling", step=3) + ranking(algorithm="recursive_doubling")
    controls["num_nodes"].value = controls["gpus_per_node"].value = 1
    assert (controls["step"].max, controls["step"].value) == (0, 0)


def test_too_much_to_draw_is_said_and_all_else_still_told():
    now = {"num_nodes": 8, "gpus_per_node": 8}
    assert picture(**now) == "<p>64 ranks with 64 chunks each are too many to draw here: at most 1024 cells</p>"
    assert report(**now).startswith("verified: 126 steps")
    assert "<svg" in picture(**now, algorithm="recursive_doubling")


def test_an_algorithm_that_refuses_says_so_in_place_of_the_picture(monkeypatch):
    def picky(num_ranks):
        if num_ranks & (num_ranks - 1):
            raise ValueError(f"num_ranks must be a power of two, got {num_ranks} < 8")
        return ALGORITHMS["allreduce"]["ring"](num_ranks)

    monkeypatch.setitem(ALGORITHMS["allreduce"], "picky", picky)
    controls, shown, told = parts(allreduce(algorithm="picky"), _LABELS)
    assert "<svg" in shown.value
    controls["num_nodes"].value = 3
    controls["gpus_per_node"].value = 2
    assert shown.value.startswith("<p>num_ranks must be a power of two, got 6 &lt; 8</p><svg")
    assert ">picky<" not in shown.value
    assert escape("picky: num_ranks must be a power of two, got 6 < 8\nquickest here: ") in told.value


def test_an_algorithm_that_is_wrong_is_found_out(monkeypatch):
    monkeypatch.setitem(ALGORITHMS["allreduce"], "idle", lambda n: Schedule("allreduce", "idle", n, 1, lambda: ()))
    assert report(algorithm="idle").startswith("idle: rank 0, chunk 0: ends without the shares of ranks 1, 2, 3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2}, "settings are algorithm, .*; got nodes"),
        ({"num_nodes": 9}, "num_nodes must be a whole number from 1 to 8, got 9"),
        ({"inter_us": 0.5}, r"inter_us must be a whole number from 0 to 100, got 0\.5"),
        ({"shared_nic": 1}, "shared_nic must be True or False, got 1"),
        ({"algorithm": "rings"}, "algorithm must be one of 'flat', .*, got 'rings'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    for function in (allreduce, picture, ranking, report, schedule, cluster):
        with pytest.raises(ValueError, match=message):
            function(**settings)


def test_the_extremes_of_every_slider_can_be_drawn():
    for name, ends in RANGES.items():
        for value in ends:
            assert "<svg" in picture(**{name: value})
            assert "<svg" in ranking(**{name: value})
            assert report(**{name: value})


def test_another_step_is_painted_without_looking_for_the_best_anew(monkeypatch):
    module, searches = sys.modules["rankscope.explorers.allreduce"], []
    monkeypatch.setattr(module, "best", lambda *arguments, **options: searches.append(1) or best(*arguments, **options))
    module._best.cache_clear()
    controls, shown, _ = parts(allreduce(num_nodes=4, algorithm="double_binary_tree", inter_us=13), _LABELS)
    seen = {shown.value}
    assert len(searches) == 1
    for step in range(2, 6):
        controls["step"].value = step
        seen.add(shown.value)
    assert len(seen) == 5
    assert len(searches) == 1
    controls["inter_us"].value = 14
    assert len(searches) == 2
