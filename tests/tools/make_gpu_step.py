"""Reduce one step of a published GPU trace to what notebook 11 draws: python -m tests.tools.make_gpu_step FOLDER

FOLDER has `index.json`, which says of each trace where it is from and under which licence, and the traces themselves.
Spans nearer than 0.2 ms to each other become one, and only the GPU's streams are kept.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import numpy as np

from rankscope.diagnose import read_traces
from rankscope.timeline import Span, Timeline
from rankscope.timeline.intervals import merge

TRACE = "traces/hta-nccl_parser_config-nccl_data.json.gz"
TARGET = Path(__file__).parents[2] / "notebooks" / "profiles" / "ddp_step_on_a100.json"
_NEAR_S, _STEP = 2e-4, 1
_KINDS = ("kernel", "memcpy d2d", *Timeline.COMMUNICATION)


def reduced(timeline: Timeline) -> Timeline:
    """The streams of one step, from its begin, without what lies between near spans of a kind."""
    steps = timeline.select(kind="step")
    step = steps[int(np.argsort(steps.start_s)[_STEP])]
    spans = []
    streams = [lane for lane in timeline.lanes if lane.startswith("stream ")]
    inside = timeline.select(lane=streams, between_s=(step.start_s, step.stop_s))
    for lane in streams:
        for kind in _KINDS:
            own = inside.select(lane=lane, kind=kind)
            for start_s, stop_s in zip(*merge(own.start_s, own.stop_s + _NEAR_S), strict=True):
                times = start_s - step.start_s, stop_s - _NEAR_S - step.start_s
                spans.append(Span(0, lane, kind, -1, *(round(time_s, 6) for time_s in times)))
    return Timeline.of(spans)


def figures_of(timeline: Timeline) -> dict[str, float]:
    """Return how long the GPU worked in seconds, as Holistic Trace Analysis 0.5.0 defines it."""
    streams = timeline.select(lane=[lane for lane in timeline.lanes if lane.startswith("stream ")])
    return {
        "total_s": streams.makespan_s,
        "busy_s": streams.busy_s,
        "idle_s": streams.makespan_s - streams.busy_s,
        "compute_s": streams.select(kind="kernel").busy_s,
        "communication_s": streams.select(kind=Timeline.COMMUNICATION).busy_s,
        "overlap_s": streams.overlap_s("kernel", Timeline.COMMUNICATION),
    }


def main(folder: Path) -> None:
    (about,) = [one for one in json.loads((folder / "index.json").read_text()) if one["file"] == TRACE]
    (trace,) = read_traces(folder / TRACE)
    reduced(trace.timeline).to_chrome_trace(TARGET)
    stored = json.loads(TARGET.read_text())
    names = ("hardware", "source_repo", "source_path", "source_commit_or_ref", "licence")
    figures = {name: round(seconds, 6) for name, seconds in figures_of(trace.timeline).items()}
    stored["provenance"] = {
        **{name: about[name] for name in names},
        "torch": "not stated in the trace",
        "date": date.today().isoformat(),  # of this reduction
        "command": "python -m tests.tools.make_gpu_step ../shared/measurements",
        "figures": figures,
    }
    TARGET.write_text(json.dumps(stored, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
