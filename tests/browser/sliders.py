"""Of each explorer, a slider to move by keyboard, and the picture that its functions then predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankscope import explorers
from rankscope.explorers.panel import Explorer, explorer_of
from rankscope.machine import Profile

PROFILE = Path(__file__).parents[2] / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"
SLIDERS = {  # the setting that each sets
    "samplers": "num_ranks",
    "pipeline": "num_workers",
    "parts": "queue_size",
    "player": "moment",
    "allreduce": "step",
    "machine": "num_ranks",
    "transfers": "size",
    "ddp": "accumulation",
    "zero": "num_ranks",
    "uneven": "rank_0",
    "pipeline_parallel": "num_microbatches",
    "boxes": "message",
    "data_parallel": "num_gpus",
}


def made(name: str) -> Explorer:
    inputs: list[Any] = [{"slow": Profile.load(PROFILE)}] if name == "machine" else []
    return explorer_of(getattr(explorers, name), *inputs)


def label(name: str) -> str:
    """What stands next to the slider."""
    return {setting.name: setting.label for setting in made(name).settings}[SLIDERS[name]]


def picture(name: str, steps: int = 0) -> str:
    """The explorer's first picture, after so many steps of the slider to the right."""
    explorer, setting = made(name), SLIDERS[name]
    values = next(one.values for one in explorer.settings if one.name == setting)
    value = values[values.index(getattr(explorer.at(), setting)) + steps]
    return explorer.svg(next(iter(explorer.pictures)), explorer.at(**{setting: value}))
