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
from .traces import diagnose_traces

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
    output: Annotated[
        Path | None, Option("-o", "--output", help="Write the diagnosis of traces with figures as one HTML file.")
    ] = None,
    perfetto: Annotated[Path | None, Option(help="Write a trace of all ranks on one clock for Perfetto.")] = None,
) -> None:
    """Name the rank that the others wait for, the phase in which it loses time, and the cost.

    Record traces with torch.profiler, one file per rank. If the job hangs, pass its flight-recorder dumps or its logs:
    the answer names the rank that did not reach a collective or called a different one, or states that the logs do not
    show it. Logs may be one per rank, or one log with the prefixes of torchrun or srun.

    For traces, --json prints culprits, findings, ranks, steps, step_s, exposed_s, hidden_s, phases and buckets. For
    dumps and logs, --json prints culprits, findings, notes and ranks.
    """
    from ...common.files import check_output
    from ..inputs import TraceFiles, files_in

    is_stdin = paths == [Path("-")]
    files = TraceFiles(traces=[], dumps=[], logs=[])
    if not is_stdin:
        files = files_in(paths)
    inputs = [*files.traces, *files.dumps, *files.logs]
    if output is not None:
        check_output("--output", output, inputs, (".html",))
    if perfetto is not None:
        check_output("--perfetto", perfetto, inputs, (".json", ".json.gz"))
    has_dumps_or_logs = bool(files.dumps or files.logs or is_stdin)
    if not files.traces and has_dumps_or_logs:
        if output is not None or perfetto is not None:
            kind = "flight-recorder dumps" if files.dumps else "logs"
            raise ValueError(f"--output and --perfetto are for traces, and these are {kind}")
        _explain_hang(files, is_stdin, as_json)
        return
    if files.dumps:
        left_out = count_of(len(files.dumps), "flight-recorder dump")
        print(f"left out {left_out}: pass dumps alone", file=sys.stderr)
    if len(paths) > 1 and files.logs:  # which the user named, unlike logs that lie in a folder of traces
        print(f"left out {count_of(len(files.logs), 'log')}: pass logs alone, or with dumps", file=sys.stderr)
    # a folder without anything is passed on as well: the reader of traces says what it looked for
    diagnose_traces(files.traces or paths, as_json, output, perfetto)


# ---- dumps and logs


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
