"""`rankscope diagnose`: which rank slows a job down, from its traces; or why it hangs, from its dumps and logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer import Option

from ..common.words import count_of, printable

if TYPE_CHECKING:
    from ..diagnose.hangs.hangs import Hang


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER_OR_LOGS...",
            help="A folder with a trace, dump or log per rank; log files; or - for standard input.",
        ),
    ],
    as_json: Annotated[bool, Option("--json", help="Print JSON, in seconds and bytes.")] = False,
) -> None:
    """Name the rank that the others wait for, the phase in which it loses time, and the cost.

    Record traces with torch.profiler, one file per rank. If the job hangs, pass its flight-recorder dumps or its logs:
    the answer names the rank that did not reach a collective or called a different one, or states that the logs do not
    show it. Logs may be one per rank, or one log with the prefixes of torchrun or srun.

    For traces, --json prints culprits, findings, ranks, steps, step_s, exposed_s, hidden_s, phase_s and calls. For
    dumps and logs, --json prints culprits, findings and notes.
    """
    from ..diagnose import explain_hang, read_dumps, read_hang_text, read_logs
    from ..diagnose.files import files_in
    from .traces import diagnose_traces

    if paths == [Path("-")]:
        _print_hang(explain_hang(logs=read_hang_text(sys.stdin.buffer.read().decode("utf-8-sig", "replace"))), as_json)
        return
    traces, dumps, logs = files_in(paths)
    if not traces and (dumps or logs):
        hang = explain_hang(read_dumps(dumps) if dumps else (), read_logs(logs) if logs else None)
        _print_hang(hang, as_json)
        return
    if dumps or logs:
        print(f"left out {count_of(len(dumps + logs), 'file')}: pass dumps and logs without traces", file=sys.stderr)
    # a folder without anything is passed on as well: the reader of traces says what it looked for
    diagnose_traces(traces or paths, as_json)


def _print_hang(hang: Hang, as_json: bool) -> None:
    """Print why the job hangs, and which rank to look at."""
    from .output import print_parts

    if as_json:
        fields = {
            "culprits": [culprit._asdict() for culprit in hang.culprits],
            "findings": [finding.words for finding in hang.findings],
            "notes": hang.notes,
        }
        print(json.dumps(fields))
    else:
        print_parts([Text(printable(line)) for line in str(hang).splitlines()])
