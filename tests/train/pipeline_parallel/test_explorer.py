"""The explorer of pipeline parallelism says what the schedule does."""

from __future__ import annotations

from tests.explorers.cases import Case, report

SCHEDULES = Case("pipeline_parallel").made()


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
