"""`join`: which call of one rank is which of another, on one clock, and the calls that do not fit."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from difflib import Match, SequenceMatcher
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..common.checks import of_type, several
from ..common.words import listed
from ..timeline.spans import Times
from .trace import Ints, Trace

# collectives that end on all ranks at once; the root of a broadcast is done before the others are
_END_TOGETHER = ("allreduce", "allgather", "reduce_scatter", "alltoall", "barrier")
_MOST_COMPARED = 2000  # calls between the equal ones at the begin and at the end; more are not compared one by one
_MOST_LOOKS = 1000  # at calls of the other rank, for each such call; without a limit difflib takes cubic time
_MOST_PROBLEMS = 30  # sentences
_OWN_SIZES = ("alltoall", "gather", "scatter", "barrier")  # collectives in which ranks may put in different sizes


class _CallSignature(NamedTuple):
    """How a call is recognised: calls at the same place in the order match if these are equal."""

    kind: str
    num_bytes: int  # -1 if it is unknown, or may be another one on each rank

    def __str__(self) -> str:
        return f"{self.kind} of {self.num_bytes:,} bytes" if self.num_bytes >= 0 else self.kind


class _TracedGroup(NamedTuple):
    name: str
    ranks: tuple[int, ...]  # () if the trace does not say


class Joined(msgspec.Struct, frozen=True, eq=False):
    """The calls of several ranks, matched.

    `calls[i, j]` is the place in the calls of the j-th trace of the i-th matched call, -1 where that rank has no
    part in it; calls are in the order of their launch on the first rank that has them. `step` is the step that they
    were launched in, -1 where traces have no steps.

    `offset_s`, by rank, turns seconds of a rank's trace into those of the first one: a collective ends on all ranks at
    once, so it is the median of how far the ends are from each other. It is nan for a rank that shares no finished call
    with the others, except that the first rank's offset is always 0.

    `problems` says in sentences which calls are missing, too many, or of another kind or size than on other ranks.
    """

    calls: Ints
    step: Ints
    offset_s: Times
    problems: tuple[str, ...]


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
    calls = np.array([match.indices for match in matched], np.int64)
    calls = calls.reshape(-1, len(traces))  # a column per trace, even if no call is matched
    step = np.array([match.step for match in matched], np.int64)
    kind_words = [_kind_word(traces, match) for match in matched]
    calls_for_clocks = calls
    ends_together = np.isin(kind_words, _END_TOGETHER)
    if ends_together.any():  # without such a call, the others have to do
        calls_for_clocks = calls[ends_together]
    return Joined(calls, step, _offsets(traces, calls_for_clocks), problems.sentences())


class _Match(NamedTuple):
    """A call of several ranks: its step, and its index in the calls of each trace, -1 for traces without it."""

    step: int
    indices: list[int]


class _FirstRank(NamedTuple):
    """A call on the first rank that has it: its index in that rank's calls, and the row of that rank's trace."""

    call: int
    row: int


def _first_rank(match: _Match) -> _FirstRank:
    """Return where the call is on the first rank that has it. By this, matched calls are sorted."""
    for row, index in enumerate(match.indices):
        if index >= 0:
            return _FirstRank(index, row)
    raise AssertionError("a matched call is on at least two ranks")


def _kind_word(traces: Sequence[Trace], match: _Match) -> str:
    first = _first_rank(match)
    calls = traces[first.row].calls
    return str(calls.kinds[calls.kind[first.call]])


def _match_all(traces: Sequence[Trace], problems: _Problems) -> list[_Match]:
    """Return the matched calls, in order; calls that do not fit become problems."""
    matched = []
    steps_of_calls = _steps_to_compare(traces, problems)
    for group, calls in _calls_of_groups(traces, steps_of_calls).items():
        for step in sorted(calls.by_step):
            calls_of = calls.by_step[step]
            # a rank of the group that calls nothing in the step takes part in the comparison, too
            calls_of_rows = {row: calls_of.get(row, []) for row in calls.rows}
            for indices in _matched(traces, group, step, calls_of_rows, problems):
                matched.append(_Match(step, indices))
    return sorted(matched, key=_first_rank)


# ---- the steps of calls

_WITHOUT_STEPS = -1  # the step of all calls if some trace has no numbered steps
_NOT_COMPARED = -2  # the step of a call that was launched between steps, or in one that some trace lacks
_STEP = np.dtype([("start_s", float), ("stop_s", float), ("number", np.int64)])


def _steps_to_compare(traces: Sequence[Trace], problems: _Problems) -> list[Ints]:
    """Return for each trace the step of each of its calls: only steps that all traces have are compared.

    If some trace has no numbered steps, all calls are in `_WITHOUT_STEPS`.
    """
    steps_of_traces = [_numbered_steps(trace) for trace in traces]
    if not all(steps.size for steps in steps_of_traces):
        return [np.full(len(trace.calls), _WITHOUT_STEPS) for trace in traces]
    common_steps = set.intersection(*(set(steps["number"].tolist()) for steps in steps_of_traces))
    if not common_steps:
        problems.add("the traces have no step in common: profile the same steps on all ranks")
    steps_of_calls = []
    for trace, steps in zip(traces, steps_of_traces, strict=True):
        step = _launch_steps(trace, steps)
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
    # -1 before the first step; what `steps` has at index -1 is not used then, because `in_step` is False
    last_started = np.searchsorted(steps["start_s"], at_s, "right") - 1
    in_step = (last_started >= 0) & (at_s <= steps["stop_s"][last_started])
    return np.where(in_step, steps["number"][last_started], _NOT_COMPARED)


# ---- the calls of groups


class _GroupCalls:
    """The calls of a group: ``by_step[step][row]`` are the indices of the calls of trace `row` in a step.

    `rows` are the traces that have the group, whether they call it or not.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.by_step: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))


