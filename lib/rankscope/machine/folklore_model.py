"""What the facts of a link, and what CUDA promises, say about the claims that `folklore` holds to measured points."""

from __future__ import annotations

from collections.abc import Callable

from ..values.units import bytes_words, time_words
from .folklore import CLAIMS, Verdict, folklore
from .link_facts import LinkFacts
from .profile import Profile

ONE_BYTES, TRAP_BYTES, BATCH_BYTES = 2**26, 2**28, 2**23  # as large as those that are measured
YES_NO = {True: "yes", False: "no", None: "not measured"}


def predicted_folklore(facts: LinkFacts) -> list[Verdict]:
    """Return what to expect of each of `CLAIMS`, with the times that the facts give at one size.

    What a call waits for is CUDA's word (CUDA Driver API, "API synchronization behavior").

    >>> from .link_facts import stated
    >>> [verdict.holds for verdict in predicted_folklore(stated(4))]
    [True, False, True, True, True]
    """
    return [Verdict(claim, *RULES[claim](facts)) for claim in CLAIMS]


def folklore_words(facts: LinkFacts, profile: Profile | None = None) -> str:
    """Return as text each claim, what is predicted of it, and what a profile says, if there is one.

    >>> from .link_facts import stated
    >>> print(folklore_words(stated(4)).splitlines()[0])
    pin_memory().to() is slower than .to() for a tensor that is copied once
    """
    seen = folklore(profile) if profile else [Verdict(claim, None, "") for claim in CLAIMS]
    lines = []
    for expected, found in zip(predicted_folklore(facts), seen, strict=True):
        lines += [expected.claim, f"  predicted  {YES_NO[expected.holds]}: {expected.words}"]
        words = "not measured yet" if found.holds is None else f"{YES_NO[found.holds]}: {found.words}"
        lines.append(f"  measured   {words}")
    return "\n".join(lines)


def _once(facts: LinkFacts) -> tuple[bool, str]:
    pinned, plain = (facts.seconds(ONE_BYTES, "h2d", method) for method in ("pin_on_the_fly", "pageable"))
    return pinned > plain, (
        f"at {bytes_words(ONE_BYTES)} a copy into pinned memory and then the link's take {time_words(pinned)} "
        f"and the pinning itself; .to() does both at once, in {time_words(plain)} at best"
    )


def _early(facts: LinkFacts) -> tuple[bool, str]:
    return False, (
        "to the GPU the call first copies all bytes into pinned memory of the driver's, "
        "to the host it may return only when they are there"
    )


def _read(facts: LinkFacts) -> tuple[bool, str]:
    copy_s = facts.seconds(TRAP_BYTES, "d2h")
    return True, (
        f"the call is back after some {time_words(facts.start_s)}, "
        f"the last of {bytes_words(TRAP_BYTES)} comes after {time_words(copy_s)}"
    )


def _changed(facts: LinkFacts) -> tuple[bool, str]:
    copy_s = facts.seconds(TRAP_BYTES, "h2d")
    return True, f"the last of {bytes_words(TRAP_BYTES)} is fetched {time_words(copy_s)} after the call"


def _loader(facts: LinkFacts) -> tuple[bool, str]:
    pinned, plain = (facts.seconds(BATCH_BYTES, "h2d", method) for method in ("pinned", "pageable"))
    return pinned < plain, (
        f"the loop waits {time_words(pinned)} for {bytes_words(BATCH_BYTES)} instead of {time_words(plain)}; "
        "a thread of the loader's pins them meanwhile, if it has workers"
    )


RULES: dict[str, Callable[[LinkFacts], tuple[bool, str]]] = dict(
    zip(CLAIMS, (_once, _early, _read, _changed, _loader), strict=True)
)
