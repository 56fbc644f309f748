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
from rich.table import Table
from rich.text import Text
from typer import Option

from ...cli.registry import command
from ...common.checks import count_of, printable

if TYPE_CHECKING:
    from ..diagnosis import JobDiagnosis
    from ..savings import SavingsForecast

_SILENT_S = 2.0
_MOST_ROWS = 16  # of a table
_LEAST_SHARE = 0.01  # of the own time: a phase with less has no column
_LEAST_LATE = 0.005  # of a step: a rank that is late by less is not shown as late


@command("diagnose")
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
    hidden_s, phases, buckets, what_if, the steps that it skipped, and why there is none if there is none; of dumps
    culprits, findings, notes and ranks.
    """
    from ...cli.output import print_parts
    from ...common.storage import check_file, write_atomically
    from ..kineto import files_in

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
        from .. import explain_hang, read_dumps

        dumps = read_dumps(folder)
        hang = explain_hang(dumps)
        if as_json:
            culprits = [one._asdict() for one in hang.culprits]
            findings, ranks = [one.words for one in hang.findings], [one.rank for one in dumps]
            print(json.dumps({"culprits": culprits, "findings": findings, "notes": hang.notes, "ranks": ranks}))
        else:
            print_parts([Text(printable(line)) for line in str(hang).splitlines()])
        if output is not None:
            from ..figures.jobs import hang_page

            hung = hang_page(folder.resolve().name, hang).encode()
            write_atomically(output, lambda file: file.write(hung))
        return

    from .. import diagnose as diagnose_traces
    from .. import read_traces, what_if

    begin_s = time.monotonic()

    def report(line: str) -> None:
        if time.monotonic() - begin_s > _SILENT_S and sys.stderr.isatty():
            print(line, file=sys.stderr)

    if dumps_left_out:
        print(f"left out {count_of(len(dumps_left_out), 'flight-recorder dump')}: give dumps alone", file=sys.stderr)
    traces = read_traces(folder, report=report)
    found, answers, why_not = diagnose_traces(traces), None, ""
    try:
        answers = what_if(traces, found)
    except ValueError as error:
        why_not = str(error)
    written = []
    if output is not None:
        from ..figures.jobs import job_page

        page = job_page(folder.resolve().name, traces, found.joined, found, answers).encode()
        written.append(write_atomically(output, lambda file: file.write(page)))
    if perfetto is not None:
        from ..perfetto import to_perfetto

        written.append(to_perfetto(perfetto, traces, found.joined, found))
    if as_json:
        print(json.dumps(_fields(found, answers, why_not), allow_nan=False))
    else:
        print_parts(_tables(found, answers, why_not))
        print_parts(Text(f"wrote {printable(str(path))}") for path in written)


def _fields(found: JobDiagnosis, answers: SavingsForecast | None, why_not: str) -> dict[str, Any]:
    from ..trace import PHASES

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
        "what_if_skipped_steps": answers.skipped_steps if answers else [],
        "no_what_if": why_not or None,
    }


def _tables(found: JobDiagnosis, answers: SavingsForecast | None, why_not: str) -> Iterator[RenderableType]:
    """The verdict in words, each rank's own time by phase, each bucket's communication, and what changes would give."""
    from ...cli.output import table_of
    from ..figures.jobs import what_if_table

    for line in str(found).splitlines():
        yield Text(printable(line), "bold")
    if found.steps:
        yield _ranks_table(found)
    if found.buckets:
        yield _buckets_table(found)
    if answers is None:
        yield Text(f"\nNo what-if: {printable(why_not)}")
        return
    caption, rows = what_if_table(answers, found)
    table = table_of(caption, "what", "a step takes", "")
    for row in rows:
        table.add_row(*row)
    yield table
    for note in answers.notes:
        yield Text(note)


def _ranks_table(found: JobDiagnosis) -> Table:
    """A row per rank, of many ranks for the latest; all times in one unit."""
    from ...cli.output import table_of
    from ...common.units import times_in_one_unit
    from ..figures.jobs import EXPOSED
    from ..trace import PHASES

    mean_s = found.phase_s.mean(axis=0)
    late_s = found.late_s.mean(axis=0)
    waited_s = found.waiting_s.mean(axis=0)
    shown = [place for place in range(len(PHASES)) if mean_s[:, place].sum() > _LEAST_SHARE * mean_s.sum()]
    latest_first = sorted(range(len(found.ranks)), key=lambda place: -late_s[place])
    ranks = sorted(latest_first[:_MOST_ROWS])
    is_late = late_s > _LEAST_LATE * found.step_s
    columns = [*(mean_s[:, place] for place in shown), waited_s, late_s * is_late]
    words = iter(times_in_one_unit(*(float(column[rank]) for rank in ranks for column in columns)))
    table = table_of("Time of each rank per step", "rank", *(PHASES[place] for place in shown), "exposed", "late")
    table.caption = f"exposed: {EXPOSED}; late: own time, without that, above the median of the others"
    for rank in ranks:
        *times, late = [next(words) for _ in columns]
        table.add_row(str(found.ranks[rank]), *times, late if is_late[rank] else "")
    return table


def _buckets_table(found: JobDiagnosis) -> Table:
    """A row per collective, of many for those that are waited for longest; all times in one unit."""
    from ...cli.output import table_of
    from ...common.units import bytes_words, times_in_one_unit

    table = table_of("Communication per step", "what", "size", "exposed", "hidden", "last")
    table.caption = "means over ranks; hidden: while the rank works; last: the rank that most often arrives last"
    buckets = sorted(found.buckets, key=lambda one: -one.exposed_s)[:_MOST_ROWS]
    words = iter(times_in_one_unit(*(max(s, 0.0) for one in buckets for s in (one.exposed_s, one.hidden_s))))
    for one in buckets:
        size = bytes_words(one.num_bytes) if one.num_bytes >= 0 else ""
        last = "" if one.last_rank is None or one.late_s <= _LEAST_LATE * found.step_s else str(one.last_rank)
        table.add_row(printable(one.name), size, next(words), next(words), last)
    return table
