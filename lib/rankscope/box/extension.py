"""What `box` adds to the common tables; see `rankscope.common.extensions`."""

from __future__ import annotations

from ..common.extensions import Extension

EXTENSION = Extension(
    explorers=("rankscope.box.explorers",),
    commands=("rankscope.box.commands",),
    figures={
        "copies": "rankscope.box.figures.profiles",
        "nccl_choices": "rankscope.box.figures.choices",
        "profile": "rankscope.box.figures.profiles",
    },
    networks=(
        "rankscope.box.networks:of_the_bank",
        "rankscope.box.nccl.networks:of_the_model",
        "rankscope.box.networks:recorded",
    ),
)
