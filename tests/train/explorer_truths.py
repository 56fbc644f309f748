"""What the explorers of `train` must say, worked out another way, for `tests/explorers/test_true.py`."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from rankscope.common.units import parse_bytes
from rankscope.train.ddp import Contention, resnet50_step
from rankscope.train.ddp.explorer import DEFAULT_CAP, FLOPS_PER_S
from rankscope.train.network_settings import Networks
from rankscope.train.pipeline_parallel.explorer import step
from rankscope.train.zero.explorer import LIMITS_BYTES, MODELS

from .ddp.simpy_reference import reference

Truths = list[tuple[Any, ...]]
WIDTHS = {"fp32": (4, 4, 0, 4), "mixed": (2, 2, 4, 4), "bf16": (2, 2, 0, 2)}  # parameter, gradient, master, state
NUM_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
KEPT = {"F": 1, "B": -1, "I": 0, "W": -1}  # the activations that a pass adds
NEXT = {"F": 1, "B": -1, "I": -1, "W": 0}  # how many stages further its result goes


def ddp(now: Any) -> Truths:
    """A step in SimPy."""
    local = resnet50_step(now.num_samples, FLOPS_PER_S)
    cap_mb = None if now.cap == DEFAULT_CAP else parse_bytes("cap", now.cap) / 2**20
    slower = 1 + now.slower / 100
    seen = reference(local, local.buckets(cap_mb), Networks().cost(now), Contention(slower, slower), now.overlap)
    whole_s = local.forward_s + max(stop_s for _, stop_s in seen.values())
    return [
        ("ResNet-50: # of gradients", 25557032 * 4),
        ("# per step: # without communication", whole_s, local.forward_s + local.backward_s),
    ]


def fsdp(now: Any) -> Truths:
    """Blocks of 12·width² parameters and the two of a norm, gathered in bfloat16 and reduced in float32."""
    block = 12 * now.width**2 + 2 * now.width
    num_gathers = 2 if now.reshard else 1
    num_bytes = now.num_blocks * block * (2 * num_gathers + 4)
    num_collectives = now.num_blocks * (num_gathers + 1)
    return [
        ("# billion parameters", 12e-9 * now.num_blocks * now.width**2),
        ("# collectives? of #, at most #", num_collectives, num_bytes, 4 * block),
    ]


def zero(now: Any) -> Truths:
    """The formulas of the paper."""
    parameter, gradient, master, state = WIDTHS[now.recipe]
    shares = [1 if now.stage < divided_from else 1 / now.num_ranks for divided_from in (3, 2, 1)]
    states = master + state * NUM_STATES[now.optimizer]
    activations = now.activations_gb * 1e9
    total = MODELS[now.model] * (parameter * shares[0] + gradient * shares[1] + states * shares[2]) + activations
    truths: Truths = [(f": # in stage {now.stage}", total), (f"stage {now.stage}: # per rank", total)]
    for name, limit in LIMITS_BYTES.items():
        truths.append((f"{name}: # left for these", limit - total) if limit > total else (f"{name}: too small",))
    return truths


def pipeline_parallel(now: Any) -> Truths:
    """Counted pass by pass; a rank works for three forward times a micro-batch, and is idle for the rest."""
    schedule, timeline = step(now)
    chunks = schedule.num_stages / now.num_ranks
    work_s = 3e-3 * now.forward_ms * now.num_microbatches
    home = {one.stage: rank for rank, row in enumerate(schedule.ranks) for one in row}
    kept = []
    sent = []
    for rank, row in enumerate(schedule.ranks):
        kept.append(max(accumulate(KEPT[one.kind] for one in row)) / chunks)
        to = [home.get(one.stage + NEXT[one.kind], rank) for one in row]
        sent.append(sum(other != rank for other in to))
    numbers = ", ".join(["#"] * now.num_ranks)
    return [
        ("each rank idles #", 1 - work_s / timeline.stop_s.max()),
        ("# per step; ranks wait", timeline.stop_s.max()),
        (f"in micro-batches: {numbers}\\n", *kept),
        ("at most # messages per step", max(sent)),
    ]


EACH_BLOCK = {"wrap": "each block", "num_ranks": 8, "num_blocks": 2, "num_tokens": 1024, "recompute": False}
TRUTHS = {
    "ddp": ({"accumulation": 1}, ddp),
    "fsdp": (EACH_BLOCK, fsdp),
    "zero": ({}, zero),
    "pipeline_parallel": ({}, pipeline_parallel),
}
