"""The part of `rankscope diagnose` that names late ranks from traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from ..common.units import times_in_one_unit
from .output import print_parts, table_of

if TYPE_CHECKING:
    from ..diagnose.traces.diagnosis import JobDiagnosis

_MOST_ROWS = 16
_LEAST_SHARE = 0.01  # of the own time: a phase with less has no column


def diagnose_traces(paths: Sequence[Path], as_json: bool) -> None:
    """Print who is late and why."""
    from ..diagnose import diagnose, read_traces

    diagnosis = diagnose(read_traces(paths[0] if len(paths) == 1 else paths))
    if as_json:
        print(json.dumps(_fields(diagnosis)))
        return
    tables = []
    if diagnosis.steps:
        tables.append(_rank_table(diagnosis))
    if diagnosis.calls:
        tables.append(_call_table(diagnosis))
    print_parts([*(Text(line, "bold") for line in str(diagnosis).splitlines()), *tables])


def _fields(diagnosis: JobDiagnosis) -> dict[str, Any]:
    """Return what --json prints for traces, in seconds; `phase_s` has the mean own time of each rank, by phase."""
    from ..diagnose.traces.trace import PHASES

    mean_s = diagnosis.phase_s.sum(axis=0) / max(len(diagnosis.steps), 1)  # ranks by phases
    return {
        "culprits": [{"rank": late.rank, "cause": late.cause, "cost_s": late.cost_s} for late in diagnosis.culprits],
        "findings": str(diagnosis).splitlines(),
        "ranks": diagnosis.ranks,
        "steps": diagnosis.steps,
        "step_s": diagnosis.step_s,
        "exposed_s": diagnosis.exposed_s,
        "hidden_s": diagnosis.hidden_s,
        "phase_s": dict(zip(PHASES, mean_s.T.tolist(), strict=True)),
        "calls": [call._asdict() for call in diagnosis.calls],
    }


def _rank_table(diagnosis: JobDiagnosis) -> Table:
    """Return a row per rank, of many ranks for the latest; all times are in one unit."""
    from ..diagnose.traces.trace import PHASES

    mean_s = diagnosis.phase_s.mean(axis=0)  # ranks by phases
    late_s = diagnosis.late_s.mean(axis=0).clip(0)
    shown = np.flatnonzero(mean_s.sum(axis=0) > _LEAST_SHARE * mean_s.sum())
    rows = np.sort(np.argsort(-late_s)[:_MOST_ROWS])
    table_s = np.column_stack([mean_s[:, shown], diagnosis.waiting_s.mean(axis=0), late_s])[rows]
    words = np.array(times_in_one_unit(*table_s.ravel().tolist())).reshape(table_s.shape)
    title = "Time of each rank per step; exposed: it only waits or communicates; late: later than the middle rank"
    table = table_of(title, "rank", *(PHASES[phase] for phase in shown), "exposed", "late")
    for row, cells in zip(rows, words.tolist(), strict=True):
        table.add_row(str(diagnosis.ranks[row]), *cells)
    return table


def _call_table(diagnosis: JobDiagnosis) -> Table:
    """Return a row per kind of call, the most exposed first; all times are in one unit."""
    calls = sorted(diagnosis.calls, key=lambda call: -call.exposed_s)
    # these are differences of floats, which may be a little below 0
    words = times_in_one_unit(*(max(each_s, 0.0) for call in calls for each_s in (call.exposed_s, call.hidden_s)))
    table = table_of(
        "Communication per step, mean over ranks; hidden: while the rank works", "what", "calls", "exposed", "hidden"
    )
    for call, exposed, hidden in zip(calls, words[::2], words[1::2], strict=True):
        table.add_row(call.name, f"{call.num_calls:.3g}", exposed, hidden)
    return table
