"""`explain_hang`: which rank did not reach which collective, or called another one, from dumps and from logs.

The calls of each group are compared number by number. The group stops at the first number at which ranks are missing or
differ. If a rank is missing because it waits in another group, the cause is the one that stops that other group.
Point-to-point calls and the sizes of alltoall are not compared. `log_hangs` has the rules for logs.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ..common.checks import each, of_type
from ..common.units import time_words
from ..common.words import count_of, listed
from .dumps import Call, Dump
from .log_evidence import StuckQueue
from .log_findings import UNKNOWN, HangFinding
from .log_hangs import explain_logs
from .log_lines import group_key
from .logs import HangLogs

_MOST_LINES = 30  # that one finding lists of groups that wait for each other
# Calls before a call that are compared with those before an earlier call like it. In 1,308 hung jobs drawn as in
# tests/diagnose/test_hangs.py, 1 named a wrong rank 16 times, 2 did twice, and 3 and more never.
_MOST_ALIKE = 3
_MOST_LAST_CALLS = 4  # missing ranks whose last call a finding names
_MOST_ODD_CALLS = 3  # that differ from the usual one in the same way and that a finding names
_PROGRESS = {"scheduled": 0, "started": 1, "ended": 2, "completed": 2}  # of a call, by its state
# Less than this between two calls is shown as 1 µs: as floats, seconds since 1970 have an error of a quarter of a
# microsecond, so nanoseconds would mean nothing.
_LEAST_SHOWN_S = 2e-6
_ADVICE = {
    "missing": "Check its log and its stack (py-spy dump) for a slow batch, an evaluation, an error or the loop's end.",
    "left out": "It called the one that comes next on the others. Look for a condition that differs or a caught error.",
    "late": "Check its log: what it did since its last call took longer than the timeout.",
    "dead": "{who} ended or {was} killed before writing one, or the file is not here: check the log and dmesg.",
    "group": "Call the groups in the same order on all ranks.",
    "stuck": "The code of the ranks agrees: look at the network, the GPUs, and what runs before on their streams.",
}


class HangCulprit(NamedTuple):
    """A rank, and what it did at the `call`-th collective of a group."""

    rank: int
    cause: str
    group: str
    call: int


def group_words(name: str) -> str:
    return "the default group" if name == "default_pg" else name


class Group(msgspec.Struct, frozen=True, eq=False):
    """A process group: its ranks, and of those that left a dump their collectives by number."""

    name: str
    ranks: tuple[int, ...]
    calls: dict[int, dict[int, list[Call]]]

    def last_calls(self, until: int, most: int) -> list[int]:
        """Return the numbers of the last calls up to the one after `until`, at most so many.

        The call after it shows which ranks went on, as a rank does that left the call out.
        """
        numbers = sorted(set().union(*self.calls.values()))
        return [number for number in numbers if number <= until + 1][-most:]

    def first(self, number: int) -> Call:
        """Return the call of the rank that came first; of calls that share the number, the first one."""
        calls = [by_number[number][0] for by_number in self.calls.values() if number in by_number]
        return min(calls, key=lambda call: call.created_s)

    def signature(self, rank: int, number: int) -> tuple[Any, ...]:
        """Return what must be the same on all ranks of a call, or of calls that share a number."""
        return tuple(call.signature for call in self.calls[rank].get(number, ()))

    def ranks_by_signature(self, number: int, ranks: Iterable[int]) -> dict[tuple[Any, ...], list[int]]:
        """Return these ranks by what they called at a number."""
        ranks_by_signature: dict[tuple[Any, ...], list[int]] = {}
        for rank in ranks:
            ranks_by_signature.setdefault(self.signature(rank, number), []).append(rank)
        return ranks_by_signature

    def first_odd_place(self, number: int, ranks: Sequence[int]) -> int:
        """Return the place of the first call that differs between ranks, of calls that share a number; 0 if none does.

        A call that only some of these ranks have made differs, too.
        """
        signatures = [self.signature(rank, number) for rank in ranks]
        for place, calls in enumerate(itertools.zip_longest(*signatures)):  # None where a rank has made fewer calls
            if len({*calls}) > 1:
                return place
        return 0


class Hang(msgspec.Struct, frozen=True, eq=False):
    """The result of `explain_hang`: the causes, by time; their consequences, in sentences; and the groups compared."""

    findings: tuple[HangFinding, ...]
    notes: tuple[str, ...]
    groups: tuple[Group, ...]

    @property
    def culprits(self) -> list[HangCulprit]:
        """The ranks to look at, by finding; empty if no rank differs from the others."""
        culprits = []
        for finding in self.findings:
            culprits += [HangCulprit(rank, finding.cause, finding.group, finding.call) for rank in finding.ranks]
        return culprits

    def __str__(self) -> str:
        lines = [finding.words for finding in self.findings]
        if not lines:
            num_calls = sum(len(calls) for group in self.groups for calls in group.calls.values())
            compared = f"{count_of(num_calls, 'call')} of {count_of(len(self.groups), 'group')}"
            lines = [f"No hang: in {compared} no rank is missing or differs."]
            if num_calls == 0:  # the ranks may wait for something else, such as their data
                lines = ["The dumps contain no collective, so they do not show whether the job hangs."]
        return "\n".join([*lines, *self.notes])


class _Stop(msgspec.Struct, frozen=True, eq=False):
    """The call at which a group stops, and which ranks came to it, and how."""

    group: Group
    number: int
    came: list[int]
    absent: list[int]  # left a dump without this call
    odd: list[int]  # made another call
    late: list[int]  # came after the timeout of the first one
    behind: list[int]  # whose call has made less progress than that of others
    dead: list[int]  # left no dump
    waits: dict[int, _Stop] = {}  # by rank: the stop that explains why it did not come

    @property
    def missing(self) -> set[int]:
        """The ranks that did not come."""
        return {*self.absent, *self.dead}

    def call(self, rank: int) -> Call:
        """Return a rank's call, or the first one of its coalesced calls, which share a number."""
        return self.group.calls[rank][self.number][0]

    def call_at(self, rank: int, place: int) -> Call | None:
        """Return the call at a place of a rank's coalesced calls, or None if it has made fewer."""
        calls = self.group.calls[rank][self.number]
        return calls[place] if place < len(calls) else None

    def ranks_by_call(self, ranks: Iterable[int], place: int) -> list[list[int]]:
        """Return for each call at a place those of `ranks` that made it; a job can have as many calls as ranks."""
        ranks_by_call: dict[Any, list[int]] = {}
        for rank in ranks:
            call = self.call_at(rank, place)
            ranks_by_call.setdefault(call and call.signature, []).append(rank)
        return list(ranks_by_call.values())

    @property
    def first(self) -> Call:
        """The call of the rank that came first."""
        return self.group.first(self.number)

    def __str__(self) -> str:
        return f"collective {self.number} of {group_words(self.group.name)}"


