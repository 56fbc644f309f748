"""The explorer of notebook 04: an allreduce step by step, on a cluster of your own, next to all the others."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..cluster import Cluster
from ..common.units import parse_bytes, times_in_one_unit
from ..drawing.drawing import Drawing
from ..drawing.ranking import draw_ranking
from ..panel.explorer import Explorer, Now, Setting, sizes
from . import clusters
from .algorithms import ALGORITHMS, build
from .best import Best, best
from .clusters import H100_LINKS, cluster
from .picture import draw_schedule
from .schedule import Schedule
from .simulate import simulate
from .verify import verify

_MOST_CELLS = 512  # ranks × chunks in the picture, so that it follows the slider
PRESETS: dict[str, dict[str, Any]] = {
    "halving and doubling": {"algorithm": "halving_doubling"},
    "torus, 3 nodes of 4": {"algorithm": "torus_2d", "num_nodes": 3},
    "the same on 1 GB/s": {"algorithm": "torus_2d", "num_nodes": 3, "inter_gb_per_s": 1},
    "the same, one card per node": {"algorithm": "torus_2d", "num_nodes": 3, "inter_gb_per_s": 1, "shared_nic": True},
    "1 KiB: doubling wins": {"algorithm": "recursive_doubling", "message": "1 KiB"},
    "2 nodes of 8 H100s, 64 MiB": {"num_nodes": 2, "gpus_per_node": 8, "message": "64 MiB", **H100_LINKS},
}


def _ranked(now: Now) -> Best:
    """Return all algorithms, the fastest first, each with its best options."""
    algorithms = tuple(ALGORITHMS["allreduce"].items())
    return _best(parse_bytes("message", now.message), cluster(now), algorithms)


@lru_cache(maxsize=32)
def _best(num_bytes: int, cluster: Cluster, _algorithms: Any) -> Best:
    """The ranking; the algorithms are part of the key only, so that one that is replaced is ranked anew."""
    return best(num_bytes, cluster)


def _is_drawn(wanted: Schedule) -> bool:
    return wanted.num_ranks * wanted.num_chunks <= _MOST_CELLS


def _has_segments(now: Now) -> bool:
    return bool(ALGORITHMS["allreduce"][now.algorithm].segments)


def schedule(now: Now) -> Schedule:
    """Return the schedule with the options with which it is fastest, but with the number of segments that is set.

    Raises ValueError for an algorithm that does not exist for so many ranks.
    """
    options_of = {candidate.algorithm: candidate.options for candidate in _ranked(now).candidates}
    options = {**options_of.get(now.algorithm, {})}
    if "num_segments" in options:
        options["num_segments"] = now.num_segments
    return build("allreduce", now.algorithm, now.num_nodes * now.gpus_per_node, **options)


@lru_cache(maxsize=8)  # draw and report ask for the same
def predicted_s(now: Now) -> float:
    """Return the simulated time in seconds."""
    return simulate(schedule(now), parse_bytes("message", now.message), cluster(now), detail="ranks").makespan_s


def draw(now: Now) -> list[Drawing]:
    """One step, or the end where there are fewer steps, and the time of every algorithm.

    The chosen algorithm is as it is set, the others have their best options.
    """
    ranked = _ranked(now)
    seconds = {candidate.algorithm: candidate.seconds for candidate in ranked.candidates}
    seconds[now.algorithm] = predicted_s(now)
    drawn = schedule(now)
    title = f"{ranked.algorithm} is fastest for {now.message}"
    drawings = [draw_ranking(seconds, ranked.bound_s, now.algorithm, title)]
    if _is_drawn(drawn):
        drawings.insert(0, draw_schedule(drawn, min(now.step, drawn.num_steps), gpus_per_node=now.gpus_per_node))
    return drawings


def report(now: Now) -> list[str]:
    """What `verify` says, and what the simulation predicts."""
    prediction, least = times_in_one_unit(predicted_s(now), _ranked(now).bound_s)
    lines = [
        f"verified: {verify(schedule(now))}",
        f"predicted: {prediction}; lower bound on the fastest link: {least}",
    ]
    if not _is_drawn(schedule(now)):
        lines.append(f"a step is drawn if all ranks together have at most {_MOST_CELLS} chunks")
    return lines


def allreduce() -> Explorer:
    """Return controls over a step of an allreduce, a ranking of all algorithms, and its verified properties and time.

    Shapes follow the nodes. The algorithm has the segments that are set; the others are ranked with their best options.
    """
    settings = (
        Setting("algorithm", "ring", tuple(ALGORITHMS["allreduce"]), "algorithm"),
        Setting("step", 0, range(31), "step"),
        Setting("num_nodes", 2, range(1, 9), "nodes"),
        Setting("gpus_per_node", 4, range(1, 9), "GPUs per node"),
        Setting("message", "1 MiB", sizes(10, 30), "message"),
        Setting("num_segments", 2, range(1, 9), "segments", _has_segments),
        *clusters.SETTINGS,
    )
    return Explorer(settings, draw, report, PRESETS)
