"""The explorer of notebook 11: what ZeRO's stages leave on a rank, and whether it fits."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from ..figures.svg import to_svg
from ..figures.zero_memory import draw_zero_memory
from ..values.checks import one_of
from ..values.units import decimal_words
from ..zero.model import OPTIMIZERS, RECIPES, ZeroMemory
from ..zero.model import memory as zero_memory
from ..zero.model import traffic as zero_traffic
from .panel import choice, chosen, panel, slider, switch

MODELS = {"125 M": 125_000_000, "1.5 B": 1_500_000_000, "7.5 B": 7_500_000_000, "13 B": 13_000_000_000,
          "70 B": 70_000_000_000, "175 B": 175_000_000_000}  # fmt: skip
LIMITS_BYTES = {"24 GB": 24e9, "80 GB": 80e9, "141 GB": 141e9}
YOURS = "your module"
DEFAULTS: dict[str, Any] = {"model": "7.5 B", "log2_ranks": 6, "stage": 1, "recipe": "mixed", "optimizer": "adam",
                            "layer_millions": 0, "activations_gb": 0, "buckets": False}  # fmt: skip
RANGES = {"log2_ranks": (0, 12), "stage": (0, 3), "layer_millions": (0, 2000), "activations_gb": (0, 100)}
_LABELS = {"model": "parameters", "log2_ranks": "log₂ ranks", "stage": "stage", "recipe": "recipe",
           "optimizer": "optimizer", "layer_millions": "layer [M]", "activations_gb": "activ. [GB]",
           "buckets": "DDP's buckets"}  # fmt: skip


def memories(module: Any = None, **settings: Any) -> dict[str, ZeroMemory]:
    """Return what each stage leaves on a rank, with these settings, those of `DEFAULTS` where not given.

    The largest layer has at most as many parameters as the model; buckets are there in stages 0 and 1.
    """
    now = _chosen(module, settings)
    size = module if now["model"] == YOURS else MODELS[now["model"]]
    layer = {} if size is module else {"largest_layer": min(now["layer_millions"] * 10**6, size)}
    inputs = {**layer, "activation_bytes": now["activations_gb"] * 10**9}
    how = (now["recipe"], now["optimizer"])
    return {
        f"stage {stage}": zero_memory(
            size, 2 ** now["log2_ranks"], stage, *how, buckets=now["buckets"] and stage < 2, **inputs
        )
        for stage in range(4)
    }


def picture(module: Any = None, **settings: Any) -> str:
    """Return the four stages as SVG, the chosen one framed, over the memories that one can buy."""
    now = _chosen(module, settings)
    found, name = memories(module, **settings), f"stage {now['stage']}"
    title = (
        f"{now['model']} on {2 ** now['log2_ranks']} ranks: {decimal_words(found[name].total_bytes)} a rank in {name}"
    )
    return to_svg(draw_zero_memory(found, LIMITS_BYTES, name, title))


def report(module: Any = None, **settings: Any) -> str:
    """Return as text the terms of the chosen stage, what it fits into, and what its step sends."""
    now = _chosen(module, settings)
    memory = memories(module, **settings)[f"stage {now['stage']}"]
    fits = [
        f"{name}: {'fits' if memory.total_bytes <= limit else 'does not fit'}" for name, limit in LIMITS_BYTES.items()
    ]
    size = module if now["model"] == YOURS else MODELS[now["model"]]
    traffic = zero_traffic(size, memory.num_ranks, memory.stage, memory.recipe)
    return "\n".join([str(memory), "; ".join(fits), str(traffic)])


def zero(module: Any = None, **settings: Any) -> widgets.VBox:
    """Return controls for `DEFAULTS` (`settings` replaces some) over the picture and the report.

    With a torch `module` its own sizes are the first of the models, and its largest layer is its own. Raises ValueError
    for a setting that does not exist or lies outside its range.
    """
    initial = _chosen(module, settings)
    options = {"model": _models(module), "recipe": list(RECIPES), "optimizer": list(OPTIMIZERS)}
    controls: dict[str, Any] = {name: choice(initial[name], names, _LABELS[name]) for name, names in options.items()}
    controls |= {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES}
    controls["buckets"] = switch(initial["buckets"], _LABELS["buckets"])
    return panel(controls, lambda now: (picture(module, **now), report(module, **now)))


def _models(module: Any) -> list[str]:
    return [*([] if module is None else [YOURS]), *MODELS]


def _chosen(module: Any, settings: dict[str, Any]) -> dict[str, Any]:
    now = chosen(settings, DEFAULTS | ({} if module is None else {"model": YOURS}), RANGES)
    for name, names in {"model": _models(module), "recipe": RECIPES, "optimizer": OPTIMIZERS}.items():
        one_of(name, now[name], tuple(names))
    return now
