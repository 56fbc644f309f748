"""The part of `rankscope diagnose` that names late ranks from traces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from ...common.words import printable

if TYPE_CHECKING:
    from ..diagnosis import JobDiagnosis


def diagnose_traces(paths: Sequence[Path], as_json: bool, output: Path | None, perfetto: Path | None) -> None:
    """Print who is late and why, and write the page and the trace for Perfetto if there are paths for them."""
    from ...cli.output import print_parts
    from ...common.files import write_whole
    from .. import diagnose, read_traces

    traces = read_traces(paths[0] if len(paths) == 1 else paths)
    diagnosis = diagnose(traces)
    written = []
    if output is not None:
        from ..figures.jobs import job_page

        # the page is named after the folder; of several files, after that of the first one
        folder = paths[0] if paths[0].is_dir() else paths[0].parent
        written.append(write_whole(output, job_page(folder.resolve().name, traces, diagnosis).encode()))
    if perfetto is not None:
        from ...timeline import Timeline

        clocks = zip(traces, diagnosis.offset_s, strict=True)
        on_one_clock = Timeline.concat(trace.timeline.shifted(offset_s) for trace, offset_s in clocks)
        written.append(on_one_clock.to_chrome_trace(perfetto))
    if as_json:
        print(json.dumps(_fields(diagnosis)))
    else:
        print_parts(_parts(diagnosis))
        print_parts(Text(f"wrote {printable(str(path))}") for path in written)


def _fields(diagnosis: JobDiagnosis) -> dict[str, Any]:
    """Return what --json prints for traces: seconds and bytes; the means of each rank's own time by phase."""
    from ..trace import PHASES

    phases = []
    for column, rank in enumerate(diagnosis.ranks):
        mean_s = diagnosis.phase_s[:, column].sum(axis=0) / max(len(diagnosis.steps), 1)
        seconds = {f"{phase}_s": phase_s for phase, phase_s in zip(PHASES, mean_s.tolist(), strict=True)}
        phases.append({"rank": rank, **seconds})
    return {
        "culprits": [culprit._asdict() for culprit in diagnosis.culprits],
        "findings": str(diagnosis).splitlines(),
        "ranks": diagnosis.ranks,
        "steps": diagnosis.steps,
        "step_s": diagnosis.step_s,
        "exposed_s": diagnosis.exposed_s,
        "hidden_s": diagnosis.hidden_s,
        "phases": phases,
        "buckets": [bucket._asdict() for bucket in diagnosis.buckets],
    }


def _parts(diagnosis: JobDiagnosis) -> Iterator[RenderableType]:
    """The verdict in words, each rank's own time by phase, and each bucket's communication."""
    from ...cli.output import table_of
    from ..tables import CALLS, RANKS, call_table, rank_table

    for line in str(diagnosis).splitlines():
        yield Text(printable(line), "bold")
    if not diagnosis.steps:
        return
    for title, (heads, *rows) in ((RANKS, rank_table(diagnosis)), (CALLS, call_table(diagnosis))):
        table = table_of(title, *heads)
        for row in rows:
            table.add_row(*row)
        if rows:
            yield table
