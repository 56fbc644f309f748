"""The explorer of notebook 05: a machine next to others of the bank, and what looks wrong with it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from ...common.files import FileError
from ...common.words import and_joined
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, Steps
from ..fit import LEAST_SIZES
from ..logs import merged, read_log
from ..machines import PREFIX, bank
from ..profile import Profile
from .hardware import gpu_of
from .peers import peers_of
from .picture import SIZES, draw_machines, largest_size
from .verdict import verdict

_OWN = "yours"
_LIKE = "machines like it"
PRESETS: dict[str, dict[str, Any]] = {
    "GH200 without the network's plug-in": {"machine": "alps_gh200_2x4_no_plugin", "size": "64 MiB"},
}


def _collectives_of(profile: Profile) -> list[str]:
    """Return the collectives with bus bandwidths at several sizes."""
    return [name for name in profile.native if len(profile.busbw(name)) >= LEAST_SIZES]


@cache
def _machines() -> dict[str, Profile]:
    """Return the machines of the bank that have bus bandwidths, by name."""
    machines = {name: Profile.load(PREFIX + name) for name in bank()}
    return {name: profile for name, profile in machines.items() if _collectives_of(profile)}


def _own_profile(mine: Any) -> Profile:
    """Return a profile, or that in a file: of `rankscope profile`, or a log of another benchmark."""
    if isinstance(mine, Profile):
        return mine
    if not isinstance(mine, str | os.PathLike):
        raise ValueError(f"profile must be a Profile or the path of one, got {mine!r}")
    try:
        return Profile.load(mine)
    except FileError:
        return merged(read_log(mine), Path(mine).stem)


def box(profile: Any = None) -> Explorer:
    """Return controls over a machine next to others: how fast a collective is at each size, and the verdict.

    `profile` is your own machine: a Profile, its file, or a log of nccl-tests. Without it, the machine is one of the
    bank, at first one with a fault.
    """
    machines = _machines()
    first = "runpod_a100_2_no_p2p"
    if profile is not None:
        first = _OWN
        machines = {_OWN: _own_profile(profile), **machines}
    measured = _collectives_of(machines[first])
    if not measured:
        raise ValueError(f"profile must have bus bandwidths of a collective at {LEAST_SIZES} sizes, got none")
    collective = measured[0]
    collectives = tuple(dict.fromkeys(name for one in machines.values() for name in _collectives_of(one)))
    gpu = gpu_of(machines[first].provenance)
    same_first = sorted(machines, key=lambda name: gpu_of(machines[name].provenance) != gpu)
    named = [(bank().get(name, name), name) for name in same_first]

    def draw(now: Now) -> list[Drawing]:
        own = machines[now.machine]
        known = _collectives_of(own)
        if now.collective not in known:
            raise ValueError(f"{now.collective} was not measured on this machine; take {and_joined(known)}")
        shown = {now.machine: own}
        if now.others == _LIKE:
            shown |= peers_of(own)
        else:
            shown[now.others] = machines[now.others]
        return [draw_machines(shown, now.collective, now.size)]

    settings = (
        Setting("machine", first, named, "machine"),
        Setting("collective", collective, collectives, "collective"),
        Setting("size", largest_size(machines[first], collective), Steps(SIZES), "size"),
        Setting("others", _LIKE, (_LIKE, *named), "compare with"),
    )
    return Explorer(settings, draw, lambda now: verdict(machines[now.machine]), PRESETS)