def _calls_of_groups(traces: Sequence[Trace], steps_of_calls: list[Ints]) -> dict[_TracedGroup, _GroupCalls]:
    """Return the calls of each group that any trace names; messages from one rank to another are left out.

    Two groups are the same if they have the same name and the same ranks: several disjoint groups may share a name. A
    trace that does not state the ranks of a group is taken to mean the group that another trace states by this name.
    """
    ranks_by_name: dict[str, tuple[int, ...]] = {}
    for trace in traces:
        ranks_by_name.update(trace.group_ranks)
    by_group: dict[_TracedGroup, _GroupCalls] = {}
    for row, (trace, steps) in enumerate(zip(traces, steps_of_calls, strict=True)):
        called_groups = []  # those of `trace.calls.groups`, in the same order
        for name in trace.calls.groups:
            ranks = trace.group_ranks.get(name) or ranks_by_name.get(name, ())
            called_groups.append(_TracedGroup(name, ranks))
        stated_groups = [_TracedGroup(name, ranks) for name, ranks in trace.group_ranks.items()]
        for group in dict.fromkeys([*called_groups, *stated_groups]):  # each group once
            by_group.setdefault(group, _GroupCalls()).rows.append(row)
        kinds = [trace.calls.kinds[kind] for kind in trace.calls.kind.tolist()]
        groups = [called_groups[group] for group in trace.calls.group.tolist()]
        for index, (kind, group, step) in enumerate(zip(kinds, groups, steps.tolist(), strict=True)):
            if step != _NOT_COMPARED and kind != "send_recv":
                by_group[group].by_step[step][row].append(index)
    return by_group


# ---- matching the calls of one group in one step


def _matched(
    traces: Sequence[Trace], group: _TracedGroup, step: int, calls_of_rows: dict[int, list[int]], problems: _Problems
) -> list[list[int]]:
    """Return the indices of each call of a group in a step, one per trace; calls that some rank lacks become problems.

    `calls_of_rows` has, by the row of each trace that has the group, the indices of its calls. Each trace is compared
    with a usual one. Traces without steps begin and end at different calls, so the one with the most calls is usual,
    and what the others lack at their begin and end is no problem. In a step, the calls that most traces have are usual.
    """
    signatures = _signatures(traces, calls_of_rows)
    if step == _WITHOUT_STEPS:
        usual = max(signatures.values(), key=len)
    else:
        num_traces_with = Counter(tuple(actual) for actual in signatures.values())
        usual = list(num_traces_with.most_common(1)[0][0])  # the first rank's if no two agree
    usual_ranks = [traces[row].rank for row, actual in signatures.items() if actual == usual]
    matched = [[-1] * len(traces) for _ in usual]  # usual calls by traces
    for row, actual in signatures.items():
        blocks = _compared(usual, actual)
        if step == _WITHOUT_STEPS:
            blocks = _between_equal_blocks(blocks)
        for block in blocks:
            if block.is_equal:
                for shift in range(block.usual_end - block.usual_begin):
                    matched[block.usual_begin + shift][row] = calls_of_rows[row][block.actual_begin + shift]
            else:
                usual_calls = usual[block.usual_begin : block.usual_end]
                actual_calls = actual[block.actual_begin : block.actual_end]
                problems.compare(
                    group,
                    step,
                    traces[row],
                    others=usual_ranks,
                    index=block.usual_begin,
                    usual=usual_calls,
                    actual=actual_calls,
                )
    # a call of a single rank matches no other one
    return [indices for indices in matched if sum(index >= 0 for index in indices) > 1]


