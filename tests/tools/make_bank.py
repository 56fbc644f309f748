"""Add a machine to the bank, as `rankscope profile` or `rankscope import` wrote it:

    python -m tests.tools.make_bank box.json NAME "8 × H100 SXM, 4 × 400 Gb/s InfiniBand" CC0-1.0

If the machine had a fault, add one more string that names it: it is then shown, but not compared with others. The
machines that are there came from published logs; each names its repository, path, commit and licence.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rankscope.box import Profile, bank
from rankscope.box.machines import FILE, SICK

LICENCES = ("Apache-2.0", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0", "MIT", "MIT-0")  # that let us store figures
OURS = "rankscope"  # the repository of a machine whose owner added it himself


def permissive(text: str) -> str:
    """Return the licence that a text begins with, if it is one of LICENCES."""
    licence = text.split()[0].rstrip(";,")
    if licence not in LICENCES:
        raise ValueError(f"the licence must be one of {', '.join(LICENCES)}, got {text!r}")
    return licence


def add(path: str, name: str, hardware: str, licence: str, sick: str = "", file: Path = FILE) -> None:
    """Put a profile that its owner measured into the bank, and if something was wrong, what."""
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ValueError(f"the name must have small letters, digits and underscores, got {name!r}")
    profile = Profile.load(path)
    source = {
        **profile.provenance.get("source", {"program": profile.provenance.get("command", "rankscope profile")}),
        "repository": OURS,
        "path": "lib/rankscope/box/published.json.gz",
        "commit": "the one that added this machine",
        "licence": permissive(licence),
    }
    if sick:
        source["notes"] = "; ".join(filter(None, [f"{SICK}{sick}", source.get("notes")]))
    provenance = {**profile.provenance, "name": hardware, "source": source}
    machines = {known: Profile.load(f"bank:{known}") for known in bank()}
    write({**machines, name: Profile(provenance, profile.protocol, profile.points)}, file)


def write(machines: Mapping[str, Profile], file: Path = FILE) -> None:
    """Write the bank, in the order of the names."""
    rows = [msgspec.json.encode(name) + b":" + msgspec.json.encode(machines[name]) for name in sorted(machines)]
    file.write_bytes(gzip.compress(b"{" + b",\n".join(rows) + b"}\n", mtime=0))


if __name__ == "__main__":
    match sys.argv[1:]:
        case [path, name, hardware, licence, *sick] if len(sick) < 2:
            add(path, name, hardware, licence, *sick)
        case _:
            sys.exit(__doc__)
