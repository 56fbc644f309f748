"""The explorer of what people paste: what a text is, and what `show`, `nccl` and `diagnose` say of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from textwrap import wrap
from typing import NamedTuple

from ..box.judging.picture import draw_with_peers
from ..box.judging.verdict import verdict
from ..box.logs import read_log_text
from ..box.nccl.topology import MEANINGS, explained, kind_of, parsed
from ..box.profile import Profile
from ..common.files import FileError
from ..common.units import rate_range_words
from ..common.words import listed
from ..drawing.bars import draw_bars
from ..drawing.drawing import Drawing
from ..drawing.marks import Text
from ..panel.explorer import Explorer, Setting, Typed
from .hangs.hangs import explain_hang
from .hangs.logs import read_hang_text
from .pasted_examples import EXAMPLES

_MOST_LETTERS = 200_000
_LINE_LETTERS = 68  # as many as fit on a phone
_MOST_LINES = 24
_KINDS = (
    "a table of nccl-tests or rccl-tests",
    "matrices of nvbandwidth or p2pBandwidthLatencyTest",
    "the table of nvidia-smi topo -m",
    "lines of a job that hangs or has ended",
)


class Recognised(NamedTuple):
    """What a text shows."""

    drawings: list[Drawing]
    lines: list[str]


@lru_cache(maxsize=8)  # draw and report ask for the same
def recognised(text: str) -> Recognised:
    """Return what a text shows, which may hold tables of several kinds. Raises ValueError if it is of none, or long."""
    if not text.strip():
        picture = _excerpt("Paste one of these into the field", "It is not stored with the notebook", _KINDS)
        return Recognised([picture], ["Or choose an example."])
    if len(text) > _MOST_LETTERS:
        raise ValueError(f"a text has at most {_MOST_LETTERS:,} letters here; `rankscope diagnose` reads longer logs")
    try:
        topology = parsed(text)
    except (ValueError, LookupError):
        topology = None
    try:
        profiles = read_log_text(text, path="the text")
    except FileError as error:
        profiles = []
        problem = str(error)
    drawings = []
    lines = []
    for profile in profiles:
        drawings.append(draw_with_peers(profile) if profile.native else _of_copies(profile))
        lines += [*verdict(profile, topology), f"Measured by {profile.provenance['source']['program']}."]
    if topology is not None:
        title, *sentences = explained(topology)
        kinds = {kind_of(way) for row in topology.ways for way in row}
        meanings = [f"{kind}: {meaning}" for kind, meaning in MEANINGS.items() if kind in kinds]
        drawings.append(_excerpt(title, "From nvidia-smi topo -m", [*sentences, ", ".join(meanings)]))
        lines.append(title)
    hang = explain_hang(logs=read_hang_text(text))
    quoted = [line for finding in hang.findings for line in finding.lines]
    if hang.culprits or (quoted and not drawings):
        title = "The text does not show which rank to look at"
        if hang.culprits:
            perhaps = "" if all(culprit.is_certain for culprit in hang.culprits) else ", perhaps"
            title = f"Look at {listed('rank', [culprit.rank for culprit in hang.culprits])}{perhaps}"
        said = str(hang).splitlines()
        drawings.append(_excerpt(title, said[0], quoted))
        lines += said
    if not drawings:
        raise ValueError(f"{problem}; nor has it a table of nvidia-smi topo -m, or a line on a hang that is known")
    return Recognised(drawings, lines)


def _of_copies(profile: Profile) -> Drawing:
    rates = defaultdict[str, list[float]](list)
    points = profile.select("transfer")
    for point in points:
        both_ways = " both ways" if point.options["both"] else ""
        rates[f"{point.options['direction']} {point.options['method']}{both_ways}"].append(point.algbw_bytes_per_s)
    rows = {way: {"copy": min(of_way) / 1e9} for way, of_way in rates.items()}
    title = f"Copies reach {rate_range_words([point.algbw_bytes_per_s for point in points])}"
    deck = "h2d: to the GPU, d2h: from it, p2p: to another GPU, d2d: within one"
    return draw_bars(rows, "the slowest copy [GB/s]", title, deck, [*map(rate_range_words, rates.values())])


def _excerpt(title: str, deck: str, lines: Sequence[str]) -> Drawing:
    rows = [row for line in lines for row in wrap(line, _LINE_LETTERS)]
    marks = [Text(8, 16.0 * place + 14, row) for place, row in enumerate(rows[:_MOST_LINES])]
    return Drawing(title, marks, 16.0 * len(marks) + 8, deck)


def paste(own: str = "") -> Explorer:
    """Return a field for what you paste, at first the text `own`, and what rankscope says of it.

    The text is a table of nccl-tests, nvbandwidth, p2pBandwidthLatencyTest or ``nvidia-smi topo -m``, or the log of a
    job that hangs. What is pasted is not stored with the notebook.
    """
    settings = (Setting("text", own, Typed(EXAMPLES.items()), "paste here"),)
    return Explorer(
        settings,
        lambda now: recognised(now.text).drawings,
        lambda now: recognised(now.text).lines,
        {name: {"text": text} for name, text in EXAMPLES.items()},
    )
