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
