"""Commands on profiles: show and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...cli.output import print_parts
from ...common.words import printable
from ..options import ProfilePath, Sizes, sizes_of


def show(
    path: ProfilePath,
    num_bytes: Sizes = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write an SVG: this box next to similar machines of the bank.")
    ] = None,
) -> None:
    """Show what a profile contains: its links, the fastest algorithm at each size, and a verdict.

    With --num-bytes, show every algorithm at that size, measured and predicted.
    """
    from ...common.files import check_output
    from .. import Profile, tables

    if picture is not None:
        check_output("--picture", picture, [path], (".svg",))
    profile = Profile.load(path)
    sizes = sizes_of(num_bytes)
    parts = tables.at_sizes(profile, sizes) if sizes else tables.overview(profile)
    print_parts(parts)
    if picture is not None:
        from ...figures.svg import save_svg
        from ..figures.boxes import draw_with_peers

        save_svg(draw_with_peers(profile), picture)
        print_parts([f"{printable(str(picture))} shows {profile.provenance['name']} next to similar machines"])


def compare(
    before: Annotated[Path, typer.Argument(help="A profile.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="The profile to compare it with.", metavar="B")],
    everything: Annotated[bool, typer.Option("--all", help="Also show differences within the noise.")] = False,
) -> None:
    """Show a verdict, and list the points at which profile B is slower or faster than A by more than the noise."""
    from .. import Profile, tables

    print_parts(tables.comparison(Profile.load(before), Profile.load(after), everything))