def explain_hang(dumps: Sequence[Dump] = (), logs: HangLogs | None = None) -> Hang:
    """Explain why a job hangs, from the results of `read_dumps` and `read_logs`. Print it, or use its `culprits`.

    The causes are "missing" (the rank did not reach the call), "left out" (it made the next call instead), "late" (it
    arrived after the others timed out), "collective", "size" (in elements) and "dtype" (its call differs from that of
    the others), "group" (it waits in another group, whose ranks wait for this one), "dead" (it left no dump), and
    "stuck" (all ranks arrived, but its call is behind those of the others). Of two ranks that differ, the one that
    deviates from its own earlier steps is named; without earlier steps, both are.

    From logs, a rank is named only if the text supports it: the cause is "error" if the rank ended with an error of its
    own, and "call" if its call differs in a way that the text does not show. Lines of several attempts are explained
    one by one. A finding of cause "unknown", without ranks, says that the log does not show the rank, and what it does
    show. Its `group` is empty and its `call` is 0 if the text does not state them. If there are also dumps, the logs
    add errors and the ranks without a dump.

    Raises ValueError if the arguments are not dumps and logs, or there are neither.

    >>> from rankscope.diagnose import read_hang_text
    >>> print(explain_hang(logs=read_hang_text("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms")))
    Rank 2 did not reach monitored_barrier in time, as its rank 0 reports.
      These are the numbers of the ranks in the group. In the default group, they are the job's.
    """
    dumps = each("dumps", dumps, of_type, Dump)
    if logs is None and not dumps:
        raise ValueError("explain_hang needs dumps or logs, got neither")
    hang = _explain_dumps(dumps)
    if logs is None:
        return hang
    return _with_logs(hang, dumps, of_type("logs", logs, HangLogs))


