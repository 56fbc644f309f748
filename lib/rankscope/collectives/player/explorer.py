"""The explorer of notebook 04: all algorithms of a collective, and two of them that race, on a cluster of your own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from ...cluster import Cluster, Link
from ...common.units import bytes_words, parse_bytes, time_words, times_in_one_unit
from ...common.words import count_of
from ...drawing.drawing import Drawing, to_svg
from ...drawing.ranking import draw_ranking
from ...panel.explorer import Explorer, Now, Setting, Steps, sizes
from ..algorithms import ALGORITHMS, Algorithm, algorithm_of
from ..best import best, seconds_with
from ..schedule import Schedule
from .model import Playback, playback, verified
from .picture import draw_play, horizon_s, play_svg

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "all_to_all")
_MOST_RANKS = 8  # that play: more are hard to follow, and make a film of several megabytes
_MOST_SEGMENTS = 4  # that play: more make chunks too small to be seen
_STILL_AT = 0.4  # of the time of the slower collective
_LATENCIES_US = Steps((0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100))
_RATES_GB_PER_S = Steps((1, 2, 3, 5, 10, 12, 25, 50, 100, 200, 300, 450, 600, 900))
# Links of real machines, at the nearest values of the sliders: what NCCL's model of a ring with protocol Simple has for
# a hop, and for what a GPU and its network card carry (`LATENCY_US` and `GPUS` in `rankscope.box.nccl.constants`).
H100_LINKS = {"intra_us": 3, "inter_us": 15, "intra_gb_per_s": 300, "inter_gb_per_s": 50}  # NVLink 4, InfiniBand NDR
PRESETS: dict[str, dict[str, Any]] = {
    "1 KiB: few steps win": {"message": "1 KiB"},
    "64 MiB: few bytes win": {"message": "64 MiB"},
    "two nodes": {"num_nodes": 2},
    "in a torus, one card per node": {"algorithm": "torus_2d", "num_nodes": 2, "shared_nic": True},
    "3 nodes of 4, 1 GB/s": {"num_nodes": 3, "inter_gb_per_s": 1},
    "2 nodes of 8 H100s, 64 MiB": {"num_nodes": 2, "gpus_per_node": 8, "message": "64 MiB", **H100_LINKS},
    "all to one root": {"algorithm": "flat", "gpus_per_node": 8},
    "an allgather": {"algorithm": "allgather ring"},
    "broadcast: chain or tree": {"algorithm": "broadcast chain", "gpus_per_node": 8},
}


def cluster(now: Now) -> Cluster:
    """Return the cluster that is set."""
    intra = Link(now.intra_us / 1e6, now.intra_gb_per_s * 1e9)
    inter = Link(now.inter_us / 1e6, now.inter_gb_per_s * 1e9)
    shared = now.shared_nic and now.num_nodes > 1  # within a node no message passes the card
    return Cluster(now.num_nodes, now.gpus_per_node, intra, inter, now.gamma_ps / 1e12, shared_nic=shared)


class Runner(NamedTuple):
    """An algorithm with its fastest options: its time, and that of an empty buffer.

    `schedule` is what can play, and `effort` says how many steps there are, or segments if fewer of them can play, and
    what the busiest rank sends.
    """

    name: str
    seconds: float
    latency_s: float
    schedule: Schedule
    effort: str


def _algorithms() -> dict[str, tuple[str, str]]:
    """Return what can be played, as collective and name, by label.

    The label of an allreduce is its name, and any other collective stands before the name.
    """
    return {
        f"{collective} {name}".removeprefix("allreduce "): (collective, name)
        for collective in COLLECTIVES
        for name in ALGORITHMS[collective]
    }


_built = lru_cache(maxsize=64)(Algorithm.__call__)
_play = lru_cache(maxsize=16)(playback)


@lru_cache(maxsize=32)
def _ranked(collective: str, num_bytes: int, cluster: Cluster, _algorithms: Any) -> tuple[list[Runner], float]:
    """Rank a collective; the algorithms are part of the key only, so that one that is replaced is ranked anew."""
    fastest = best(num_bytes, cluster, collective)
    runners = []
    for name, options, seconds in fastest.candidates:
        record = algorithm_of(collective, name)
        latency_s = seconds_with(record, options, 0.0, cluster) or 0.0
        num_segments = options.get("num_segments", 1)
        if num_segments > _MOST_SEGMENTS:
            options = options | {"num_segments": _MOST_SEGMENTS}
        schedule = _built(record, cluster.num_ranks, **options)
        rounds = count_of(schedule.num_steps, "step")
        if num_segments > _MOST_SEGMENTS:
            rounds = f"{num_segments} segments"
        sent_bytes = schedule.traffic(num_bytes).sum(1).max()  # over receivers, of the busiest sender
        runners.append(Runner(name, seconds, latency_s, schedule, f"{rounds}, {bytes_words(sent_bytes)}"))
    return runners, fastest.bound_s


def ranking(now: Now) -> tuple[tuple[Runner, ...], float]:
    """Return the chosen algorithm, then the others of its collective, the fastest first; and the bound in seconds.

    Raises ValueError if the chosen one does not exist for so many ranks.
    """
    collective, chosen = _algorithms()[now.algorithm]
    algorithms = tuple(ALGORITHMS[collective].items())
    runners, bound_s = _ranked(collective, parse_bytes("message", now.message), cluster(now), algorithms)
    chosen_first = tuple(sorted(runners, key=lambda runner: runner.name != chosen))
    if chosen_first[0].name != chosen:
        raise ValueError(f"{now.algorithm} does not exist for {cluster(now).num_ranks} ranks")
    return chosen_first, bound_s


def plays(now: Now) -> list[Playback]:
    """Return the chosen algorithm and the fastest other one with the times of their messages.

    There are none if there are too many ranks to follow.
    """
    if cluster(now).num_ranks > _MOST_RANKS:
        return []
    num_bytes = parse_bytes("message", now.message)
    return [_play(runner.schedule, num_bytes, cluster(now)) for runner in ranking(now)[0][:2]]


@lru_cache(maxsize=1)  # the picture that plays and the one that does not have the same
def _drawn(runners: tuple[Runner, ...], bound_s: float, message: str) -> Drawing:
    """Draw the time of every algorithm, and what it consists of."""
    faster, slower = sorted(runners[:2], key=lambda runner: runner.seconds)
    times = times_in_one_unit(faster.seconds, slower.seconds)
    size = f"{message} on {count_of(faster.schedule.num_ranks, 'rank')}"
    return draw_ranking(
        {runner.name: runner.seconds for runner in runners},
        bound_s,
        runners[0].name,
        f"{faster.name} takes {times[0]}, {slower.name} {times[1]}",
        f"{size}: {faster.effort} against {slower.effort}",
        {runner.name: runner.latency_s for runner in runners},
        {runner.name: runner.effort for runner in runners},
        "dotted: latency; right: most a rank sends",
    )


def draw(now: Now) -> list[Drawing]:
    """All algorithms, and a moment on the way of the two that race, for readers without a kernel."""
    drawings = [_drawn(*ranking(now), now.message)]
    shown = plays(now)
    if shown:
        drawings.append(draw_play(shown, _STILL_AT * horizon_s(shown), _pair(now)))
    return drawings


def play(now: Now) -> str:
    """All algorithms, and all moments of the two that race, with buttons to play, to pause and to step."""
    svg = to_svg(_drawn(*ranking(now), now.message))
    shown = plays(now)
    return svg + play_svg(shown, _pair(now)) if shown else svg


def _pair(now: Now) -> str:
    """Return the title of a race."""
    chosen, other = ranking(now)[0][:2]
    return f"{chosen.name} and {other.name}, step by step"


def report(now: Now) -> list[str]:
    """The times of those that race and what they send, what `verify` says of them, and the lower bound."""
    runners, bound_s = ranking(now)
    return [
        *(
            f"{runner.name}: {time_words(runner.seconds)}; {runner.effort} from the busiest rank; "
            f"verified in at most {_MOST_SEGMENTS} segments: {verified(runner.schedule)}"
            for runner in runners[:2]
        ),
        f"lower bound on the fastest link: {time_words(bound_s)}",
        f"these two race if there are at most {_MOST_RANKS} ranks",
    ]


def _has_network(now: Now) -> bool:
    return bool(now.num_nodes > 1)


def _has_links_in_nodes(now: Now) -> bool:
    return bool(now.gpus_per_node > 1)


def player() -> Explorer:
    """Return controls over a ranking of all algorithms of a collective, and over the chosen one as it races the fastest
    of the others: chunks, messages and busy ranks under one playhead.

    Shapes follow the nodes, and each algorithm has its fastest number of segments, of which at most 4 play. More than 8
    ranks are ranked only.
    """
    settings = (
        Setting("algorithm", "ring", tuple(_algorithms()), "algorithm"),
        Setting("num_nodes", 1, range(1, 9), "nodes"),
        Setting("gpus_per_node", 4, range(1, 9), "GPUs per node"),
        Setting("message", "1 MiB", sizes(10, 30), "message"),
        Setting("inter_us", 10, _LATENCIES_US, "latency, network [µs]", _has_network),
        Setting("inter_gb_per_s", 25, _RATES_GB_PER_S, "bandwidth, network [GB/s]", _has_network),
        Setting("intra_us", 3, _LATENCIES_US, "latency, node [µs]", _has_links_in_nodes),
        Setting("intra_gb_per_s", 200, _RATES_GB_PER_S, "bandwidth, node [GB/s]", _has_links_in_nodes),
        Setting("gamma_ps", 1, Steps((0, 1, 2, 5, 10, 20, 50, 100)), "adding up [ps/byte]"),
        Setting("shared_nic", False, (), "one card per node", _has_network),
    )
    return Explorer(settings, draw, report, PRESETS, play)
