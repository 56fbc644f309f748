"""Commands on profiles: show and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import ProfilePath, TopologyPath
from .output import marked, print_parts


def show(
    path: ProfilePath,
    everything: Annotated[bool, typer.Option("--all", help="Show all sizes and the links.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Write a picture: this box next to similar machines of the bank.")
    ] = None,
    topo: TopologyPath = None,
) -> None:
    """Show the verdict on a profile, what it was measured on, and its times and rates.

    time: the median of the iterations, or the mean that a log states; busbw: bus bandwidth, as nccl-tests define it;
    spread: of the middle half of the iterations, as a share of the median.
    """
    from ..box import Profile
    from ..box.nccl.topology import explained, read_topology
    from ..common.files import check_output, write_whole
    from . import tables

    if picture is not None:
        check_output("--picture", picture, [path], (".svg",))
    profile = Profile.load(path)
    topology = None if topo is None else read_topology(topo)
    print_parts(tables.overview(profile, everything, topology))
    if topology is not None:
        print_parts(explained(topology))
    if picture is not None:
        from ..box.judging.picture import draw_with_peers
        from ..drawing.drawing import to_svg

        write_whole(picture, to_svg(draw_with_peers(profile)).encode())


def _percent(text: str) -> float:
    return float(text.rstrip(" %"))


def compare(
    before: Annotated[Path, typer.Argument(help="A profile, or bank:NAME.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="The profile to compare it with, or bank:NAME.", metavar="B")],
    fail_above: Annotated[
        float | None,
        typer.Option(
            help="End with exit code 1 if an operation takes so much longer in B, as in 10%.",
            metavar="PERCENT",
            parser=_percent,
        ),
    ] = None,
) -> None:
    """Show what changed from profile A to profile B, operation by operation."""
    from ..box import Profile
    from ..box.judging.compare import changes, comparison

    profiles = Profile.load(before), Profile.load(after)
    found = changes(*profiles)
    print_parts(comparison(*profiles, found))
    if fail_above is not None and not found:
        raise ValueError(f"--fail-above: {before} and {after} have no operation at the same size in common")
    if fail_above is not None and any(change.ratio > 1 + fail_above / 100 for change in found.values()):
        raise typer.Exit(1)


def bank() -> None:
    """List the public measurements that come with rankscope. `show` and `compare` take each as bank:NAME."""
    from ..box.machines import PREFIX
    from ..box.machines import bank as machines

    print_parts([marked((f"{PREFIX}{name}", description) for name, description in machines().items())])
