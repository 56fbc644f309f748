"""`read_log`: the measurements in a log of another program; `merged`: several of them as one machine's profile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from ...collectives.schedule import COLLECTIVES
from ...common.checks import one_of, whole
from ...common.files import FileError, read_bytes, while_reading
from ..profile import Profile
from .clean import clean_lines
from .log import Log, joined
from .nccl_tests import COLLECTIVE, nccl_tests_text
from .nvbandwidth import nvbandwidth_text
from .p2p import p2p_text


def read_log(
    path: str | os.PathLike[str], num_ranks: int | None = None, collective: str | None = None
) -> list[Profile]:
    """Return the measurements in a log: a profile per table of collectives, and one of all copies.

    The programs are nccl-tests, rccl-tests, nvbandwidth and p2pBandwidthLatencyTest. A profile has
    only facts that the log states or that follow from its figures. Its source's notes say what was left out because it
    is cut and, after `FAULT`, what is wrong with the run. `num_ranks` selects tables by their number of ranks; like
    `collective` (by the library's name or that of nccl-tests) it is also assumed for tables that do not state it.

    Raises FileError (a one-line ValueError that names the file, and the line if one is to blame) if the file is not
    such a log or contradicts itself; OSError if it cannot be opened.
    """
    return read_log_text(read_bytes(path).decode("utf-8", "replace"), num_ranks, collective, path)


def read_log_text(
    text: str, num_ranks: int | None = None, collective: str | None = None, path: str | os.PathLike[str] = "-"
) -> list[Profile]:
    """Return the measurements in the text of a log, as `read_log` does; errors name the `path`."""
    if num_ranks is not None:
        whole("num_ranks", num_ranks, 1)
    if collective is not None:
        collective = COLLECTIVE.get(collective.removesuffix("_perf"), collective)
        one_of("collective", collective, (*COLLECTIVES, "together"))
    log = Log(path, clean_lines(text), num_ranks or 0, collective or "")
    with while_reading(path, "damaged, cut short or of an unknown version"):
        profiles = [*nccl_tests_text(log), *nvbandwidth_text(log), *p2p_text(log)]
    if not profiles:
        programs = "nccl-tests, nvbandwidth or p2pBandwidthLatencyTest"
        raise FileError(path, f"not a log of {programs}, or without a whole row")
    chosen = [profile for profile in profiles if num_ranks in (None, profile.num_ranks) or profile.backend == "cuda"]
    if not chosen:
        raise FileError(path, f"it has no table of {num_ranks} ranks")
    return chosen


_SAME = ("backend", "num_ranks", "ranks_per_node", "gpus", "environment")  # in profiles that are merged


def merged(profiles: Sequence[Profile], name: str) -> Profile:
    """Return one profile from several logs of a machine. Times of the same operation become iterations of one point.

    Facts that differ, such as the number of iterations, are left out. Raises ValueError if the machines differ.
    """
    first = profiles[0]
    for profile, fact in product(profiles, _SAME):
        one, other = first.provenance.get(fact), profile.provenance.get(fact)
        if one != other:
            raise ValueError(f"the logs differ in {fact}, {one!r} and {other!r} (--num-ranks selects tables)")
    notes = dict.fromkeys(profile.provenance["source"].get("notes", "") for profile in profiles)
    source = {**first.provenance["source"], "notes": "; ".join(filter(None, notes))}
    provenance = {**_common([profile.provenance for profile in profiles]), "name": name, "source": source}
    protocol = _common([profile.protocol for profile in profiles])
    return Profile(provenance, protocol, joined(point for profile in profiles for point in profile.points))


def _common(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries in which all mappings agree."""
    return {key: value for key, value in mappings[0].items() if all(each.get(key) == value for each in mappings)}
