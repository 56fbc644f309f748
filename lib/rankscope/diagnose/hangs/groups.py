"""`explain_groups`: which rank did not reach the collective in which the others wait, or called another one.

The ranks of each process group are compared at the first collective that does not end. A rank that is missing there
because it waits in another group is not named: that other group has the cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ...common.words import listed

DEFAULT_GROUP = "default_pg"
PARTS = ("collective", "size", "dtype", "number")  # of a call, which must be the same on all ranks
_MOST_CALLS = 4  # of which one finding says who made them
_ADVICE = {
    "missing": "Check log and stack (py-spy dump) there for a slow batch, an evaluation, an error or the loop's end.",
    "left out": "The call is the one that comes next on the others: a condition that differs, or a caught error?",
    "order": "Call collectives in the same order on all ranks: does something without an order, such as a set, decide?",
    "late": "Check the log: what was done there since the last call took longer than the timeout.",
    "dead": "Ended or killed before the dump was written, or the file is not here: check the log and dmesg.",
    "group": "Call the groups in the same order on all ranks.",
    "stuck": (
        "If these are all ranks of the group, none is missing and none differs: look at the network, at NCCL, at the "
        "split sizes of an all-to-all, and at earlier calls of other groups and streams."
    ),
}


class HangFinding(NamedTuple):
    """Why a job hangs or has ended: the cause, the ranks to look at, and sentences, which say so if it is not certain.

    `group` is empty and `call` 0 if they are unknown. `lines` of a log show it.
    """

    cause: str
    ranks: tuple[int, ...]
    words: str
    group: str = ""
    call: int = 0
    is_certain: bool = True
    lines: tuple[str, ...] = ()


class Call(NamedTuple):
    """A collective that a rank has queued. Parts that are unknown, or may differ between ranks, are empty."""

    collective: str
    size: str = ""
    dtype: str = ""
    number: str = ""  # only if it is compared
    created_s: float = 0.0
    timeout_s: float = math.inf
    where: str = ""  # the line of the user's code

    @property
    def parts(self) -> tuple[str, str, str, str]:
        return self[:4]

    def __str__(self) -> str:
        number = f"number {self.number}" if self.number else ""
        what = " ".join(filter(None, [self.collective, self.size, self.dtype, number]))
        return f"{what}, at {self.where}" if self.where else what


class Progress(NamedTuple):
    """How far a rank came in a group: the number of the call that does not end, or None; the last one's; and calls."""

    waits_in: int | None
    enqueued: int
    calls: Mapping[int, Call]


class Group(NamedTuple):
    """A process group: its ranks, and the progress of those that left a dump or lines."""

    name: str
    ranks: tuple[int, ...]
    progress: Mapping[int, Progress]

    def __str__(self) -> str:
        if self.name == DEFAULT_GROUP:
            return "the default group"
        return f"group {self.name}" if self.name else "a group that is not named"


class _Stop(NamedTuple):
    """The call at which a group stops, and which of its ranks came to it."""

    group: Group
    number: int
    came: set[int]
    behind: set[int]  # known not to have come
    unknown: set[int]  # left no dump
    calls: dict[int, Call]

    def __str__(self) -> str:
        return f"collective {self.number} of {self.group}"


def explain_groups(groups: Collection[Group], elsewhere: Collection[int] = ()) -> list[HangFinding]:
    """Return why groups stop, without those that stop as a consequence; nothing if no rank waits.

    Ranks `elsewhere` wait, too, perhaps in groups whose ranks are not known.
    """
    stops = [_stop(group) for group in groups if any(one.waits_in is not None for one in group.progress.values())]
    waiting = {*elsewhere}
    for group in groups:
        waiting |= {rank for rank, one in group.progress.items() if one.waits_in is not None}
    findings: dict[object, HangFinding] = {}
    first_stops = [stop for stop in stops if not stop.behind & waiting]
    first_stops += [stop for stop in stops if stop.behind & waiting and stop.behind - waiting]
    for stop in first_stops or stops:
        idle = stop.behind - waiting
        if idle or stop.unknown or not stop.behind:
            finding = _explain(stop._replace(behind=idle))
            findings.setdefault((finding.cause, finding.ranks), finding)
    if stops and not findings:
        waits = [f"{listed('Rank', stop.came)} came to {stop}." for stop in stops][:_MOST_CALLS]
        words = "Groups wait for each other, and rankscope cannot tell which rank began"
        return [_finding("group", (), stops[0], words, waits, is_certain=False)]
    return [*findings.values()]


