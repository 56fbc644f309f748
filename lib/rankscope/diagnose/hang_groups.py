"""`explain_groups`: which rank did not reach the collective in which the others wait, or called another one.

The ranks of each process group are compared at the first collective that does not end. If a rank is missing there
because it waits in another group, that other group has the cause.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..common.words import listed

DEFAULT_GROUP = "default_pg"
_PARTS = ("collective", "size", "dtype", "number")  # of a call, which must be the same on all ranks
_MOST_CALLS = 4  # of which one finding says who made them
_ADVICE = {
    "missing": "Check its log and its stack (py-spy dump) for a slow batch, an evaluation, an error or the loop's end.",
    "left out": "It called the one that comes next on the others. Look for a condition that differs or a caught error.",
    "late": "Check its log: what it did since its last call took longer than the timeout.",
    "dead": "It ended or was killed before it wrote one, or the file is not here: check the log and dmesg.",
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


def explain_groups(groups: Iterable[Group]) -> list[HangFinding]:
    """Return why groups stop, without those that stop as a consequence; nothing if no rank waits."""
    stops = [_stop(group) for group in groups if any(one.waits_in is not None for one in group.progress.values())]
    waiting: set[int] = set()
    for stop in stops:
        waiting |= {rank for rank in stop.came if stop.group.progress[rank].waits_in is not None}
    with_cause = [stop for stop in stops if not stop.behind & waiting]
    if not with_cause:  # groups wait in a circle: a rank that waits nowhere is the cause
        others = [stop._replace(behind=stop.behind - waiting) for stop in stops]
        with_cause = [stop for stop in others if stop.behind or stop.unknown][:1]
    findings = []
    for stop in with_cause:
        findings += _explain(stop)
    if stops and not findings:
        findings = [_circle(stops)]
    return findings


def _stop(group: Group) -> _Stop:
    progress = group.progress
    number = min(one.enqueued + 1 if one.waits_in is None else one.waits_in for one in progress.values())
    came = {rank for rank, one in progress.items() if one.enqueued >= number}
    calls = {rank: progress[rank].calls[number] for rank in came if number in progress[rank].calls}
    return _Stop(group, number, came, {*progress} - came, {*group.ranks} - {*progress}, calls)


def _explain(stop: _Stop) -> list[HangFinding]:
    """Say what is wrong at one call: ranks that are missing, that called something else, or that came late."""
    who_called = _who_called(stop.calls)
    if stop.behind:
        last = [f"The last call of rank {rank} there was {_last_call(stop, rank)}." for rank in sorted(stop.behind)]
        return [_finding("missing", stop.behind, stop, f"did not reach {stop}", *last[:_MOST_CALLS], *who_called)]
    if stop.unknown:
        return [
            _finding("dead", stop.unknown, stop, f"left no dump that can be read, and {stop} does not end", *who_called)
        ]
    odd = _odd(stop)
    if odd:
        return odd
    created_s = [call.created_s for call in stop.calls.values()]
    late = [rank for rank, call in stop.calls.items() if call.created_s - min(created_s) >= call.timeout_s > 0]
    if late:
        return [_finding("late", late, stop, f"came to {stop} after the timeout of the first rank", *who_called)]
    words = f"{listed('Rank', stop.came)} wait in {stop}"
    return [_finding("stuck", (), stop, words, *who_called)]


def _odd(stop: _Stop) -> list[HangFinding]:
    """Return the ranks whose call differs from that of more than half of them, by what differs; none if all are alike.

    If there is no such majority, it is all ranks. Of two, it is the one that did not go on as it did before.
    """
    counts = Counter(call.parts for call in stop.calls.values()).most_common()
    if len(counts) < 2:
        return []
    usual, most = counts[0]
    new = [rank for rank in stop.calls if _is_new(stop.group.progress[rank].calls, stop.number)]
    if len(stop.calls) == 2 and len(new) == 1:
        (usual,) = (call.parts for rank, call in stop.calls.items() if rank not in new)
        most = 2
    is_tie = 2 * most <= len(stop.calls)
    odd = [rank for rank, call in stop.calls.items() if is_tie or call.parts != usual]
    following = [one.calls.get(stop.number + 1) for rank, one in stop.group.progress.items() if rank not in odd]
    ranks_of: dict[str, list[int]] = {}
    for rank in odd:
        call = stop.calls[rank]
        others = next(parts for parts, _ in counts if parts != call.parts) if is_tie else usual
        cause = next(part for part, a, b in zip(_PARTS, call.parts, others, strict=True) if a != b)
        if any(one and one.parts == call.parts for one in following):
            cause = "left out"
        ranks_of.setdefault(cause, []).append(rank)
    findings = []
    for cause, ranks in ranks_of.items():
        differs = {"left out": f"left out {stop}", "number": f"made another number of calls up to {stop}"}
        words = differs.get(cause, f"called {stop} with another {cause}")
        tie = "; rankscope cannot tell which of them is wrong" if is_tie else ""
        findings.append(_finding(cause, ranks, stop, words + tie, *_who_called(stop.calls), is_certain=not is_tie))
    return findings


def _is_new(calls: Mapping[int, Call], number: int) -> bool:
    """Return whether a rank went on in another way than before after a call like the one before this."""
    pairs = [*pairwise(calls[place].parts for place in sorted(calls) if place <= number)]
    return bool(pairs) and pairs[-1] not in pairs[:-1] and any(before == pairs[-1][0] for before, _ in pairs[:-1])


def _circle(stops: Sequence[_Stop]) -> HangFinding:
    """Groups wait for each other: the ranks that are missing at the call that most ranks reached are to look at."""
    stop = max(stops, key=lambda stop: len(stop.came))
    others = [f"Meanwhile {listed('rank', other.came)} wait in {other}." for other in stops if other is not stop]
    return _finding(
        "group", stop.behind, stop, f"did not reach {stop}: other groups wait for each other", *others[:_MOST_CALLS]
    )


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