def _with_logs(hang: Hang, dumps: Sequence[Dump], logs: HangLogs) -> Hang:
    """Add what logs say to what dumps say; the dumps of a rank say more of its calls than its log does."""
    from_logs = explain_logs(logs, _queues(dumps))
    if not dumps:
        return replace(hang, findings=tuple(from_logs))
    if not logs.facts:  # they have nothing to add, not even a note that they do not show the rank
        return hang
    with_dump = {dump.rank for dump in dumps}
    findings = []
    for finding in from_logs:
        is_about_calls = finding.cause not in ("error", "dead")
        if finding.cause == UNKNOWN or (is_about_calls and with_dump.issuperset(finding.ranks)):
            continue
        findings.append(finding)
    explained = {rank for finding in findings for rank in finding.ranks}
    for finding in hang.findings:
        # that a rank left no dump says less than what its log says
        if finding.cause != "dead" or not explained.issuperset(finding.ranks):
            findings.append(finding)
    notes = [*hang.notes]
    if not findings:  # then what logs say of calls, or that they do not show the rank, is at least a note
        notes += [finding.words for finding in from_logs]
    return replace(hang, findings=tuple(findings), notes=tuple(notes))


def _queues(dumps: Sequence[Dump]) -> list[StuckQueue]:
    """Return how far each rank got in each group, so that it can be compared with ranks that only have a log."""
    queues = []
    for dump in dumps:
        enqueued: dict[str, list[int]] = defaultdict(list)  # the numbers of calls, by group
        not_ended: dict[str, list[int]] = defaultdict(list)
        for call in dump.calls:
            if call.is_peer:
                continue
            enqueued[call.group].append(call.number)
            if _progress(call) < _PROGRESS["ended"]:
                not_ended[call.group].append(call.number)
        for name, numbers in enqueued.items():
            description, _ranks = dump.groups[name]
            group = group_key(name, description)
            failed = min(not_ended[name], default=None)
            queues.append(StuckQueue(dump.rank, group, failed=failed, enqueued=max(numbers)))
    return queues


def _progress(call: Call) -> int:
    """Return how far a call came; an unknown state counts as scheduled."""
    return _PROGRESS.get(call.state, _PROGRESS["scheduled"])


def _explain_dumps(dumps: Sequence[Dump]) -> Hang:
    """Find where each group stops, and name the causes: groups that wait in a circle first, then the other stops."""
    of_rank = {dump.rank: dump for dump in dumps}
    groups = _groups(of_rank)
    histories = {rank: _CallHistory(dump) for rank, dump in of_rank.items()}
    stops = _stops(groups, of_rank, histories)
    _set_waits(stops)
    with_own_cause = [stop for stop in stops if _has_own_cause(stop)]
    traced = _traced_to_a_cause(stops, with_own_cause)
    # A stop that no cause explains is one of several whose groups wait for each other.
    traced_set = {*traced}
    findings = _circle([stop for stop in stops if stop not in traced_set], histories)
    # A further stop with the same cause is a finding of its own only if it names another rank, or none.
    blamed: dict[str, set[int]] = defaultdict(set)  # ranks, by cause
    for finding in findings:
        blamed[finding.cause].update(finding.ranks)
    for stop in with_own_cause:
        for cause in _causes(stop, of_rank):
            newly_blamed = {*cause.ranks} - blamed[cause.name]
            if newly_blamed or not cause.ranks:
                findings.append(_finding(cause, stop))
                blamed[cause.name].update(cause.ranks)
    return Hang(tuple(findings), tuple(_notes(findings, traced, of_rank)), groups)


