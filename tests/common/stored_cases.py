"""The values of the core that are kept in files, one of each kind as rankscope 0.1.0 wrote it."""

from __future__ import annotations

from pathlib import Path

from rankscope.collectives import Schedule
from rankscope.timeline import Timeline

from .kinds import Kind

FILES = Path(__file__).with_name("stored")


def _read_text(path: Path) -> Schedule:
    return Schedule.from_text(path.read_text())


KINDS = [
    Kind(
        FILES / "timeline.v1.json",
        Timeline.from_chrome_trace,
        lambda value, path: value.to_chrome_trace(path),
        signed=False,
    ),
    Kind(FILES / "schedule.v1.txt", _read_text, lambda value, path: path.write_text(value.to_text()), signed=False),
]
