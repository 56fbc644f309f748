"""`join`: which call of one rank is which of another, on one clock, and the calls that do not fit."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, several
from ..common.frozen import checked, frozen
from ..common.words import listed
from ..timeline.timeline import Times, column, words
from .trace import Ints, Trace

# what ends on all ranks at once; the root of a broadcast is done before the others are
_END_TOGETHER = ("allreduce", "allgather", "reduce_scatter", "alltoall", "barrier")
_MOST_COMPARED = 2000  # calls in a row that do not fit
_MOST_LOOKS = 1000  # for each of them, at calls of the other rank; without a limit difflib takes the cube of them
_MOST_PROBLEMS = 30  # sentences
_OWN_SIZES = ("alltoall", "gather", "scatter", "barrier")  # in which ranks may put in different sizes


class _CallSignature(NamedTuple):
    """By what a call is recognised: calls of one place in the order fit where these are equal."""

    kind: str
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.kind} of {self.num_bytes:,} bytes" if self.num_bytes >= 0 else self.kind


class _TracedGroup(NamedTuple):
    name: str
    ranks: tuple[int, ...]  # () where the trace does not say


def _ranks(name: str, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(ranks)


def _table(name: str, rows: Ints) -> Ints:
    given = np.array(rows, np.int64)
    given.flags.writeable = False
    return given


@frozen(eq=False)
class Joined:
    """The calls of several ranks, matched.

    `calls[i, j]` is the place in the calls of rank ``ranks[j]`` of the i-th matched call, -1 where that rank has no
    part in it; calls are in the order of their launch on the first rank that has them. `step` is the step that they
    were launched in, -1 where traces have no steps; `kind` is a place in `kinds`.

    `offset_s`, by rank, turns seconds of a rank's trace into those of the first one: a collective ends on all ranks at
    once, so it is the median of how far the ends are from each other. `offset_error_s` is the median of what is left of
    that once it is added; both are nan for a rank that shares no finished call with the others.

    `problems` says in sentences which calls are missing, too many, or of another kind or size than on other ranks.
    """

    ranks: tuple[int, ...] = checked(_ranks)
    calls: Ints = checked(_table)
    step: Ints = checked(column)
    kind: Ints = checked(column)
    kinds: tuple[str, ...] = checked(words)
    offset_s: Times = checked(column)
    offset_error_s: Times = checked(column)
    problems: tuple[str, ...] = checked(words)


def join(traces: Sequence[Trace]) -> Joined:
    """Match the calls of these ranks by group, step, order, kind and size, and align their clocks on the calls' ends.

    Where all traces have numbered steps (`ProfilerStep#`), steps of one number are compared; what only some ranks
    recorded is left out. Traces without steps are compared as a whole, moved against each other by as many calls as fit
    best. Messages from one rank to another are no collectives, and are not matched.

    Raises ValueError for no traces, or two of one rank.
    """
    traces = [of_type("traces", trace, Trace) for trace in several("traces", traces)]
    ranks = tuple(trace.rank for trace in traces)
    if not traces or len(set(ranks)) < len(ranks):
        raise ValueError(f"traces must be one for each rank, got {ranks}")
    steps = [_steps(trace) for trace in traces]
    by_step = all(mine.size for mine in steps)
    common = set.intersection(*(set(mine["number"].tolist()) for mine in steps)) if by_step else {-1}
    problems = _Problems()
    if not common:
        problems.add("the traces have no step in common: profile the same steps on all ranks")
    said = {name: members for trace in traces for name, members in trace.group_ranks.items()}
    lines: dict[_TracedGroup, dict[int, dict[int, list[int]]]] = {}  # by group, step and row: places of calls
    rows_of: dict[_TracedGroup, list[int]] = {}  # by group: the traces that have it, whether they call it or not
    for row, (trace, mine) in enumerate(zip(traces, steps, strict=True)):
        step_of = _step_of(trace, mine) if by_step else np.full(len(trace.calls), -1)
        groups = [_TracedGroup(name, trace.group_ranks.get(name) or said.get(name, ())) for name in trace.calls.groups]
        for group in dict.fromkeys([*groups, *(_TracedGroup(*one) for one in trace.group_ranks.items())]):
            lines.setdefault(group, defaultdict(lambda: defaultdict(list)))
            rows_of.setdefault(group, []).append(row)
        of_place = [lines[group] for group in groups]
        for place, (group_place, step) in enumerate(zip(trace.calls.group.tolist(), step_of.tolist(), strict=True)):
            if step in common and trace.calls.kinds[trace.calls.kind[place]] != "send_recv":
                of_place[group_place][step][row].append(place)
    matched: list[tuple[int, list[int]]] = []
    for group, by_number in lines.items():
        for step in sorted(by_number):
            line = {row: by_number[step].get(row, []) for row in rows_of[group]}
            matched += [(step, places) for places in _matched(traces, group, step, line, problems)]
    matched.sort(key=lambda one: next((place, row) for row, place in enumerate(one[1]) if place >= 0))
    calls = np.array([places for _, places in matched], np.int64).reshape(-1, len(traces))
    kind_of = [np.array([*trace.calls.kinds, ""])[np.append(trace.calls.kind, -1)] for trace in traces]
    kinds = [next(kind_of[row][place] for row, place in enumerate(places) if place >= 0) for places in calls.tolist()]
    known: dict[str, int] = {}
    kind = np.array([known.setdefault(str(word), len(known)) for word in kinds], np.int64)
    together = np.isin(kinds, _END_TOGETHER)
    offset_s, error_s = _offsets(traces, calls[together] if together.any() else calls)
    step = np.array([number for number, _ in matched], np.int64)
    return Joined(ranks, calls, step, kind, tuple(known), offset_s, error_s, problems.sentences())


_STEP = np.dtype([("start_s", float), ("stop_s", float), ("number", np.int64)])


def _steps(trace: Trace) -> NDArray[Any]:
    """The numbered steps in their order."""
    spans = trace.timeline.select(lane="main", kind="step")
    steps = np.zeros(len(spans), _STEP)
    steps["start_s"], steps["stop_s"], steps["number"] = spans.start_s, spans.stop_s, spans.item
    return np.sort(steps[steps["number"] >= 0], order="start_s")


def _step_of(trace: Trace, steps: NDArray[Any]) -> Ints:
    """The step in which each call was launched, -2 for none."""
    at_s = np.where(np.isnan(trace.calls.launch_s), trace.calls.start_s, trace.calls.launch_s)
    row = np.searchsorted(steps["start_s"], at_s, "right") - 1
    return np.where((row >= 0) & (at_s <= steps["stop_s"][row]), steps["number"][row], -2)


def _matched(
    traces: Sequence[Trace], group: _TracedGroup, step: int, line: dict[int, list[int]], problems: _Problems
) -> list[list[int]]:
    """The calls of a group in a step, a row of places each; those that are not on all of its ranks are problems."""
    keys = {row: [_key(traces[row], place) for place in places] for row, places in line.items()}
    if any(key.num_bytes < 0 and key.kind not in _OWN_SIZES for own in keys.values() for key in own):
        keys = {row: [key._replace(num_bytes=-1) for key in own] for row, own in keys.items()}  # some say no sizes
    most = Counter(map(tuple, keys.values())).most_common(1)[0][0]  # the first rank's where no two agree
    usual = list(most) if step >= 0 else max(keys.values(), key=len)
    others = [traces[row].rank for row, own in keys.items() if own == usual]
    found = [[-1] * len(traces) for _ in usual]
    for row, own in keys.items():
        blocks = _compared(usual, own)
        if step < 0:  # windows begin and end at different calls
            while blocks and blocks[0][0] != "equal":
                blocks.pop(0)
            while blocks and blocks[-1][0] != "equal":
                blocks.pop()
        for what, low, high, begin, end in blocks:
            if what == "equal":
                for shift in range(high - low):
                    found[low + shift][row] = line[row][begin + shift]
            else:
                problems.compare(group, step, traces[row], others, low, usual[low:high], own[begin:end])
    return [places for places in found if sum(place >= 0 for place in places) > 1]


def _key(trace: Trace, place: int) -> _CallSignature:
    kind = trace.calls.kinds[trace.calls.kind[place]]
    return _CallSignature(kind, -1 if kind in _OWN_SIZES else int(trace.calls.num_bytes[place]))


class _Matcher(SequenceMatcher[_CallSignature]):
    """Finds what two lists have in common, the longest pieces first, until it has looked at too many pairs of calls."""

    def __init__(self, usual: list[_CallSignature], own: list[_CallSignature]) -> None:
        super().__init__(None, usual, own, autojunk=False)
        count = Counter(own)
        alike = [1 + count[key] for key in usual]
        self._looks = np.cumsum([0, *alike])  # up to each call
        self._looks_left = _MOST_LOOKS * (len(usual) + len(own))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        self._looks_left -= int(self._looks[-1 if ahi is None else ahi] - self._looks[alo])
        if self._looks_left < 0:
            return Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def _compared(usual: list[_CallSignature], own: list[_CallSignature]) -> list[tuple[str, int, int, int, int]]:
    """Blocks that are equal or not, as difflib gives them; what both begin and end with is equal in any case."""
    shorter = min(len(usual), len(own))
    begin = next((place for place in range(shorter) if usual[place] != own[place]), shorter)
    end = next((back for back in range(shorter - begin) if usual[-1 - back] != own[-1 - back]), shorter - begin)
    middle, mine = usual[begin : len(usual) - end], own[begin : len(own) - end]
    blocks = [("equal", 0, begin, 0, begin)] * (begin > 0)
    if max(len(middle), len(mine)) > _MOST_COMPARED:
        blocks.append(("replace", begin, begin + len(middle), begin, begin + len(mine)))
    else:
        for what, *places in _Matcher(middle, mine).get_opcodes():
            low, high, first, last = (place + begin for place in places)
            blocks.append((what, low, high, first, last))
    return blocks + [("equal", len(usual) - end, len(usual), len(own) - end, len(own))] * (end > 0)


class _Problems:
    """Findings in words, each once with the steps in which it is so."""

    def __init__(self) -> None:
        self._steps = dict[str, list[int]]()
        self._num_unclear = 0

    def compare(
        self,
        group: _TracedGroup,
        step: int,
        trace: Trace,
        others: list[int],
        place: int,
        usual: list[_CallSignature],
        own: list[_CallSignature],
    ) -> None:
        """Note what a rank calls in the place of what the others call there."""
        if not group.name and len(trace.group_ranks) > 1:
            self._num_unclear += max(len(usual), len(own))
            return
        rank, they = f"rank {trace.rank}", listed("rank", others)
        for shift, (theirs, mine) in enumerate(zip_longest(usual, own)):
            where = f"call {place + shift + 1} of group {group.name!r}" if group.name else f"call {place + shift + 1}"
            if mine is None:
                words = f"{rank} leaves out {where}: {theirs}, which {they} made"
            elif theirs is None:
                words = f"{rank} made {where}: {mine}, which {they} left out"
            else:
                words = f"{rank} made {mine} where {they} made {theirs}, as {where}"
            self._steps.setdefault(words, []).append(step)

    def add(self, words: str) -> None:
        self._steps[words] = [-1]

    def sentences(self) -> tuple[str, ...]:
        found = [
            words if steps[0] < 0 else f"{words}, in {listed('step', steps)}" for words, steps in self._steps.items()
        ]
        if len(found) > _MOST_PROBLEMS:
            found[_MOST_PROBLEMS:] = [f"and {len(found) - _MOST_PROBLEMS} more like these"]
        if self._num_unclear:
            found.append(f"{self._num_unclear} calls do not fit, and the traces do not say which group they are of")
        return tuple(found)


def _offsets(traces: Sequence[Trace], calls: Ints) -> tuple[Times, Times]:
    """By rank the seconds to add to its clock, and the median of what is then left between ends."""
    stops = [np.append(trace.calls.stop_s, np.nan)[calls[:, row]] for row, trace in enumerate(traces)]
    ends_s = np.stack(stops, axis=1)
    offset_s, error_s = np.full(len(traces), np.nan), np.full(len(traces), np.nan)
    offset_s[0] = 0.0
    while True:  # next the rank that shares most calls with those that are aligned
        left_s = _median(ends_s + offset_s, 1)[:, None] - ends_s
        shared = np.where(np.isnan(offset_s), np.isfinite(left_s).sum(0), 0)
        row = int(shared.argmax())
        if not shared[row]:
            break
        offset_s[row] = _median(left_s[:, [row]], 0)[0]
    aligned_s = ends_s + offset_s
    several_ranks = np.isfinite(aligned_s).sum(1) > 1
    error_s = _median(np.abs(aligned_s - _median(aligned_s, 1)[:, None])[several_ranks], 0)
    return offset_s, error_s


def _median(values: Times, axis: int) -> Times:
    """Without what is nan; nan where all are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis)) if values.size else np.full(values.shape[1 - axis], np.nan)
