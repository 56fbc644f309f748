"""Options that several commands have, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ProfilePath = Annotated[
    Path,
    typer.Argument(help="A profile: a file that `rankscope profile` or `import` wrote, or bank:NAME.", metavar="PATH"),
]
TopologyPath = Annotated[
    Path | None, typer.Option("--topo", help="The output of nvidia-smi topo -m on one node.", metavar="FILE")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output even if it is no profile.")]


def check_profile_output(path: Path, force: bool) -> None:
    """Raise ValueError for a file that is no profile of ours, unless `force` allows it."""
    from ..box.profile import FORMAT
    from ..common.files import read_start

    if path.is_file() and not force and FORMAT.encode() not in read_start(path, 100):
        raise ValueError(f"{path} exists and is no profile; --force replaces it")
