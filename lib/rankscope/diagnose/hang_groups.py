"""`explain_groups`: which rank did not reach the collective in which the others wait, or called another one.

The ranks of each process group are compared at the first collective that does not end. If a rank is missing there
because it waits in another group, that other group has the cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..common.words import listed

DEFAULT_GROUP = "default_pg"
_PARTS = ("collective", "size", "dtype", "number")  # of a call, which must be the same on all ranks
_MOST_ALIKE = 3  # calls before a call that are compared with those before an earlier call like it
_MOST_CALLS = 4  # of which one finding says who made them
_ADVICE = {
    "missing": "Check log and stack (py-spy dump) there for a slow batch, an evaluation, an error or the loop's end.",
    "left out": "The call is the one that comes next on the others: a condition that differs, or a caught error?",
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


def explain_groups(groups: Collection[Group]) -> list[HangFinding]:
    """Return why groups stop, without those that stop as a consequence; nothing if no rank waits."""
    stops = [_stop(group) for group in groups if any(one.waits_in is not None for one in group.progress.values())]
    waiting: set[int] = set()
    for stop in stops:
        waiting |= {rank for rank in stop.came if stop.group.progress[rank].waits_in is not None}
    with_cause = [stop for stop in stops if not stop.behind & waiting]
    if not with_cause:  # groups wait in a circle: a rank that waits nowhere is the cause
        others = [stop._replace(behind=stop.behind - waiting) for stop in stops]
        with_cause = [stop for stop in others if stop.behind or stop.unknown][:1]
    findings: list[HangFinding] = []
    for stop in with_cause:
        named = {(finding.cause, rank) for finding in findings for rank in finding.ranks}
        for finding in _explain(stop, groups):
            if not finding.ranks or any((finding.cause, rank) not in named for rank in finding.ranks):
                findings.append(finding)
    if stops and not findings:
        findings = [_circle(stops, groups)]
    return findings


def _stop(group: Group) -> _Stop:
    progress = group.progress
    number = min(one.enqueued + 1 if one.waits_in is None else one.waits_in for one in progress.values())
    came = {rank for rank, one in progress.items() if one.enqueued >= number}
    calls = {rank: progress[rank].calls[number] for rank in came if number in progress[rank].calls}
    return _Stop(group, number, came, {*progress} - came, {*group.ranks} - {*progress}, calls)


def _explain(stop: _Stop, groups: Iterable[Group]) -> list[HangFinding]:
    """Say what is wrong at one call: ranks that are missing, that called something else, or that came late."""
    who_called = _who_called(stop.calls)
    if stop.behind:
        last = [f"The last call of rank {rank} there was {_last_call(stop, rank)}." for rank in sorted(stop.behind)]
        return [_finding("missing", stop.behind, stop, f"did not reach {stop}", *last[:_MOST_CALLS], *who_called)]
    if stop.unknown:
        return [
            _finding("dead", stop.unknown, stop, f"left no dump that can be read, and {stop} does not end", *who_called)
        ]
    odd = _odd(stop, groups)
    if odd:
        return odd
    created_s = [call.created_s for call in stop.calls.values()]
    late = [rank for rank, call in stop.calls.items() if call.created_s - min(created_s) >= call.timeout_s > 0]
    if late:
        return [_finding("late", late, stop, f"came to {stop} after the timeout of the first rank", *who_called)]
    words = f"{listed('Rank', stop.came)} wait in {stop}"
    return [_finding("stuck", (), stop, words, *who_called)]


def _odd(stop: _Stop, groups: Iterable[Group]) -> list[HangFinding]:
    """Return the ranks whose call differs from that of more than half of them, by what differs; none if all are alike.

    If there is no such majority, it is the one that did not go on as it did before, or else all ranks.
    """
    counts = Counter(call.parts for call in stop.calls.values()).most_common()
    if len(counts) < 2:
        return []
    is_tie = 2 * counts[0][1] <= len(stop.calls)
    odd = [rank for rank, call in stop.calls.items() if is_tie or call.parts != counts[0][0]]
    new = [rank for rank in odd if is_tie and _is_new(rank, stop, groups)]
    if len(new) == 1:
        odd = new
        is_tie = False
    following = set()  # what others call next, here or after an earlier call like this one
    for rank in stop.calls.keys() - {*odd}:
        by_number = stop.group.progress[rank].calls
        for number, call in by_number.items():
            if call.parts == stop.calls[rank].parts and number + 1 in by_number:
                following.add(by_number[number + 1].parts)
    ranks_of: dict[str, list[int]] = {}
    for rank in odd:
        parts = stop.calls[rank].parts
        others = next(other for other, _ in counts if other != parts)
        cause = next(part for part, a, b in zip(_PARTS, parts, others, strict=True) if a != b)
        ranks_of.setdefault("left out" if parts in following else cause, []).append(rank)
    findings = []
    for cause, ranks in ranks_of.items():
        differs = {"left out": f"left out {stop}", "number": f"made another number of calls up to {stop}"}
        words = differs.get(cause, f"called {stop} with another {cause}")
        tie = "; rankscope cannot tell which of them is wrong" if is_tie else ""
        findings.append(_finding(cause, ranks, stop, words + tie, *_who_called(stop.calls), is_certain=not is_tie))
    return findings


def _is_new(rank: int, stop: _Stop, groups: Iterable[Group]) -> bool:
    """Return whether a rank went on at a stop in another way than before, after calls like those before the stop."""
    history = []  # of its calls in all groups, by time
    for group in groups:
        if rank in group.progress:
            for number, call in group.progress[rank].calls.items():
                history.append((call.created_s, group.name, number, call.parts))
    history.sort()
    called = [(name, parts) for _, name, _, parts in history]
    here = [(name, number) for _, name, number, _ in history].index((stop.group.name, stop.number))
    for length in range(_MOST_ALIKE, 0, -1):
        before = called[max(here - length, 0) : here]
        earlier = [called[place] for place in range(length, here) if called[place - length : place] == before]
        if earlier:
            return called[here] not in earlier
    return False


def _circle(stops: Sequence[_Stop], groups: Iterable[Group]) -> HangFinding:
    """Groups wait for each other, because of the one rank that did not go on as it did before."""
    new = {rank for stop in stops for rank in stop.calls if _is_new(rank, stop, groups)}
    is_certain = len(new) == 1
    stop = max(stops, key=lambda stop: (bool(new & stop.behind), len(stop.came)))
    waits = [f"{listed('Rank', other.came)} came to {other}." for other in stops]
    if is_certain:
        return _finding("group", new, stop, f"did not reach {stop}, but called another group", *waits[:_MOST_CALLS])
    words = "Groups wait for each other, and rankscope cannot tell which rank began"
    return _finding("group", (), stop, words, *waits[:_MOST_CALLS], is_certain=False)


def _finding(
    cause: str, ranks: Iterable[int], stop: _Stop, words: str, *more: str, is_certain: bool = True
) -> HangFinding:
    ranks = tuple(sorted(ranks))
    head = f"{listed('Rank', ranks)} {words}." if ranks else f"{words}."
    lines = [head, *more, *([_ADVICE[cause]] if cause in _ADVICE else [])]
    return HangFinding(cause, ranks, "\n  ".join(lines), stop.group.name, stop.number, is_certain)


def _last_call(stop: _Stop, rank: int) -> str:
    progress = stop.group.progress[rank]
    call = progress.calls.get(progress.enqueued)
    return f"number {progress.enqueued}, {call}" if call else f"number {progress.enqueued}"


def _who_called(calls: Mapping[int, Call]) -> list[str]:
    """Say which ranks made which call, in at most four sentences."""
    ranks_of: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        ranks_of.setdefault(str(call), []).append(rank)
    return [f"{listed('Rank', ranks)} called {call}." for call, ranks in ranks_of.items()][:_MOST_CALLS]
