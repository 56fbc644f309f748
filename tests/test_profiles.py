"""Recorded figures say where they come from, and hold what the notebooks say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks" / "profiles"
PROFILES = sorted(FOLDER.glob("*.json"))


def problems(profile: dict[str, Any]) -> list[str]:
    missing = [name for name in ("torch", "date", "command") if not isinstance(profile.get(name), str)]
    found = [f"says no {name}" for name in missing]
    if "date" not in missing and not re.fullmatch(r"\d{4}-\d\d-\d\d", profile["date"]):
        found.append(f"has the date {profile['date']}")
    if "command" not in missing:
        module = re.match(r"python -m ([\w.]+)", profile["command"])
        if not module or not (FOLDER.parents[1] / (module[1].replace(".", "/") + ".py")).exists():
            found.append(f"was made by {profile['command']}, which is not here")
    return found


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_says_where_it_comes_from(path: Path) -> None:
    assert problems(json.loads(path.read_text())) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"torch": None}, "says no torch"),
        ({"date": "yesterday"}, "has the date yesterday"),
        ({"command": "python -m tests.gone"}, "was made by python -m tests.gone, which is not here"),
    ],
)
def test_a_profile_without_a_source_is_caught(change: dict[str, Any], problem: str) -> None:
    assert problems(json.loads(PROFILES[0].read_text()) | change) == [problem]


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
