"""The picture of a step under `fully_shard`: its legend names what its memory shows."""

from __future__ import annotations

from rankscope.drawing.palette import MEMORY
from rankscope.train.fsdp.explorer import fsdp
from tests.figures.shown import boxes, words_of


def test_the_legend_names_the_areas_that_are_seen() -> None:
    explorer = fsdp()
    hidden = {"num_blocks": 1, "width": 8192, "wrap": "the model alone", "recompute": True}
    thin = {"num_ranks": 8, "num_blocks": 8, "width": 8192, "num_tokens": 32768, "reshard": False, "recompute": True}
    for settings in ({}, hidden, thin):
        (drawing,) = explorer.draw(explorer.at(**settings))
        tints = [box for box in boxes(drawing) if box.look == "tint"]
        areas = {(box.fill, box.hatched) for box in tints if (box.width, box.height) != (12, 12)}  # as a key's
        named = {MEMORY[term] for term in MEMORY if term.replace("_", " ") in words_of(drawing)}
        assert areas == {(look.hue, look.hatched) for look in named}
