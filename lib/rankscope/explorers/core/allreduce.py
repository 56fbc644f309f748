"""The explorer of notebook 04: an allreduce step by step, on a cluster of your own, next to all the others."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from ...cluster import Cluster, Link
from ...collectives import ALGORITHMS, Schedule, best, build, simulate, verify
from ...collectives.best import Best
from ...collectives.verify import Verified
from ...common.units import parse_bytes, percent_words, time_words, times_in_one_unit
from ...common.words import count_of
from ...figures.marks import Drawing
from ...figures.rankings import draw_ranking
from ...figures.schedules import draw_schedule
from ..explorer import ALL, ByIdentity, Explorer, Now, Setting, Steps, sizes
from ..opening import shows

_ALGORITHMS = ALGORITHMS["allreduce"]
_LATENCIES_US = Steps((0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100))
_RATES_GB_PER_S = Steps((1, 2, 3, 5, 10, 12, 25, 50, 100, 200, 300, 450, 600, 900))
SETTINGS = (
    Setting("algorithm", "ring", _ALGORITHMS, "algorithm"),
    Setting("num_nodes", 2, range(1, 9), "nodes"),
    Setting("gpus_per_node", 4, range(1, 9), "GPUs per node"),
    Setting("message", "1 MiB", sizes(10, 30), "message"),
    Setting("step", 0, range(2001), "step", "the step that the picture shows"),
    Setting("intra_us", 3, _LATENCIES_US, "latency within a node [µs]"),
    Setting("inter_us", 10, _LATENCIES_US, "latency between nodes [µs]", "called α"),
    Setting("intra_gb_per_s", 200, _RATES_GB_PER_S, "bandwidth within a node [GB/s]"),
    Setting("inter_gb_per_s", 25, _RATES_GB_PER_S, "bandwidth between nodes [GB/s]", "called B"),
    Setting(
        "gamma_ps",
        1,
        Steps((0, 1, 2, 5, 10, 20, 50, 100)),
        "adding up [ps/byte]",
        "the time to add one byte to another, called γ",
    ),
    Setting("num_segments", 2, range(1, 9), "segments", "parts into which each chunk is cut, sent one after another"),
    Setting("shared_nic", False, (False, True), "one network card per node"),
)
# Links of real machines, at the nearest values of the sliders: what NCCL's model of a ring with protocol Simple has for
# a hop, and for what a GPU and its network card carry (`HOP` and `GPUS` in `rankscope.box.nccl.constants`). A schedule
# needs the links one by one, so this explorer has these in the place of a list of networks.
H100_LINKS = {"intra_us": 3, "inter_us": 15, "intra_gb_per_s": 300, "inter_gb_per_s": 50}  # NVLink 4, InfiniBand NDR
L40S_LINKS = {"intra_us": 5, "inter_us": 15, "intra_gb_per_s": 25, "inter_gb_per_s": 25}  # PCIe 4
TCP_LINKS = {"inter_us": 50, "inter_gb_per_s": 1}  # hosts on 10 Gbit/s Ethernet
PRESETS: dict[str, dict[str, Any]] = {
    "ring": {},
    "halving and doubling": {"algorithm": "halving_doubling"},
    "torus, 3 nodes of 4": {"algorithm": "torus_2d", "num_nodes": 3},
    "the same on 1 GB/s": {"algorithm": "torus_2d", "num_nodes": 3, "inter_gb_per_s": 1},
    "the same, one card per node": {"algorithm": "torus_2d", "num_nodes": 3, "inter_gb_per_s": 1, "shared_nic": True},
    "1 KiB: doubling wins": {"algorithm": "recursive_doubling", "message": "1 KiB"},
    "1 GiB": {"message": "1 GiB"},
    "2 nodes of 8 H100s, 64 MiB": {"num_nodes": 2, "gpus_per_node": 8, "message": "64 MiB", **H100_LINKS},
    "8 L40S on PCIe, 64 MiB": {"num_nodes": 1, "gpus_per_node": 8, "message": "64 MiB", **L40S_LINKS},
    "8 hosts on 10 GbE": {"num_nodes": 8, "gpus_per_node": 1, **TCP_LINKS},
}
_EQUAL_TIMES = 1e-9  # a smaller relative difference comes from rounding
_MOST_CELLS = 1024  # ranks × chunks in the picture, so that it follows the slider


def num_bytes(now: Now) -> int:
    return parse_bytes("message", now.message)


def cluster(now: Now) -> Cluster:
    intra = Link(now.intra_us / 1e6, now.intra_gb_per_s * 1e9)
    inter = Link(now.inter_us / 1e6, now.inter_gb_per_s * 1e9)
    shared = now.shared_nic and now.num_nodes > 1  # within a node no message passes the card
    return Cluster(now.num_nodes, now.gpus_per_node, intra, inter, now.gamma_ps / 1e12, shared_nic=shared)


def ranked(now: Now) -> Best:
    """Return all algorithms, the fastest first, each with its best options."""
    builders = tuple([(name, ByIdentity(builder)) for name, builder in _ALGORITHMS.items()])
    return _ranked(num_bytes(now), cluster(now), builders)


@lru_cache(maxsize=32)
def _ranked(num_bytes: int, cluster: Cluster, _builders: tuple[tuple[str, ByIdentity], ...]) -> Best:
    """The ranking; `_builders` is part of the key only, so that a builder that was replaced is ranked anew."""
    return best(num_bytes, cluster)


class AllreduceRecipe(NamedTuple):
    """What a schedule is built from.

    The pictures and the report ask for the same schedule, and most settings leave it as it is, so results are kept by
    recipe. The options are those with which the algorithm is fastest, with the number of segments that is set.
    """

    builder: ByIdentity
    algorithm: str
    num_ranks: int
    options: tuple[tuple[str, Any], ...]


def recipe(now: Now) -> AllreduceRecipe:
    options = _best_options(now)
    if "num_segments" in options:
        options["num_segments"] = now.num_segments
    num_ranks = now.num_nodes * now.gpus_per_node
    return AllreduceRecipe(ByIdentity(_ALGORITHMS[now.algorithm]), now.algorithm, num_ranks, tuple(options.items()))


def _best_options(now: Now) -> dict[str, Any]:
    """The options with which the algorithm is fastest; none if it does not exist for so many ranks."""
    for candidate in ranked(now).candidates:
        if candidate.algorithm == now.algorithm:
            return dict(candidate.options)
    return {}


@lru_cache(maxsize=8)
def schedule(recipe: AllreduceRecipe) -> Schedule:
    return build("allreduce", recipe.algorithm, recipe.num_ranks, **dict(recipe.options))


@lru_cache(maxsize=8)
def verified(recipe: AllreduceRecipe) -> Verified:
    return verify(schedule(recipe))


@lru_cache(maxsize=8)
def _makespan_s(recipe: AllreduceRecipe, num_bytes: int, cluster: Cluster) -> float:
    return simulate(schedule(recipe), num_bytes, cluster, detail="ranks").makespan_s


def predicted_s(now: Now) -> float:
    return _makespan_s(recipe(now), num_bytes(now), cluster(now))


def picture(now: Now) -> Drawing:
    """One step, or the end where there are fewer steps. Raises ValueError for too many cells."""
    drawn = schedule(recipe(now))
    _check_cells(drawn)
    return draw_schedule(drawn, min(now.step, drawn.num_steps), gpus_per_node=now.gpus_per_node)


def _check_cells(drawn: Schedule) -> None:
    if drawn.num_ranks * drawn.num_chunks > _MOST_CELLS:
        size = f"{count_of(drawn.num_ranks, 'rank')} with {count_of(drawn.num_chunks, 'chunk')} each"
        raise ValueError(f"{size} are too many to draw here: at most {_MOST_CELLS} cells")


def ranking(now: Now) -> Drawing:
    """The time of every algorithm: the chosen one as it is set, the others with their best options."""
    ranked_now = ranked(now)
    seconds = {candidate.algorithm: candidate.seconds for candidate in ranked_now.candidates}
    with suppress(ValueError):  # the picture says why
        seconds[now.algorithm] = predicted_s(now)
    nodes = f"{count_of(now.num_nodes, 'node')} of {count_of(now.gpus_per_node, 'GPU')}"
    return draw_ranking(seconds, ranked_now.bound_s, now.algorithm, f"{now.message} on {nodes}")


def report(now: Now) -> list[str]:
    """What `verify` says, what the simulation predicts, and which algorithm is fastest."""
    ranked_now = ranked(now)
    try:
        correct = verified(recipe(now))
        seconds = predicted_s(now)
    except ValueError as error:
        return [f"{now.algorithm}: {error}", _fastest_line(ranked_now, time_words(ranked_now.seconds))]
    prediction, least, fastest = times_in_one_unit(seconds, ranked_now.bound_s, ranked_now.seconds)
    multiple = ""
    if ranked_now.bound_s:
        multiple = f", {seconds / ranked_now.bound_s:.3g} times the lower bound"
    lines = [
        f"verified: {correct}",
        f"predicted: {prediction}{multiple}; lower bound on the fastest link: {least}",
    ]
    num_segments = _best_options(now).get("num_segments")
    if num_segments:
        lines.append(f"segments: {now.num_segments} selected; the fastest number is {num_segments}")
    return [*lines, _fastest_line(ranked_now, fastest)]


def _fastest_line(ranked_now: Best, fastest: str) -> str:
    """The line on the fastest algorithm, which takes `fastest`, and on the next one if there is one."""
    line = f"fastest here: {ranked_now.algorithm}, {fastest}"
    if len(ranked_now.candidates) == 1:
        return line
    difference = "just as fast"
    if ranked_now.margin > _EQUAL_TIMES:
        margin = percent_words(ranked_now.margin)
        if margin == percent_words(0):
            margin = f"less than {percent_words(0.01)}"
        difference = f"{margin} longer"
    return f"{line}; next: {ranked_now.candidates[1].algorithm}, {difference}"


def most(now: Now) -> dict[str, int]:
    """Return the last step of the schedule, where the slider of the step ends."""
    with suppress(ValueError):  # the picture says why
        return {"step": schedule(recipe(now)).num_steps}
    return {}


def without_links(now: Now) -> dict[str, str]:
    """Return the settings of links that the cluster does not have, each with the reason."""
    reasons: dict[str, str] = {}
    if now.num_nodes == 1:
        for name in ("inter_us", "inter_gb_per_s", "shared_nic"):
            reasons[name] = "there is one node"
    if now.gpus_per_node == 1:
        for name in ("intra_us", "intra_gb_per_s"):
            reasons[name] = "there is one GPU per node"
    return reasons


def without_effect(now: Now) -> dict[str, str]:
    """Return for each control that changes nothing at these settings why it does not."""
    reasons = without_links(now)
    if now.num_nodes == now.gpus_per_node == 1:
        reasons["gamma_ps"] = "one rank has nothing to add up"
    if "num_segments" not in _best_options(now):
        reasons["num_segments"] = f"{now.algorithm} does not cut chunks into segments"
    try:
        drawn = schedule(recipe(now))
        _check_cells(drawn)
        if not drawn.num_steps:
            reasons["step"] = "one rank has nothing to send"
    except ValueError as error:
        reasons["step"] = str(error)
    return reasons


ON_THE_SITE = {
    "algorithm": ALL,
    "num_nodes": (2, 3),
    "message": ("1 KiB", "1 MiB", "1 GiB"),
    "step": tuple(range(23)),
    "inter_gb_per_s": (1, 25),
    "shared_nic": ALL,
}


@shows(SETTINGS, on_the_site=ON_THE_SITE)
def allreduce() -> Explorer:
    """Return controls over a step of an allreduce, a ranking of all algorithms, and its verified properties and time.

    Shapes follow the nodes. The algorithm has the segments that are set; the others are ranked with their best options.
    """
    return Explorer(SETTINGS, {"picture": picture, "ranking": ranking}, report, PRESETS, without_effect, most)
