"""Every explorer at every preset: the lines of its report and the titles of its drawings."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from rankscope.box import Profile
from rankscope.explorers.entries import EXPLORERS
from rankscope.explorers.explorer import Explorer

from .box import NOTEBOOK_PROFILES
from .values import Cases


def _made() -> dict[str, Explorer]:
    """Return each explorer, and some of them with inputs of their own."""
    emulated = NOTEBOOK_PROFILES / "emulated_100mbit_5ms_4_ranks.json"
    module = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
    made = {name: entry.make() for name, entry in EXPLORERS.items()}
    made["machine of a notebook"] = EXPLORERS["machine"].make({"emulated": Profile.load(emulated)})
    made["transfers of a machine"] = EXPLORERS["transfers"].make(Profile.load("bank:quadro_rtx6000_copies"))
    made["zero of a module"] = EXPLORERS["zero"].make(module)
    return made


def cases() -> Cases:
    all_cases: Cases = {}
    for name, explorer in _made().items():
        for preset, settings in {"the defaults": {}, **explorer.presets}.items():
            all_cases[f"{name}: {preset}"] = partial(_shown, explorer, settings)
    return all_cases


def _shown(explorer: Explorer, settings: dict[str, Any]) -> dict[str, Any]:
    now = explorer.at(**settings)
    return {
        "settings": now._asdict(),
        "report": explorer.report(now),
        "titles": [drawing.title for drawing in explorer.draw(now)],
    }
