"""`Table`: what nccl-tests measured in one run, in the form of its text; and the profile that follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import mean, median
from typing import Any, NamedTuple

import msgspec

from ..points import NATIVE, busbw_factor
from ..profile import Profile
from .facts import Facts
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
SLOW = "slow process: "
_MOST_RANKS = 4096  # among which the number is sought that fits the bus bandwidths
_SLACK = 0.01  # of a rate, for other ways of rounding: the smallest wrong unit, KiB for kB, is 0.024
_LATE = 1.1  # a process is slow in an iteration that takes it so many times the median of all processes


class Rank(NamedTuple):
    """A rank as it is listed. Host and pid tell processes apart, host and bus GPUs; old versions state part of it."""

    number: int
    host: str
    pid: str
    bus: str
    card: str


class Half(NamedTuple):
    """The out-of-place or the in-place half of a row, with its cells by column: words, or numbers of JSON.

    `shared` has those of both halves: the type, the operation and the root. JSON also has the times of each iteration,
    those of the slowest process and those of each process.
    """

    where: str
    num_bytes: int
    num_elements: int
    in_place: bool
    shared: dict[str, str]
    cells: dict[str, Any]
    times_us: Sequence[float] = ()
    process_times_us: Sequence[Sequence[float]] = ()


class Table(msgspec.Struct):
    """A table, or the lines so far of tables that are mixed line by line."""

    first_line: int = 1
    last_line: int = 1
    collective: str = ""  # "" if nothing names it
    ranks: list[Rank] = []
    columns: Sequence[str] = USUAL_COLUMNS  # without size, count and type
    num_headers: int = 0
    halves: list[Half] = []
    averages: list[float] = []
    notes: list[str] = []
    facts: Facts = Facts()
    date: str = ""


def is_whole(ranks: Sequence[Rank]) -> bool:
    """Return whether no rank is missing from a list."""
    return [rank.number for rank in ranks] == list(range(len(ranks)))


def profile_of(log: Log, table: Table) -> Profile:
    """Return the profile of a table. Raises FileError if its figures contradict each other, or too little is stated."""
    first = table.halves[0]
    last = table.halves[-1]  # the largest size
    # The bytes as a multiple of the counted elements: 1, or the number of ranks if those are one rank's.
    per_count = last.num_bytes // max(last.num_elements * TYPE_BYTES[last.shared["dtype"]], 1)
    _count_whole_buffer(table, per_count)
    collective = table.collective or log.collective or _by_columns(table, per_count)
    if not collective:
        raise log.error(first.where, "the collective of the table is not stated: state it with --collective")
    num_ranks = _num_ranks(log, table, collective, per_count)
    listed = []
    if is_whole(table.ranks) and len(table.ranks) == num_ranks:
        listed = table.ranks
    ranks_per_node = list(Counter(rank.host for rank in listed).values())
    varying = [name for name in first.shared if len({half.shared[name] for half in table.halves}) > 1]
    points = []
    for half in table.halves:
        options = _options(collective, num_ranks, len(ranks_per_node))
        options["in_place"] = half.in_place
        options |= {name: half.shared[name] for name in varying}
        points.append(timed(collective, half.num_bytes, _seconds(log, half), options))
    how: dict[str, Any] = {"statistic": "mean", **table.facts.repetitions}
    if first.times_us:
        how["statistic"] = "each iteration"
    if "dtype" not in varying:
        how["dtype"] = first.shared["dtype"]
    num_wrong = [float(half.cells["#wrong"]) for half in table.halves if half.cells.get("#wrong", "N/A") != "N/A"]
    if num_wrong:
        how["verified"] = not any(num_wrong)
    software = table.facts.software
    gpus = [software] * num_ranks
    if any(rank.card for rank in listed):
        gpus = [{"name": rank.card, **software} for rank in listed]
    return log.profile(
        points,
        table.facts.program,
        [*_notes(table, num_ranks, sum(num_wrong)), *_slow_process(table)],
        how,
        backend="nccl",
        num_ranks=num_ranks,
        gpus=list(filter(None, gpus)),
        num_nodes=len(ranks_per_node),
        ranks_per_node=ranks_per_node,
        network=table.facts.network,
        environment=table.facts.environment,
        date=table.date,
    )


# ---- what is not stated, but follows


def _by_columns(table: Table, per_count: int) -> str:
    """Return the collective whose program alone prints such columns; "" if there are several.

    Reductions have an operation; reduce and broadcast have a root. Old versions print no root otherwise, and a blank
    operation for an all-to-all, but none for an allgather. Sendrecv prints an operation, but has nothing to verify in
    place.
    """
    shared = table.halves[0].shared
    has_root = shared.get("root", "-1") not in ("-1", "")
    if shared.get("redop", "none") not in ("none", ""):
        if has_root:
            return "reduce"
        if per_count > 1:
            return "reduce_scatter"
        unverified = {half.in_place for half in table.halves if half.cells.get("#wrong") == "N/A"}
        if unverified == {True}:
            return ""
        return "allreduce"
    if has_root and per_count == 1:
        return "broadcast"
    if "root" in shared or per_count == 1:
        return ""
    if "redop" in shared:
        return "all_to_all"
    return "allgather"


def _count_whole_buffer(table: Table, per_count: int) -> None:
    """Set each algbw to that of the whole buffer, if it is of one rank's share, as some programs printed until 2020."""
    last = table.halves[-1].cells
    share = float(last["algbw"]) * float(last["time"]) * 1e3  # bytes
    if per_count > 1 and abs(share * per_count / table.halves[-1].num_bytes - 1) < _SLACK:
        for half in table.halves:
            half.cells["algbw"] = half.num_bytes / float(half.cells["time"]) * 1e-3


