"""`rankscope diagnose`: which rank slows a job down, from its traces; or why it hangs, from its dumps and logs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer import Option

from ..common.words import count_of

if TYPE_CHECKING:
    from ..diagnose.hangs.hangs import Hang

_QUICK_S = 2.0  # a log that is read faster needs no bar
_LINES_A_LOOK = 1000  # at the clock


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
        text = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
        _print_hang(explain_hang(logs=read_hang_text(text, _with_bar)), as_json)
        return
    traces, dumps, logs = files_in(paths)
    if not traces and (dumps or logs):
        hang = explain_hang(read_dumps(dumps) if dumps else (), read_logs(logs, _with_bar) if logs else None)
        _print_hang(hang, as_json)
        return
    if not traces:
        raise ValueError(
            f"{paths[0]} has no trace (a file that ends in .json or .json.gz), no flight-recorder dump (in the number "
            "of a rank, .json or .pkl) and no log (.log, .out, .err or .txt), also below it"
        )
    if dumps or logs:
        print(f"left out {count_of(len(dumps + logs), 'file')}: pass dumps and logs without traces", file=sys.stderr)
    diagnose_traces(traces, as_json)


def _with_bar(lines: Sequence[str]) -> Iterator[str]:
    """Pass the lines of a log on, and show in a terminal how far they are, if that takes more than two seconds."""
    shown_at_s = time.monotonic() + _QUICK_S
    for number, line in enumerate(lines):
        if number % _LINES_A_LOOK == 0 and time.monotonic() > shown_at_s and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import track

            yield from track(lines[number:], "reading", console=Console(stderr=True), transient=True)
            return
        yield line


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
        print_parts([Text(str(hang))])
