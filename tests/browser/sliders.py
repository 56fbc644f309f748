"""Of each explorer, a slider to move by keyboard, and the picture that its functions then predict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import rankscope.explorers  # noqa: F401  (its modules are looked up by name: their functions have the same names)
from rankscope.machine import Profile

PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"


class Slider(NamedTuple):
    """What it says beside it, and the name of what it sets."""

    label: str
    setting: str


SLIDERS = {
    "samplers": Slider("ranks", "num_ranks"),
    "pipeline": Slider("decoders", "num_workers"),
    "parts": Slider("queue", "queue_size"),
    "allreduce": Slider("step", "step"),
    "machine": Slider("ranks", "num_ranks"),
    "transfers": Slider("log₂ bytes", "log2_bytes"),
    "ddp": Slider("accumulation", "accumulation"),
    "zero": Slider("log₂ ranks", "log2_ranks"),
    "uneven": Slider("rank 0", "rank_0"),
    "pipeline_parallel": Slider("microbatches", "num_microbatches"),
}


def source(name: str) -> str:
    """The code of a cell that shows the explorer."""
    if name != "machine":
        return f"from rankscope import explorers\nexplorers.{name}()"
    return (
        "from rankscope import explorers\nfrom rankscope.machine import Profile\n"
        f"explorers.machine({{'slow': Profile.load({str(PROFILE)!r})}})"
    )


def picture(name: str) -> Callable[..., str]:
    """The function that paints the explorer's first picture, of settings."""
    module: Any = sys.modules[f"rankscope.explorers.{name}"]
    if name == "machine":
        ranking: Callable[..., str] = module.Machines({"slow": Profile.load(PROFILE)}).ranking
        return ranking
    found: Callable[..., str] = module.Copies().ranking if name == "transfers" else module.picture
    return found


def moved(name: str) -> dict[str, int]:
    """The setting after one step of the slider to the right."""
    setting = SLIDERS[name].setting
    return {setting: sys.modules[f"rankscope.explorers.{name}"].DEFAULTS[setting] + 1}
