"""`explain_hang`: which rank did not come to which collective, or came with another one, from flight-recorder dumps.

The calls of each group are compared number by number. The first number at which ranks are missing or differ is where
the group stops. A rank that is missing because it waits in another group is a consequence of what stops that group.
Point-to-point calls and the sizes of alltoall are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from ..common.checks import count_of
from ..common.frozen import each
from ..common.units import time_words
from ..common.words import listed
from .dumps import Call, Dump

if TYPE_CHECKING:
    import pandas as pd

_MOST_RANKS = 1 << 21  # of all groups together
_MOST_LINES = 30  # that one finding lists of groups that wait for each other
_MOST_ALIKE = 3  # calls before one, which are compared with those before an earlier one
_PROGRESS = {"scheduled": 0, "started": 1, "ended": 2, "completed": 2}
_ADVICE = {
    "missing": "See its log and its stack (py-spy dump): a slow batch, an evaluation, an error, the end of its loop.",
    "left out": "It made the one that comes next on the others: look for a condition that differs, or a caught error.",
    "late": "See its log: what it did since its last call took longer than the timeout.",
    "dead": "{who} ended or {was} killed before writing one, or the file is not here: see the log, and dmesg.",
    "group": "Call the groups in the same order on all ranks.",
    "stuck": "The code of the ranks agrees: look at the network, the GPUs, and what runs before on their streams.",
}


class HangCulprit(NamedTuple):
    """A rank, and what it did at the `call`-th collective of a group."""

    rank: int
    cause: str
    group: str
    call: int


class HangFinding(NamedTuple):
    """Why a group stops at its `call`-th collective: the cause, the ranks to look at, those that came, a verdict."""

    cause: str
    ranks: tuple[int, ...]
    group: str
    call: int
    came: tuple[int, ...]
    words: str


def group_words(name: str) -> str:
    return "the default group" if name == "default_pg" else name


@attrs.frozen(eq=False)
class Group:
    """A process group: its ranks, and of those that left a dump their collectives by number."""

    name: str
    ranks: tuple[int, ...]
    calls: dict[int, dict[int, list[Call]]]

    def last_calls(self, until: int | None = None, most: int = 6) -> list[int]:
        """Return the numbers of at most so many calls: those up to the one after `until`, or the last ones."""
        numbers = sorted(set().union(*self.calls.values()))
        end = len(numbers) if until is None else sum(number <= until + 1 for number in numbers)
        return numbers[max(0, end - most) : end]

    def first(self, number: int) -> Call:
        """Return the call of the rank that came first."""
        return min((at[number][0] for at in self.calls.values() if number in at), key=lambda call: call.created_s)

    def what(self, rank: int, number: int) -> tuple[Any, ...]:
        return tuple(call.what for call in self.calls[rank].get(number, ()))


@attrs.frozen(eq=False)
class Hang:
    """What `explain_hang` found: the causes, by time; what follows from them, in sentences; and what it compared."""

    findings: tuple[HangFinding, ...]
    notes: tuple[str, ...]
    groups: tuple[Group, ...]

    @property
    def culprits(self) -> list[HangCulprit]:
        """The ranks to look at, by finding; empty where no rank differs from the others."""
        return [HangCulprit(rank, one.cause, one.group, one.call) for one in self.findings for rank in one.ranks]

    def __str__(self) -> str:
        num_calls = count_of(sum(len(calls) for group in self.groups for calls in group.calls.values()), "call")
        fine = f"No hang: in {num_calls} of {count_of(len(self.groups), 'group')} no rank is missing or differs."
        return "\n".join([*([one.words for one in self.findings] or [fine]), *self.notes])

    def to_frame(self) -> pd.DataFrame:
        """Return a row per call and rank: the last calls of the groups with a finding, or of all where there is none.

        `after_s` is the time since the first rank made the call. A rank that did not make it has empty words there.
        """
        import pandas as pd

        found: dict[str, list[HangFinding]] = defaultdict(list)
        for finding in self.findings:
            found[finding.group].append(finding)
        rows: list[tuple[Any, ...]] = []
        for group in self.groups:
            if group.name in found or not found:
                rows += self._rows(group, found.get(group.name, []))
        columns = ["group", "call", "rank", "what", "state", "where", "after_s", "cause"]
        return pd.DataFrame(rows, columns=columns).astype({"after_s": float})

    def _rows(self, group: Group, findings: Sequence[HangFinding]) -> Iterator[tuple[Any, ...]]:
        causes: dict[tuple[int, int], str] = {}
        for finding in findings:
            for rank in finding.ranks:
                causes.setdefault((finding.call, rank), finding.cause)
        for number in group.last_calls(findings[0].call if findings else None):
            for rank in group.ranks:
                cause = causes.get((number, rank), "")
                for call in group.calls.get(rank, {}).get(number, [None]):
                    after_s = call and call.created_s - group.first(number).created_s
                    words = (call.label(), call.state, call.where) if call else ("", "", "")
                    yield group.name, number, rank, *words, after_s, cause


@attrs.frozen(eq=False)
class _Stop:
    """Where a group stops: the ranks that came, did not, came with another call, too late, stand behind, left no dump.

    `waits` says of ranks that did not come where they wait.
    """

    group: Group
    number: int
    came: list[int]
    absent: list[int]
    odd: list[int]
    late: list[int]
    behind: list[int]
    dead: list[int]
    waits: dict[int, _Stop] = attrs.field(factory=dict)

    def has(self, rank: int) -> bool:
        """Whether a rank came."""
        return self.number in self.group.calls.get(rank, {})

    def call(self, rank: int) -> Call:
        return self.group.calls[rank][self.number][0]

    @property
    def made(self) -> Call:
        return self.group.first(self.number)

    def __str__(self) -> str:
        return f"collective {self.number} of {group_words(self.group.name)}"


def explain_hang(dumps: Sequence[Dump]) -> Hang:
    """Explain why a job hangs, from what `read_dumps` gives: print the result, or take its `culprits`.

    The causes: "missing" (the rank did not come to the call), "left out" (it made the next one), "late" (it came after
    the timeout of the others), "collective", "size" (in elements), "dtype" (it made another call than the others),
    "group" (it waits in another group, and that one for this), "dead" (it left no dump), and "stuck" (all came, and its
    call stands behind that of the others). Of two ranks that differ, the one that breaks with its own earlier steps is
    named, and both where there are none. Raises ValueError for anything but dumps.

    >>> print(explain_hang([]))
    No hang: in 0 calls of 0 groups no rank is missing or differs.
    """
    of_rank = {dump.rank: dump for dump in each("dumps", dumps, Dump)}
    groups = _groups(of_rank)
    past = {rank: _Past(dump) for rank, dump in of_rank.items()}
    stops = [stop for group in groups if (stop := _stop(group, of_rank, past))]
    stops.sort(key=lambda stop: stop.group.first(stop.number).created_s)
    _add_waits(stops)
    own = [one for one in stops if one.odd or {*one.absent, *one.dead} - {*one.waits} or not one.absent]
    reached = _reached(stops, own)
    in_circles = {*stops} - {*reached}
    found = _circle([stop for stop in stops if stop in in_circles], past)
    blamed: dict[str, set[int]] = defaultdict(set)
    for one in found:
        blamed[one.cause].update(one.ranks)
    for stop in own:
        for cause, ranks, *words in _causes(stop, of_rank):
            if not ranks or {*ranks} - blamed[cause]:
                found.append(_finding(cause, ranks, stop, words))
                blamed[cause].update(ranks)
    named = {one.group for one in found}
    notes = [
        f"So {listed('rank', stop.came)} cannot end {stop}: {listed('rank', stop.absent)} did not come."
        for stop in reached
        if stop.absent and stop.group.name not in named
    ]
    num_peers = sum(call.is_peer for dump in of_rank.values() for call in dump.calls)
    if num_peers:
        notes.append(f"{count_of(num_peers, 'point-to-point call')} not compared.")
    return Hang(tuple(found), tuple(notes), groups)


def _add_waits(stops: list[_Stop]) -> None:
    """Say of the ranks that did not come to a stop at which other one they are; `stops` are in order of time."""
    first_of: dict[int, _Stop] = {}  # by rank, the first stop to which it came
    for stop in stops:
        for rank in stop.came:
            first_of.setdefault(rank, stop)
    for stop in stops:
        for rank in stop.absent:
            if rank in first_of:
                stop.waits[rank] = first_of[rank]
    order = {stop: place for place, stop in enumerate(stops)}
    waits_for = {stop: dict.fromkeys(stop.waits.values()) for stop in stops}
    for stop in stops:
        for other in waits_for[stop]:  # who is missing there as well is missing there first
            if stop not in waits_for[other] or order[other] < order[stop]:
                for rank in {*stop.absent, *stop.dead} & {*other.absent, *other.dead}:
                    stop.waits.setdefault(rank, other)


def _reached(stops: list[_Stop], own: list[_Stop]) -> list[_Stop]:
    """The stops with a cause of their own, then those that wait for them, then those that wait for these, and so on."""
    order = {stop: place for place, stop in enumerate(stops)}
    waiting: dict[_Stop, list[_Stop]] = defaultdict(list)  # for a stop
    for stop in stops:
        for other in dict.fromkeys(stop.waits.values()):
            waiting[other].append(stop)
    reached, known = [*own], {*own}
    last = own
    while last:
        following = {stop for other in last for stop in waiting[other]} - known
        last = sorted(following, key=lambda stop: order[stop])
        reached += last
        known |= following
    return reached


def _finding(cause: str, ranks: Iterable[int], stop: _Stop, words: list[str]) -> HangFinding:
    who, was = listed("Rank", ranks := tuple(ranks)), "was" if len(ranks) == 1 else "were"
    lines = "\n  ".join([*words, _ADVICE[cause].format(who=who, was=was)] if cause in _ADVICE else words)
    return HangFinding(cause, ranks, stop.group.name, stop.number, tuple(stop.came), lines)


def _groups(of_rank: dict[int, Dump]) -> tuple[Group, ...]:
    num_ranks = max((max(dump.num_ranks, rank + 1) for rank, dump in of_rank.items()), default=0)
    found: dict[Any, dict[int, dict[int, list[Call]]]] = {}  # by name, description and ranks
    for rank, dump in of_rank.items():
        of_name: dict[str, dict[int, list[Call]]] = {}
        for call in dump.calls:
            if not call.is_peer:
                if call.group not in of_name:
                    key = (call.group, *dump.groups[call.group])
                    of_name[call.group] = found.setdefault(key, {}).setdefault(rank, {})
                of_name[call.group].setdefault(call.number, []).append(call)
    keys = [(name, _word(name, desc), ranks) for name, desc, ranks in found]
    num_of_word = Counter(word for _, word, _ in keys)
    num_of_name = Counter((word, name) for name, word, _ in keys)
    if sum(len(ranks) or num_ranks for *_, ranks in keys) > _MOST_RANKS:
        raise ValueError(f"the groups of these dumps have more than {_MOST_RANKS} ranks together")
    without_dump = {*range(num_ranks)} - {*of_rank}
    groups = []
    for (name, word, ranks), of_group in zip(keys, found.values(), strict=True):
        if not ranks:  # those without a dump may belong to it
            unknown = range(num_ranks) if word == "default_pg" else without_dump
            ranks = tuple(sorted({*of_group, *unknown}))
        label = word
        if num_of_word[word] > 1:
            label = f"{word} ({name})" if num_of_name[word, name] == 1 else f"{word} of {listed('rank', ranks)}"
        calls_by_rank = {rank: of_group.get(rank, {}) for rank in ranks if rank in of_rank}
        groups.append(Group(label, ranks, calls_by_rank))
    return tuple(groups)


def _word(name: str, desc: str) -> str:
    return f"group {name}" if desc in ("", "undefined") else desc


class _Past:
    """What a rank called, arranged so that earlier calls like a given one are found at once."""

    def __init__(self, dump: Dump) -> None:
        self._place = {id(call): place for place, call in enumerate(dump.calls)}
        known: dict[Any, int] = {}
        self._made = [known.setdefault((call.group, call.what), len(known)) for call in dump.calls]
        self._alike: dict[int, list[int]] = defaultdict(list)
        for place, what in enumerate(self._made):
            self._alike[what].append(place)

    def habit(self, call: Call) -> int:
        """How many calls before it, at most 3, also came before an earlier call like it; -1 where there was none."""
        end = self._place[id(call)]
        most = -1
        for place in self._alike[self._made[end]]:
            if place >= end or most == _MOST_ALIKE:
                break
            length = 0
            while length < min(_MOST_ALIKE, place) and self._made[place - length - 1] == self._made[end - length - 1]:
                length += 1
            most = max(most, length)
        return most


def _stop(group: Group, of_rank: dict[int, Dump], past: dict[int, _Past]) -> _Stop | None:
    dead = [rank for rank in group.ranks if rank not in of_rank]
    first_number = {rank: min(calls) for rank, calls in group.calls.items() if calls}
    stop = None
    for number in sorted(set().union(*group.calls.values())):
        came = [rank for rank, calls in group.calls.items() if number in calls]
        first = group.first(number)
        absent = [
            rank
            for rank, calls in group.calls.items()
            if number not in calls and not _is_forgotten(of_rank[rank], first_number.get(rank), number, first.created_s)
        ]
        odd = _odd(group, number, came, past)
        after_s = {rank: group.calls[rank][number][0].created_s - first.created_s for rank in came}
        late = [rank for rank in came if first.timeout_s and after_s[rank] >= first.timeout_s]
        progress = {rank: min(_PROGRESS.get(call.state, 0) for call in group.calls[rank][number]) for rank in came}
        least, most = min(progress.values()), max(progress.values())
        behind = [rank for rank in came if progress[rank] == least < most]
        stop = _Stop(group, number, came, absent, odd, late, behind, dead)
        if absent or odd or late or least < _PROGRESS["ended"]:
            return stop
    return stop if dead else None


def _is_forgotten(dump: Dump, first_number: int | None, number: int, created_s: float) -> bool:
    """Whether the ring buffer of the rank, whose first call of the group is known, may have lost that call."""
    if dump.is_whole:
        return False
    return created_s < dump.calls[0].created_s if first_number is None else number < first_number


def _odd(group: Group, number: int, came: list[int], past: dict[int, _Past]) -> list[int]:
    """The ranks whose call differs from that of most; of equal parties, those that break with their earlier steps."""
    parties: dict[Any, list[int]] = {}
    for rank in came:
        parties.setdefault(group.what(rank, number), []).append(rank)
    weights = {what: len(ranks) for what, ranks in parties.items()}
    if len(parties) > 1 and len({*weights.values()}) == 1:
        heads = {what: ranks[0] for what, ranks in parties.items()}
        weights = {what: past[rank].habit(group.calls[rank][number][0]) for what, rank in heads.items()}
    most = max(weights.values())
    best = [what for what in parties if weights[what] == most]
    return [] if len(parties) == 1 else [rank for rank in came if len(best) > 1 or rank not in parties[best[0]]]


def _circle(stops: list[_Stop], past: dict[int, _Past]) -> list[HangFinding]:
    """Groups that wait for each other: odd is who breaks with its earlier steps, or who most of a group wait for."""
    if not stops:
        return []
    weights = []
    for stop in stops:
        habits = [past[rank].habit(at.call(rank)) for rank, at in stop.waits.items() if at.has(rank)]
        weights.append((-min(habits, default=0), len(stop.came) / len(stop.group.ranks)))
    most = max(weights)
    odd = [stop for stop, weight in zip(stops, weights, strict=True) if weight == most]
    ranks = sorted({rank for stop in odd for rank in stop.absent})
    words = [f"{listed('Rank', ranks)} came to another group than {odd[0]}.", "The groups wait for each other:"]
    words += [
        f"{listed('Rank', stop.came)} made {stop}, {stop.made}, without {listed('rank', stop.absent)}."
        for stop in stops[:_MOST_LINES]
    ]
    if len(stops) > _MOST_LINES:
        words.append(f"So do {len(stops) - _MOST_LINES} more groups.")
    return [_finding("group", ranks, odd[0], words)]


def _causes(stop: _Stop, of_rank: dict[int, Dump]) -> Iterator[tuple[Any, ...]]:
    """Yield what is wrong at a stop by itself: the cause, the ranks, sentences."""
    group, number, first = stop.group, stop.number, stop.group.first(stop.number)
    if stop.odd:
        usual = [rank for rank in stop.came if rank not in stop.odd]
        what = group.what(stop.odd[0], number)
        rest = usual or [rank for rank in stop.odd if group.what(rank, number) != what]
        one, other = stop.call(stop.odd[0]), stop.call(rest[0])
        same = (one.inputs.sizes, one.outputs.sizes) == (other.inputs.sizes, other.outputs.sizes)
        cause = "collective" if one.collective != other.collective else "dtype" if same else "size"
        sides = f"Rank {stop.odd[0]} called {one}, {listed('rank', rest)} {other}."
        if not usual:
            yield cause, stop.odd, f"{listed('Rank', stop.odd)} disagree on the {cause} of {stop}.", sides
        elif _is_next(group, number, rest[0], what):
            yield "left out", stop.odd, f"{listed('Rank', stop.odd)} seems to have left out {stop}.", sides
        else:
            yield cause, stop.odd, f"{listed('Rank', stop.odd)} made {stop} with another {cause}.", sides
    if missing := [rank for rank in stop.absent if rank not in stop.waits]:
        words = [
            f"{listed('Rank', missing)} did not come to {stop}.",
            f"{listed('Rank', stop.came)} made it: {stop.made}.",
        ]
        for rank in missing[:4]:
            for last in of_rank[rank].calls[-1:]:
                after_s = last.created_s - first.created_s
                apart = "1 µs" if abs(after_s) < 2e-6 else time_words(abs(after_s))  # finer the clock is not
                when = f"{apart} {'after' if after_s > 0 else 'before'} the first of them"
                words.append(f"The last call of rank {rank}, {when}: {last}, {last.state}.")
        yield "missing", missing, *words
    elif stop.late and not stop.odd:
        after = time_words(max(stop.call(rank).created_s for rank in stop.late) - first.created_s)
        words = [f"{listed('Rank', stop.late)} came to {stop} {after} after the first rank, and too late."]
        yield "late", stop.late, *words, f"The timeout of {stop.made} is {time_words(first.timeout_s or 0)}."
    if dead := [rank for rank in stop.dead if rank not in stop.waits]:
        words = [f"{listed('Rank', dead)} left no dump, and the others stop at {stop}."]
        yield "dead", dead, *words, f"{listed('Rank', stop.came)} made it: {stop.made}."
    if not (stop.odd or stop.absent or stop.late or stop.dead):
        where = f"{listed('rank', stop.behind)} stands behind the others" if stop.behind else "it has ended on none"
        yield "stuck", stop.behind, f"All ranks made {stop}, and {where}.", f"They called {stop.made}."


def _is_next(group: Group, number: int, rank: int, what: tuple[Any, ...]) -> bool:
    """Whether a call comes after the `number`-th one on that rank, or came after one like it before."""
    like = group.what(rank, number)
    return any(
        at <= number and group.what(rank, at) == like and group.what(rank, at + 1) == what for at in group.calls[rank]
    )
