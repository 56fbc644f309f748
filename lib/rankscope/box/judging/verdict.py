"""`verdict`: a profile in sentences: how good the machine is, and what looks wrong."""

from __future__ import annotations

from ...common.checks import of_type
from ..machines import origin_of
from ..profile import Profile
from .expected import compare_with_peers
from .rules import findings


def verdict(profile: Profile) -> list[str]:
    """Return the verdict as sentences, the most important one first; the source if there is nothing to say.

    >>> verdict(Profile({"name": "a", "backend": "gloo", "num_ranks": 4}, {}))
    ['There is nothing to compare these measurements with.']
    """
    of_type("profile", profile, Profile)
    found = [str(finding) for finding in findings(compare_with_peers(profile))]
    source = profile.provenance.get("source", {})
    return found or ["There is nothing to compare these measurements with.", *origin_of(source)]
