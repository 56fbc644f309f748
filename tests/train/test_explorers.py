"""What is particular to each explorer of `train`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

from html import escape
from typing import Any

import pytest

from rankscope.explorers import zero
from rankscope.figures.marks import Text
from rankscope.train.explorers.zero import memory
from rankscope.train.zero.model import memory as zero_memory

from ..explorers.cases import report
from .explorer_cases import CASES, MODULE

ZERO = CASES["zero"].made()
OWN = CASES["zero of a module"].made()
UNEVEN = CASES["uneven"].made()
SCHEDULES = CASES["pipeline_parallel"].made()
REPLICAS = CASES["data_parallel"].made()

# ---- ddp


# ---- zero


def test_a_layer_is_no_larger_than_its_model_and_buckets_are_ddps() -> None:
    now = ZERO.at(model="125 M", layer_millions=2000, buckets=True)
    memories = [memory(None, now, stage) for stage in range(4)]
    assert memories[3].terms["largest_layer"] == 125_000_000 * 4
    assert [stage_memory.terms["buckets"] > 0 for stage_memory in memories] == [True, True, False, False]


def test_zero_of_your_own_module() -> None:
    box = zero(MODULE, num_ranks=2, stage=3)
    assert box.controls["model"].value == "your module"
    assert escape(str(zero_memory(MODULE, 2, 3))) in box.shown.value
    models = zero().controls["model"].options
    assert zero(MODULE).controls["model"].options == (("your module", "your module"), *models)
    box.controls["model"].value = "1.5 B"
    assert OWN.shown(OWN.at(model="1.5 B", num_ranks=2, stage=3)).report in box.shown.value


# ---- uneven


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"handling": "drop"}, ["80 samples: 32 lost, 0 repeated", "step: 1, 1", "0.00 to 1.67 times"]),
        ({"handling": "pad"}, ["80 samples: 0 lost, 40 repeated", "step: 1, 1, 1, 1, 1", "0.67 to 2.00 times"]),
        ({"handling": "join"}, ["0 lost, 0 repeated", "step: 1, 1, 0.667, 0.333, 0.333", "1.00 to 1.00 times"]),
        ({"handling": "join", "divide_by_initial": False}, ["0 lost", "step: 1, 1, 1, 1, 1", "0.67 to 2.00 times"]),
    ],
)
def test_uneven_says_what_becomes_of_the_samples(settings: dict[str, Any], lines: list[str]) -> None:
    for line, reported in zip(lines, report(UNEVEN, **settings), strict=True):
        assert line in reported


# ---- pipeline_parallel


def test_pipeline_parallel_says_what_the_schedule_does() -> None:
    assert report(SCHEDULES, schedule="GPipe", num_ranks=3, num_microbatches=5, activation_mb=2) == [
        "idle between a rank's first and last pass: at most 28.6 % of that time",
        "activations kept per rank, in micro-batches: 5, 5, 5",
        "each rank sends at most 20 MB per step",
    ]
    slow = report(SCHEDULES, schedule="GPipe", num_ranks=2, num_microbatches=1, link="1 GB/s, 50 µs")
    assert "55.9 %" in slow[0]  # 1 - 30 / (30 + 30 + 2 * 4.05) ms
    interleaved = report(SCHEDULES, schedule="Interleaved1F1B", num_ranks=2, num_microbatches=4, num_chunks=3)
    assert interleaved[1] == "activations kept per rank, in micro-batches: 2.33, 1.67"


# ---- data_parallel


def test_data_parallel_shows_gpus_without_work_as_waiting() -> None:
    def texts(batch: str) -> list[str]:
        (drawn,) = REPLICAS.draw(REPLICAS.at(num_gpus=8, batch=batch))
        return [mark.text for mark in drawn.marks if isinstance(mark, Text)]

    assert [text for text in texts("9 samples") if text.startswith("GPU")] == [f"GPU {gpu}" for gpu in range(8)] * 2
    assert len([text for text in texts("9 samples") if text.startswith("wait")]) == 3
    assert not [text for text in texts("8 samples") if text.startswith("wait")]
