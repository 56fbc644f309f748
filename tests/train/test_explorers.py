"""What is particular to each explorer of `train`: what it shows is what the library predicts, in the right words."""

from __future__ import annotations

from ..explorers.cases import report
from .explorer_cases import CASES

ZERO = CASES["zero"].made()
SCHEDULES = CASES["pipeline_parallel"].made()

# ---- zero


def test_zero_names_what_is_not_counted_and_what_is_left() -> None:
    lines = report(ZERO, model="70 B", num_ranks=512, stage=2, recipe="bf16")
    assert lines[-4].startswith("not counted: activations, the layer in use, ")
    assert [line.split(": ")[1].endswith("left for these") for line in lines[-3:]] == [False, False, True]
    assert "activations" not in report(ZERO, activations_gb=3)[-4]


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
