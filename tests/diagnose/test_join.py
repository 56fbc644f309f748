"""`join`: calls are matched whatever the clocks say, and each wrong call is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rankscope.diagnose.join import join
from rankscope.diagnose.trace import Calls, Trace
from rankscope.timeline import Span, Timeline

Call = tuple[str, str, int]  # group, kind, bytes
STEP: list[Call] = [("0", "broadcast", 8), ("0", "allreduce", 400), ("0", "allreduce", 200), ("0", "barrier", 1)]
ALL = {"0": (0, 1, 2, 3)}


def trace(
    rank: int,
    steps: dict[int, Sequence[Call]],
    offset_s: float = 0.0,
    jitter_s: float = 0.0,
    groups: dict[str, tuple[int, ...]] = ALL,
    numbered: bool = True,
) -> Trace:
    """A rank whose steps take a second each, with a call every 10 ms that ends 5 ms later on all ranks."""
    draw = np.random.default_rng(rank)
    spans, rows = [], list[Any]()
    for number, calls in steps.items():
        if numbered:
            spans.append(Span(rank, "main", "step", number, number - offset_s, number + 0.99 - offset_s))
        for place, (group, kind, num_bytes) in enumerate(calls):
            end_s = number + 0.015 + place * 0.01 + draw.uniform(-jitter_s, jitter_s) - offset_s
            rows.append((group, kind, num_bytes, end_s - 0.005 - 0.001 * rank, end_s - 0.002, end_s))
    names, kinds = sorted({row[0] for row in rows}), sorted({row[1] for row in rows})
    columns: list[Any] = [np.array(column) for column in zip(*rows, strict=True)]
    columns[0] = np.array([names.index(row[0]) for row in rows])
    columns[1] = np.array([kinds.index(row[1]) for row in rows])
    return Trace(rank, Timeline.of(spans), Calls(*columns, tuple(names), tuple(kinds)), group_ranks=dict(groups))


def four(wrong: Sequence[Call], rank: int = 2, step: int = 6) -> list[Trace]:
    return [
        trace(other, {number: wrong if (other, number) == (rank, step) else STEP for number in (5, 6, 7)})
        for other in range(4)
    ]


def test_calls_match_and_clocks_align_on_the_ends() -> None:
    offsets_s = np.array([0.0, 12.5, -3.0, 1e-4])
    joined = join([trace(rank, dict.fromkeys(range(3, 23), STEP), offsets_s[rank], 1e-4) for rank in range(4)])
    np.testing.assert_array_equal(joined.calls, np.arange(80)[:, None].repeat(4, 1))
    assert joined.step.tolist() == np.arange(3, 23).repeat(4).tolist()
    np.testing.assert_allclose(joined.offset_s, offsets_s, atol=1e-4)
    assert joined.problems == ()


def test_a_broadcasts_root_ends_early_and_does_not_move_the_clock() -> None:
    traces = [trace(rank, dict.fromkeys(range(3), [("0", "broadcast", 8)] * 3 + STEP[1:2])) for rank in range(2)]
    early = traces[0].calls
    stop_s = np.where(np.array(early.kinds)[early.kind] == "broadcast", early.stop_s - 0.001, early.stop_s)
    columns = early.group, early.kind, early.num_bytes, early.launch_s, early.start_s, stop_s
    root = Trace(0, traces[0].timeline, Calls(*columns, early.groups, early.kinds))
    np.testing.assert_allclose(join([root, traces[1]]).offset_s, 0, atol=1e-9)


@pytest.mark.parametrize(
    ("wrong", "begin"),
    [
        (
            STEP[:2] + STEP[3:],
            "rank 2 leaves out call 3",
        ),
        (
            [*STEP[:2], ("0", "allreduce", 40), *STEP[2:]],
            "rank 2 made call 3",
        ),
        (
            [*STEP[:2], ("0", "allreduce", 40), *STEP[3:]],
            "rank 2 made allreduce of 40 bytes where ranks 0, 1 and 3 made allreduce of 200 bytes",
        ),
        (
            [*STEP[:2], ("0", "allgather", 200), *STEP[3:]],
            "rank 2 made allgather of 200 bytes",
        ),
        (
            [*STEP[:2], ("1", "allreduce", 200), *STEP[3:]],
            "rank 2 leaves out call 3",
        ),
    ],
)
def test_a_wrong_call_is_named(wrong: list[Call], begin: str) -> None:
    joined = join(four(wrong))
    (problem,) = joined.problems
    assert problem.startswith(begin)
    assert problem.endswith("in step 6")
    assert (joined.calls[:, 2] >= 0).sum() == 11 if len(wrong) <= 4 else 12
    np.testing.assert_allclose(joined.offset_s, 0, atol=1e-9)
    others = np.delete(joined.calls, 2, axis=1)
    np.testing.assert_array_equal(others, np.arange(12)[:, None].repeat(3, 1))


def test_the_same_finding_in_many_steps_is_one_sentence() -> None:
    traces = [trace(rank, dict.fromkeys((5, 6, 7, 9), STEP[rank == 1 :])) for rank in range(2)]
    (problem,) = join(traces).problems
    assert problem.endswith("in steps 5 to 7 and 9")


def test_a_rank_that_never_calls_in_its_group_is_named() -> None:
    pair: list[Call] = [("1", "allreduce", 16)]
    groups = ALL | {"1": (0, 1)}
    traces = [trace(rank, {1: STEP + pair * (rank == 0)}, groups=groups if rank < 2 else ALL) for rank in range(3)]
    (problem,) = join(traces).problems
    assert problem.startswith("rank 1 leaves out call 1 of group '1'")


def test_groups_of_some_ranks_are_kept_apart() -> None:
    def steps(rank: int) -> dict[int, list[Call]]:
        return {number: [*STEP, (str(1 + rank // 2), "allreduce", 16 + rank // 2)] for number in (1, 2)}

    traces = [trace(rank, steps(rank), groups=ALL | {str(1 + rank // 2): (0, 1)}) for rank in range(4)]
    joined = join(traces)
    assert joined.problems == ()
    assert joined.calls[4:6].tolist() == [[4, 4, -1, -1], [-1, -1, 4, 4]]


def test_profiles_that_start_a_step_apart_are_joined_by_number() -> None:
    traces = [trace(rank, dict.fromkeys(range(3 + rank, 8), STEP)) for rank in range(2)]
    joined = join(traces)
    assert (joined.step.min(), joined.step.max(), joined.problems) == (4, 7, ())
    assert joined.calls[0].tolist() == [4, 0]
    (problem,) = join([trace(0, {1: STEP}), trace(1, {2: STEP})]).problems
    assert "no step in common" in problem


def test_without_steps_the_order_and_the_sizes_decide() -> None:
    line = [("0", "allreduce", 4 * size) for size in (7, 3, 9, 9, 1, 5, 2, 8)]
    traces = [trace(rank, {0: line[2 * rank :]}, numbered=False) for rank in range(2)]
    joined = join(traces)
    assert (joined.calls.tolist(), joined.problems) == ([[place + 2, place] for place in range(6)], ())
    assert joined.step.tolist() == [-1] * 6


def test_traces_without_sizes_are_joined_by_kind() -> None:
    unsized = [(group, kind, -1) for group, kind, _ in STEP]
    assert join([trace(0, {1: STEP}), trace(1, {1: unsized})]).problems == ()
    (problem,) = join([trace(0, {1: STEP}), trace(1, {1: unsized[:-1]})]).problems
    assert problem.startswith("rank 1 leaves out call 4 of group '0': barrier")


def test_ranks_may_put_in_sizes_of_their_own_where_that_is_right() -> None:
    traces = [trace(rank, {1: [("0", "alltoall", 10 * rank), ("0", "gather", rank)]}) for rank in range(2)]
    assert join(traces).problems == ()


def test_calls_whose_group_is_not_known_are_no_findings() -> None:
    groups = {"0": (0, 1), "1": (0, 1)}
    traces = [trace(rank, {1: [("", "allreduce", 8 + rank), *STEP]}, groups=groups) for rank in range(2)]
    (problem,) = join(traces).problems
    assert "rank" not in problem


def test_messages_between_two_ranks_are_no_collectives() -> None:
    traces = [trace(rank, {1: STEP + [("0", "send_recv", 8)] * rank}) for rank in range(3)]
    joined = join(traces)
    assert (len(joined.calls), joined.problems) == (4, ())


def test_a_rank_that_shares_no_call_has_no_offset() -> None:
    traces = [trace(rank, {1: [(str(rank // 2), "allreduce", 8)]}, groups={}) for rank in range(4)]
    offset_s = join(traces).offset_s
    assert np.isnan(offset_s).tolist() == [False, False, True, True]


def test_a_long_line_without_steps_that_does_not_fit_ends() -> None:
    lines = [[("0", "allreduce", 8 * (rank + 1))] * 5000 for rank in range(2)]
    joined = join([trace(rank, {0: lines[rank]}, numbered=False) for rank in range(2)])
    assert len(joined.calls) == 0
