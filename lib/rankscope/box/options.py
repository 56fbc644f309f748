"""Options that several commands have, and what they mean."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

ProfilePath = Annotated[
    Path,
    typer.Argument(help="A profile: a file that `rankscope profile` or `import` wrote, or bank:NAME.", metavar="PATH"),
]
Collective = Annotated[str, typer.Option(help="Collective to use.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output even if it is no profile.")]
Sizes = Annotated[list[str] | None, typer.Option(help="Size of the whole buffer, as in 64KiB. Repeat for more sizes.")]


def sizes_of(texts: Sequence[str] | None) -> list[int]:
    """Return bytes as whole numbers. Raises ValueError for anything else."""
    from ..common.units import parse_bytes

    return [parse_bytes("--num-bytes", text) for text in texts or ()]


def check_profile_output(path: Path, force: bool) -> None:
    """Raise ValueError if there is a file that is no profile of ours, unless it may be replaced by `force`."""
    from ..common.files import read_start
    from .profile import FORMAT

    if path.is_file() and not force and FORMAT.encode() not in read_start(path, 100):
        raise ValueError(f"{path} exists and is no profile; --force replaces it")


def show_command(path: Path) -> str:
    """Return the command that shows a profile, as in a sentence; it can be pasted."""
    from ..common.words import printable

    return f"`rankscope show {shlex.quote(printable(str(path)))}`"
