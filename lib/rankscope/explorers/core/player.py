"""The explorer of notebook 05: a collective that plays, and another one that races it, on a cluster of your own."""

from __future__ import annotations

from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np

from ...cluster import Cluster
from ...collectives import ALGORITHMS
from ...collectives.playback import Playback, playback_of
from ...common.checks import count_of
from ...common.units import bytes_words, times_in_one_unit
from ...figures.marks import Drawing
from ...figures.player import draw_play
from ..explorer import Explorer, Now, Setting
from ..opening import shows
from .allreduce import H100_LINKS, cluster, num_bytes, without_links
from .allreduce import SETTINGS as OF_CLUSTERS

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "all_to_all")
_MOST_RANKS = 16  # at which a picture still follows the slider
_WHEN = ("start_s", "done_s")
MOST_STEPS = 100  # of the moment, which is in percent


def _algorithms() -> list[str]:
    """What can be played: an allreduce by its name, others after their collective, your own as soon as it is added."""
    pairs = [(collective, name) for collective in COLLECTIVES for name in ALGORITHMS[collective]]
    return [name if collective == "allreduce" else f"{collective} {name}" for collective, name in pairs]


_SHARED = {one.name: one for one in OF_CLUSTERS}
SETTINGS = (
    Setting("algorithm", "ring", _algorithms, "algorithm"),
    Setting(
        "against", "halving_doubling", lambda: ["none", *_algorithms()], "against", "a second one on the same cluster"
    ),
    Setting("num_nodes", 1, range(1, 5), "nodes"),
    Setting("gpus_per_node", 4, range(1, 9), "GPUs per node"),
    _SHARED["message"],
    Setting("moment", 40, range(MOST_STEPS + 1), "moment [%]", "of the time that the slower one takes"),
    _SHARED["intra_us"]._replace(label="latency, node [µs]", hint="within a node"),
    _SHARED["inter_us"]._replace(label="latency, network [µs]", hint="between nodes"),
    _SHARED["intra_gb_per_s"]._replace(label="bandwidth, node [GB/s]", hint="within a node"),
    _SHARED["inter_gb_per_s"]._replace(label="bandwidth, network [GB/s]", hint="between nodes"),
    _SHARED["gamma_ps"],
    _SHARED["shared_nic"],
)
PRESETS: dict[str, dict[str, Any]] = {
    "ring alone": {"against": "none"},
    "1 GiB": {"message": "1 GiB"},
    "1 KiB: doubling wins": {"message": "1 KiB", "against": "recursive_doubling"},
    "two nodes": {"num_nodes": 2, "gpus_per_node": 8},
    "two nodes, in a torus": {"num_nodes": 2, "gpus_per_node": 8, "against": "torus_2d"},
    "two nodes of H100s, in a torus": {"num_nodes": 2, "gpus_per_node": 8, "against": "torus_2d", **H100_LINKS},
    "all to one root": {"algorithm": "flat", "against": "binomial_tree", "gpus_per_node": 8},
    "an allgather": {"algorithm": "allgather ring", "against": "allgather bruck"},
    "broadcast: tree or chain": {"algorithm": "broadcast binomial", "against": "broadcast chain", "gpus_per_node": 8},
}


@lru_cache(maxsize=16)
def _play(_builder: Any, collective: str, name: str, num_bytes: int, where: Cluster) -> Playback:
    return playback_of(collective, name, num_bytes, where)


def plays(now: Now) -> list[Playback]:
    """Return one collective, or two, with their times. Raises ValueError for what does not exist for so many ranks."""
    return [_play(builder, of, name, num_bytes(now), cluster(now)) for of, name, builder in _chosen(now)]


def _chosen(now: Now) -> list[tuple[str, str, Any]]:
    """The collective, the name and the builder of each algorithm."""
    words = [one.rpartition(" ") for one in (now.algorithm, now.against) if one != "none"]
    found = [(collective or "allreduce", name) for collective, _, name in words]
    return [(collective, name, ALGORITHMS[collective][name]) for collective, name in found]


def moment_s(now: Now) -> float:
    return float(now.moment / MOST_STEPS * max(play.finish_s for play in plays(now)))


