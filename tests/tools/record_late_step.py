"""Record the step of a slow DDP job with which notebook 11 opens: python -m tests.tools.record_late_step

The job is that of notebooks/scripts/slow_job.py, whose rank 2 computes 60 ms longer in its backward pass. Of its steps,
the one of median length is stored, with the ranks aligned at the end of their allreduce.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from notebooks.scripts.slow_job import train
from rankscope.diagnose import diagnose
from rankscope.ranks import launch
from rankscope.timeline import Span, Timeline
from tests.benchmarks.ddp_prediction import go_before_others

COMMAND = "python -m tests.tools.record_late_step"
TARGET = Path(__file__).parents[2] / "notebooks" / "profiles" / "late_rank_step.json"
NUM_RANKS = 4
KINDS = ("loader", "forward", "backward", "allreduce", "optimizer")


def _job() -> list[Any]:
    return list(train("backward", report=lambda line: None))


def median_step(traces: Sequence[Any]) -> int:
    """Return the number of the step whose length is the median."""
    diagnosis = diagnose(traces)
    step_s = diagnosis.window_s.mean(axis=1)
    return diagnosis.steps[int(np.argsort(step_s)[step_s.size // 2])]


def aligned(traces: Sequence[Any], step: int) -> Timeline:
    """Return one step of all ranks, whose allreduces end together; the first span starts at 0."""
    spans: list[Span] = []
    for trace in traces:
        (span,) = trace.timeline.select(kind="step", item=step)
        spans_of_step = trace.timeline.select(kind=KINDS, between_s=(span.start_s, span.stop_s))
        end_s = float(spans_of_step.select(kind="allreduce").stop_s.max())
        spans += spans_of_step.shifted(-end_s)
    begin_s = min(span.start_s for span in spans)
    return Timeline.of(
        span._replace(
            item=-1,
            start_s=round(span.start_s - begin_s, 6),
            stop_s=round(span.stop_s - begin_s, 6),
        )
        for span in spans
    )


def main() -> None:
    go_before_others()
    traces = launch(_job, NUM_RANKS)[0]
    aligned(traces, median_step(traces)).to_chrome_trace(TARGET)
    stored = json.loads(TARGET.read_text(encoding="utf-8"))
    stored["provenance"] = {
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": COMMAND,
        "hardware": "four ranks on two cores, Gloo over loopback",
    }
    TARGET.write_text(json.dumps(stored, separators=(",", ":")) + "\n", encoding="utf-8")
    print(diagnose(traces))


if __name__ == "__main__":
    main()