def _notes(findings: list[HangFinding], stops: list[_Stop], of_rank: dict[int, Dump]) -> list[str]:
    """Sentences on the groups that stop as a consequence, and on calls that are not compared."""
    named = {finding.group for finding in findings}
    notes = []
    for stop in stops:
        if stop.absent and stop.group.name not in named:
            came = listed("rank", stop.came)
            notes.append(f"So {came} cannot end {stop}: {listed('rank', stop.absent)} did not reach it.")
    num_peers = sum(call.is_peer for dump in of_rank.values() for call in dump.calls)
    if num_peers:
        notes.append(f"{count_of(num_peers, 'point-to-point call')} not compared.")
    return notes


# ---- which stop is the consequence of which


def _has_own_cause(stop: _Stop) -> bool:
    """Return whether a group stops not only because ranks wait elsewhere.

    It does if ranks made another call, if no other stop explains why a rank is missing, or if none is missing at all.
    """
    missing_without_reason = stop.missing - {*stop.waits}
    return bool(stop.odd or missing_without_reason or not stop.absent)


def _set_waits(stops: list[_Stop]) -> None:
    """Set `waits` of each stop, from the stops at which ranks wait; `stops` are in order of time."""
    first_stop_of: dict[int, _Stop] = {}  # by rank, the first stop to which it came
    for stop in stops:
        for rank in stop.came:
            first_stop_of.setdefault(rank, stop)
    for stop in stops:
        for rank in stop.absent:
            if rank in first_stop_of:
                stop.waits[rank] = first_stop_of[rank]

    # A stop waits for another one if a rank is absent because it waits there. A further rank that is missing at both is
    # missing at that other one first, so its absence here is explained. Around a circle of stops that wait for each
    # other, it would be explained everywhere: the earliest stop, which comes last here, keeps it as a cause of its own.
    for stop in reversed(stops):
        waits_for = dict.fromkeys(stop.waits.values())  # each other stop once, in order
        for other in waits_for:
            for rank in stop.missing & other.missing:
                explanation = _explanation(other, rank)
                if rank not in stop.waits and explanation is not stop:
                    stop.waits[rank] = explanation


def _explanation(stop: _Stop, rank: int) -> _Stop:
    """Return the stop that explains why a rank did not come to this one, this one itself if no other does so far."""
    while rank in stop.waits:
        stop = stop.waits[rank]
    return stop


def _traced_to_a_cause(stops: list[_Stop], with_own_cause: list[_Stop]) -> list[_Stop]:
    """Return the stops with a cause of their own, then those that wait for them, then those that wait for these."""
    index_of = {stop: index for index, stop in enumerate(stops)}
    waiting_for: dict[_Stop, set[_Stop]] = defaultdict(set)  # by stop, those that wait for it
    for stop in stops:
        for other in stop.waits.values():
            waiting_for[other].add(stop)
    traced = [*with_own_cause]
    known = {*with_own_cause}
    latest = with_own_cause  # those that were traced in the last round
    while latest:
        following: set[_Stop] = set()
        for stop in latest:
            following |= waiting_for[stop]
        following -= known
        latest = sorted(following, key=lambda stop: index_of[stop])
        traced += latest
        known |= following
    return traced


class _Cause(NamedTuple):
    """A cause by its name, the ranks to look at, and sentences."""

    name: str
    ranks: list[int]
    words: list[str]


def _finding(cause: _Cause, stop: _Stop) -> HangFinding:
    lines = [*cause.words]
    if cause.name in _ADVICE:
        was = "was" if len(cause.ranks) == 1 else "were"
        lines.append(_ADVICE[cause.name].format(who=listed("Rank", cause.ranks), was=was))
    words = "\n  ".join(lines)
    return HangFinding(cause.name, tuple(cause.ranks), stop.group.name, stop.number, tuple(stop.came), words)


# ---- groups


class _GroupKey(NamedTuple):
    """What dumps state of a group; ranks with the same key are in one group."""

    name: str
    desc: str
    ranks: tuple[int, ...]  # none if it is not stated