def _signatures(traces: Sequence[Trace], calls_of_rows: dict[int, list[int]]) -> dict[int, list[_CallSignature]]:
    """Return the signatures of the calls of each trace; without sizes if any call has an unknown one."""
    signatures = {}
    for row, calls in calls_of_rows.items():
        signatures[row] = [_signature(traces[row], index) for index in calls]
    for actual in signatures.values():
        for signature in actual:
            if signature.num_bytes < 0 and signature.kind not in _OWN_SIZES:  # those never have a size
                return _without_sizes(signatures)
    return signatures


def _signature(trace: Trace, index: int) -> _CallSignature:
    kind = trace.calls.kinds[trace.calls.kind[index]]
    return _CallSignature(kind, -1 if kind in _OWN_SIZES else int(trace.calls.num_bytes[index]))


def _without_sizes(signatures: dict[int, list[_CallSignature]]) -> dict[int, list[_CallSignature]]:
    return {row: [signature._replace(num_bytes=-1) for signature in actual] for row, actual in signatures.items()}


def _between_equal_blocks(blocks: list[_CallBlock]) -> list[_CallBlock]:
    """Return the blocks from the first equal one to the last equal one."""
    equal = [index for index, block in enumerate(blocks) if block.is_equal]
    if not equal:
        return []
    return blocks[equal[0] : equal[-1] + 1]


class _Matcher(SequenceMatcher[_CallSignature]):
    """Finds what two lists have in common, the longest pieces first, until it has looked at too many pairs of calls.

    `SequenceMatcher` finds the longest common piece of two lists, then that of what is before it in both, and that of
    what is behind it, and so on. For this, it calls `find_longest_match`, which here finds nothing once it has looked
    at too many pairs. Then the rest counts as different.
    """

    def __init__(self, usual: list[_CallSignature], actual: list[_CallSignature]) -> None:
        super().__init__(None, usual, actual, autojunk=False)
        num_alike = Counter(actual)
        # difflib looks at each call of `usual`, and at every equal call of `actual`
        looks_per_call = [1 + num_alike[signature] for signature in usual]
        self._looks_before = np.cumsum([0, *looks_per_call])  # for the calls before each call of `usual`
        self._looks_left = _MOST_LOOKS * (len(usual) + len(actual))

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """Return the longest common piece of ``usual[alo:ahi]`` and ``actual[blo:bhi]``, of length 0 without one."""
        end = -1 if ahi is None else ahi  # the last entry of `_looks_before` is that for all calls
        self._looks_left -= int(self._looks_before[end] - self._looks_before[alo])
        if self._looks_left < 0:
            return Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


class _CallBlock(NamedTuple):
    """Calls in a row on the usual rank, and the calls in their place on another rank."""

    is_equal: bool
    usual_begin: int
    usual_end: int
    actual_begin: int
    actual_end: int


def _compared(usual: list[_CallSignature], actual: list[_CallSignature]) -> list[_CallBlock]:
    """Return blocks that are equal or not. Equal calls at the begin and at the end always match.

    If more than `_MOST_COMPARED` calls are between these, they become one block that is not equal.
    """
    begin = _num_equal_at_begin(usual, actual)
    num_equal_at_end = _num_equal_at_begin(usual[begin:][::-1], actual[begin:][::-1])
    usual_end = len(usual) - num_equal_at_end
    actual_end = len(actual) - num_equal_at_end
    blocks = []
    if begin > 0:
        blocks.append(_CallBlock(True, 0, begin, 0, begin))
    if max(usual_end - begin, actual_end - begin) > _MOST_COMPARED:
        blocks.append(_CallBlock(False, begin, usual_end, begin, actual_end))
    else:
        # the matcher's indices count from `begin`
        matcher = _Matcher(usual[begin:usual_end], actual[begin:actual_end])
        for kind, usual_low, usual_high, actual_low, actual_high in matcher.get_opcodes():
            is_equal = kind == "equal"
            blocks.append(
                _CallBlock(is_equal, begin + usual_low, begin + usual_high, begin + actual_low, begin + actual_high)
            )
    if num_equal_at_end > 0:
        blocks.append(_CallBlock(True, usual_end, len(usual), actual_end, len(actual)))
    return blocks


