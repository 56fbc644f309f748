"""How long measuring may take: a rough guess from what has been measured, for deadlines and for the time left."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from .measure_plan import IN_A_ROW, Protocol
from .points import TRANSFERS, Key
from .profile import Profile

LAUNCH_S = 8.0  # no launch measures more, as far as can be known: all that is lost where a run is interrupted
OVERHEAD_S = 0.005  # of an iteration, mostly for the agreement on its start
UNKNOWN_BYTES_PER_S = 20e6
MEMORY_BYTES_PER_S, TRANSFER_BYTES_PER_S = 1e9, 4e9


def guess_s(keys: Sequence[Key], profile: Profile, protocol: Protocol) -> float:
    """Return how many seconds it may take to measure these keys."""
    return sum(_point_s(key, profile, protocol) for key in keys)


def next_launch(missing: Sequence[Key], profile: Profile, protocol: Protocol) -> list[Key]:
    """Return the first keys, as many as one launch should measure; those that take turns stay together."""
    chosen: list[Key] = []
    seconds = 0.0
    for _, group in itertools.groupby(missing, lambda key: key[:2]):
        keys = list(group)
        seconds += guess_s(keys, profile, protocol)
        if chosen and seconds > LAUNCH_S:
            break
        chosen += keys
    return chosen


def _point_s(key: Key, profile: Profile, protocol: Protocol) -> float:
    """The seconds of all iterations of a point: two for an estimate, then turns."""
    once = OVERHEAD_S + _iteration_s(key, profile)
    return once * (2 + protocol.turns(once) * (protocol.warm_up + IN_A_ROW))


def _iteration_s(key: Key, profile: Profile) -> float:
    """The seconds of one iteration, by the largest message that was measured and is no larger."""
    what, num_bytes, _ = key
    if what in TRANSFERS:
        return num_bytes / TRANSFER_BYTES_PER_S
    if what in ("add", "copy") or profile.num_ranks == 1:
        return num_bytes / MEMORY_BYTES_PER_S
    message_s = 1e-3 + num_bytes / UNKNOWN_BYTES_PER_S
    known = [point for point in profile.select("together") if point.num_bytes <= num_bytes]
    if known:
        nearest = max(known, key=lambda point: (point.num_bytes, point.median_s))
        message_s = nearest.median_s * num_bytes / nearest.num_bytes
    return message_s * (2 if what in ("ping_pong", "together") else 1 + math.log2(profile.num_ranks))