def _groups(of_rank: dict[int, Dump]) -> tuple[Group, ...]:
    """Return the groups of all dumps, under names that are different from each other."""
    num_ranks = max((max(dump.num_ranks, rank + 1) for rank, dump in of_rank.items()), default=0)
    calls_of = _calls_by_group(of_rank)
    words = {key: _word(key.name, key.desc) for key in calls_of}
    num_with_word = Counter(words.values())
    num_with_word_and_name = Counter((words[key], key.name) for key in calls_of)
    without_dump = {*range(num_ranks)} - {*of_rank}
    groups = []
    for key, calls in calls_of.items():
        word = words[key]
        ranks = key.ranks
        if not ranks:
            # the default group has all ranks of the job; of another group, ranks without a dump may be members
            unknown = range(num_ranks) if word == "default_pg" else without_dump
            ranks = tuple(sorted({*calls, *unknown}))
        # names must differ, so a description that several groups share gets the name behind it, or else the ranks
        if num_with_word[word] == 1:
            label = word
        elif num_with_word_and_name[word, key.name] == 1:
            label = f"{word} ({key.name})"
        else:
            label = f"{word} of {listed('rank', ranks)}"
        calls_of_dumps = {rank: calls.get(rank, {}) for rank in ranks if rank in of_rank}
        groups.append(Group(label, ranks, calls_of_dumps))
    return tuple(groups)


def _calls_by_group(of_rank: dict[int, Dump]) -> dict[_GroupKey, dict[int, dict[int, list[Call]]]]:
    """Return the collectives of each group, by rank and number; coalesced ones share a number."""
    calls_of: dict[_GroupKey, dict[int, dict[int, list[Call]]]] = {}
    for rank, dump in of_rank.items():
        calls_of_name: dict[str, dict[int, list[Call]]] = {}  # the same dictionaries, by the name in this dump
        for call in dump.calls:
            if call.is_peer:
                continue
            if call.group not in calls_of_name:
                key = _GroupKey(call.group, *dump.groups[call.group])
                calls_of_name[call.group] = calls_of.setdefault(key, {}).setdefault(rank, {})
            calls_of_name[call.group].setdefault(call.number, []).append(call)
    return calls_of


def _word(name: str, desc: str) -> str:
    """Return what a group is called; torch describes a group as "undefined" if the user did not describe it."""
    return f"group {name}" if desc in ("", "undefined") else desc


# ---- where a group stops


class _CallHistory:
    """The calls of a rank, with an index of calls that are alike: of the same group, kind and sizes."""

    def __init__(self, dump: Dump) -> None:
        self._index_of = {id(call): index for index, call in enumerate(dump.calls)}  # calls are the dump's own objects
        kind_of: dict[Any, int] = {}  # a number for each signature, because signatures take long to compare
        self._kinds: list[int] = []  # of each call; equal for calls that are alike
        for call in dump.calls:
            self._kinds.append(kind_of.setdefault((call.group, call.signature), len(kind_of)))
        self._indices_of_kind: dict[int, list[int]] = defaultdict(list)
        for index, kind in enumerate(self._kinds):
            self._indices_of_kind[kind].append(index)

    def habit(self, call: Call) -> int:
        """Return how well a call continues the rank's earlier steps.

        It is the number of calls before it, at most 3, that also came before an earlier call like it; -1 if there is no
        earlier call like it.
        """
        index = self._index_of[id(call)]
        most = -1
        for earlier in self._indices_of_kind[self._kinds[index]]:
            if earlier >= index or most == _MOST_ALIKE:
                break
            most = max(most, self._num_alike_before(earlier, index))
        return most

    def _num_alike_before(self, earlier: int, later: int) -> int:
        """Return how many calls just before these two, at most 3, are alike."""
        for distance in range(1, min(_MOST_ALIKE, earlier) + 1):
            if self._kinds[earlier - distance] != self._kinds[later - distance]:
                return distance - 1
        return min(_MOST_ALIKE, earlier)


def _stops(groups: Sequence[Group], of_rank: dict[int, Dump], histories: dict[int, _CallHistory]) -> list[_Stop]:
    """Return where groups stop, in order of time."""
    stops = []
    for group in groups:
        stop = _stop(group, of_rank, histories)
        if stop is not None:
            stops.append(stop)
    return sorted(stops, key=lambda stop: stop.first.created_s)


