"""`rankscope diagnose`: which rank slows a job down, from its traces; or why it hangs, from its dumps and logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer import Option

from ...common.words import count_of, printable

if TYPE_CHECKING:
    from ..inputs import TraceFiles


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER_OR_LOGS...",
            help="A folder with a trace, dump or log per rank; log files; or - for standard input.",
        ),
    ],
    as_json: Annotated[bool, Option("--json", help="Print JSON, in seconds and bytes.")] = False,
    perfetto: Annotated[Path | None, Option(help="Write a trace of all ranks on one clock for Perfetto.")] = None,
) -> None:
    """Name the rank that the others wait for, the phase in which it loses time, and the cost.

    Record traces with torch.profiler, one file per rank. If the job hangs, pass its flight-recorder dumps or its logs:
    the answer names the rank that did not reach a collective or called a different one, or states that the logs do not
    show it. Logs may be one per rank, or one log with the prefixes of torchrun or srun.

    For traces, --json prints culprits, findings, ranks, steps, step_s, exposed_s, hidden_s, phase_s and calls. For
    dumps and logs, --json prints culprits, findings, notes and ranks.
    """
    from ...common.files import check_output
    from ..inputs import TraceFiles, files_in

    is_stdin = paths == [Path("-")]
    files = TraceFiles(traces=[], dumps=[], logs=[])
    if not is_stdin:
        files = files_in(paths)
    if perfetto is not None:
        check_output("--perfetto", perfetto, [*files.traces, *files.dumps, *files.logs], (".json", ".json.gz"))
    if not files.traces and (files.dumps or files.logs or is_stdin):
        if perfetto is not None:
            raise ValueError("--perfetto is for traces, and these are dumps or logs")
        _explain_hang(files, is_stdin, as_json)
        return
    num_left_out = len(files.dumps) + len(files.logs)
    if num_left_out:
        print(f"left out {count_of(num_left_out, 'file')}: pass dumps and logs without traces", file=sys.stderr)
    from .traces import diagnose_traces

    # a folder without anything is passed on as well: the reader of traces says what it looked for
    diagnose_traces(files.traces or paths, as_json, perfetto)


def _explain_hang(files: TraceFiles, is_stdin: bool, as_json: bool) -> None:
    """Print why the job hangs, and which rank to look at."""
    from ...cli.output import print_parts
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
