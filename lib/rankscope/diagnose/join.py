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

# collectives that end on all ranks at once; the root of a broadcast is done before the others are
_END_TOGETHER = ("allreduce", "allgather", "reduce_scatter", "alltoall", "barrier")
_MOST_COMPARED = 2000  # calls in a row that do not fit
_MOST_LOOKS = 1000  # for each of them, at calls of the other rank; without a limit difflib takes cubic time
_MOST_PROBLEMS = 30  # sentences
_OWN_SIZES = ("alltoall", "gather", "scatter", "barrier")  # in which ranks may put in different sizes


class _CallSignature(NamedTuple):
    """How a call is recognised: calls at the same place in the order match if these are equal."""

    kind: str
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.kind} of {self.num_bytes:,} bytes" if self.num_bytes >= 0 else self.kind


class _TracedGroup(NamedTuple):
    name: str
    ranks: tuple[int, ...]  # () if the trace does not say


def _ranks(name: str, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(ranks)


def _table(name: str, rows: Ints) -> Ints:
    table = np.array(rows, np.int64)
    table.flags.writeable = False
    return table


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
    problems = _Problems()
    matched = _match_all(traces, problems)
    calls = np.array([match.places for match in matched], np.int64).reshape(-1, len(traces))
    step = np.array([match.step for match in matched], np.int64)
    words = [_kind_word(traces, match) for match in matched]
    number_of_kind: dict[str, int] = {}
    kind = np.array([number_of_kind.setdefault(word, len(number_of_kind)) for word in words], np.int64)
    ends_together = np.isin(words, _END_TOGETHER)
    offset_s, error_s = _offsets(traces, calls[ends_together] if ends_together.any() else calls)
    return Joined(ranks, calls, step, kind, tuple(number_of_kind), offset_s, error_s, problems.sentences())


class _Match(NamedTuple):
    """A call of several ranks: its step, and by trace its place in the calls, -1 for traces without it."""

    step: int
    places: list[int]


def _order(match: _Match) -> tuple[int, int]:
    """The place on the first rank that has the call, and that rank's row."""
    return next((place, row) for row, place in enumerate(match.places) if place >= 0)


def _kind_word(traces: Sequence[Trace], match: _Match) -> str:
    place, row = _order(match)
    calls = traces[row].calls
    return str(calls.kinds[calls.kind[place]])


def _match_all(traces: Sequence[Trace], problems: _Problems) -> list[_Match]:
    """Return the matched calls, in order; calls that do not fit become problems."""
    steps = [_steps(trace) for trace in traces]
    have_steps = all(own.size for own in steps)
    common_steps = {-1}
    if have_steps:
        common_steps = set.intersection(*(set(own["number"].tolist()) for own in steps))
    if not common_steps:
        problems.add("the traces have no step in common: profile the same steps on all ranks")
    stated_ranks = {name: members for trace in traces for name, members in trace.group_ranks.items()}
    lines: dict[_TracedGroup, dict[int, dict[int, list[int]]]] = {}  # by group, step and row: places of calls
    rows_of: dict[_TracedGroup, list[int]] = {}  # by group: the traces that have it, whether they call it or not
    for row, (trace, own) in enumerate(zip(traces, steps, strict=True)):
        step_of = _step_of(trace, own) if have_steps else np.full(len(trace.calls), -1)
        groups = []  # by their places in the calls
        for name in trace.calls.groups:
            groups.append(_TracedGroup(name, trace.group_ranks.get(name) or stated_ranks.get(name, ())))
        stated = [_TracedGroup(name, members) for name, members in trace.group_ranks.items()]
        for group in dict.fromkeys([*groups, *stated]):
            lines.setdefault(group, defaultdict(lambda: defaultdict(list)))
            rows_of.setdefault(group, []).append(row)
        line_of = [lines[group] for group in groups]
        for place, (group_place, step) in enumerate(zip(trace.calls.group.tolist(), step_of.tolist(), strict=True)):
            if step in common_steps and trace.calls.kinds[trace.calls.kind[place]] != "send_recv":
                line_of[group_place][step][row].append(place)
    matched = []
    for group, by_step in lines.items():
        for step in sorted(by_step):
            places_of = {row: by_step[step].get(row, []) for row in rows_of[group]}
            matched += [_Match(step, places) for places in _matched(traces, group, step, places_of, problems)]
    return sorted(matched, key=_order)


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
    traces: Sequence[Trace], group: _TracedGroup, step: int, places_of: dict[int, list[int]], problems: _Problems
) -> list[list[int]]:
    """The calls of a group in a step, a row of places each; those that are not on all of its ranks are problems."""
    keys = {row: [_key(traces[row], place) for place in places] for row, places in places_of.items()}
    has_unknown_sizes = any(key.num_bytes < 0 and key.kind not in _OWN_SIZES for own in keys.values() for key in own)
    if has_unknown_sizes:  # then no sizes are compared
        keys = {row: [key._replace(num_bytes=-1) for key in own] for row, own in keys.items()}
    most = Counter(map(tuple, keys.values())).most_common(1)[0][0]  # the first rank's where no two agree
    usual = list(most) if step >= 0 else max(keys.values(), key=len)
    others = [traces[row].rank for row, own in keys.items() if own == usual]
    matched = [[-1] * len(traces) for _ in usual]
    for row, own in keys.items():
        blocks = _compared(usual, own)
        if step < 0:  # windows begin and end at different calls
            while blocks and not blocks[0].is_equal:
                blocks.pop(0)
            while blocks and not blocks[-1].is_equal:
                blocks.pop()
        for block in blocks:
            if block.is_equal:
                for shift in range(block.usual_end - block.usual_begin):
                    matched[block.usual_begin + shift][row] = places_of[row][block.own_begin + shift]
            else:
                usual_calls = usual[block.usual_begin : block.usual_end]
                own_calls = own[block.own_begin : block.own_end]
                problems.compare(group, step, traces[row], others, block.usual_begin, usual_calls, own_calls)
    return [places for places in matched if sum(place >= 0 for place in places) > 1]


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