def _stop(group: Group, of_rank: dict[int, Dump], histories: dict[int, _CallHistory]) -> _Stop | None:
    """Return the first call that not all ranks finished alike; the last call if a rank left no dump; else None."""
    dead = [rank for rank in group.ranks if rank not in of_rank]
    first_numbers = {rank: min(calls, default=None) for rank, calls in group.calls.items()}
    stop = None  # the last call, once the loop has ended
    for number in sorted(set().union(*group.calls.values())):
        first = group.first(number)
        came = []
        absent = []
        for rank, calls in group.calls.items():
            if number in calls:
                came.append(rank)
            elif not _is_forgotten(of_rank[rank], first_numbers[rank], number, first.created_s):
                absent.append(rank)
        # of calls that share a number, the one with the least progress counts
        progress = {rank: min(_progress(call) for call in group.calls[rank][number]) for rank in came}
        least = min(progress.values())
        behind = []
        if least < max(progress.values()):
            behind = [rank for rank in came if progress[rank] == least]
        stop = _Stop(
            group,
            number,
            came=came,
            absent=absent,
            odd=_unusual_ranks(group, number, came, histories),
            # the first of calls that share a number states when the rank came
            late=[rank for rank in came if _is_late(group.calls[rank][number][0], first)],
            behind=behind,
            dead=dead,
        )
        if stop.absent or stop.odd or stop.late or least < _PROGRESS["ended"]:
            return stop
    return stop if dead else None  # a rank without a dump may have stopped there


def _is_late(call: Call, first: Call) -> bool:
    """Whether a rank came to a call after the timeout of the first one."""
    if first.timeout_s is None or first.timeout_s <= 0:  # in torch, 0 stands for no timeout, and -1 ms for none set
        return False
    return call.created_s - first.created_s >= first.timeout_s


def _is_forgotten(dump: Dump, first_number: int | None, number: int, created_s: float) -> bool:
    """Whether the ring buffer of the rank, whose first call of the group is known, may have lost that call."""
    if dump.is_whole:
        return False
    if first_number is None:  # the dump has no call of the group, so only the time of its oldest call can tell
        return created_s < dump.calls[0].created_s
    return number < first_number


def _unusual_ranks(group: Group, number: int, came: list[int], histories: dict[int, _CallHistory]) -> list[int]:
    """Return the ranks whose call differs from that of most ranks.

    If each call was made by equally many ranks, the usual call is the one that best continues a rank's earlier steps.
    If there is no usual call, all ranks are returned.
    """
    ranks_by_call = group.ranks_by_signature(number, came)
    if len(ranks_by_call) == 1:
        return []
    weights = {call: len(ranks) for call, ranks in ranks_by_call.items()}
    are_equally_many = len(set(weights.values())) == 1
    if are_equally_many:
        for call, ranks in ranks_by_call.items():
            first_rank = ranks[0]  # which stands for all that made this call
            weights[call] = histories[first_rank].habit(group.calls[first_rank][number][0])
    most = max(weights.values())
    usual_calls = [call for call, weight in weights.items() if weight == most]
    if len(usual_calls) > 1:
        return came
    return [rank for rank in came if rank not in ranks_by_call[usual_calls[0]]]


class _CircleWeight(NamedTuple):
    """How likely a stop of a circle is the wrong one; of two, the larger weight counts, the first field first.

    `break_with_habit` is larger if an absent rank waits in a call that it has not made like that before. Then the stop
    counts to which the largest share of its ranks came, because it blocks most of them.
    """

    break_with_habit: int
    share_that_came: float


