"""`verdict`: a profile in sentences: how good the machine is, and what looks wrong."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...common.checks import of_type
from ...common.units import bytes_words, rate_range_words, rate_words
from ...common.words import and_joined
from ..machines import origin_of
from ..nccl.topology import Topology
from ..profile import Profile
from .causes import causes
from .copies import of_copies
from .peers import peers_of, reached_by
from .shares import LOW, rates_of, shares

_FAR_BELOW = 0.25  # of the slowest similar machine: a network of unknown cards is slow, whatever they are
_FALL = 0.6  # of the highest busbw at smaller sizes, for all larger ones; healthy machines of the bank keep 0.85


class Finding(msgspec.Struct, frozen=True):
    """One result: its kind, such as "p2p_off" or the verdict on a collective, and a sentence with the figures."""

    kind: str
    sentence: str


def verdict(profile: Profile, topology: Topology | None = None) -> list[str]:
    """Return the verdict as sentences, the most important one first; the source if there is nothing to say.

    `topology` is what ``nvidia-smi topo -m`` prints on a node (`box.nccl.read_topology`).

    >>> verdict(Profile({"name": "a", "backend": "gloo", "num_ranks": 4}, {}))
    ['There is nothing to compare these measurements with.']
    """
    of_type("profile", profile, Profile)
    found = [finding.sentence for finding in judge(profile, topology)]
    source = profile.provenance.get("source", {})
    return found or ["There is nothing to compare these measurements with.", *origin_of(source)]


def judge(profile: Profile, topology: Topology | None = None) -> list[Finding]:
    """Return stated causes, the verdict on each collective, and sizes at which its rate falls."""
    found = [Finding(kind, sentence) for kind, sentence in (*causes(profile), *of_copies(profile))]
    peers = peers_of(profile)
    rates = rates_of(profile)
    falls = []
    for share in shares(profile, topology):
        expected = reached_by(peers, share.collective, share.num_bytes)
        words = ""
        if expected:
            reached = expected.values()
            words = f" Similar machines ({and_joined(list(expected))}) reach {rate_range_words(reached)}."
            if share.rate < _FAR_BELOW * min(reached) and all(limit.is_guess for limit in share.limits):
                share = share._replace(verdict=LOW, limits=share.limits[-1:])
        found.append(Finding(share.verdict, f"{share}{words}"))
        by_size = rates[share.collective]
        for before, after in fall(by_size):
            falls.append(
                f"{share.collective} falls from {rate_words(by_size[before])} at {bytes_words(before)} to "
                f"{rate_words(by_size[after])} at {bytes_words(after)}, and stays low at all larger sizes."
            )
    return found + [Finding("fall", sentence) for sentence in falls]


def fall(rates: Mapping[int, float]) -> list[tuple[int, int]]:
    """Return the first two sizes between which a busbw falls and stays low at two or more sizes; nothing if none do."""
    sizes = sorted(rates)
    for index in range(1, len(sizes) - 1):
        highest_before = max(rates[size] for size in sizes[:index])
        if max(rates[size] for size in sizes[index:]) <= _FALL * highest_before:
            return [(sizes[index - 1], sizes[index])]
    return []
