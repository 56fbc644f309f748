"""NCCL's model: what it chooses on many machines, and the times that it and NCCL expect."""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.box import nccl

from .values import Cases, attempt, floats, plain

COLLECTIVES = ("broadcast", "reduce", "allgather", "reduce_scatter", "allreduce")
_SIZES = [2**power for power in range(6, 35, 2)] + [3000, 5_000_000]
_NUM_MACHINES = 60
_MATRIX = """
	GPU0	GPU1	GPU2	GPU3	NIC0
GPU0	 X 	NV12	NV12	SYS	PXB
GPU1	NV12	 X 	PHB	NODE	SYS
GPU2	NV12	PHB	 X 	PIX	SYS
GPU3	SYS	NODE	PIX	 X 	SYS
NIC0	PXB	SYS	SYS	SYS	 X
"""


def cases() -> Cases:
    draw = random.Random(47)
    all_cases: Cases = {}
    for number in range(_NUM_MACHINES):
        all_cases[f"machine {number}"] = partial(_model, _machine(draw))
    all_cases["topology"] = _topology
    return all_cases


def _topology() -> list[Any]:
    """What connects the GPUs of a matrix of `nvidia-smi topo -m`, and its network cards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "topology.txt"
        path.write_text(_MATRIX)
        read = nccl.read_topology(path)
    return [plain(read.ways), plain(read.nics)]


def _machine(draw: random.Random) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "gpu": draw.choice(sorted(nccl.GPUS)),
        "gpus_per_node": draw.choice([2, 4, 8, 8]),
        "num_nodes": draw.choice([1, 1, 2, 3, 4, 16, 64]),
        "version": draw.choice([(2, 18), (2, 23), (2, 27), (2, 30)]),
    }
    if draw.randrange(3) == 0:
        arguments |= {"nics": draw.choice([1, 2, 4, 8]), "nic_bytes_per_s": 25e9}
    return arguments


def _model(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"machine": plain(arguments), "answers": attempt(_answers, **arguments)}


def _answers(**arguments: Any) -> dict[str, Any]:
    return _of_model(nccl.Model(**arguments))


def _of_model(model: nccl.Model) -> dict[str, Any]:
    answers: dict[str, Any] = {"num_channels": model.num_channels}
    for collective in COLLECTIVES:
        choices = [model.choose(collective, size) for size in _SIZES]
        names = [f"{choice.algorithm} {choice.protocol} {choice.channels}" for choice in choices]
        terms = [[*choice.terms_s.values()] for choice in choices]
        times_s = [[choice.nccl_s, choice.time_s] for choice in choices]
        usable = model.eligible(collective)
        figures = [[model.latency_us(collective, *pair), model.bandwidth(collective, *pair)] for pair in usable]
        answers[collective] = {
            "choices": names,
            "times_s": floats(np.ravel(times_s)),
            "terms_s": floats(np.concatenate(terms)),
            "usable": plain(usable),
            "latency and bandwidth": floats(np.ravel(figures)),
        }
    return answers
