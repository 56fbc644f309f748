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
    kinds = tuple(dict.fromkeys(words))
    kind = np.array([kinds.index(word) for word in words], np.int64)
    calls_for_clocks = calls
    ends_together = np.isin(words, _END_TOGETHER)
    if ends_together.any():
        calls_for_clocks = calls[ends_together]
    offset_s, error_s = _offsets(traces, calls_for_clocks)
    return Joined(
        ranks=ranks,
        calls=calls,
        step=step,
        kind=kind,
        kinds=kinds,
        offset_s=offset_s,
        offset_error_s=error_s,
        problems=problems.sentences(),
    )


class _Match(NamedTuple):
    """A call of several ranks: its step, and by trace its place in the calls, -1 for traces without it."""

    step: int
    places: list[int]


def _order(match: _Match) -> tuple[int, int]:
    """Return the call's place on the first rank that has it, and that rank's row."""
    return next((place, row) for row, place in enumerate(match.places) if place >= 0)


def _kind_word(traces: Sequence[Trace], match: _Match) -> str:
    place, row = _order(match)
    calls = traces[row].calls
    return str(calls.kinds[calls.kind[place]])


def _match_all(traces: Sequence[Trace], problems: _Problems) -> list[_Match]:
    """Return the matched calls, in order; calls that do not fit become problems."""
    matched = []
    for group, calls in _calls_of_groups(traces, _steps_to_compare(traces, problems)).items():
        for step in sorted(calls.places):
            places_of = {row: calls.places[step].get(row, []) for row in calls.rows}
            for places in _matched(traces, group, step, places_of, problems):
                matched.append(_Match(step, places))
    return sorted(matched, key=_order)


# ---- the steps of calls

_WITHOUT_STEPS = -1  # the step of all calls if some trace has no numbered steps
_NOT_COMPARED = -2  # the step of a call that was launched between steps, or in one that some trace lacks
_STEP = np.dtype([("start_s", float), ("stop_s", float), ("number", np.int64)])


def _steps_to_compare(traces: Sequence[Trace], problems: _Problems) -> list[Ints]:
    """Return for each trace the step of each of its calls."""
    steps = [_numbered_steps(trace) for trace in traces]
    if not all(own_steps.size for own_steps in steps):
        return [np.full(len(trace.calls), _WITHOUT_STEPS) for trace in traces]
    common_steps = set.intersection(*(set(own_steps["number"].tolist()) for own_steps in steps))
    if not common_steps:
        problems.add("the traces have no step in common: profile the same steps on all ranks")
    steps_of_calls = []
    for trace, own_steps in zip(traces, steps, strict=True):
        step = _launch_steps(trace, own_steps)
        steps_of_calls.append(np.where(np.isin(step, list(common_steps)), step, _NOT_COMPARED))
    return steps_of_calls


def _numbered_steps(trace: Trace) -> NDArray[Any]:
    """Return the steps that have a number, in their order."""
    spans = trace.timeline.select(lane="main", kind="step")
    steps = np.zeros(len(spans), _STEP)
    steps["start_s"] = spans.start_s
    steps["stop_s"] = spans.stop_s
    steps["number"] = spans.item
    return np.sort(steps[steps["number"] >= 0], order="start_s")


def _launch_steps(trace: Trace, steps: NDArray[Any]) -> Ints:
    """Return the step in which each call was launched."""
    at_s = np.where(np.isnan(trace.calls.launch_s), trace.calls.start_s, trace.calls.launch_s)
    last_begun = np.searchsorted(steps["start_s"], at_s, "right") - 1  # -1 before the first step
    in_step = (last_begun >= 0) & (at_s <= steps["stop_s"][last_begun])
    return np.where(in_step, steps["number"][last_begun], _NOT_COMPARED)


# ---- the calls of groups


