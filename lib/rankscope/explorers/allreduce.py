"""The explorer of notebook 06: an allreduce step by step, on a cluster of your own, beside all the others."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from html import escape
from typing import Any

import ipywidgets as widgets

from ..cluster import Cluster, Link
from ..collectives import ALGORITHMS, Schedule, ScheduleError, best, build, simulate, verify
from ..collectives.best import Best
from ..collectives.builders import SHIPPED
from ..collectives.verify import Verified
from ..figures.schedules import draw_schedule_step
from ..figures.svg import to_svg
from ..figures.winner_map import draw_ranking
from ..values.checks import count_of, one_of
from ..values.units import bytes_words, time_words
from .panel import choice, chosen, panel, slider, switch

DEFAULTS: dict[str, Any] = {
    "algorithm": "ring",
    "num_nodes": 2,
    "gpus_per_node": 4,
    "log2_bytes": 20,
    "intra_us": 3,
    "inter_us": 10,
    "intra_gb_per_s": 200,
    "inter_gb_per_s": 25,
    "gamma_ps": 1,
    "num_segments": 2,
    "shared_nic": False,
    "step": 0,
}
RANGES = {"num_nodes": (1, 8), "gpus_per_node": (1, 8), "log2_bytes": (10, 30), "intra_us": (0, 100),
          "inter_us": (0, 100), "intra_gb_per_s": (1, 900), "inter_gb_per_s": (1, 100), "gamma_ps": (0, 100),
          "num_segments": (1, 8), "step": (0, 2000)}  # fmt: skip
_LABELS = {"algorithm": "algorithm", "num_nodes": "nodes", "gpus_per_node": "GPUs a node", "log2_bytes": "log₂ bytes",
           "intra_us": "α intra [µs]", "inter_us": "α inter [µs]", "intra_gb_per_s": "B intra [GB/s]",
           "inter_gb_per_s": "B inter [GB/s]", "gamma_ps": "γ [ps/byte]", "num_segments": "segments",
           "shared_nic": "one card a node", "step": "step"}  # fmt: skip
Recipe = tuple[Any, str, int, tuple[tuple[str, Any], ...]]  # the builder, its name, the ranks and the options
_MOST_CELLS = 1024  # ranks × chunks in the picture, so that it follows the slider


def cluster(**settings: Any) -> Cluster:
    """Return the cluster of these settings, those of `DEFAULTS` where not given."""
    now = _chosen(settings)
    intra, inter = (Link(now[f"{place}_us"] / 1e6, now[f"{place}_gb_per_s"] * 1e9) for place in ("intra", "inter"))
    nic = now["shared_nic"]
    return Cluster(now["num_nodes"], now["gpus_per_node"], intra, inter, now["gamma_ps"] / 1e12, shared_nic=nic)


def schedule(**settings: Any) -> Schedule:
    """Return the schedule of these settings: shapes follow the nodes, and there are as many segments as asked for."""
    now = _chosen(settings)
    return _schedule(now, _ranked(now))


def picture(**settings: Any) -> str:
    """Return the step as SVG, the end where there are fewer; or a sentence, where the algorithm refuses so many ranks
    or there is too much to draw."""
    now = _chosen(settings)
    return _picture(now, _ranked(now))


def ranking(**settings: Any) -> str:
    """Return as SVG what all algorithms take, the chosen one as it is set, the others at their best."""
    now = _chosen(settings)
    return _ranking(now, _ranked(now))


def report(**settings: Any) -> str:
    """Return as text what `verify` says, what the simulation predicts, and who is the quickest."""
    now = _chosen(settings)
    return _report(now, _ranked(now))


def allreduce(**settings: Any) -> widgets.VBox:
    """Return controls for `DEFAULTS` (`settings` replaces some) over the step, the ranking and the report.

    Raises ValueError for a setting that does not exist or lies outside its slider.
    """
    initial = _chosen(settings)
    names = list(ALGORITHMS["allreduce"])
    controls: dict[str, Any] = {"algorithm": choice(initial["algorithm"], names, _LABELS["algorithm"])}
    controls |= {name: slider(initial[name], RANGES[name], _LABELS[name]) for name in RANGES if name != "step"}
    controls["shared_nic"] = switch(initial["shared_nic"], _LABELS["shared_nic"])
    controls["step"] = slider(initial["step"], RANGES["step"], _LABELS["step"])

    def paint(now: dict[str, Any]) -> tuple[str, str]:
        ranked = _ranked(now)
        with suppress(ValueError):  # the picture says why
            controls["step"].max = _schedule(now, ranked).num_steps
        return _picture(now, ranked) + _ranking(now, ranked), _report(now, ranked)

    return panel(controls, paint)


def _ranked(now: dict[str, Any]) -> Best:
    own = ("algorithm", "num_segments", "step")  # settings of the one schedule, which change nothing here
    return _best(tuple(item for item in now.items() if item[0] not in own), tuple(ALGORITHMS["allreduce"].items()))


@lru_cache(maxsize=32)
def _best(settings: tuple[tuple[str, Any], ...], _builders: tuple[tuple[str, Any], ...]) -> Best:
    now = dict(settings)
    size, where = _size(now), cluster(**now)
    with suppress(ScheduleError):
        return best(size, where)
    return best(size, where, algorithms=SHIPPED["allreduce"])  # one of yours is wrong: its own report says how


def _size(now: dict[str, Any]) -> int:
    return 1 << int(now["log2_bytes"])


def _recipe(now: dict[str, Any], ranked: Best) -> Recipe:
    options = next((c.options for c in ranked.candidates if c.algorithm == now["algorithm"]), {})
    if "num_segments" in options:
        options = options | {"num_segments": now["num_segments"]}
    name, num_ranks = now["algorithm"], now["num_nodes"] * now["gpus_per_node"]
    return ALGORITHMS["allreduce"][name], name, num_ranks, tuple(options.items())


def _schedule(now: dict[str, Any], ranked: Best) -> Schedule:
    return _built(_recipe(now, ranked))


# The picture, the ranking and the report want the same of a recipe, and most settings leave it as it is.


@lru_cache(maxsize=8)
def _built(recipe: Recipe) -> Schedule:
    _, name, num_ranks, options = recipe
    return build("allreduce", name, num_ranks, **dict(options))


@lru_cache(maxsize=8)
def _verified(recipe: Recipe) -> Verified:
    return verify(_built(recipe))


@lru_cache(maxsize=8)
def _makespan_s(recipe: Recipe, num_bytes: int, where: Cluster) -> float:
    return simulate(_built(recipe), num_bytes, where, detail="ranks").makespan_s


def _picture(now: dict[str, Any], ranked: Best) -> str:
    try:
        drawn = _schedule(now, ranked)
        if drawn.num_ranks * drawn.num_chunks > _MOST_CELLS:
            size = f"{count_of(drawn.num_ranks, 'rank')} with {count_of(drawn.num_chunks, 'chunk')} each"
            raise ValueError(f"{size} are too many to draw here: at most {_MOST_CELLS} cells")
        step = min(now["step"], drawn.num_steps)
        return to_svg(draw_schedule_step(drawn, step, gpus_per_node=now["gpus_per_node"]))
    except ValueError as error:
        return f"<p>{escape(str(error))}</p>"


def _ranking(now: dict[str, Any], ranked: Best) -> str:
    seconds = {candidate.algorithm: candidate.seconds for candidate in ranked.candidates}
    with suppress(ValueError):  # the picture says why
        seconds[now["algorithm"]] = _predicted_s(now, ranked)
    shape = f"{count_of(now['num_nodes'], 'node')} of {count_of(now['gpus_per_node'], 'GPU')}"
    title = f"{bytes_words(_size(now))} on {shape}"
    return to_svg(draw_ranking(seconds, ranked.bound_s, now["algorithm"], title))


def _predicted_s(now: dict[str, Any], ranked: Best) -> float:
    return _makespan_s(_recipe(now, ranked), _size(now), cluster(**now))


def _report(now: dict[str, Any], ranked: Best) -> str:
    others = f"quickest here: {ranked.algorithm}, {time_words(ranked.seconds)}"
    if len(ranked.candidates) > 1:
        more = f"{ranked.margin:.0%} more" if ranked.margin > 1e-9 else "as quick"
        others += f"; then {ranked.candidates[1].algorithm}, {more}"
    try:
        verified = _verified(_recipe(now, ranked))
        seconds = _predicted_s(now, ranked)
    except ValueError as error:
        return f"{now['algorithm']}: {error}\n{others}"
    bound = f"lower bound on the quickest link: {time_words(ranked.bound_s)}"
    if ranked.bound_s:
        bound += f", {seconds / ranked.bound_s:.3g} times that"
    own = next((c.options for c in ranked.candidates if c.algorithm == now["algorithm"]), {})
    if "num_segments" in own:
        segments = f"{now['num_segments']} as set, {own['num_segments']} would be best"
        others = f"segments: {segments}\n{others}"
    return f"verified: {verified}\npredicted: {time_words(seconds)}; {bound}\n{others}"


def _chosen(settings: dict[str, Any]) -> dict[str, Any]:
    current = chosen(settings, DEFAULTS, RANGES)
    one_of("algorithm", current["algorithm"], tuple(ALGORITHMS["allreduce"]))
    return current
