"""Commands on profiles: show, import and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...cli.output import print_parts
from ...common.words import printable
from ..options import ProfilePath, show_command


def show(
    path: ProfilePath,
    everything: Annotated[bool, typer.Option("--all", help="Show all sizes, links and copies.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Write a picture: this box next to similar machines of the bank.")
    ] = None,
) -> None:
    """Show the verdict on a profile, what it was measured on, and its times and rates.

    time: the median of the iterations, or the mean that a log states; busbw: bus bandwidth, as nccl-tests define it;
    spread: of the middle half of the iterations, as a share of the median; clean: how many iterations ran undisturbed;
    expected: the native bus bandwidth of the slowest similar machine of the bank; share: that of this box as a share.
    """
    from ...common.files import check_output
    from .. import Profile, tables

    if picture is not None:
        check_output("--picture", picture, [path], (".svg", ".png", ".pdf"))
    profile = Profile.load(path)
    print_parts(tables.overview(profile, everything))
    if picture is not None:
        import matplotlib.pyplot as plt

        from ..figures.boxes import draw_with_peers

        draw_with_peers(profile)
        plt.savefig(picture)
        print(f"{printable(str(picture))} shows {profile.provenance['name']} next to similar machines")


def import_(
    files: Annotated[
        list[Path], typer.Argument(help="Logs of nccl-tests, rccl-tests or nvbandwidth, or traces of torch.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write everything that was read to this file, as one machine's profile."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="The program that wrote the logs. Default: recognised from the text.")
    ] = None,
    num_ranks: Annotated[
        int | None,
        typer.Option(
            help="Read only tables of this many ranks; a table that does not state its rank count is assumed to match."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output even if it is no profile.")] = False,
) -> None:
    """Read logs of other programs, and print the verdict on each table. -o stores all tables as a profile."""
    from ...common.files import check_output
    from .. import Profile, read_log, tables
    from ..logs import merged

    if output is not None:
        check_output("--output", output, files)
        if output.exists() and not force:
            Profile.load(output)  # raises an error for a file that is none of ours
    profiles = []
    for path in files:
        profiles += read_log(path, kind, num_ranks)  # a profile per table
    print_parts(tables.imported(profiles))
    if output is not None:
        merged(profiles, name=printable(output.stem)).save(output)
        print(f"{printable(str(output))} contains all measurements; {show_command(output)} shows it")


def compare(
    before: Annotated[Path, typer.Argument(help="A profile.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="The profile to compare it with.", metavar="B")],
    everything: Annotated[bool, typer.Option("--all", help="Also show the times of each size.")] = False,
) -> None:
    """Show what changed from profile A to profile B, operation by operation, and what explains A's rates."""
    from .. import Profile
    from ..compare import comparison

    print_parts(comparison(Profile.load(before), Profile.load(after), everything))
