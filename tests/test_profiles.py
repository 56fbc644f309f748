"""Recorded figures say where they come from, and hold what the notebooks say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rankscope.box import Profile
from rankscope.box.points import Point
from rankscope.timeline import Timeline
from rankscope.train import ddp
from tests.benchmarks._ddp_sweeps import load_sweeps

FOLDER = Path(__file__).parents[1] / "notebooks" / "profiles"
MACHINES = ["emulated_100mbit_5ms_4_ranks", "emulated_100mbit_5ms_8_ranks", "loopback_2_cores_4_ranks"]
OTHERS = [path for path in sorted(FOLDER.glob("*.json")) if path.stem not in MACHINES]
GPUS = [path for path in OTHERS if json.loads(path.read_text()).get("provenance", {}).get("gpus")]
PROFILES = [path for path in OTHERS if path not in GPUS]
FIVE = ["flat", "binomial_tree", "recursive_doubling", "halving_doubling", "ring"]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_says_where_it_comes_from(path: Path) -> None:
    profile = json.loads(path.read_text())
    run = profile.get("provenance", profile)
    assert run["torch"]
    assert re.match(r"\d{4}-\d\d-\d\d", run["date"])
    program = re.match(r"python (?:-m )?([\w./]+?)(?:\.py)?(?: |$)", run["command"])
    is_here = program and (FOLDER.parents[1] / (program[1].replace(".", "/") + ".py")).exists()
    assert is_here or re.fullmatch(r"[0-9a-f]{40}", run["command_left_after_commit"])


def test_the_twin_of_the_dataloader_keeps_what_is_promised() -> None:
    epochs = json.loads((FOLDER / "dataloader_twin.json").read_text())["epochs"]
    assert len({json.dumps({k: v for k, v in epoch.items() if not k.endswith("_s")}) for epoch in epochs}) == 16
    residuals = np.array([abs(epoch["predicted_s"] / epoch["measured_s"] - 1) for epoch in epochs])
    assert np.median(residuals) <= 0.06


def test_loading_ahead_was_measured_for_every_queue() -> None:
    runs = json.loads((FOLDER / "part_files.json").read_text())["runs"]
    assert {run["queue_size"] for run in runs} == {None, 1, 2, 4}
    for run in runs:
        assert (run["measured_idle"] > 0.4) == (run["queue_size"] is None)
        assert abs(run["measured_idle"] - run["simulated_idle"]) < 0.06


def test_the_recorded_step_has_the_parts_that_its_two_measurements_predict() -> None:
    (sweep,) = load_sweeps(FOLDER / "step_of_two_ranks.json")
    step = Timeline.from_chrome_trace(FOLDER / "step_of_two_ranks_run.json")
    assert sweep.contention == ddp.Contention()  # nothing is fitted
    twin = ddp.simulate(sweep.local, sweep.cost)
    for kind in ("forward", "backward", "wait", "unpack", "optimizer"):
        spans = step.select(kind=kind)
        executed_s = (spans.stop_s - spans.start_s).sum() / 2
        assert abs(twin.select(kind=kind).busy_s - executed_s) < 0.06 * step.makespan_s, kind
    assert abs(twin.makespan_s / float(sweep.measured_s[0]) - 1) < 0.08


def test_in_the_recorded_slow_step_all_ranks_wait_for_the_backward_pass_of_rank_2() -> None:
    step = Timeline.from_chrome_trace(FOLDER / "late_rank_step.json")
    backward_s = [step.select(rank=rank, kind="backward").busy_s for rank in range(4)]
    assert backward_s[2] > 0.06 > 5 * max(backward_s[:2] + backward_s[3:])
    allreduces = step.select(kind="allreduce")
    assert np.ptp(allreduces.stop_s) < 1e-5
    late_s = step.select(rank=2, kind="allreduce").start_s[0]
    others = step.select(rank=(0, 1, 3), kind="allreduce")
    assert (others.start_s + 0.05 < late_s).all()


# ---- machines


def machine(stem: str) -> Profile:
    return Profile.load(FOLDER / f"{stem}.json")


def errors(profile: Profile, source: Profile, algorithms: list[str]) -> np.ndarray:
    """By how much the links of `source` predict too much or too little of what `profile` has, as shares."""
    points = [point for name in algorithms for point in profile.select("allreduce", algorithm=name)]
    predicted_s = [source.predict(point, num_ranks=profile.num_ranks).makespan_s for point in points]
    return np.array(predicted_s) / [p.median_s for p in points] - 1


@pytest.mark.parametrize("stem", MACHINES)
def test_a_machine_says_where_it_was_measured_and_how(stem: str) -> None:
    profile = machine(stem)
    for name in ("cpu", "num_cores", "torch", "python", "network", "system"):
        assert profile.provenance[name]
    assert profile.provenance["command"].startswith("rankscope profile --output ")
    assert "/" not in profile.provenance["command"].replace("Mbit/s", "")
    assert profile.protocol["verified"] is True
    clean = [clean for point in profile.select("allreduce") for clean in point.clean]
    assert np.mean(clean) > 0.9


@pytest.mark.parametrize("path", GPUS, ids=lambda path: path.stem)
def test_a_profile_with_a_gpu_says_where_it_was_measured(path: Path) -> None:
    profile = Profile.load(path)
    assert all(profile.provenance[name] for name in ("cpu", "torch", "python", "gpus"))
    assert profile.provenance["command"].startswith(("python measure_gpu.py", "rankscope profile"))
    assert profile.select("transfer")


def test_eight_hosts_are_predicted_from_four() -> None:
    """tests/collectives/test_executor_model.py predicts each machine from its own links."""
    four, eight = machine(MACHINES[0]), machine(MACHINES[1])
    assert eight.num_ranks == 8
    assert np.median(np.abs(errors(eight, four, FIVE))) <= 0.06


def test_a_wrong_link_is_found_out() -> None:
    slow = machine(MACHINES[0])
    half = [Point(p.what, p.num_bytes, [s / 2 for s in p.seconds], p.clean, p.options) for p in slow.select("together")]
    wrong = Profile(slow.provenance, slow.protocol, tuple(half))
    assert np.median(np.abs(errors(slow, wrong, FIVE))) > 0.4
