"""The explorer of recorded machines, driven without a browser: every control reaches the pictures and the report."""

from __future__ import annotations

from html import escape

import pytest

from rankscope.collectives import ALGORITHMS
from rankscope.explorers import machine
from rankscope.explorers.machine import _LABELS, DEFAULTS, Machines
from rankscope.machine import Profile
from rankscope.values.units import time_words

from ..machine.made import as_predicted, collective, links, profile
from .controls import parts

OTHER = {"profile": "two", "algorithm": "flat", "num_ranks": 6, "log2_bytes": 24, "num_segments": 5}
NATIVE_S = 0.005


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    one = as_predicted(profile(links()), ["ring", "flat"], share=0.8, noise=0.0)
    one = collective(one, {"native": lambda size: NATIVE_S}, noise=0.0)
    return {"one": one, "two": profile(links(seconds=lambda size: 1e-3 + size / 1e8))}


def test_it_opens_on_the_first_profile(profiles):
    controls, shown, told = parts(machine(profiles), _LABELS)
    assert {name: control.value for name, control in controls.items()} == DEFAULTS | {"profile": "one"}
    assert list(controls["profile"].options) == ["one", "two"]
    assert list(controls["algorithm"].options) == list(ALGORITHMS["allreduce"])
    machines = Machines(profiles)
    assert shown.value == machines.ranking() + machines.timeline()
    assert escape(machines.report()) in told.value


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_control_repaints_what_it_says(profiles, name):
    start = {"algorithm": "segmented_ring"} if name == "num_segments" else {}
    controls, shown, told = parts(machine(profiles, **start), _LABELS)
    before = shown.value, told.value
    controls[name].value = OTHER[name]
    now, machines = {**start, name: OTHER[name]}, Machines(profiles)
    assert shown.value == machines.ranking(**now) + machines.timeline(**now) != before[0]
    assert escape(machines.report(**now)) in told.value
    assert told.value != before[1]


def test_it_says_what_the_profile_predicts_and_what_was_measured(profiles):
    machines = Machines(profiles)
    expected_s = profiles["one"].predict("allreduce", "ring", 2**18).makespan_s
    lines = machines.report(algorithm="ring", log2_bytes=18).splitlines()
    assert lines[0].startswith(f"predicted: {time_words(expected_s)}, ")
    assert lines[1] == f"measured:  {time_words(0.8 * expected_s)}; predicted +25.0%"
    assert lines[2] == f"gloo's own: {time_words(NATIVE_S)}"
    assert lines[3] == f"link: {profiles['one'].best_link('intra')}"
    ranking = machines.ranking(log2_bytes=18)
    assert ranking.count(", measured ") == 2
    assert "dark ticks: measured" in ranking


def test_other_numbers_of_ranks_are_predicted_and_were_not_measured(profiles):
    machines = Machines(profiles)
    lines = machines.report(num_ranks=6).splitlines()
    expected_s = profiles["one"].predict("allreduce", "ring", 2**18, num_ranks=6).makespan_s
    assert lines[0].startswith(f"predicted: {time_words(expected_s)}, ")
    assert lines[1] == "not measured at this size, on 6 ranks"
    assert ", measured " not in machines.ranking(num_ranks=6)


def test_an_algorithm_that_refuses_says_so(profiles, monkeypatch):
    def picky(num_ranks):
        raise ValueError(f"num_ranks must be < 2, got {num_ranks}")

    monkeypatch.setitem(ALGORITHMS["allreduce"], "picky", picky)
    machines = Machines(profiles)
    assert machines.timeline(algorithm="picky") == "<p>num_ranks must be &lt; 2, got 4</p>"
    assert machines.report(algorithm="picky") == "picky: num_ranks must be < 2, got 4"
    assert ">picky<" not in machines.ranking(algorithm="picky")


def test_ranks_that_do_not_fill_their_nodes_are_told_and_nothing_is_drawn():
    controls, shown, told = parts(machine({"two nodes": profile(links(), num_nodes=2, ranks_per_node=[2, 2])}), _LABELS)
    assert "<svg" in shown.value
    controls["num_ranks"].value = 3
    assert shown.value == "<p>num_ranks must be a multiple of the 2 ranks on a node, got 3</p>"
    assert "num_ranks must be a multiple of the 2 ranks on a node, got 3" in told.value
    controls["num_ranks"].value = 6
    assert "<svg" in shown.value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2}, "settings are profile, .*; got nodes"),
        ({"num_ranks": 9}, "num_ranks must be a whole number from 2 to 8, got 9"),
        ({"profile": "three"}, "profile must be one of 'one', 'two', got 'three'"),
        ({"algorithm": "rings"}, "algorithm must be one of 'flat', .*, got 'rings'"),
    ],
)
def test_bad_settings_are_refused(profiles, settings, message):
    machines = Machines(profiles)
    for function in (machines.ranking, machines.timeline, machines.report, lambda **now: machine(profiles, **now)):
        with pytest.raises(ValueError, match=message):
            function(**settings)


def test_bad_profiles_are_refused():
    with pytest.raises(ValueError, match="profiles must be at least one, by name, got none"):
        machine({})
    with pytest.raises(ValueError, match=r"profiles\['box'\] must be a Profile, got 'box.json'"):
        machine({"box": "box.json"})  # type: ignore[dict-item]
