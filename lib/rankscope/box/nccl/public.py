"""Machines of the bank that a model is of, and how far models are from what public machines took."""

from __future__ import annotations

from typing import NamedTuple

from .. import Profile
from ..expected import gpu_of
from ..machines import PREFIX, is_sick, provenances
from .constants import GPUS
from .model import Model


class PublicError(NamedTuple):
    """Median errors on public machines, in percent of what was measured: those of the best and the worst machine.

    `model` is of this package's model, `nccl` of NCCL's own estimate.
    """

    model: tuple[int, int]
    nccl: tuple[int, int]


# `python -m tests.benchmarks.nccl` computes these figures from the bank, and a test compares them. A machine's error is
# the median of its allreduces, allgathers and reduce-scatters of 1 KiB and more, by the model that `rankscope nccl`
# uses if only the GPU and the number of nodes are given.
FITTED_ERROR = 3.5  # percent, the median of the single nodes that the model's constants were fitted to
PUBLIC_ERRORS = {
    "NVLink": PublicError((4, 34), (3, 57)),  # single nodes that it was not fitted to
    "PCIe": PublicError((21, 60), (18, 61)),
    "InfiniBand": PublicError((2, 59), (2, 58)),  # several nodes
}
BENCHMARK = "python -m tests.benchmarks.nccl"


def public(model: Model) -> dict[str, Profile]:
    """Return the bank's machines with the same GPU, number of GPUs and number of nodes, by name."""
    model_name = model.gpu.upper().replace("_", " ")
    profiles = {}
    for name, about in provenances().items():
        # The bank may add a word, as in "A100 SXM4". The blank ends a word, so that V100 does not match V100S.
        has_same_gpu = f"{gpu_of(about)} ".startswith(f"{model_name} ")
        has_same_size = about["num_ranks"] == model.num_ranks and about.get("num_nodes") == model.num_nodes
        if has_same_gpu and has_same_size and not is_sick(about):
            profiles[name] = Profile.load(PREFIX + name)
    return profiles


def kind_of(model: Model) -> str:
    """Return which of `PUBLIC_ERRORS` a model belongs to."""
    if model.num_nodes > 1:
        return "InfiniBand"
    return "PCIe" if GPUS[model.gpu].link == "pcie" else "NVLink"


def error_words(model: Model) -> str:
    """Return the error to expect of a model, in a sentence or two."""
    kind = kind_of(model)
    best, worst = PUBLIC_ERRORS[kind].model
    nccl_best, nccl_worst = PUBLIC_ERRORS[kind].nccl
    nccl = f"NCCL's own {nccl_best} to {nccl_worst} %"
    before = " before calibration" if model.terms or model.minimum_s else ""
    if kind == "InfiniBand":
        words = f"on public InfiniBand clusters the median error{before} is {best} to {worst} %, no better than {nccl}"
    elif kind == "PCIe":
        words = f"on public nodes without NVLink the median error{before} is {best} to {worst} %, compared with {nccl}"
    else:
        words = (
            f"the median error{before} is {FITTED_ERROR:g} % on the nodes used for fitting, and {best} to {worst} % "
            f"on other public nodes with NVLink, compared with {nccl} there"
        )
    return f"Expected error: {words} ({BENCHMARK})."
