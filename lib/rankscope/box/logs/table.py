"""`Table`: what nccl-tests measured in one run; and the profile that follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ..points import NATIVE, busbw_factor
from ..profile import Profile
from .facts import facts_of
from .log import Log, timed

_HALF = ("time", "algbw", "busbw", "#wrong")
USUAL_COLUMNS = ("redop", "root", *_HALF, *_HALF)  # where a paste has no header
TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16"), 2),
    **dict.fromkeys(("float", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "long"), 8),
}
# How notes begin that say what is wrong with a run; faults are the first thing to know about it.
FAULT = "fault: "
CUT = "is cut or damaged, and left out"
_MOST_RANKS = 4096  # among which the number is sought that fits the bus bandwidths
_SLACK = 0.01  # of a rate, for other ways of rounding


class Rank(NamedTuple):
    """A rank as it is listed. Host and pid tell processes apart, host and bus GPUs."""

    number: int
    host: str
    pid: str
    bus: str
    card: str


class Half(msgspec.Struct, frozen=True):
    """The out-of-place or the in-place half of a row. `redop` and `root` are "" if the table has no such column.

    `times_us` has the mean time of the iterations; where they are printed, before it the shortest and after it the
    longest.
    """

    where: str
    num_bytes: int
    num_elements: int
    dtype: str
    redop: str
    root: str
    in_place: bool
    time_us: float
    times_us: Sequence[float]
    algbw: float
    busbw: float
    num_wrong: float | None = None
    is_cpu_time: bool = False  # of the call, which returns before the GPU has done


class Table(msgspec.Struct):
    """A table, or the lines so far of tables that are mixed line by line."""

    lines: list[str] = []
    collective: str = ""  # "" if nothing names it
    ranks: list[Rank] = []
    columns: Sequence[str] = USUAL_COLUMNS  # without size, count and type
    num_headers: int = 0
    halves: list[Half] = []
    num_averages: int = 0
    notes: list[str] = []


def is_whole(ranks: Sequence[Rank]) -> bool:
    """Return whether no rank is missing from a list."""
    return [rank.number for rank in ranks] == list(range(len(ranks)))


def profile_of(log: Log, table: Table) -> Profile:
    """Return the profile of a table. Raises FileError if its figures contradict each other, or too little is stated."""
    last = table.halves[-1]  # the largest size
    # The bytes as a multiple of the counted elements: 1, or the number of ranks if those are one rank's.
    per_count = last.num_bytes // max(last.num_elements * TYPE_BYTES[last.dtype], 1)
    collective = table.collective or log.collective or _by_columns(table, per_count)
    if not collective:
        raise log.error(last.where, "the collective of the table is not stated: state it with --collective")
    for half in table.halves:
        _check_rate(log, half)
    num_ranks = _num_ranks(log, table, collective, per_count)
    listed = []
    if is_whole(table.ranks) and len(table.ranks) == num_ranks:
        listed = table.ranks
    ranks_per_node = list(Counter(rank.host for rank in listed).values())
    options = _options(collective, num_ranks, len(ranks_per_node))
    points = []
    for half in table.halves:
        seconds = [time_us * 1e-6 for time_us in half.times_us]
        points.append(timed(collective, half.num_bytes, seconds, {**options, "in_place": half.in_place}))
    facts = facts_of(table.lines)
    how: dict[str, Any] = {"statistic": "mean", **facts.repetitions}
    if last.is_cpu_time:
        how["clock"] = "cpu"
    dtypes = {half.dtype for half in table.halves}
    if len(dtypes) == 1:
        how["dtype"] = last.dtype
    num_wrong = [half.num_wrong for half in table.halves if half.num_wrong is not None]
    if num_wrong:
        how["verified"] = not any(num_wrong)
    gpus = [facts.software] * num_ranks
    if any(rank.card for rank in listed):
        gpus = [{"name": rank.card, **facts.software} for rank in listed]
    return log.profile(
        points,
        facts.program,
        _notes(table, num_ranks, sum(num_wrong)),
        how,
        backend="nccl",
        num_ranks=num_ranks,
        gpus=list(filter(None, gpus)),
        num_nodes=len(ranks_per_node),
        ranks_per_node=ranks_per_node,
        network=facts.network,
        environment=facts.environment,
    )


# ---- what is not stated, but follows


def _by_columns(table: Table, per_count: int) -> str:
    """Return the collective whose program alone prints such columns; "" if there are several.

    Reductions have an operation; reduce and broadcast have a root. Old versions print no column for the operation of an
    allgather, and a blank one for that of an alltoall. Sendrecv prints an operation, but verifies nothing in place.
    """
    half = table.halves[-1]
    has_root = half.root not in ("", "-1")
    has_operation = half.redop not in ("", "none")
    unverified = {half.in_place for half in table.halves if half.num_wrong is None}
    if has_operation and has_root:
        return "reduce"
    if has_operation and per_count > 1:
        return "reduce_scatter"
    if has_operation and unverified != {True}:
        return "allreduce"
    if has_root and per_count == 1:
        return "broadcast"
    if half.redop or per_count == 1:
        return ""
    if "redop" in table.columns:
        return "all_to_all"
    return "allgather"


def _num_ranks(log: Log, table: Table, collective: str, per_count: int) -> int:
    """Return the number of ranks that is listed or that the user states, else the only one that fits the bandwidths."""
    stated = log.num_ranks
    if table.ranks and is_whole(table.ranks):
        stated = len(table.ranks)
    if stated and per_count in (1, stated) and _fits(table, collective, stated):
        return stated
    possible: Sequence[int] = range(1, _MOST_RANKS)
    if per_count > 1:
        possible = [per_count]
    fitting = [number for number in possible if _fits(table, collective, number)]
    if len(fitting) == 1:
        return fitting[0]
    if stated and _fits(table, collective, stated, _SLACK):
        return stated
    problem = "is not stated and does not follow from its figures: state it with --num-ranks"
    if stated:
        problem = f"is stated as {stated}, and bus bandwidths of {collective} are then others: is --collective right?"
    raise log.error(table.halves[-1].where, f"the number of ranks {problem}")


def _fits(table: Table, collective: str, num_ranks: int, slack: float = 0.0) -> bool:
    """Return whether all bus bandwidths belong to so many ranks, apart from rounding and this share of them."""
    factor = busbw_factor(collective, num_ranks)
    for half in reversed(table.halves):  # the last ones tell most
        rounding = 0.00501  # half of the last digit
        if max(half.algbw, half.busbw) >= 1000:
            rounding = 0.0501
        if abs(half.busbw - factor * half.algbw) > rounding * (1 + factor) + slack * half.busbw:
            return False
    return True


def _options(collective: str, num_ranks: int, num_nodes: int) -> dict[str, Any]:
    """Return the options that all points share: the algorithm, or the link of sendrecv if all messages take one."""
    if collective != "together":
        return {"algorithm": NATIVE}
    if num_ranks > 1 and num_nodes == 1:
        return {"link": "intra"}
    if num_ranks > 1 and num_nodes == num_ranks:
        return {"link": "inter"}
    return {}


def _check_rate(log: Log, half: Half) -> None:
    """Raise FileError if the time contradicts the algbw, both of which are rounded."""
    rate = half.num_bytes / half.time_us * 1e-3
    tolerance = 2 * _SLACK + 0.005 / half.time_us
    if abs(rate - half.algbw) > tolerance * half.algbw + 0.01:
        raise log.error(half.where, f"{half.algbw:g} GB/s is not {half.num_bytes} bytes in {half.time_us:g} µs")


# ---- notes


def _notes(table: Table, num_ranks: int, num_wrong: float) -> list[str]:
    """Return what is special about a run."""
    notes = [*table.notes]
    buses = Counter((rank.host, rank.bus) for rank in table.ranks if ":" in rank.bus)
    num_sharing = sum(number for number in buses.values() if number > 1)
    if num_sharing:
        notes.append(f"{FAULT}{num_sharing} ranks share a GPU with another one")
    if num_ranks == 1:
        notes.append(f"{FAULT}one rank, which exchanges nothing")
    if any(half.is_cpu_time for half in table.halves):
        notes.append(f"{FAULT}the times are those of the CPU's calls (-C), not of the GPU, so they show no bandwidth")
    if num_wrong:
        notes.append(f"{FAULT}{num_wrong:g} elements of the results are wrong")
    return notes
