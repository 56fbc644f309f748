"""Machines of the bank that a model is of."""

from __future__ import annotations

from ..machine import Profile
from ..machine.bank import PREFIX, is_sick, provenances
from ..machine.expected import gpu_of
from .model import Model


def public(model: Model) -> dict[str, Profile]:
    """Return the bank's machines with the same GPU, number of GPUs and number of nodes, by name."""
    words = model.gpu.upper().replace("_", " ")
    return {
        name: Profile.load(PREFIX + name)
        for name, about in provenances().items()
        if f"{gpu_of(about)} ".startswith(f"{words} ")
        and (about["num_ranks"], about.get("num_nodes")) == (model.num_ranks, model.num_nodes)
        and not is_sick(about)
    }
