"""`rankscope diagnose`: which rank slows a job down and why, from its traces; or why it hangs, from its dumps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text
from typer import Option

from ..values.checks import count_of, printable

if TYPE_CHECKING:
    from ..diagnose.diagnosis import JobDiagnosis
    from ..diagnose.what_if import WhatIf

_SILENT_S = 2.0
_MOST_ROWS, _LEAST_SHARE = 16, 0.01  # of a table: rows, and of the own time a phase that has a column


def diagnose(
    folder: Annotated[Path, typer.Argument(help="A folder with a trace or a flight-recorder dump of each rank.")],
    as_json: Annotated[bool, Option("--json", help="Print JSON, in seconds and bytes.")] = False,
    output: Annotated[
        Path | None, Option("-o", "--output", help="Write a page, one HTML file, with all of it drawn.")
    ] = None,
    perfetto: Annotated[
        Path | None, Option(help="Write all ranks on one clock for Perfetto, late arrivals as arrows.")
    ] = None,
) -> None:
    """Name the rank that the others wait for, the phase it loses its time in, and what that costs.

    Record traces with torch.profiler, a file per rank. From flight-recorder dumps it names the rank that did not come
    to a collective, or came with another one. --json prints culprits, findings, ranks, steps, step_s, exposed_s,
    hidden_s, phases, buckets and what_if; of dumps culprits, findings, notes and ranks.
    """
    from ..diagnose.kineto import files_in
    from ..values.storage import check_file, write_atomically
    from .tables import show

    given, dumps_left_out = files_in(folder)
    for option, path, endings in (("--output", output, (".html",)), ("--perfetto", perfetto, (".json", ".json.gz"))):
        if path is not None:
            check_file(option, path)
            if not path.name.endswith(endings):
                raise ValueError(f"{option} must end in {' or '.join(endings)}, got {str(path)!r}")
            if path.exists() and any(path.samefile(one) for one in (*given, *dumps_left_out)):
                raise ValueError(f"{option} must be a new file, and {path} is one of those to read")
    if dumps_left_out and not given:
        if perfetto is not None:
            raise ValueError("--perfetto is for traces, and these are flight-recorder dumps")
        from ..diagnose import explain_hang, read_dumps

        dumps = read_dumps(folder)
        hang = explain_hang(dumps)
        if as_json:
            culprits = [one._asdict() for one in hang.culprits]
            findings, ranks = [one.words for one in hang.findings], [one.rank for one in dumps]
            print(json.dumps({"culprits": culprits, "findings": findings, "notes": hang.notes, "ranks": ranks}))
        else:
            show([Text(printable(line)) for line in str(hang).splitlines()])
        if output is not None:
            from ..figures.jobs import hang_page

            hung = hang_page(folder.resolve().name, hang).encode()
            write_atomically(output, lambda file: file.write(hung))
        return
    from .. import diagnose as room

    begin_s = time.monotonic()

    def report(line: str) -> None:
        if time.monotonic() - begin_s > _SILENT_S and sys.stderr.isatty():
            print(line, file=sys.stderr)

    if dumps_left_out:
        print(f"left out {count_of(len(dumps_left_out), 'flight-recorder dump')}: give dumps alone", file=sys.stderr)
    traces = room.read_traces(folder, report=report)
    found, answers, why_not = room.diagnose(traces), None, ""
    try:
        answers = room.what_if(traces, found)
    except ValueError as error:
        why_not = str(error)
    written = []
    if output is not None:
        from ..figures.jobs import job_page

        page = job_page(folder.resolve().name, traces, found.joined, found, answers).encode()
        written.append(write_atomically(output, lambda file: file.write(page)))
    if perfetto is not None:
        from ..diagnose.perfetto import to_perfetto

        written.append(to_perfetto(perfetto, traces, found.joined, found))
    if as_json:
        print(json.dumps(_fields(found, answers), allow_nan=False))
    else:
        show(_tables(found, answers, why_not))
        show(Text(f"wrote {printable(str(path))}") for path in written)


def _fields(found: JobDiagnosis, answers: WhatIf | None) -> dict[str, Any]:
    from ..diagnose.trace import PHASES

    mean_s = found.phase_s.mean(axis=0).tolist() if found.steps else [[0.0] * len(PHASES)] * len(found.ranks)
    phases = [
        {"rank": rank} | {f"{phase}_s": seconds for phase, seconds in zip(PHASES, row, strict=True)}
        for rank, row in zip(found.ranks, mean_s, strict=True)
    ]
    return {
        "culprits": [one._asdict() for one in found.culprits],
        "findings": str(found).splitlines(),
        "ranks": found.ranks,
        "steps": found.steps,
        "step_s": found.step_s,
        "exposed_s": found.exposed_s,
        "hidden_s": found.hidden_s,
        "phases": phases,
        "buckets": [one._asdict() for one in found.buckets],
        "what_if": [one._asdict() for one in answers.answers] if answers else [],
    }


def _tables(found: JobDiagnosis, answers: WhatIf | None, why_not: str) -> Iterator[RenderableType]:
    """The verdict in words, each rank's own time by phase, each bucket's communication, and what changes would give."""
    from ..diagnose.trace import PHASES
    from ..figures.jobs import EXPOSED, what_if_table
    from ..values.units import bytes_words, time_words
    from .tables import table_of

    for line in str(found).splitlines():
        yield Text(printable(line), "bold")
    if found.steps:
        mean_s, late_s = found.phase_s.mean(axis=0), found.late_s.mean(axis=0)
        waited_s = found.waiting_s.mean(axis=0)
        shown = [place for place in range(len(PHASES)) if mean_s[:, place].sum() > _LEAST_SHARE * mean_s.sum()]
        table = table_of("Time of each rank per step", "rank", *(PHASES[one] for one in shown), "exposed", "late")
        table.caption = f"exposed: {EXPOSED}; late: own time, without that, more than the median of the others"
        for place in sorted(sorted(range(len(found.ranks)), key=lambda place: -late_s[place])[:_MOST_ROWS]):
            times = [time_words(mean_s[place, one]) for one in shown]
            late = time_words(late_s[place]) if late_s[place] > 0 else ""
            table.add_row(str(found.ranks[place]), *times, time_words(waited_s[place]), late)
        yield table
    if found.buckets:
        table = table_of("Communication per step", "what", "size", "exposed", "hidden", "last")
        table.caption = "the mean over ranks; hidden: under work; last: the rank that most often came last"
        for one in sorted(found.buckets, key=lambda one: -one.exposed_s)[:_MOST_ROWS]:
            size = bytes_words(one.num_bytes) if one.num_bytes >= 0 else ""
            last = "" if one.last_rank is None else str(one.last_rank)
            times = [time_words(max(seconds, 0.0)) for seconds in (one.exposed_s, one.hidden_s)]
            table.add_row(printable(one.name), size, *times, last)
        yield table
    if answers is None:
        yield Text(f"\nNo what-if: {printable(why_not)}")
        return
    caption, rows = what_if_table(answers, found)
    table = table_of(caption, "what", "a step takes", "")
    for row in rows:
        table.add_row(*row)
    yield table
