"""`rankscope import`: read logs of other programs, and store what they measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from .output import print_parts


def import_(
    files: Annotated[
        list[Path],
        Argument(
            help="Logs of nccl-tests, rccl-tests or nvbandwidth, or - for standard input.",
            metavar="FILE",
        ),
    ],
    output: Annotated[
        Path | None,
        Option("-o", "--output", help="Write everything that was read to this file, as one machine's profile."),
    ] = None,
    num_ranks: Annotated[
        int | None,
        Option(
            help="Read only tables of this many ranks; a table that does not state its rank count is assumed to match."
        ),
    ] = None,
    collective: Annotated[
        str | None, Option(help="What a table is of that does not state it, as in all_gather or alltoall.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the output if it exists.")] = False,
) -> None:
    """Read logs of other programs. Print what each table has, and what similar machines reach. -o stores all tables."""
    from ..box import read_log
    from ..box.logs import merged, read_log_text
    from ..common.files import check_output
    from . import tables

    if output is not None:
        check_output("--output", output, files)
        if output.exists() and not force:
            raise ValueError(f"{output} exists: name another file, or replace it by --force")
    profiles = []
    for path in files:  # a profile per table
        if path == Path("-"):
            profiles += read_log_text(sys.stdin.buffer.read().decode("utf-8", "replace"), num_ranks, collective)
        else:
            profiles += read_log(path, num_ranks, collective)
    print_parts(tables.imported(profiles))
    if output is not None:
        merged(profiles, name=output.stem).save(output)
        print_parts([f"{output} contains all measurements; `rankscope show` shows them"])
