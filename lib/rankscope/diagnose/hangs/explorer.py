"""The explorer of what people paste: it says what a text is, and what `show`, `nccl` or `diagnose` say of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ...box.judging.explorer import box, collectives_of
from ...box.judging.verdict import verdict
from ...box.logs import read_log_text
from ...box.nccl.topology import Topology, explained, kind_of, parsed
from ...common.files import FileError
from ...common.words import listed
from ...drawing.drawing import Drawing
from ...drawing.grid import draw_grid
from ...drawing.marks import Text
from ...drawing.palette import OTHER, RANKS
from ...panel.explorer import Explorer, Setting, Typed
from .hangs import explain_hang
from .logs import read_hang_text
from .pasted_examples import EXAMPLES

_MOST_LETTERS = 200_000
_MOST_DRAWN = 24  # lines
_LETTERS = 74  # of a line: as many as fit on a phone
_ROW = re.compile(r"^ *\d+ .*\d\.\d.*$", re.MULTILINE)
_KINDS = (
    "a table of nccl-tests or rccl-tests",
    "the output of nvbandwidth or p2pBandwidthLatencyTest",
    "the table of nvidia-smi topo -m",
    "the log of a job that hangs or has ended",
)


class Recognised(NamedTuple):
    """What a text shows."""

    drawings: list[Drawing]
    lines: list[str]


@lru_cache(maxsize=8)  # draw and report ask for the same
def recognised(text: str) -> Recognised:
    """Return what a pasted text is, and what it shows. Raises ValueError if it is none of the kinds, or too long."""
    if not text.strip():
        return Recognised([_excerpt("Paste a text into the field", _KINDS)], ["Or choose an example."])
    if len(text) > _MOST_LETTERS:
        raise ValueError(f"a text has at most {_MOST_LETTERS:,} letters here; `rankscope diagnose` reads longer logs")
    with suppress(ValueError, LookupError):
        return _of_topology(parsed(text))
    try:
        profiles = read_log_text(text, path="the text")
    except FileError as error:
        return _of_hang(text, error)
    drawings: list[Drawing] = []
    lines = []
    for profile in profiles:
        program = profile.provenance["source"]["program"]
        lines += [*verdict(profile), f"Measured by {program}."]
        if collectives_of(profile):
            explorer = box(profile)
            drawings += explorer.draw(explorer.at())
        else:
            drawings.append(_excerpt(f"Measured by {program}", _ROW.findall(text)))
    return Recognised(drawings, lines)


def _of_topology(box: Topology) -> Recognised:
    gpus = [f"GPU{gpu}" for gpu in range(len(box.ways))]
    rows = {}
    for gpu, ways in zip(gpus, box.ways, strict=True):
        rows[gpu] = [(RANKS[2] if kind_of(way) == "NV" else OTHER, way) for way in ways]
    title, *lines = explained(box)
    return Recognised([draw_grid(rows, [*gpus, *box.nics], "", {}, title, "nvidia-smi topo -m")], lines)


def _of_hang(text: str, error: FileError) -> Recognised:
    found = explain_hang(logs=read_hang_text(text))
    quoted = [line for finding in found.findings for line in finding.lines]
    if not quoted:
        raise ValueError(f"No line of this text is known. It should be {', '.join(_KINDS)} ({error}).")
    title = "The text does not show which rank to look at"
    if found.culprits:
        perhaps = "" if all(culprit.is_certain for culprit in found.culprits) else ", perhaps"
        title = f"Look at {listed('rank', [culprit.rank for culprit in found.culprits])}{perhaps}"
    return Recognised([_excerpt(title, quoted)], str(found).splitlines())


def _excerpt(title: str, lines: Sequence[str]) -> Drawing:
    marks = [Text(8, 16.0 * row + 14, line[:_LETTERS]) for row, line in enumerate(lines[:_MOST_DRAWN])]
    return Drawing(title, marks, 16.0 * len(marks) + 8)


def paste(own: str = "") -> Explorer:
    """Return a field for what you paste, the text `own` at first, and what rankscope says of it.

    The text is a table of nccl-tests, nvbandwidth or p2pBandwidthLatencyTest, of ``nvidia-smi topo -m``, or the log of
    a job that hangs. It is not stored with the notebook.
    """
    settings = (Setting("text", own, Typed([("nothing", ""), *EXAMPLES.items()]), "paste here"),)
    return Explorer(
        settings,
        lambda now: recognised(now.text).drawings,
        lambda now: recognised(now.text).lines,
        {name: {"text": text} for name, text in EXAMPLES.items()},
    )
