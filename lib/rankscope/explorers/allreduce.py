"""The explorer of notebook 06: an allreduce step by step, on a cluster of your own, next to all the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from ..cluster import Cluster, Link
from ..collectives import ALGORITHMS, Schedule, ScheduleError, best, build, simulate, verify
from ..collectives.best import Best
from ..collectives.builders import SHIPPED
from ..collectives.verify import Verified
from ..figures.marks import Drawing
from ..figures.rankings import draw_ranking
from ..figures.schedules import draw_schedule
from ..values.checks import count_of
from ..values.units import bytes_words, time_words
from .panel import Controls, Explorer, Now, Setting, shows

_ALGORITHMS = ALGORITHMS["allreduce"]
SETTINGS = (
    Setting("algorithm", "ring", _ALGORITHMS, "algorithm"),
    Setting("num_nodes", 2, (1, 8), "nodes"),
    Setting("gpus_per_node", 4, (1, 8), "GPUs a node"),
    Setting("log2_bytes", 20, (10, 30), "log₂ bytes"),
    Setting("intra_us", 3, (0, 100), "α intra [µs]"),
    Setting("inter_us", 10, (0, 100), "α inter [µs]"),
    Setting("intra_gb_per_s", 200, (1, 900), "B intra [GB/s]"),
    Setting("inter_gb_per_s", 25, (1, 100), "B inter [GB/s]"),
    Setting("gamma_ps", 1, (0, 100), "γ [ps/byte]"),
    Setting("num_segments", 2, (1, 8), "segments"),
    Setting("shared_nic", False, (False, True), "one card a node"),
    Setting("step", 0, (0, 2000), "step"),
)
_MOST_CELLS = 1024  # ranks × chunks in the picture, so that it follows the slider


def cluster(now: Now) -> Cluster:
    intra = Link(now.intra_us / 1e6, now.intra_gb_per_s * 1e9)
    inter = Link(now.inter_us / 1e6, now.inter_gb_per_s * 1e9)
    return Cluster(now.num_nodes, now.gpus_per_node, intra, inter, now.gamma_ps / 1e12, shared_nic=now.shared_nic)


def ranked(now: Now) -> Best:
    """Return all algorithms, the quickest first, each at its best."""
    return _ranked(1 << now.log2_bytes, cluster(now), tuple(_ALGORITHMS.items()))


@lru_cache(maxsize=32)
def _ranked(num_bytes: int, where: Cluster, _builders: tuple[tuple[str, Any], ...]) -> Best:
    with suppress(ScheduleError):
        return best(num_bytes, where)
    return best(num_bytes, where, algorithms=SHIPPED["allreduce"])  # one of yours is wrong: its own report says how


# The pictures and the report ask for the same of a recipe, and most settings leave it as it is: a builder, its name,
# the number of ranks and the options, which are those of the best, with the segments that are set.

Recipe = tuple[Callable[..., Schedule], str, int, tuple[tuple[str, Any], ...]]


def recipe(now: Now) -> Recipe:
    options = _best_options(now)
    if "num_segments" in options:
        options["num_segments"] = now.num_segments
    return _ALGORITHMS[now.algorithm], now.algorithm, now.num_nodes * now.gpus_per_node, tuple(options.items())


def _best_options(now: Now) -> dict[str, Any]:
    """The options with which the algorithm is quickest; none where it refuses so many ranks."""
    return next((dict(one.options) for one in ranked(now).candidates if one.algorithm == now.algorithm), {})


@lru_cache(maxsize=8)
def schedule(of: Recipe) -> Schedule:
    _, name, num_ranks, options = of
    return build("allreduce", name, num_ranks, **dict(options))


@lru_cache(maxsize=8)
def verified(of: Recipe) -> Verified:
    return verify(schedule(of))


@lru_cache(maxsize=8)
def _makespan_s(of: Recipe, num_bytes: int, where: Cluster) -> float:
    return simulate(schedule(of), num_bytes, where, detail="ranks").makespan_s


def predicted_s(now: Now) -> float:
    return _makespan_s(recipe(now), 1 << now.log2_bytes, cluster(now))


def picture(now: Now) -> Drawing:
    """One step, or the end where there are fewer steps. Raises ValueError for too many cells."""
    drawn = schedule(recipe(now))
    if drawn.num_ranks * drawn.num_chunks > _MOST_CELLS:
        size = f"{count_of(drawn.num_ranks, 'rank')} with {count_of(drawn.num_chunks, 'chunk')} each"
        raise ValueError(f"{size} are too many to draw here: at most {_MOST_CELLS} cells")
    return draw_schedule(drawn, min(now.step, drawn.num_steps), gpus_per_node=now.gpus_per_node)


def ranking(now: Now) -> Drawing:
    """What all algorithms take: the chosen one as it is set, the others at their best."""
    found = ranked(now)
    seconds = {candidate.algorithm: candidate.seconds for candidate in found.candidates}
    with suppress(ValueError):  # the picture says why
        seconds[now.algorithm] = predicted_s(now)
    shape = f"{count_of(now.num_nodes, 'node')} of {count_of(now.gpus_per_node, 'GPU')}"
    return draw_ranking(seconds, found.bound_s, now.algorithm, f"{bytes_words(1 << now.log2_bytes)} on {shape}")


def report(now: Now) -> list[str]:
    """What `verify` says, what the simulation predicts, and which algorithm is the quickest."""
    found = ranked(now)
    others = f"quickest here: {found.algorithm}, {time_words(found.seconds)}"
    if len(found.candidates) > 1:
        more = f"{found.margin:.0%} more" if found.margin > 1e-9 else "as quick"
        others += f"; then {found.candidates[1].algorithm}, {more}"
    try:
        correct, seconds = verified(recipe(now)), predicted_s(now)
    except ValueError as error:
        return [f"{now.algorithm}: {error}", others]
    bound = f"lower bound on the quickest link: {time_words(found.bound_s)}"
    if found.bound_s:
        bound += f", {seconds / found.bound_s:.3g} times that"
    lines = [f"verified: {correct}", f"predicted: {time_words(seconds)}; {bound}"]
    if num_segments := _best_options(now).get("num_segments"):
        lines.append(f"segments: {now.num_segments} as set, {num_segments} would be best")
    return [*lines, others]


def follow(controls: Controls, now: Now) -> None:
    """Let the step go as far as the schedule does."""
    with suppress(ValueError):  # the picture says why
        controls["step"].max = schedule(recipe(now)).num_steps


@shows(SETTINGS)
def allreduce() -> Explorer:
    """Return controls over a step of an allreduce, a ranking of all algorithms, and what is verified and predicted.

    Shapes follow the nodes. The algorithm has as many segments as are set; the others are ranked at their best.
    """
    return Explorer(SETTINGS, {"picture": picture, "ranking": ranking}, report, follow)
