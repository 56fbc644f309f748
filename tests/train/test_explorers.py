"""What is particular to each explorer of `train`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

from html import escape
from typing import Any

import pytest

from rankscope.explorers import zero
from rankscope.figures.marks import Text
from rankscope.train.zero.model import memory as zero_memory

from ..explorers.cases import report
from .explorer_cases import CASES, MODULE

ZERO = CASES["zero"].made()
UNEVEN = CASES["uneven"].made()
SCHEDULES = CASES["pipeline_parallel"].made()
REPLICAS = CASES["data_parallel"].made()

# ---- zero


def test_zero_names_what_is_not_counted_and_what_is_left() -> None:
    lines = report(ZERO, model="70 B", num_ranks=512, stage=2, recipe="bf16")
    assert lines[-4].startswith("not counted: activations, the layer in use, ")
    assert [line.split(": ")[1].endswith("left for these") for line in lines[-3:]] == [False, False, True]
    assert "activations" not in report(ZERO, activations_gb=3)[-4]


def test_zero_of_your_own_module() -> None:
    box = zero(MODULE, num_ranks=2, stage=3)
    assert box.controls["model"].value == "your module"
    assert escape(str(zero_memory(MODULE, 2, 3))) in box.shown.value


# ---- uneven


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"handling": "drop"}, ["80 samples: 32 lost, 0 repeated", "step: 1, 1", "0.00 to 1.67 times"]),
        ({"handling": "pad"}, ["80 samples: 0 lost, 40 repeated", "step: 1, 1, 1, 1, 1", "0.67 to 2.00 times"]),
        ({"handling": "join"}, ["0 lost, 0 repeated", "step: 1, 1, 0.667, 0.333, 0.333", "1.00 to 1.00 times"]),
    ],
)
def test_uneven_says_what_becomes_of_the_samples(settings: dict[str, Any], lines: list[str]) -> None:
    for line, reported in zip(lines, report(UNEVEN, **settings), strict=True):
        assert line in reported


# ---- pipeline_parallel


def test_pipeline_parallel_says_what_the_schedule_does() -> None:
    assert report(SCHEDULES, schedule="GPipe", num_ranks=3, num_microbatches=5) == [
        "idle between a rank's first and last pass: at most 28.6 % of that time",
        "activations kept per rank, in micro-batches: 5, 5, 5",
        "each rank sends at most 10 messages per step",
    ]
    slow = report(SCHEDULES, schedule="GPipe", num_ranks=2, num_microbatches=1, message_ms=4)
    assert "55.9 %" in slow[0]  # 1 - 30 / (30 + 30 + 2 * 4) ms
    interleaved = report(SCHEDULES, schedule="Interleaved1F1B", num_ranks=2, num_microbatches=4, num_chunks=3)
    assert interleaved[1] == "activations kept per rank, in micro-batches: 2.33, 1.67"


# ---- data_parallel


def test_data_parallel_shows_a_row_for_each_gpu_that_works() -> None:
    def texts(batch_size: int) -> list[str]:
        (drawn,) = REPLICAS.draw(REPLICAS.at(num_gpus=8, batch_size=batch_size))
        return [mark.text for mark in drawn.marks if isinstance(mark, Text)]

    ddp_rows = [f"GPU {gpu}" for gpu in range(8)]
    assert [text for text in texts(8) if text in ddp_rows] == ddp_rows * 2
    assert [text for text in texts(9) if text in ddp_rows] == [*ddp_rows[:5], *ddp_rows]
    assert "pass GPU 0's port" in report(REPLICAS)[0]
