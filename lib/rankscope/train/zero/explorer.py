"""The explorer of notebook 08: the memory per rank with ZeRO's stages, and how much of a GPU it leaves."""

from __future__ import annotations

from typing import Any

from ...common.units import decimal_words
from ...common.words import count_of
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps
from .model import OPTIMIZERS, RECIPES, ZeroMemory, memory
from .picture import draw_memory

MODELS = {"125 M": 125e6, "1.5 B": 1.5e9, "7.5 B": 7.5e9, "70 B": 70e9}
LIMITS_BYTES = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
SETTINGS = (
    Setting("model", "7.5 B", MODELS, "parameters"),
    Setting("stage", 1, range(4), "stage"),
    Setting("num_ranks", 64, Steps(2**power for power in range(13)), "ranks"),
    Setting("recipe", "mixed", RECIPES, "recipe"),
    Setting("optimizer", "adam", OPTIMIZERS, "optimizer"),
    Setting("activations_gb", 0, range(101), "activations [GB]"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "7.5 B on 64 ranks, stage 3": {"stage": 3},
    "the same in float32": {"stage": 3, "recipe": "fp32"},
    "70 B on 512 ranks": {"model": "70 B", "num_ranks": 512, "stage": 3},
}


def _memory(now: Now, stage: int) -> ZeroMemory:
    return memory(
        MODELS[now.model],
        now.num_ranks,
        stage,
        now.recipe,
        now.optimizer,
        activation_bytes=now.activations_gb * 10**9,
    )


def draw(now: Now) -> list[Drawing]:
    """The four stages, the chosen one named, and the memory of GPUs on sale."""
    memories = {f"stage {stage}": _memory(now, stage) for stage in range(4)}
    name = f"stage {now.stage}"
    title = f"{now.model} on {count_of(now.num_ranks, 'rank')}: {decimal_words(memories[name].total_bytes)} in {name}"
    return [draw_memory(memories, LIMITS_BYTES, name, title)]


def report(now: Now) -> list[str]:
    """The terms of the chosen stage, and what GPUs have left for those that are not counted."""
    chosen = _memory(now, now.stage)
    lines = str(chosen).splitlines()
    for name, limit_bytes in LIMITS_BYTES.items():
        room_bytes = limit_bytes - chosen.total_bytes
        lines.append(f"{name}: {decimal_words(room_bytes)} left for these" if room_bytes > 0 else f"{name}: too small")
    return lines


def zero() -> Explorer:
    """Return controls over the memory per rank with each stage, and the room on GPUs."""
    return Explorer(SETTINGS, draw, report, PRESETS)
