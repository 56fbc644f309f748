"""The explorer of notebook 04: a collective that plays, and another one that races it, on a cluster of your own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...cluster import Cluster
from ...collectives import ALGORITHMS
from ...collectives.playback import Playback, playback_of
from ...common.units import bytes_words, times_in_one_unit
from ...common.words import count_of
from ...figures.marks import Drawing
from ...figures.player import draw_play
from ..explorer import ByIdentity, Explorer, Now, Setting
from ..opening import shows
from .allreduce import H100_LINKS, cluster, num_bytes, without_links
from .allreduce import SETTINGS as OF_CLUSTERS

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "all_to_all")
_MOST_RANKS = 16  # at which a picture still follows the slider
MOST_STEPS = 100  # of the moment, which is in percent
_ROUNDING_OF_STEPS = 1e-9  # so that a moment that falls on a step is not rounded up to the next one
_GPUS_PER_NODE = range(1, 9)
_NONE = "none"  # instead of a second algorithm
_NOTICEABLE_RATIO = 1.005  # of two times: a smaller one would be printed as 1


def _algorithms() -> dict[str, tuple[str, str]]:
    """What can be played, as collective and name, by label; your own as soon as it is added.

    The label of an allreduce is its name, and any other collective stands before the name.
    """
    algorithms = {}
    for collective in COLLECTIVES:
        for name in ALGORITHMS[collective]:
            label = name if collective == "allreduce" else f"{collective} {name}"
            algorithms[label] = (collective, name)
    return algorithms


def _labels() -> list[str]:
    return list(_algorithms())


def _labels_or_none() -> list[str]:
    return [_NONE, *_labels()]


_SHARED = {setting.name: setting for setting in OF_CLUSTERS}
SETTINGS = (
    Setting("algorithm", "ring", _labels, "algorithm"),
    Setting("against", "halving_doubling", _labels_or_none, "against", "a second collective on the same cluster"),
    Setting("num_nodes", 1, range(1, 5), "nodes"),
    Setting("gpus_per_node", 4, _GPUS_PER_NODE, "GPUs per node"),
    _SHARED["message"],
    Setting("moment", 40, range(MOST_STEPS + 1), "moment [%]", "in % of the time of the slower collective"),
    _SHARED["intra_us"]._replace(label="latency, node [µs]", hint="within a node"),
    _SHARED["inter_us"]._replace(label="latency, network [µs]", hint="between nodes"),
    _SHARED["intra_gb_per_s"]._replace(label="bandwidth, node [GB/s]", hint="within a node"),
    _SHARED["inter_gb_per_s"]._replace(label="bandwidth, network [GB/s]", hint="between nodes"),
    _SHARED["gamma_ps"],
    _SHARED["shared_nic"],
)
PRESETS: dict[str, dict[str, Any]] = {
    "ring alone": {"against": _NONE},
    "1 GiB": {"message": "1 GiB"},
    "1 KiB: doubling wins": {"message": "1 KiB", "against": "recursive_doubling"},
    "two nodes": {"num_nodes": 2, "gpus_per_node": 8},
    "two nodes, in a torus": {"num_nodes": 2, "gpus_per_node": 8, "against": "torus_2d"},
    "two nodes of H100s, in a torus": {"num_nodes": 2, "gpus_per_node": 8, "against": "torus_2d", **H100_LINKS},
    "all to one root": {"algorithm": "flat", "against": "binomial_tree", "gpus_per_node": 8},
    "an allgather": {"algorithm": "allgather ring", "against": "allgather bruck"},
    "broadcast: tree or chain": {"algorithm": "broadcast binomial", "against": "broadcast chain", "gpus_per_node": 8},
}


class _Chosen(NamedTuple):
    """An algorithm that is set; the builder is part of the key of the cache, so that a new one is played anew."""

    collective: str
    name: str
    builder: ByIdentity


@lru_cache(maxsize=16)
def _play(chosen: _Chosen, num_bytes: int, cluster: Cluster) -> Playback:
    return playback_of(chosen.collective, chosen.name, num_bytes, cluster)


def plays(now: Now) -> list[Playback]:
    """Return one collective, or two, with their times. Raises ValueError for what does not exist for so many ranks."""
    return [_play(chosen, num_bytes(now), cluster(now)) for chosen in _chosen(now)]


def _chosen(now: Now) -> list[_Chosen]:
    """The algorithms that are set, one or two."""
    labels = [now.algorithm]
    if now.against != _NONE:
        labels.append(now.against)
    algorithms = _algorithms()
    chosen = []
    for label in labels:
        collective, name = algorithms[label]
        chosen.append(_Chosen(collective, name, ByIdentity(ALGORITHMS[collective][name])))
    return chosen


def moment_s(now: Now) -> float:
    return float(now.moment / MOST_STEPS * max(play.finish_s for play in plays(now)))


def picture(now: Now) -> Drawing:
    return draw_play(plays(now), moment_s(now))


def instants(now: Now) -> list[int]:
    """The moments, in percent, at which messages have just taken effect, and the beginning."""
    shown = plays(now)
    finish_s = max(play.finish_s for play in shown)
    if finish_s == 0:
        finish_s = 1.0  # all messages are done at 0 s, which is 0 % of any other time
    done_s = np.concatenate([np.zeros(1), *(play.done_s for play in shown)])
    steps = np.unique(np.ceil(done_s / finish_s * MOST_STEPS - _ROUNDING_OF_STEPS))
    return steps.astype(int).tolist()  # type: ignore[no-any-return]


def most(now: Now) -> dict[str, int]:
    """As many GPUs per node as make up 16 ranks: more are hard to follow."""
    return {"gpus_per_node": min(_GPUS_PER_NODE[-1], _MOST_RANKS // now.num_nodes)}


def report(now: Now) -> list[str]:
    """What each sends, and which is faster."""
    try:
        shown = plays(now)
    except ValueError as error:
        return [str(error)]
    lines = []
    for play, time in zip(shown, times_in_one_unit(*[play.finish_s for play in shown]), strict=True):
        sent = play.schedule.traffic(play.num_bytes).sent_bytes.max()
        counts = f"{count_of(play.schedule.num_steps, 'step')}, {count_of(play.src.size, 'message')}"
        lines.append(f"{_title(play)}: {counts}; the busiest rank sends {bytes_words(sent)}; {time}")
    if len(shown) == 2:
        lines.append(_comparison(*shown))
    return lines


def _comparison(some: Playback, other: Playback) -> str:
    """Return which of two is faster, and by what factor."""
    fast, slow = sorted((some, other), key=lambda play: play.finish_s)
    ratio = 1.0  # if neither takes any time
    if fast.finish_s:
        ratio = slow.finish_s / fast.finish_s
    if ratio < _NOTICEABLE_RATIO:
        return f"{_title(fast)} takes as long as {_title(slow)} here"
    return f"{_title(fast)} is {ratio:.3g} times as fast as {_title(slow)} here"


def _title(play: Playback) -> str:
    return f"{play.schedule.algorithm} {play.schedule.collective}"


def without_effect(now: Now) -> dict[str, str]:
    """Return for each control that changes nothing at these settings why it does not."""
    reasons = without_links(now)
    if now.num_nodes == now.gpus_per_node == 1:
        for name in ("moment", "gamma_ps"):
            reasons[name] = "a single rank sends no messages"
        return reasons
    try:
        shown = plays(now)
    except ValueError as error:
        return reasons | dict.fromkeys(("moment", "gamma_ps", "shared_nic"), str(error))
    if not any(play.reduce.any() for play in shown):
        reasons["gamma_ps"] = "nothing is added up"
    return reasons


ON_THE_SITE = {
    "algorithm": ("ring", "halving_doubling", "recursive_doubling", "flat"),
    "against": (_NONE, "halving_doubling", "recursive_doubling", "binomial_tree"),
    "message": ("1 KiB", "1 MiB", "1 GiB"),
    "moment": tuple(range(0, 101, 2)),
}


@shows(SETTINGS, "player_panel.Player", on_the_site=ON_THE_SITE)
def player() -> Explorer:
    """Return controls over a collective that plays: chunks, messages and busy ranks under one playhead.

    A second algorithm races it on the same axis of time. Shapes follow the nodes; an algorithm that cuts chunks into
    segments has at most 4 of them.
    """
    return Explorer(SETTINGS, {"picture": picture}, report, PRESETS, without_effect, most)