def _circle(stops: list[_Stop], histories: dict[int, _CallHistory]) -> list[HangFinding]:
    """Explain groups that wait for each other, by the ranks that break with their habits, or else block most others."""
    if not stops:
        return []
    weights = []
    for stop in stops:
        # Each absent rank waits at the stop of another group: a rank that waits nowhere would be a cause.
        habits = [histories[rank].habit(other.call(rank)) for rank, other in stop.waits.items()]
        least_habit = min(habits)  # -1 if a call is like no earlier one of its rank
        weights.append(_CircleWeight(-least_habit, len(stop.came) / len(stop.group.ranks)))
    largest = max(weights)
    odd_stops = [stop for stop, weight in zip(stops, weights, strict=True) if weight == largest]
    ranks = sorted({rank for stop in odd_stops for rank in stop.absent})
    first_odd_stop = odd_stops[0]  # in time, as `stops` are; a finding is about a single call
    words = [
        f"{listed('Rank', ranks)} called another group than that of {first_odd_stop}.",
        "The groups wait for each other:",
    ]
    for stop in stops[:_MOST_LINES]:
        words.append(f"{listed('Rank', stop.came)} called {stop}, {stop.first}, without {listed('rank', stop.absent)}.")
    if len(stops) > _MOST_LINES:
        words.append(f"So do {len(stops) - _MOST_LINES} more groups.")
    return [_finding(_Cause("group", ranks, words), first_odd_stop)]


# ---- why a group stops


def _causes(stop: _Stop, of_rank: dict[int, Dump]) -> Iterator[_Cause]:
    """Yield what is wrong at a stop by itself."""
    missing = [rank for rank in stop.absent if rank not in stop.waits]
    dead = [rank for rank in stop.dead if rank not in stop.waits]
    if stop.odd:
        yield from _odd_causes(stop)
    if missing:
        yield _missing_cause(stop, missing, of_rank)
    elif stop.late and not stop.odd:  # a missing or odd rank would have kept the call from ending anyway
        yield _late_cause(stop)
    if dead:
        arrival_words = f"{listed('Rank', stop.came)} called it: {stop.first}."
        yield _Cause(
            "dead", dead, [f"{listed('Rank', dead)} left no dump, and the others stop at {stop}.", arrival_words]
        )
    if not (stop.odd or stop.absent or stop.late or stop.dead):
        where = "it has ended on none"
        if stop.behind:
            stand = "stands" if len(stop.behind) == 1 else "stand"
            where = f"{listed('rank', stop.behind)} {stand} behind the others"
        words = [f"All ranks called {stop}, and {where}.", f"They called {stop.first}."]
        yield _Cause("stuck", stop.behind, words)


def _odd_causes(stop: _Stop) -> Iterator[_Cause]:
    """Yield a cause for each way in which calls differ from the usual one, or a single one if no call is usual."""
    odd = {*stop.odd}
    usual_ranks = [rank for rank in stop.came if rank not in odd]
    if not usual_ranks:
        yield _disagreement(stop)
        return
    usual_rank = usual_ranks[0]
    next_calls = _next_calls(stop.group, stop.number, usual_rank)
    odd_ranks: dict[tuple[str, int], list[int]] = {}  # by cause and by the place of the call
    for signature, ranks in stop.group.ranks_by_signature(stop.number, stop.odd).items():
        place = stop.group.first_odd_place(stop.number, [ranks[0], usual_rank])
        cause = _difference([stop.call_at(ranks[0], place), stop.call_at(usual_rank, place)])
        if signature in next_calls:
            cause = "left out"
        odd_ranks.setdefault((cause, place), []).extend(ranks)
    for (cause, place), ranks in odd_ranks.items():
        ranks_of_calls = [sorted(of_call) for of_call in stop.ranks_by_call(ranks, place)]
        all_ranks = sorted(ranks)
        verdict = f"{listed('Rank', all_ranks)} called {stop} with a different {cause}."
        if cause == "left out":
            seem = "seems" if len(all_ranks) == 1 else "seem"
            verdict = f"{listed('Rank', all_ranks)} {seem} to have left out {stop}."
        if len(ranks_of_calls) == 1:  # the verdict names all ranks of the only call
            ranks_of_calls = [ranks_of_calls[0][:1]]
        shown = [*ranks_of_calls[:_MOST_ODD_CALLS], usual_ranks]
        words = [verdict, _calls_words(stop, shown, place), *_more_calls(len(ranks_of_calls) - _MOST_ODD_CALLS)]
        yield _Cause(cause, all_ranks, words)


