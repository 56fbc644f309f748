"""The map of NCCL's choices shows what the model chooses at each size."""

from __future__ import annotations

from rankscope.box.figures.choices import color_of, draw_nccl_choices
from rankscope.box.nccl import Model
from rankscope.figures.palette import PAPER, mixed
from tests.figures.shown import keys_of, words_of


def test_every_size_has_the_colour_of_the_choice() -> None:
    models = {"one node": Model("a100"), "sixteen": Model("h100", 8, 16)}
    drawing = draw_nccl_choices(models)
    assert [label for _, label in drawing.y_ticks] == list(models)
    (bands,) = drawing.rects
    for row, model in enumerate(models.values()):
        for power in range(10, 31):
            choice = model.choose("allreduce", 1 << power)
            column = power - 10 + 0.5
            inside = (bands.x < column) & (column < bands.x + bands.width) & (bands.y.astype(int) == row)
            (place,) = inside.nonzero()[0].tolist()
            assert bands.fill[place] == mixed(color_of(choice.algorithm, choice.protocol), PAPER, 0.5)
            assert bands.hatched[place] == (choice.algorithm == "tree")
    assert {"ring LL", "ring Simple", "tree LL", "NVLS tree"} <= set(words_of(drawing))
    assert keys_of(drawing) == ["LL", "LL128", "Simple", "NVLS", "hatched: a tree"]
