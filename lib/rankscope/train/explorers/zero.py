"""The explorer of notebook 08: the memory per rank with ZeRO's stages, and whether it fits."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...common.units import decimal_words
from ...common.words import count_of
from ...explorers.explorer import Explorer, Now, Setting, Steps
from ...figures.charts import painted
from ...figures.marks import Drawing
from ..figures.memory import memory_bars
from ..zero import model
from ..zero.model import OPTIMIZERS, RECIPES, ZeroMemory

MODELS = {
    "125 M": 125_000_000,
    "1.5 B": 1_500_000_000,
    "7.5 B": 7_500_000_000,
    "13 B": 13_000_000_000,
    "70 B": 70_000_000_000,
    "175 B": 175_000_000_000,
}
LIMITS_BYTES = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
YOURS = "your module"
SETTINGS = (
    Setting("model", "7.5 B", MODELS, "parameters"),
    Setting("stage", 1, range(4), "stage"),
    Setting("num_ranks", 64, Steps(2**power for power in range(13)), "ranks"),
    Setting("recipe", "mixed", RECIPES, "recipe"),
    Setting("optimizer", "adam", OPTIMIZERS, "optimizer"),
    Setting(
        "layer_millions",
        0,
        Steps((0, 10, 20, 50, 100, 200, 300, 500, 1000, 2000)),
        "largest layer [million]",
        lambda now: now.model != YOURS,  # the sizes of your module's layers are known
    ),
    Setting("activations_gb", 0, Steps((0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)), "activations [GB]"),
    Setting("buckets", False, (), "DDP's buckets"),
)
PRESETS: dict[str, dict[str, Any]] = {
    "7.5 B on 64 ranks, stage 3": {"stage": 3},
    "the same in float32": {"stage": 3, "recipe": "fp32"},
    "70 B on 8 ranks": {"model": "70 B", "num_ranks": 8, "stage": 3},
    "70 B on 512 ranks, with its layers": {"model": "70 B", "num_ranks": 512, "stage": 3, "layer_millions": 1000},
    "one rank: nothing to share": {"num_ranks": 1, "stage": 3},
}


def memory(module: Any, now: Now, stage: int) -> ZeroMemory:
    """Return the memory per rank with a stage. No layer exceeds its model; only stages 0 and 1 use DDP's buckets."""
    size = _size(module, now)
    layer = {}
    if now.model != YOURS:  # the sizes of your module's layers are known
        layer["largest_layer"] = min(now.layer_millions * 10**6, size)
    return model.memory(
        size,
        now.num_ranks,
        stage,
        now.recipe,
        now.optimizer,
        buckets=now.buckets and stage < 2,
        activation_bytes=now.activations_gb * 10**9,
        **layer,
    )


def draw(module: Any, now: Now) -> list[Drawing]:
    """The four stages, the chosen one framed, and the memory of GPUs on sale."""
    memories = {f"stage {stage}": memory(module, now, stage) for stage in range(4)}
    name = f"stage {now.stage}"
    ranks = count_of(now.num_ranks, "rank")
    title = f"{now.model} on {ranks}: {decimal_words(memories[name].total_bytes)} per rank in {name}"
    return [painted(memory_bars(memories, LIMITS_BYTES, name, title))]


def report(module: Any, now: Now) -> list[str]:
    """The terms of the chosen stage, the GPUs into which it fits, and the traffic of each rank per step."""
    chosen = memory(module, now, now.stage)
    fits = []
    for name, limit_bytes in LIMITS_BYTES.items():
        fits.append(f"{name}: {'fits' if chosen.total_bytes <= limit_bytes else 'does not fit'}")
    traffic = model.traffic(_size(module, now), chosen.num_ranks, chosen.stage, chosen.recipe)
    return [*chosen.words(), "; ".join(fits), *str(traffic).splitlines()]


def _size(module: Any, now: Now) -> Any:
    """The number of parameters of the chosen model, or the caller's module itself."""
    return module if now.model == YOURS else MODELS[now.model]


def zero(module: Any = None) -> Explorer:
    """Return controls over the memory per rank with each stage, the GPUs that the chosen one fits, and its traffic.

    A torch `module` becomes the first of the models, with its own sizes and its own largest layer.
    """
    settings = SETTINGS
    if module is not None:
        settings = (Setting("model", YOURS, (YOURS, *MODELS), "parameters"), *SETTINGS[1:])
    return Explorer(settings, partial(draw, module), partial(report, module), PRESETS)