class _Block(NamedTuple):
    """Calls in a row on the usual rank, and the calls in their place on another rank."""

    is_equal: bool
    usual_begin: int
    usual_end: int
    own_begin: int
    own_end: int


def _compared(usual: list[_CallSignature], own: list[_CallSignature]) -> list[_Block]:
    """Blocks that are equal or not; calls at the begin and at the end that are equal on both match in any case."""
    shorter = min(len(usual), len(own))
    begin = next((place for place in range(shorter) if usual[place] != own[place]), shorter)
    left = shorter - begin
    end = next((place for place in range(left) if usual[-1 - place] != own[-1 - place]), left)
    usual_middle = usual[begin : len(usual) - end]
    own_middle = own[begin : len(own) - end]
    blocks = []
    if begin > 0:
        blocks.append(_Block(True, 0, begin, 0, begin))
    if max(len(usual_middle), len(own_middle)) > _MOST_COMPARED:
        blocks.append(_Block(False, begin, begin + len(usual_middle), begin, begin + len(own_middle)))
    else:
        for kind, *places in _Matcher(usual_middle, own_middle).get_opcodes():
            blocks.append(_Block(kind == "equal", *(place + begin for place in places)))
    if end > 0:
        blocks.append(_Block(True, len(usual) - end, len(usual), len(own) - end, len(own)))
    return blocks


class _Problems:
    """Findings in words, each once, with its steps."""

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
        rank = f"rank {trace.rank}"
        other_ranks = listed("rank", others)
        for number, (usual_call, own_call) in enumerate(zip_longest(usual, own), start=place + 1):
            where = f"call {number}"
            if group.name:
                where = f"{where} of group {group.name!r}"
            if own_call is None:
                words = f"{rank} leaves out {where}: {usual_call}, which {other_ranks} made"
            elif usual_call is None:
                words = f"{rank} made {where}: {own_call}, which {other_ranks} left out"
            else:
                words = f"{rank} made {own_call} where {other_ranks} made {usual_call}, as {where}"
            self._steps.setdefault(words, []).append(step)

    def add(self, words: str) -> None:
        self._steps[words] = [-1]

    def sentences(self) -> tuple[str, ...]:
        sentences = []
        for sentence, steps in self._steps.items():
            is_of_steps = steps[0] >= 0
            sentences.append(f"{sentence}, in {listed('step', steps)}" if is_of_steps else sentence)
        num_others = len(sentences) - _MOST_PROBLEMS
        if num_others > 0:
            sentences[_MOST_PROBLEMS:] = [f"and {num_others} more like these"]
        if self._num_unclear:
            sentences.append(f"{self._num_unclear} calls do not fit, and the traces do not say which group they are of")
        return tuple(sentences)


def _offsets(traces: Sequence[Trace], calls: Ints) -> tuple[Times, Times]:
    """By rank the seconds to add to its clock, and the median of the differences between ends that then remain.

    Arrays are calls by ranks, nan for ranks that have no end of the call.
    """
    stops = [np.append(trace.calls.stop_s, np.nan)[calls[:, row]] for row, trace in enumerate(traces)]
    ends_s = np.stack(stops, axis=1)
    offset_s = np.full(len(traces), np.nan)
    offset_s[0] = 0.0
    while True:  # the next rank is the one that shares most calls with those that are aligned
        difference_s = _median(ends_s + offset_s, 1)[:, None] - ends_s
        num_shared = np.where(np.isnan(offset_s), np.isfinite(difference_s).sum(0), 0)
        row = int(num_shared.argmax())
        if not num_shared[row]:
            break
        offset_s[row] = _median(difference_s[:, [row]], 0)[0]
    aligned_s = ends_s + offset_s
    has_several_ranks = np.isfinite(aligned_s).sum(1) > 1
    error_s = _median(np.abs(aligned_s - _median(aligned_s, 1)[:, None])[has_several_ranks], 0)
    return offset_s, error_s


def _median(values: Times, axis: int) -> Times:
    """The median of the values that are not nan; nan if all are."""
    if not values.size:
        return np.full(values.shape[1 - axis], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns if all are nan
        return np.asarray(np.nanmedian(values, axis=axis))