def _disagreement(stop: _Stop) -> _Cause:
    """Return the cause at a stop where no call is the usual one, so that all ranks that came are odd."""
    place = stop.group.first_odd_place(stop.number, stop.odd)
    ranks_of_calls = stop.ranks_by_call(stop.odd, place)
    difference = _difference([stop.call_at(ranks[0], place) for ranks in ranks_of_calls])
    words = [
        f"{listed('Rank', stop.odd)} disagree on the {difference} of {stop}.",
        _calls_words(stop, ranks_of_calls[:_MOST_ODD_CALLS], place),
        *_more_calls(len(ranks_of_calls) - _MOST_ODD_CALLS),
    ]
    return _Cause(difference, stop.odd, words)


def _calls_words(stop: _Stop, ranks_of_calls: Sequence[Sequence[int]], place: int) -> str:
    """Return a sentence with the call at a place of each of several lists of ranks that have called the same."""
    calls = [stop.call_at(ranks[0], place) or "nothing more" for ranks in ranks_of_calls]
    first_ranks, *others_ranks = ranks_of_calls
    first_call, *other_calls = calls
    words = [f"{listed('Rank', first_ranks)} called {first_call}"]
    words += [f"{listed('rank', ranks)} {call}" for ranks, call in zip(others_ranks, other_calls, strict=True)]
    return f"{', '.join(words)}."


def _more_calls(num_calls: int) -> list[str]:
    """Return a sentence on the odd calls that a finding does not name, if there are any."""
    if num_calls <= 0:
        return []
    return [f"{count_of(num_calls, 'more call')} {'differs' if num_calls == 1 else 'differ'}, too."]


def _difference(calls: Sequence[Call | None]) -> str:
    """Return what differs first: the "collective" (also if a call is missing), "size" in elements, or "dtype"."""
    collectives = set()
    sizes = set()
    for call in calls:
        collective, *tensors = call.signature if call else (None,)
        collectives.add(collective)
        sizes.add(tuple(counts for counts, _types in tensors))
    if len(collectives) > 1:
        return "collective"
    return "size" if len(sizes) > 1 else "dtype"


def _missing_cause(stop: _Stop, missing: list[int], of_rank: dict[int, Dump]) -> _Cause:
    """Ranks did not reach the call."""
    words = [
        f"{listed('Rank', missing)} did not reach {stop}.",
        f"{listed('Rank', stop.came)} called it: {stop.first}.",
    ]
    for rank in missing[:_MOST_LAST_CALLS]:
        calls = of_rank[rank].calls  # of all groups
        if not calls:
            continue
        last = calls[-1]
        after_s = last.created_s - stop.first.created_s
        distance = "1 µs" if abs(after_s) < _LEAST_SHOWN_S else time_words(abs(after_s))
        when = f"{distance} {'after' if after_s > 0 else 'before'} the first of them"
        words.append(f"The last call of rank {rank} came {when}: {last}, {last.state}.")
    return _Cause("missing", missing, words)


def _late_cause(stop: _Stop) -> _Cause:
    """Ranks came after the timeout."""
    first = stop.first
    timeout_s = first.timeout_s or 0.0  # there always is one: without a timeout, no rank is late
    last_came_s = max(stop.call(rank).created_s for rank in stop.late)  # the words are about the last of them
    after_s = last_came_s - first.created_s
    words = [
        f"{listed('Rank', stop.late)} reached {stop} {time_words(after_s)} after the first rank, which was too late.",
        f"The timeout of {first} is {time_words(timeout_s)}.",
    ]
    return _Cause("late", stop.late, words)


def _next_calls(group: Group, number: int, rank: int) -> set[tuple[Any, ...]]:
    """Return the signatures of the calls that come right after the `number`-th one on that rank, or after one like it.

    Of calls like it, only earlier ones count.
    """
    usual = group.signature(rank, number)
    next_calls = set()
    for earlier in group.calls[rank]:
        if earlier <= number and group.signature(rank, earlier) == usual:
            next_calls.add(group.signature(rank, earlier + 1))
    return next_calls