def picture(now: Now) -> Drawing:
    return draw_play(plays(now), moment_s(now))


def instants(now: Now) -> list[int]:
    """The moments, in percent, at which messages have just taken effect, and the beginning."""
    found = plays(now)
    end_s = max(play.finish_s for play in found) or 1.0
    done_s = np.concatenate([np.zeros(1), *(play.done_s for play in found)])
    return np.unique(np.ceil(done_s / end_s * MOST_STEPS - 1e-9).astype(int)).tolist()  # type: ignore[no-any-return]


def most(now: Now) -> dict[str, int]:
    """As many GPUs per node as make up 16 ranks: more are hard to follow."""
    return {"gpus_per_node": min(8, _MOST_RANKS // now.num_nodes)}


def report(now: Now) -> list[str]:
    """What each sends, and which is faster."""
    try:
        found = plays(now)
    except ValueError as error:
        return [str(error)]
    lines = []
    for play, time in zip(found, times_in_one_unit(*[play.finish_s for play in found]), strict=True):
        sent = play.schedule.traffic(play.num_bytes).sent_bytes.max()
        counts = f"{count_of(play.schedule.num_steps, 'step')}, {count_of(play.src.size, 'message')}"
        lines.append(f"{_name(play)}: {counts}; the busiest rank sends {bytes_words(sent)}; {time}")
    if len(found) == 2:
        first, second = sorted(found, key=lambda play: play.finish_s)
        names = [_name(play) for play in (first, second)]
        ratio = second.finish_s / first.finish_s if first.finish_s else 1.0
        lines.append(
            f"{names[0]} takes as long as {names[1]} here"
            if ratio < 1.005
            else f"{names[0]} is {ratio:.3g} times as fast as {names[1]} here"
        )
    return lines


def _name(play: Playback) -> str:
    return f"{play.schedule.algorithm} {play.schedule.collective}"


def without_effect(now: Now) -> dict[str, str]:
    """Links that nothing is sent over, sums that nobody makes, and everything where one rank is alone."""
    found = without_links(now)
    if now.num_nodes == now.gpus_per_node == 1:
        return found | dict.fromkeys(("moment", "gamma_ps"), "one rank has nobody to send to")
    try:
        shown = plays(now)
        if "shared_nic" not in found and _alike(shown, plays(now._replace(shared_nic=not now.shared_nic))):
            found["shared_nic"] = "no two messages meet at a card"
        if not any(play.reduce.any() for play in shown):
            found["gamma_ps"] = "nothing is added up"
    except ValueError as error:
        names = ["moment", "gamma_ps", "shared_nic"]
        if not any("num_segments" in signature(builder).parameters for _, _, builder in _chosen(now)):
            names += ["message", "intra_us", "inter_us", "intra_gb_per_s", "inter_gb_per_s"]
        try:
            plays(now._replace(against="none"))
        except ValueError:
            names += ["against"]
        found |= dict.fromkeys(names, str(error))
    return found


def _alike(some: list[Playback], others: list[Playback]) -> bool:
    """Whether all messages start and end at the same times."""
    pairs = [(getattr(a, when), getattr(b, when)) for a, b in zip(some, others, strict=True) for when in _WHEN]
    return all(one.shape == other.shape and np.allclose(one, other, 1e-9, 0) for one, other in pairs)


ON_THE_SITE = {
    "algorithm": ("ring", "halving_doubling", "recursive_doubling", "flat"),
    "against": ("none", "halving_doubling", "recursive_doubling", "binomial_tree"),
    "message": ("1 KiB", "1 MiB", "1 GiB"),
    "moment": tuple(range(0, 101, 5)),
}


@shows(
    SETTINGS, "player_panel.Player", title="A collective that plays", notebook="05_collectives", on_the_site=ON_THE_SITE
)
def player() -> Explorer:
    """Return controls over a collective that plays: chunks, messages and busy ranks under one playhead.

    A second algorithm races it on the same axis of time. Shapes follow the nodes; an algorithm that cuts chunks into
    segments has at most 4 of them.
    """
    return Explorer(SETTINGS, {"picture": picture}, report, PRESETS, without_effect, most)