def _num_equal_at_begin(some: list[_CallSignature], others: list[_CallSignature]) -> int:
    """Return how many calls at the begin of two lists are equal."""
    shorter = min(len(some), len(others))
    for index in range(shorter):
        if some[index] != others[index]:
            return index
    return shorter


class _Problems:
    """Findings in words, each once, with its steps."""

    def __init__(self) -> None:
        self._steps: dict[str, list[int]] = {}  # by the words of a finding; [_WITHOUT_STEPS] if it has none
        self._num_unclear = 0  # calls that do not fit, of a group that the trace does not name

    def compare(
        self,
        group: _TracedGroup,
        step: int,
        trace: Trace,
        others: list[int],
        index: int,
        usual: list[_CallSignature],
        actual: list[_CallSignature],
    ) -> None:
        """Note that a rank makes its `actual` calls where the `others` make the `usual` ones.

        `index` is that of the first usual call in the step; either list may be empty or shorter than the other one.
        """
        if not group.name and len(trace.group_ranks) > 1:
            # calls of several groups are mixed here, so their order need not be the same on all ranks
            self._num_unclear += max(len(usual), len(actual))
            return
        rank = f"rank {trace.rank}"
        other_ranks = listed("rank", others)
        first_number = index + 1  # sentences count the calls of a step from 1
        for number, (usual_call, actual_call) in enumerate(zip_longest(usual, actual), start=first_number):
            where = f"call {number}"
            if group.name:
                where = f"{where} of group {group.name!r}"
            if actual_call is None:
                words = f"{rank} leaves out {where}: {usual_call}, which {other_ranks} made"
            elif usual_call is None:
                words = f"{rank} made {where}: {actual_call}, which {other_ranks} left out"
            else:
                words = f"{rank} made {actual_call} where {other_ranks} made {usual_call}, as {where}"
            self._steps.setdefault(words, []).append(step)

    def add(self, words: str) -> None:
        """Note a finding that is about no step."""
        self._steps[words] = [_WITHOUT_STEPS]

    def sentences(self) -> tuple[str, ...]:
        """Return the findings, each with its steps; of many, the first ones and the number of the others."""
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


def _offsets(traces: Sequence[Trace], calls: Ints) -> Times:
    """Return by rank the seconds to add to its clock; see `Joined`.

    `calls` has the indices of calls that end on all ranks at once. Clocks are aligned with the first rank's one after
    the other: next comes the rank that shares most calls with those that are aligned already. So a rank that shares no
    call with the first one can be aligned by way of a third one.
    """
    # calls by ranks: when each ends; nan, which is appended for index -1, on ranks without the call or its end
    columns = [np.append(trace.calls.stop_s, np.nan)[calls[:, row]] for row, trace in enumerate(traces)]
    ends_s = np.stack(columns, axis=1)
    offset_s = np.full(len(traces), np.nan)  # nan until a rank is aligned
    offset_s[0] = 0.0
    while True:
        # where each call ends on the aligned ranks; adding nan hides those that are not
        aligned_end_s = _median(ends_s + offset_s, axis=1)[:, None]
        difference_s = aligned_end_s - ends_s
        num_shared = np.where(np.isnan(offset_s), np.isfinite(difference_s).sum(axis=0), 0)
        row = int(num_shared.argmax())
        if num_shared[row] == 0:
            break
        offset_s[row] = _median(difference_s[:, [row]], axis=0)[0]
    return offset_s


def _median(values: Times, axis: int) -> Times:
    """Return the median along an axis, of the values that are not nan; nan if all are. There are two axes."""
    if not values.size:
        return np.full(values.shape[1 - axis], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns if all are nan
        return np.asarray(np.nanmedian(values, axis=axis))