def _stop(group: Group) -> _Stop:
    progress = group.progress
    number = min(one.enqueued + 1 if one.waits_in is None else one.waits_in for one in progress.values())
    came = {rank for rank, one in progress.items() if one.enqueued >= number}
    calls = {rank: progress[rank].calls[number] for rank in came if number in progress[rank].calls}
    return _Stop(group, number, came, {*progress} - came, {*group.ranks} - {*progress}, calls)


def _explain(stop: _Stop) -> HangFinding:
    """Say what is wrong at one call: ranks that are missing, that called something else, or that came late."""
    who_called = _who_called(stop.calls)
    if stop.behind:
        last = []
        for rank in sorted(stop.behind):
            _, number, calls = stop.group.progress[rank]
            call = f", {calls[number]}" if number in calls else ""
            last.append(f"The last call of rank {rank} there was number {number}{call}.")
        return _finding("missing", stop.behind, stop, f"did not reach {stop}", [*last[:_MOST_CALLS], *who_called])
    if stop.unknown:
        words = f"left no dump that can be read, and {stop} does not end"
        return _finding("dead", stop.unknown, stop, words, who_called)
    if len({call.parts for call in stop.calls.values()}) > 1:
        return _odd(stop)
    created_s = [call.created_s for call in stop.calls.values()]
    late = [rank for rank, call in stop.calls.items() if call.created_s - min(created_s) >= call.timeout_s > 0]
    if late:
        return _finding("late", late, stop, f"came to {stop} after the timeout of the first rank", who_called)
    return _finding("stuck", (), stop, f"{listed('Rank', stop.came)} wait in {stop}", who_called)


def _odd(stop: _Stop) -> HangFinding:
    """Return the ranks whose call differs from that of more than half of them, and by what; or all ranks."""
    counts = Counter(call.parts for call in stop.calls.values()).most_common()
    usual = counts[0][0]
    other = counts[1][0]
    is_tie = 2 * counts[0][1] <= len(stop.calls)
    odd = [rank for rank, call in stop.calls.items() if is_tie or call.parts != usual]
    cause = next(part for part, mine, theirs in zip(PARTS, other, usual, strict=True) if mine != theirs)
    following = {rank: progress.calls.get(stop.number + 1) for rank, progress in stop.group.progress.items()}
    if any(call and call.parts == other for rank, call in following.items() if rank not in odd):
        # what the others call next; do these ranks call next what the others call now?
        is_swapped = any(call and call.parts == usual for rank, call in following.items() if rank in odd)
        cause = "order" if is_swapped else "left out"
    differs = {
        "left out": f"left out {stop}",
        "order": f"made {stop} and the next in another order",
    }
    words = differs.get(cause, f"differed in {cause} at {stop}")
    if is_tie:
        words += "; rankscope cannot tell which of them is wrong"
    return _finding(cause, odd, stop, words, _who_called(stop.calls), is_certain=not is_tie)


def _finding(
    cause: str, ranks: Iterable[int], stop: _Stop, words: str, more: Iterable[str], is_certain: bool = True
) -> HangFinding:
    ranks = tuple(sorted(ranks))
    who = f"{listed('Rank', ranks)} " if ranks else ""
    lines = [f"{who}{words}.", *more, *filter(None, [_ADVICE.get(cause)])]
    return HangFinding(cause, ranks, "\n  ".join(lines), stop.group.name, stop.number, is_certain)


def _who_called(calls: Mapping[int, Call]) -> list[str]:
    """Say which ranks made which call, in at most four sentences."""
    ranks_of: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        ranks_of.setdefault(str(call), []).append(rank)
    return [f"{listed('Rank', ranks)} called {call}." for call, ranks in ranks_of.items()][:_MOST_CALLS]
