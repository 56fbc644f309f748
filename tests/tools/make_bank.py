"""Add a machine to the bank, as `rankscope profile` or `rankscope import` wrote it:

    python -m tests.tools.make_bank --add box.json NAME "8 × H100 SXM, 4 × 400 Gb/s InfiniBand" CC0-1.0

If the machine had a fault, add one more string that names it: it is then shown, but not compared with others. The
machines that are there came from published logs; each names its repository, path, commit and licence.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rankscope.box import Profile
from rankscope.box.machines import FOLDER, SICK

LICENCES = ("Apache-2.0", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0", "MIT", "MIT-0")  # that let us store figures
OURS = "rankscope"  # the repository of a machine whose owner added it himself


def permissive(text: str) -> str:
    """Return the licence that a text begins with, if it is one of LICENCES."""
    licence = text.split()[0].rstrip(";,")
    if licence not in LICENCES:
        raise ValueError(f"the licence must be one of {', '.join(LICENCES)}, got {text!r}")
    return licence


def add(path: str, name: str, hardware: str, licence: str, sick: str = "") -> Path:
    """Put a profile that its owner measured into the bank, and if something was wrong, what."""
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ValueError(f"the name must have small letters, digits and underscores, got {name!r}")
    profile = Profile.load(path)
    target = FOLDER / f"{name}.json"
    source = {
        **profile.provenance.get("source", {"program": profile.provenance.get("command", "rankscope profile")}),
        "repository": OURS,
        "path": f"lib/rankscope/box/published/{target.name}",
        "commit": "the one that added this file",
        "licence": permissive(licence),
    }
    if sick:
        source["notes"] = "; ".join(filter(None, [f"{SICK}{sick}", source.get("notes")]))
    return Profile({**profile.provenance, "name": hardware, "source": source}, profile.protocol, profile.points).save(
        target
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--add", path, name, hardware, licence, *sick] if len(sick) < 2:
            print(add(path, name, hardware, licence, *sick))
        case _:
            sys.exit(__doc__)
