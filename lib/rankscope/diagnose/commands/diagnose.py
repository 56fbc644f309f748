"""`rankscope diagnose`: which rank slows a job down, from its traces; or why it hangs, from its dumps and logs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from typer import Option

from ...common.words import count_of, printable

if TYPE_CHECKING:
    from ..diagnosis import JobDiagnosis
    from ..kineto import TraceFiles

_SILENT_S = 2.0  # no line about files that are read before
_MOST_ROWS = 16  # of a table
_LEAST_SHARE = 0.01  # of the own time: a phase with less has no column
_LEAST_LATE = 0.005  # of a step: a rank that is late by less is not shown as late


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER_OR_LOGS...",
            help="A folder with a trace, dump or log per rank; log files; or - for standard input.",
        ),
    ],
    as_json: Annotated[bool, Option("--json", help="Print JSON, in seconds and bytes.")] = False,
    output: Annotated[
        Path | None, Option("-o", "--output", help="Write the diagnosis with figures as one HTML file.")
    ] = None,
    perfetto: Annotated[
        Path | None, Option(help="Write a trace of all ranks on one clock for Perfetto, with late arrivals as arrows.")
    ] = None,
) -> None:
    """Name the rank that the others wait for, the phase in which it loses time, and the cost.

    Record traces with torch.profiler, one file per rank. If the job hangs, pass its flight-recorder dumps or its logs:
    the answer names the rank that did not reach a collective or called a different one, or states that the logs do not
    show it. Logs may be one per rank, or one log with the prefixes of torchrun or srun.

    For traces, --json prints culprits, findings, ranks, steps, step_s, exposed_s, hidden_s, phases and buckets. For
    dumps and logs, --json prints culprits, findings, notes and ranks.
    """
    from ...common.files import check_output
    from ..kineto import TraceFiles, files_in

    folder_or_files = paths[0] if len(paths) == 1 else paths
    is_stdin = folder_or_files == Path("-")
    files = TraceFiles(traces=[], dumps=[], logs=[])
    if not is_stdin:
        files = files_in(folder_or_files)
    inputs = [*files.traces, *files.dumps, *files.logs]
    if output is not None:
        check_output("--output", output, inputs, (".html",))
    if perfetto is not None:
        check_output("--perfetto", perfetto, inputs, (".json", ".json.gz"))
    has_dumps_or_logs = bool(files.dumps or files.logs or is_stdin)
    if not files.traces and has_dumps_or_logs:
        if perfetto is not None:
            kind = "flight-recorder dumps" if files.dumps else "logs"
            raise ValueError(f"--perfetto is for traces, and these are {kind}")
        _explain_hang(paths[0], files, is_stdin, as_json, output)
        return
    if files.dumps:
        left_out = count_of(len(files.dumps), "flight-recorder dump")
        print(f"left out {left_out}: pass dumps alone", file=sys.stderr)
    if len(paths) == 1:
        # A folder without anything is passed on as well: the reader of traces says what it looked for.
        _diagnose_traces(paths[0], as_json, output, perfetto)
        return
    if files.logs:  # which the user named, unlike logs that lie in a folder of traces
        print(f"left out {count_of(len(files.logs), 'log')}: pass logs alone, or with dumps", file=sys.stderr)
    _diagnose_traces(files.traces, as_json, output, perfetto)


# ---- dumps and logs


def _explain_hang(path: Path, files: TraceFiles, is_stdin: bool, as_json: bool, output: Path | None) -> None:
    """Print which rank did not reach a collective, and write a page, named after `path`, if `output` is a path."""
    from ...cli.output import print_parts
    from ...common.files import write_whole
    from .. import explain_hang, read_dumps, read_hang_text, read_logs
    from ..logs import decoded

    dumps = read_dumps(files.dumps) if files.dumps else ()
    logs = None
    if is_stdin:
        logs = read_hang_text(decoded(sys.stdin.buffer.read()))
    elif files.logs:
        logs = read_logs(files.logs)
    hang = explain_hang(dumps, logs)
    if as_json:
        fields = {
            "culprits": [culprit._asdict() for culprit in hang.culprits],
            "findings": [finding.words for finding in hang.findings],
            "notes": hang.notes,
            "ranks": [dump.rank for dump in dumps],
        }
        print(json.dumps(fields))
    else:
        print_parts([Text(printable(line)) for line in str(hang).splitlines()])
    if output is not None:
        from ..figures.jobs import hang_page

        title = "standard input" if is_stdin else path.resolve().name  # "." alone has no name
        write_whole(output, hang_page(title, hang).encode())


# ---- traces


def _diagnose_traces(
    folder_or_files: Path | list[Path], as_json: bool, output: Path | None, perfetto: Path | None
) -> None:
    """Print who is late and why, and write the page and the trace for Perfetto if there are paths for them."""
    from ...cli.output import print_parts
    from ...common.files import write_whole
    from .. import diagnose as diagnose_traces
    from .. import read_traces

    begin_s = time.monotonic()

    def report(line: str) -> None:
        """Print a line about a file that was read, in a terminal and if reading takes long."""
        if time.monotonic() - begin_s > _SILENT_S and sys.stderr.isatty():
            print(line, file=sys.stderr)

    traces = read_traces(folder_or_files, report=report)
    diagnosis = diagnose_traces(traces)
    written = []
    if output is not None:
        from ..figures.jobs import job_page

        # the page is named after the folder; of several files, after that of the first one
        folder = folder_or_files if isinstance(folder_or_files, Path) else folder_or_files[0].parent
        page = job_page(folder.resolve().name, traces, diagnosis.joined, diagnosis)
        written.append(write_whole(output, page.encode()))
    if perfetto is not None:
        from ..perfetto import to_perfetto

        written.append(to_perfetto(perfetto, traces, diagnosis.joined, diagnosis))
    if as_json:
        print(json.dumps(_fields(diagnosis), allow_nan=False))
    else:
        print_parts(_tables(diagnosis))
        print_parts(Text(f"wrote {printable(str(path))}") for path in written)


def _fields(diagnosis: JobDiagnosis) -> dict[str, Any]:
    """Return what --json prints for traces."""
    return {
        "culprits": [culprit._asdict() for culprit in diagnosis.culprits],
        "findings": str(diagnosis).splitlines(),
        "ranks": diagnosis.ranks,
        "steps": diagnosis.steps,
        "step_s": diagnosis.step_s,
        "exposed_s": diagnosis.exposed_s,
        "hidden_s": diagnosis.hidden_s,
        "phases": _phases_by_rank(diagnosis),
        "buckets": [bucket._asdict() for bucket in diagnosis.buckets],
    }


def _phases_by_rank(diagnosis: JobDiagnosis) -> list[dict[str, Any]]:
    """Return for each rank its number and its mean own time in each phase, which is 0 without steps."""
    import numpy as np

    from ..trace import PHASES

    mean_s = np.zeros((len(diagnosis.ranks), len(PHASES)))
    if diagnosis.steps:
        mean_s = diagnosis.phase_s.mean(axis=0)
    by_rank = []
    for rank, seconds in zip(diagnosis.ranks, mean_s.tolist(), strict=True):
        fields: dict[str, Any] = {"rank": rank}
        fields |= {f"{phase}_s": phase_s for phase, phase_s in zip(PHASES, seconds, strict=True)}
        by_rank.append(fields)
    return by_rank


def _tables(diagnosis: JobDiagnosis) -> Iterator[RenderableType]:
    """The verdict in words, each rank's own time by phase, and each bucket's communication."""
    for line in str(diagnosis).splitlines():
        yield Text(printable(line), "bold")
    if diagnosis.steps:
        yield _ranks_table(diagnosis)
    if diagnosis.buckets:
        yield _buckets_table(diagnosis)


def _ranks_table(diagnosis: JobDiagnosis) -> Table:
    """Return a row per rank, of many ranks for the latest; all times are in one unit."""
    from ...cli.output import table_of
    from ...common.units import times_in_one_unit
    from ..figures.jobs import EXPOSED
    from ..trace import PHASES

    mean_s = diagnosis.phase_s.mean(axis=0)  # ranks by phases
    late_s = diagnosis.late_s.mean(axis=0)
    waited_s = diagnosis.waiting_s.mean(axis=0)
    shown_phases = [phase for phase in range(len(PHASES)) if mean_s[:, phase].sum() > _LEAST_SHARE * mean_s.sum()]
    latest_first = sorted(range(len(diagnosis.ranks)), key=lambda row: -late_s[row])
    rows = sorted(latest_first[:_MOST_ROWS])
    is_late = late_s > _LEAST_LATE * diagnosis.step_s
    shown_late_s = late_s * is_late  # 0 where nothing is shown, as all shown times choose their common unit
    columns = [*(mean_s[:, phase] for phase in shown_phases), waited_s, shown_late_s]
    # the cells, row by row
    words = iter(times_in_one_unit(*(float(column[row]) for row in rows for column in columns)))
    table = table_of(
        "Time of each rank per step", "rank", *(PHASES[phase] for phase in shown_phases), "exposed", "late"
    )
    table.caption = f"exposed: {EXPOSED}; late: time without that, minus the median of the others"
    for row in rows:
        *times, late = [next(words) for _ in columns]
        table.add_row(str(diagnosis.ranks[row]), *times, late if is_late[row] else "")
    return table


def _buckets_table(diagnosis: JobDiagnosis) -> Table:
    """Return a row per collective, of many for those that are waited for longest; all times are in one unit."""
    from ...cli.output import table_of
    from ...common.units import bytes_words, times_in_one_unit

    table = table_of("Communication per step", "what", "size", "exposed", "hidden", "last")
    table.caption = "means over ranks; hidden: while the rank works; last: the rank that most often arrives last"
    buckets = sorted(diagnosis.buckets, key=lambda bucket: -bucket.exposed_s)[:_MOST_ROWS]
    seconds = []
    for bucket in buckets:
        # these are differences of floats, which may be a little below 0
        seconds += [max(bucket.exposed_s, 0.0), max(bucket.hidden_s, 0.0)]
    words = iter(times_in_one_unit(*seconds))
    for bucket in buckets:
        exposed = next(words)
        hidden = next(words)
        size = bytes_words(bucket.num_bytes) if bucket.num_bytes >= 0 else ""  # -1 where the traces do not say
        last = ""
        if bucket.last_rank is not None and bucket.late_s > _LEAST_LATE * diagnosis.step_s:
            last = str(bucket.last_rank)
        table.add_row(printable(bucket.name), size, exposed, hidden, last)
    return table
