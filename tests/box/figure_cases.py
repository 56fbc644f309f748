"""The public figures of `box`: a call of each view, drawings, and what is refused.

They are for the battery in `tests/figures/test_every_figure.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from rankscope import figures
from rankscope.box import Profile
from rankscope.box.figures.boxes import draw_boxes
from rankscope.box.figures.choices import draw_nccl_choices
from rankscope.box.figures.profiles import draw_peers
from rankscope.box.link_facts import stated
from rankscope.box.nccl import Model
from rankscope.box.profile import Point
from rankscope.figures.marks import Drawing

from .made import profile

EMULATED = Path(__file__).parents[2] / "notebooks" / "profiles" / "emulated_100mbit_5ms_4_ranks.json"
FACTS = stated(4)
MODELS = {"8 A100": Model("a100"), "8 H100": Model("h100"), "4 × 8 A100": Model("a100", 8, 4)}


@cache
def recorded() -> Profile:
    return Profile.load(EMULATED)


def bank_of(*names: str) -> dict[str, Profile]:
    return {name: Profile.load(f"bank:{name}") for name in names}


def peers(num_gpus: int = 4) -> Profile:
    """Copies between some GPUs, each of another rate."""
    ends = permutations(range(num_gpus), 2)
    options = [{"direction": "p2p", "src": src, "dst": dst, "pieces": 1, "both": False} for src, dst in ends]
    return profile([Point("transfer", 2**26, (1e-3 * (1 + n),), (True,), one) for n, one in enumerate(options)])


def of_native() -> Profile:
    return Profile(recorded().provenance, {}, recorded().select("allreduce", algorithm="native"))


# of each public figure, and of each of its views, a call as the notebooks make it
FIGURES: dict[str, Callable[..., Axes]] = {
    "copies": lambda **on: figures.copies(FACTS, **on),
    "copies both_ways": lambda **on: figures.copies(FACTS, view="both_ways", **on),
    "copies pieces": lambda **on: figures.copies(FACTS, view="pieces", **on),
    "copies peers": lambda **on: figures.copies(None, peers(), "peers", **on),
    "nccl_choices": lambda **on: figures.nccl_choices(MODELS, **on),
    "profile": lambda **on: figures.profile(recorded(), **on),
    "profile of several": lambda **on: figures.profile(bank_of("h100_8", "l40s_8", "a100_80gb_8"), "log", **on),
    "profile residuals": lambda **on: figures.profile(recorded(), "residuals", **on),
}

DRAWINGS: dict[str, Drawing] = {
    "peers": draw_peers(peers()),
    "choices": draw_nccl_choices(MODELS, "allgather"),
    "boxes": draw_boxes(bank_of("h100_8", "l40s_8"), ["allreduce", "allgather"], "time", at_bytes=2**20),
}

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: figures.nccl_choices({}), "models must number from 1 to 64, by name, got 0"),
    (lambda: figures.nccl_choices(Model()), "models must number from 1 to 64, by name, got Model"),
    (lambda: figures.nccl_choices({"mine": "h100"}), r"models\['mine'\] must be a Model, got 'h100'"),
    (lambda: figures.nccl_choices(MODELS, "gather"), "collective must be one of 'broadcast', .*, got 'gather'"),
    (lambda: figures.profile("box"), "profile must be a Profile"),
    (lambda: figures.profile(recorded(), "bus"), "view must be one of 'busbw', 'residuals', got 'bus'"),
    (lambda: figures.profile(recorded(), collective="gather"), "one that this profile has points of, got 'gather'"),
    (lambda: figures.profile(recorded(), "residuals", algorithms=[]), "algorithms must be some of .*, got none"),
    (lambda: figures.profile(recorded(), "residuals", algorithms=["star"]), "algorithms must be some of .*, got star"),
    (lambda: figures.profile(of_native(), "residuals"), "profile must have points of allreduce that can be predicted"),
    (lambda: figures.copies(None), "facts or profile must be given, got None for both"),
    (lambda: figures.copies(None, profile([])), "profile must have copies by .*, as no facts are given, got none"),
    (lambda: figures.copies("PCIe", view="pieces"), "facts must be a LinkFacts, got 'PCIe'"),
    (lambda: figures.copies(FACTS, 3, "both_ways"), "profile must be a Profile, got 3"),
    (lambda: figures.copies(FACTS, view="cost"), "view must be one of 'rate', 'both_ways', 'pieces', 'peers', got 'c"),
    (lambda: figures.copies(FACTS, direction="up"), "direction must be one of 'h2d', 'd2h', got 'up'"),
    (lambda: figures.copies(None, None, "peers"), "profile must be a Profile, got None"),
    (lambda: figures.copies(None, profile([]), "peers"), "profile must have copies between GPUs .*, got none"),
    (lambda: figures.copies(None, peers(73), "peers"), "profile must have copies between at most 72 GPUs, got 73"),
]