def _num_ranks(log: Log, table: Table, collective: str, per_count: int) -> int:
    """Return the number of ranks that is listed or that the user states, else the only one that fits the bandwidths."""
    stated = log.num_ranks
    if table.ranks and is_whole(table.ranks):
        stated = len(table.ranks)
    if stated and per_count in (1, stated) and _fits(table, collective, stated):
        return stated
    possible: Sequence[int] = range(1, _MOST_RANKS)
    if per_count > 1:
        possible = (per_count,)
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
    if collective == "together":
        factor = 1.0
    for half in reversed(table.halves):  # the last ones tell most
        algbw = float(half.cells["algbw"])
        busbw = float(half.cells["busbw"])
        rounding = 0.00501  # half of the last digit
        if max(algbw, busbw) >= 1000:
            rounding = 0.0501
        if abs(busbw - factor * algbw) > rounding * (1 + factor) + slack * busbw:
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


def _seconds(log: Log, half: Half) -> list[float]:
    """Return the times of all iterations, if JSON has them; of the shortest, the mean and the longest; or the mean.

    Raises FileError if the mean contradicts the algbw.
    """
    time = str(half.cells["time"])
    seconds = float(time) * 1e-6
    rate = float(half.cells["algbw"]) * 1e9
    if "e" in time and rate:  # printed with two digits
        seconds = half.num_bytes / rate
    rounding = 0.005 / float(time)
    if abs(half.num_bytes / seconds - rate) > (2 * _SLACK + rounding) * rate + 1e7:  # 1e7: a unit of the last digit
        raise log.error(half.where, f"{half.cells['algbw']} GB/s is not {half.num_bytes} bytes in {time} µs")
    if half.times_us:
        return [time_us * 1e-6 for time_us in half.times_us]
    if "i_min" in half.cells:
        return [float(half.cells["i_min"]) * 1e-6, seconds, float(half.cells["i_max"]) * 1e-6]
    return [seconds]


# ---- notes


def _notes(table: Table, num_ranks: int, num_wrong: float) -> list[str]:
    """Return what is special about a run, first what makes its figures worthless."""
    notes = [*table.notes]
    buses = Counter((rank.host, rank.bus) for rank in table.ranks if ":" in rank.bus)
    num_sharing = sum(number for number in buses.values() if number > 1)
    if num_sharing:
        notes.append(f"{FAULT}{num_sharing} ranks share a GPU with another one")
    if num_ranks == 1:
        notes.append(f"{FAULT}one rank, which exchanges nothing")
    if num_wrong:
        notes.append(f"{FAULT}{num_wrong:g} elements of the results are wrong")
    notes.sort(key=lambda note: not note.startswith(FAULT))
    for name, words in (("i_cv%", "% is the largest variation"), ("i_p99", "µs is the longest 99th percentile")):
        spreads = [float(half.cells[name]) for half in table.halves if name in half.cells]
        if spreads:
            notes.append(f"{max(spreads):g} {words} of the iterations ({name})")
    average = mean(float(half.cells["busbw"]) for half in table.halves)
    if not any(abs(average - printed) <= 1e-3 * (1 + average) for printed in table.averages):
        notes.append(f"no average of {average:.4g} GB/s stands below the rows: there may be more of them")
    return notes


def _slow_process(table: Table) -> list[str]:
    """Return the process that is the slowest in most iterations, clearly slower than others; nothing if none is."""
    iterations = [times_us for half in table.halves for times_us in zip(*half.process_times_us, strict=True)]
    late = [times_us for times_us in iterations if max(times_us) > _LATE * median(times_us)]
    slowest = Counter(times_us.index(max(times_us)) for times_us in late)
    for process, number in slowest.most_common(1):
        share = number / len(iterations)
        if share > 0.5:
            rank = table.ranks[process * len(table.ranks) // len(iterations[0])]  # its first
            who = f"process {process} (rank {rank.number} on {rank.host})"
            return [f"{SLOW}{who} is the slowest in {share:.0%} of the iterations"]
    return []
