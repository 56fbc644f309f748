"""The values of `train` that are kept in files, for the battery in `tests/common/test_stored.py`."""

from __future__ import annotations

from pathlib import Path

from rankscope.train.ddp import DDPRun, load_sweeps
from rankscope.train.pipeline_parallel import PipelineSchedule, verify

from ..benchmarks.ddp_prediction import save_sweeps
from ..common.kinds import Kind

FILES = Path(__file__).with_name("stored")


def _read_pipeline(path: Path) -> PipelineSchedule:
    schedule = PipelineSchedule.from_text(path.read_text())
    verify(schedule)  # a row may end anywhere
    return schedule


KINDS = [
    Kind(FILES / "ddp_run.v1.json", DDPRun.load, lambda value, path: value.save(path)),
    Kind(FILES / "cap_sweeps.v1.json", load_sweeps, lambda value, path: save_sweeps(path, value, "a command")),
    Kind(FILES / "pipeline.v1.txt", _read_pipeline, lambda value, path: path.write_text(value.to_text()), signed=False),
]
