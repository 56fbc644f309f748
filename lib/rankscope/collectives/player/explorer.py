"""The explorer of notebook 04: a collective that plays, and another one that races it, on a cluster of your own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...cluster import Cluster
from ...common.units import bytes_words, parse_bytes, time_words
from ...common.words import count_of
from ...drawing.drawing import Drawing
from ...panel.explorer import Explorer, Now, Setting, sizes
from .. import clusters
from ..algorithms import ALGORITHMS
from ..clusters import H100_LINKS, cluster
from .model import Playback, playback_of
from .picture import draw_play, play_svg

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "all_to_all")
_MOST_RANKS = 8  # more are hard to follow, and make a film of several megabytes
_STILL_AT = 0.4  # of the time of the slower collective
_NONE = "none"  # instead of a second algorithm
PRESETS: dict[str, dict[str, Any]] = {
    "ring alone": {"against": _NONE},
    "1 KiB: doubling wins": {"message": "1 KiB", "against": "recursive_doubling"},
    "two nodes": {"num_nodes": 2},
    "two nodes, in a torus": {"num_nodes": 2, "against": "torus_2d"},
    "two nodes of H100s, in a torus": {"num_nodes": 2, "against": "torus_2d", **H100_LINKS},
    "all to one root": {"algorithm": "flat", "against": "binomial_tree", "gpus_per_node": 8},
    "an allgather": {"algorithm": "allgather ring", "against": "allgather bruck"},
    "broadcast: tree or chain": {"algorithm": "broadcast binomial", "against": "broadcast chain", "gpus_per_node": 8},
}


def _algorithms() -> dict[str, tuple[str, str]]:
    """Return what can be played, as collective and name, by label.

    The label of an allreduce is its name, and any other collective stands before the name.
    """
    algorithms = {}
    for collective in COLLECTIVES:
        for name in ALGORITHMS[collective]:
            label = name if collective == "allreduce" else f"{collective} {name}"
            algorithms[label] = (collective, name)
    return algorithms


@lru_cache(maxsize=16)
def _play(collective: str, name: str, num_bytes: int, cluster: Cluster, _algorithm: Any) -> Playback:
    """Return a collective with its times; the algorithm is in the key, so that one that is replaced is played anew."""
    return playback_of(collective, name, num_bytes, cluster)


def plays(now: Now) -> list[Playback]:
    """Return one collective, or two, with their times. Raises ValueError for what does not exist for so many ranks."""
    if now.num_nodes * now.gpus_per_node > _MOST_RANKS:
        raise ValueError(f"more than {_MOST_RANKS} ranks are hard to follow: take fewer nodes or GPUs")
    shown = []
    for label in (now.algorithm, now.against):
        if label != _NONE:
            collective, name = _algorithms()[label]
            num_bytes = parse_bytes("message", now.message)
            shown.append(_play(collective, name, num_bytes, cluster(now), ALGORITHMS[collective][name]))
    return shown


def draw(now: Now) -> list[Drawing]:
    """A moment on the way, for readers without a kernel."""
    shown = plays(now)
    finish_s = max(play.finish_s for play in shown)
    return [draw_play(shown, _STILL_AT * finish_s)]


def play(now: Now) -> str:
    """All moments, with buttons to play, to pause and to step."""
    return play_svg(plays(now))


def report(now: Now) -> list[str]:
    """What each sends, and how long it takes."""
    lines = []
    for play in plays(now):
        sent = play.schedule.traffic(play.num_bytes).sum(1).max()  # over receivers, of the busiest sender
        counts = f"{count_of(play.schedule.num_steps, 'step')}, {count_of(play.src.size, 'message')}"
        name = f"{play.schedule.algorithm} {play.schedule.collective}"
        lines.append(f"{name}: {counts}; the busiest rank sends {bytes_words(sent)}; {time_words(play.finish_s)}")
    return lines


def player() -> Explorer:
    """Return controls over a collective that plays: chunks, messages and busy ranks under one playhead.

    A second algorithm races it on the same axis of time. Shapes follow the nodes; an algorithm that cuts chunks into
    segments has at most 4 of them.
    """
    labels = tuple(_algorithms())
    settings = (
        Setting("algorithm", "ring", labels, "algorithm"),
        Setting("against", "halving_doubling", (_NONE, *labels), "against"),
        Setting("num_nodes", 1, range(1, 5), "nodes", limit=lambda now: _MOST_RANKS // now.gpus_per_node),
        Setting("gpus_per_node", 4, range(1, 9), "GPUs per node", limit=lambda now: _MOST_RANKS // now.num_nodes),
        Setting("message", "1 MiB", sizes(10, 30), "message"),
        *clusters.SETTINGS,
    )
    return Explorer(settings, draw, report, PRESETS, play)
