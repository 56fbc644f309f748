"""`bank`: published measurements of machines, shipped with the package; `Profile.load("bank:NAME")` loads one.

`python -m tests.tools.make_bank` builds them from the published logs.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ..common.checks import one_line

FOLDER = Path(__file__).parent / "published"
PREFIX = "bank:"
_NEAR = 0.7  # of difflib's similarity: names that a slip of the finger explains
_MOST_NEAR = 3  # names that an error suggests
_TELLING = 3  # letters of a name that are enough to suggest the names that contain them
SICK = "sick: "  # first word of the notes of a machine whose figures nobody should expect


class _Head(msgspec.Struct):
    provenance: dict[str, Any]


@cache
def provenances() -> Mapping[str, Mapping[str, Any]]:
    """Return the provenance of each profile of the bank, by name, without loading its points."""
    decode = msgspec.json.Decoder(_Head).decode
    return {path.stem: decode(path.read_bytes()).provenance for path in sorted(FOLDER.glob("*.json"))}


def bank() -> dict[str, str]:
    """Return the machines of the bank: their names, with a description of the hardware.

    >>> bank()["dgx_h100_8"]
    'DGX H100: 8 × H100 80GB HBM3, NVLink 4 and NVSwitch'
    """
    return {name: str(about["name"]) for name, about in provenances().items()}


def is_sick(about: Mapping[str, Any]) -> bool:
    """Return whether a bank machine is known to be faulty, according to its provenance."""
    return str(about.get("source", {}).get("notes", "")).startswith(SICK)


def found(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the file of a name such as ``bank:dgx_h100_8``; any other path is returned unchanged.

    Raises ValueError for a name that the bank does not have.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text.startswith(PREFIX):
        return path
    name = text.removeprefix(PREFIX)
    if name not in bank():
        containing = [known for known in bank() if name in known] if len(name) >= _TELLING else []
        near = containing[:_MOST_NEAR] or difflib.get_close_matches(name, bank(), _MOST_NEAR, _NEAR)
        either = " or ".join(filter(None, [", ".join(near[:-1]), *near[-1:]]))
        meant = f"Did you mean {either}? " if near else ""
        lists = "`rankscope bank`, or box.bank() in Python, lists all machines"
        raise ValueError(one_line(f"the bank has no {name!r}. {meant}{lists}"))
    return FOLDER / f"{name}.json"