class _GroupCalls:
    """The calls of a group: ``places[step][row]`` are the places of the calls of trace `row` in a step.

    `rows` are the traces that have the group, whether they call it or not.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.places: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))


def _calls_of_groups(traces: Sequence[Trace], steps_of_calls: list[Ints]) -> dict[_TracedGroup, _GroupCalls]:
    """Return the calls of each group that any trace names; messages from one rank to another are left out."""
    stated_ranks: dict[str, tuple[int, ...]] = {}
    for trace in traces:
        stated_ranks.update(trace.group_ranks)
    by_group: dict[_TracedGroup, _GroupCalls] = {}
    for row, (trace, steps) in enumerate(zip(traces, steps_of_calls, strict=True)):
        groups = []  # by their places in the calls
        for name in trace.calls.groups:
            groups.append(_TracedGroup(name, trace.group_ranks.get(name) or stated_ranks.get(name, ())))
        stated = [_TracedGroup(name, members) for name, members in trace.group_ranks.items()]
        for group in dict.fromkeys([*groups, *stated]):
            by_group.setdefault(group, _GroupCalls()).rows.append(row)
        kinds = [trace.calls.kinds[kind] for kind in trace.calls.kind.tolist()]
        calls = zip(kinds, trace.calls.group.tolist(), steps.tolist(), strict=True)
        for place, (kind, group_place, step) in enumerate(calls):
            if step != _NOT_COMPARED and kind != "send_recv":
                by_group[groups[group_place]].places[step][row].append(place)
    return by_group


# ---- matching the calls of one group in one step


def _matched(
    traces: Sequence[Trace], group: _TracedGroup, step: int, places_of: dict[int, list[int]], problems: _Problems
) -> list[list[int]]:
    """Return the places of each call of a group in a step, one per trace; calls that some rank lacks become problems.

    `places_of` has the places of the calls of each trace that has the group, by the trace's row.
    """
    signatures = _signatures(traces, places_of)
    if step == _WITHOUT_STEPS:
        usual = max(signatures.values(), key=len)
    else:
        counts = Counter(tuple(own) for own in signatures.values())
        usual = list(counts.most_common(1)[0][0])  # the first rank's if no two agree
    usual_ranks = [traces[row].rank for row, own in signatures.items() if own == usual]
    matched = [[-1] * len(traces) for _ in usual]
    for row, own in signatures.items():
        blocks = _compared(usual, own)
        if step == _WITHOUT_STEPS:  # traces begin and end at different calls
            blocks = _between_equal_blocks(blocks)
        for block in blocks:
            if block.is_equal:
                for shift in range(block.usual_end - block.usual_begin):
                    matched[block.usual_begin + shift][row] = places_of[row][block.own_begin + shift]
            else:
                usual_calls = usual[block.usual_begin : block.usual_end]
                own_calls = own[block.own_begin : block.own_end]
                problems.compare(group, step, traces[row], usual_ranks, block.usual_begin, usual_calls, own_calls)
    return [places for places in matched if sum(place >= 0 for place in places) > 1]


def _signatures(traces: Sequence[Trace], places_of: dict[int, list[int]]) -> dict[int, list[_CallSignature]]:
    """Return the signatures of the calls of each trace; without sizes if any call has an unknown one."""
    signatures = {row: [_signature(traces[row], place) for place in places] for row, places in places_of.items()}
    for own in signatures.values():
        for signature in own:
            if signature.num_bytes < 0 and signature.kind not in _OWN_SIZES:
                return _without_sizes(signatures)
    return signatures


def _signature(trace: Trace, place: int) -> _CallSignature:
    kind = trace.calls.kinds[trace.calls.kind[place]]
    return _CallSignature(kind, -1 if kind in _OWN_SIZES else int(trace.calls.num_bytes[place]))


def _without_sizes(signatures: dict[int, list[_CallSignature]]) -> dict[int, list[_CallSignature]]:
    return {row: [signature._replace(num_bytes=-1) for signature in own] for row, own in signatures.items()}


def _between_equal_blocks(blocks: list[_CallBlock]) -> list[_CallBlock]:
    """Return the blocks from the first to the last that are equal."""
    equal = [place for place, block in enumerate(blocks) if block.is_equal]
    if not equal:
        return []
    return blocks[equal[0] : equal[-1] + 1]


class _Matcher(SequenceMatcher[_CallSignature]):
    """Finds what two lists have in common, the longest pieces first, until it has looked at too many pairs of calls."""

    def __init__(self, usual: list[_CallSignature], own: list[_CallSignature]) -> None:
        super().__init__(None, usual, own, autojunk=False)
        num_alike = Counter(own)
        looks = [1 + num_alike[signature] for signature in usual]
        self._looks = np.cumsum([0, *looks])  # up to each call of `usual`
        self._looks_left = _MOST_LOOKS * (len(usual) + len(own))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        last = -1 if ahi is None else ahi
        self._looks_left -= int(self._looks[last] - self._looks[alo])
        if self._looks_left < 0:
            return Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


class _CallBlock(NamedTuple):
    """Calls in a row on the usual rank, and the calls in their place on another rank."""

    is_equal: bool
    usual_begin: int
    usual_end: int
    own_begin: int
    own_end: int


def _compared(usual: list[_CallSignature], own: list[_CallSignature]) -> list[_CallBlock]:
    """Return blocks that are equal or not. Equal calls at the begin and at the end always match.

    If more than `_MOST_COMPARED` calls are between these, they become one block that is not equal.
    """
    begin = _num_equal_at_begin(usual, own)
    end = _num_equal_at_begin(usual[begin:][::-1], own[begin:][::-1])  # counted from the end
    usual_stop = len(usual) - end
    own_stop = len(own) - end
    blocks = []
    if begin > 0:
        blocks.append(_CallBlock(True, 0, begin, 0, begin))
    if max(usual_stop - begin, own_stop - begin) > _MOST_COMPARED:
        blocks.append(_CallBlock(False, begin, usual_stop, begin, own_stop))
    else:
        for kind, *places in _Matcher(usual[begin:usual_stop], own[begin:own_stop]).get_opcodes():
            blocks.append(_CallBlock(kind == "equal", *(begin + place for place in places)))
    if end > 0:
        blocks.append(_CallBlock(True, usual_stop, len(usual), own_stop, len(own)))
    return blocks


def _num_equal_at_begin(some: list[_CallSignature], others: list[_CallSignature]) -> int:
    shorter = min(len(some), len(others))
    for place in range(shorter):
        if some[place] != others[place]:
            return place
    return shorter


class _Problems:
    """Findings in words, each once, with its steps."""

    def __init__(self) -> None:
        self._steps: dict[str, list[int]] = {}
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
        self._steps[words] = [_WITHOUT_STEPS]

    def sentences(self) -> tuple[str, ...]:
        sentences = []
        for sentence, steps in self._steps.items():
            if steps[0] != _WITHOUT_STEPS:
                sentence = f"{sentence}, in {listed('step', steps)}"
            sentences.append(sentence)
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
        aligned_end_s = _median(ends_s + offset_s, 1)[:, None]  # of each call, on the ranks that are aligned
        difference_s = aligned_end_s - ends_s
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
