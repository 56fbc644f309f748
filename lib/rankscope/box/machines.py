"""`bank`: published measurements of machines, shipped with the package; `Profile.load("bank:NAME")` loads one.

All of them are in one file, whose JSON has the profile of each machine by its name. `tests/tools/make_bank.py` adds
one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ..common.files import read_json
from ..common.words import one_line

FILE = Path(__file__).parent / "published.json.gz"
PREFIX = "bank:"
SICK = "sick: "  # first word of the notes of a machine whose figures nobody should expect


class _Head(msgspec.Struct):
    provenance: dict[str, Any]


@cache
def _profiles() -> Mapping[str, msgspec.Raw]:
    return read_json(FILE, dict[str, msgspec.Raw])


@cache
def provenances() -> Mapping[str, Mapping[str, Any]]:
    """Return the provenance of each profile of the bank, by name, without loading its points."""
    decode = msgspec.json.Decoder(_Head).decode  # skips all fields but that of `_Head`
    return {name: decode(profile).provenance for name, profile in _profiles().items()}


def bank() -> dict[str, str]:
    """Return the machines of the bank, as a mapping from name to description of the hardware.

    >>> bank()["dgx_h100_8"]
    'DGX H100: 8 × H100 80GB HBM3, NVLink 4 and NVSwitch'
    """
    return {name: str(about["name"]) for name, about in provenances().items()}


def published(path: str | os.PathLike[str]) -> msgspec.Raw | None:
    """Return the JSON of the profile that a name such as ``bank:dgx_h100_8`` stands for; None for any other path.

    Raises ValueError if the bank has no such name.
    """
    text = os.fspath(path)
    if not text.startswith(PREFIX):
        return None
    name = text.removeprefix(PREFIX)
    if name not in bank():
        near = " or ".join(get_close_matches(name, bank())) or "one that `rankscope bank` lists"
        raise ValueError(one_line(f"the bank has no {name!r}. Take {near}"))
    return _profiles()[name]


def is_sick(about: Mapping[str, Any]) -> bool:
    """Return whether a bank machine is known to be faulty, according to its provenance."""
    return str(about.get("source", {}).get("notes", "")).startswith(SICK)


def origin_of(source: Mapping[str, Any]) -> list[str]:
    """Return a profile's source as it is shown: repository, licence and notes, as far as they are stated."""
    stated = [str(source[key]) for key in ("repository", "licence", "notes") if key in source]
    return [words.replace(SICK, "known or suspected fault: ", 1) for words in stated]
