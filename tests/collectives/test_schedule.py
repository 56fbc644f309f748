"""`Schedule`, `Step`, `Phase` and the text form: what is written is read back, and what is wrong is said by line."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.collectives import ALGORITHMS, Schedule, ScheduleError, Step, build, verify
from rankscope.collectives.schedule import MOST_RANKS, MOST_WEIGHT, Phase
from rankscope.collectives.simulate import all_routes

from .cases import NAMES, allows, options, schedules

# ---- text


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_text_is_read_back(collective: str, name: str) -> None:
    for n in (1, 2, 3, 8, 11):
        if allows(collective, name, n):
            for settings in ({}, *options(collective, name, n)):
                schedule = build(collective, name, n, **settings)
                text = schedule.to_text()
                read = Schedule.from_text(text)
                assert read == schedule
                assert read.to_text() == text
                assert len(text.splitlines()) == 1 + schedule.num_steps


GOLDEN = {
    ("allreduce", "ring", 3): """
allreduce ring ranks=3 chunks=3 root=0 ports=1 lag=1
0: 0>1:0+ 1>2:1+ 2>0:2+
1: 0>1:2+ 1>2:0+ 2>0:1+
2: 0>1:1= 1>2:2= 2>0:0=
3: 0>1:0= 1>2:1= 2>0:2=
""",
    ("allreduce", "halving_doubling", 4): """
allreduce halving_doubling ranks=4 chunks=4 root=0 ports=1 lag=1
0: 0>1:2-3+ 1>0:0-1+ 2>3:2-3+ 3>2:0-1+
1: 0>2:1+ 1>3:3+ 2>0:0+ 3>1:2+
2: 0>2:0= 1>3:2= 2>0:1= 3>1:3=
3: 0>1:0-1= 1>0:2-3= 2>3:0-1= 3>2:2-3=
""",
    ("reduce", "reduce_scatter_gather", 3): """
reduce reduce_scatter_gather ranks=3 chunks=2 root=0 ports=1 lag=1
0: 2>0:0-1+
1: 0>1:1+ 1>0:0+
2: 1>0:1=
""",
    ("broadcast", "scatter_allgather", 4): """
broadcast scatter_allgather ranks=4 chunks=4 root=0 ports=1 lag=1
0: 0>2:2-3=
1: 0>1:1= 2>3:3=
2: 0>1:0= 1>2:1= 2>3:2=
3: 0>1:3= 1>2:0= 2>3:1=
4: 0>1:2= 2>3:0=
""",
    ("all_to_all", "bruck", 3): """
all_to_all bruck ranks=3 chunks=9 root=0 ports=1 lag=1
0: 0>1:1= 1>2:5= 2>0:6=
1: 0>2:2= 1>0:3= 2>1:7=
""",
}


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_golden_text(case: tuple[str, str, int]) -> None:
    assert build(*case).to_text() == GOLDEN[case].lstrip()


def test_empty_lines_comments_and_empty_steps_are_read() -> None:
    text = "\n# by hand\nbroadcast mine ranks=2 chunks=1\n\n0:\n  # now\n1: 0>1:0=\r\n"
    schedule = Schedule.from_text(text)
    assert schedule.num_steps == 2
    assert verify(schedule).num_messages == 1
    assert schedule.root == 0


HEAD = "allreduce mine ranks=4 chunks=3"
MALFORMED = [
    ("", "the text of a schedule must start with a header line"),
    ("# only a comment\n\n", "the text of a schedule must start with a header line"),
    ("allreduce", "line 1: a header is 'collective algorithm ranks=… chunks=…', got 'allreduce'"),
    ("\n\nallreduce ring ranks=4", "line 3: a header is 'collective algorithm"),
    ("allsum mine ranks=4 chunks=1", "line 1: collective must be one of 'allreduce', .*, got 'allsum'"),
    ("0: 0>1:0+ 1>0:0+ 2>3:0+", "line 1: expected ranks, chunks, root, .* with whole numbers, got '1>0:0\\+'"),
    ("allreduce mine ranks=4 chunk=1", "line 1: expected ranks, chunks, .*, got 'chunk=1'"),
    ("allreduce mine ranks=4 root=1", "line 1: chunks= is missing"),
    ("allreduce mine ranks=4 chunks=1 ranks=5", "line 1: ranks= occurs twice"),
    ("allreduce mine ranks=four chunks=1", "line 1: expected .* whole numbers, got 'ranks=four'"),
    ("allreduce mine ranks=1,2 chunks=1", "line 1: expected .* whole numbers, got 'ranks=1,2'"),
    (f"allreduce mine ranks={10**30} chunks=1", "line 1: expected .* whole numbers, got 'ranks=1000000"),
    (f"{HEAD} root=4", "line 1: root must be a whole number from 0 to 3, got 4"),
    (f"{HEAD} weights=1,2", "line 1: weights must be 3, one per chunk, got 2"),
    (f"{HEAD} weights=1,2,{10**16}", "line 1: weights must be a whole number from 0 to 9007199254740992, got 1000"),
    (f"{HEAD} ports={10**6}", "line 1: ports must be a whole number from 1 to 65536, got 1000000"),
    (f"{HEAD} weights=1,,2", "line 1: expected .* whole numbers, got 'weights=1,,2'"),
    ("all_to_all mine ranks=4 chunks=4", "line 1: num_chunks of all_to_all must be a multiple of 16, got 4"),
    (f"{HEAD}\n1: 0>1:0+", "line 2: expected step 0:, got '1:'"),
    (f"{HEAD}\n0: 0>1:0+\n2: 0>1:0+", "line 3: expected step 1:, got '2:'"),
    (f"{HEAD}\n0>1:0+", "line 2: expected step 0:, got '0>1:0\\+'"),
    (f"{HEAD}\n0 : 0>1:0+", "line 2: expected step 0:, got '0'"),
    (f"{HEAD}\n\n# a comment\n0: 0>1:0", "line 4: expected src>dst:first-last with \\+ or = after it, got '0>1:0'"),
    (f"{HEAD}\n0: 0>1:0*", "line 2: expected src>dst:first-last .*, got '0>1:0\\*'"),
    (f"{HEAD}\n0: 0>1:-1+", "line 2: expected src>dst:first-last .*, got '0>1:-1\\+'"),
    (f"{HEAD}\n0: 0>1:0+ 0 >2:0+", "line 2: expected src>dst:first-last .*, got '0'"),
    (f"{HEAD}\n0: 0>1:0+\n1: 4>1:0+", "line 3: rank must be from 0 to 3, got '4>1:0\\+'"),
    (f"{HEAD}\n0: 0>9:0+", "line 2: rank must be from 0 to 3, got '0>9:0\\+'"),
    (f"{HEAD}\n0: 0>1:3+", "line 2: chunks must be from 0 to 2, got '0>1:3\\+'"),
    (f"{HEAD}\n0: 0>1:1-3+", "line 2: chunks must be from 0 to 2, got '0>1:1-3\\+'"),
    (f"{HEAD}\n0: 0>1:2-1+", "line 2: the first chunk must be at most the last, got '0>1:2-1\\+'"),
    ("allreduce x ranks=\u0663 chunks=1", "line 1: expected ranks"),
    (f"{HEAD}\n0: 0>1:9999999999+", "line 2: expected src>dst:first-last .*, got '0>1:9999999999\\+'"),
]


@pytest.mark.parametrize("text", [None, 5, b"allreduce mine ranks=2 chunks=1"])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="^text must be a str, got "):
        Schedule.from_text(text)


@pytest.mark.parametrize(("text", "message"), MALFORMED)
def test_malformed_text_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{message}") as caught:
        Schedule.from_text(text)
    assert caught.value.__context__ is None or caught.value.__suppress_context__  # one error, not two
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(list(schedules(4))), st.data())
def test_whatever_is_changed_in_a_text_is_read_or_refused(schedule: Schedule, data: st.DataObject) -> None:
    """One character of a good text becomes another: a schedule that reads back as itself, or one ScheduleError."""
    text = schedule.to_text()
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from("0123456789>:+=-, \nx#")) + text[place + 1 :]
    try:
        read = Schedule.from_text(changed)
    except ScheduleError as error:
        assert str(error).startswith("line ")  # noqa: PT017
    else:
        assert Schedule.from_text(read.to_text()) == read


# ---- the values


def test_schedules_are_equal_by_what_they_do() -> None:
    ring = build("allreduce", "ring", 4)
    assert ring == ALGORITHMS["allreduce"]["ring"](4)
    assert ring == Schedule.of_steps(ring.steps(), **ring.header())
    assert ring != build("allreduce", "ring", 5)
    assert ring != build("allreduce", "torus_2d", 4, shape=(1, 4))  # by its name
    assert ring != "ring"
    all_but_last = list(ring.steps())[:-1]
    assert ring != Schedule.of_steps(all_but_last, **ring.header())
    other_last = Step.of([0, 1, 2, 3], [1, 2, 3, 0], [0, 1, 2, 3])
    assert ring != Schedule.of_steps([*all_but_last, other_last], **ring.header())
    weighted = Schedule.of_steps(ring.steps(), **{**ring.header(), "weights": np.arange(4)})
    assert weighted != ring
    assert weighted.weights == (0, 1, 2, 3)
    assert Schedule.from_text(weighted.to_text()) == weighted
    largest = Schedule.of_steps(ring.steps(), **{**ring.header(), "ports": MOST_RANKS, "weights": (MOST_WEIGHT,) * 4})
    assert Schedule.from_text(largest.to_text()) == largest
    with pytest.raises(TypeError, match="unhashable"):
        hash(ring)
    numpys = Schedule("allreduce", "ring", np.int64(4), np.int64(4), ring.phases, np.int64(0))  # type: ignore[arg-type]
    assert numpys == ring
    assert repr(numpys.header()) == repr(ring.header())  # of which ranks make the name that they agree on
    assert repr(ring) == "<Schedule: allreduce ring, 4 ranks, 4 chunks, 6 steps>"


def test_a_schedule_is_built_once() -> None:
    ring = build("allreduce", "ring", 4)
    torus = build("allreduce", "torus_2d", 4, shape=(2, 2))
    assert build("allreduce", "ring", 4) is ring
    assert build("allreduce", "segmented_ring", 4, num_segments=1) is not ring
    assert build("allreduce", "torus_2d", 4, shape=(2, 2)) is torus
    assert build("allreduce", "torus_2d", 4, shape=[2, 2]) == torus
    with pytest.raises(ValueError, match="shape must be a whole number of at least -1, got 2.0"):
        build("allreduce", "torus_2d", 4, shape=(2.0, 2))  # equal to what was asked for


def test_what_is_kept_with_a_schedule_is_small_and_goes_with_it() -> None:
    few_messages_of_many_chunks = ALGORITHMS["all_to_all"]["bruck"](64)
    assert [routes.num_messages for routes in all_routes(few_messages_of_many_chunks, 1)] == [64] * 6
    assert not few_messages_of_many_chunks.cache
    ring = ALGORITHMS["allreduce"]["ring"](4)
    next(all_routes(ring, 1))
    assert not ring.cache  # nothing of what was not made to its end
    assert len(list(all_routes(ring, 1))) == 2
    assert list(all_routes(ring, 1)) == ring.cache["routes", 1]
    known = weakref.ref(ring)
    gc.disable()
    try:
        del ring
        assert known() is None
    finally:
        gc.enable()


def test_a_builder_of_yours_is_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been changed, or depend on something else."""
    torus = ALGORITHMS["allreduce"]["torus_2d"]
    monkeypatch.setitem(ALGORITHMS["allreduce"], "ring", lambda n: torus(n))
    assert build("allreduce", "ring", 4).algorithm == "torus_2d"
    assert build("allreduce", "ring", 4) is not build("allreduce", "ring", 4)


def test_a_step_by_chunk() -> None:
    step = Step.of([0, 2, 1], [1, 0, 2], [4, 0, 7], [3, 1, 2], [True, False, True])
    rows = step.by_chunk()
    assert rows.src.tolist() == [0, 0, 0, 2, 1, 1]
    assert rows.dst.tolist() == [1, 1, 1, 0, 2, 2]
    assert rows.chunk.tolist() == [4, 5, 6, 0, 7, 8]
    assert rows.reduce.tolist() == [True, True, True, False, True, True]
    assert rows.by_chunk() is rows
    assert Step.of([], [], [], []).by_chunk().src.size == 0


def test_a_phase_makes_its_chunks_when_asked() -> None:
    asked = []

    def chunk(step: int) -> list[int]:
        asked.append(step)
        return [step, step + 1]

    phase = Phase([0, 1], [1, 0], chunk, num_steps=5)
    schedule = Schedule("allgather", "lazy", 2, 10, lambda: (phase,))
    assert (schedule.num_steps, asked) == (5, [])
    steps = schedule.steps()
    next(steps), next(steps)
    assert asked == [0, 1]


def test_chunk_bytes() -> None:
    assert build("allreduce", "ring", 4).chunk_bytes(100).tolist() == [25.0] * 4
    assert build("scatter", "flat", 4, counts=[1, 0, 3, 0]).chunk_bytes(100).tolist() == [25.0, 0.0, 75.0, 0.0]
    assert build("scatter", "flat", 2, counts=[0, 0]).chunk_bytes(100).tolist() == [0.0, 0.0]
    assert build("all_to_all", "pairwise", 2).chunk_bytes(100).tolist() == [50.0] * 4  # each rank sends 100


def test_a_schedule_cannot_be_changed_through_its_steps() -> None:
    ring, ranks = build("allgather", "ring", 4), np.array([0])
    with pytest.raises(ValueError, match="read-only"):
        next(ring.steps()).src[:] = 0
    step = Step.of(ranks, [1], [0])
    ranks[0] = 7
    assert step.src.tolist() == [0]


# ---- traffic


def test_every_algorithm_moves_at_least_what_it_must() -> None:
    for name in ALGORITHMS["allreduce"]:
        for n in (1, 2, 5, 8, 12):
            moved = build("allreduce", name, n).traffic(960.0)
            assert moved.sent_bytes.sum() >= 2 * (n - 1) * 960.0 * (1 - 1e-12)  # each share in, each sum out
            assert not moved.link_bytes.diagonal().any()
            assert (moved.peak_buffer_bytes >= 960.0).all()


def test_the_traffic_of_a_ring_by_hand() -> None:
    moved = build("allreduce", "ring", 4).traffic(1024)
    assert moved.link_bytes.tolist() == [[0, 1536, 0, 0], [0, 0, 1536, 0], [0, 0, 0, 1536], [1536, 0, 0, 0]]
    assert moved.num_messages == 24


@pytest.mark.parametrize(
    ("asked", "peak"),
    [
        (("allreduce", "flat"), [2048, 1024, 1024, 1024]),  # its buffer, and what comes in to be added
        (("allreduce", "recursive_doubling"), [2048] * 4),
        (("allreduce", "ring"), [1024 + 256] * 4),
        (("allreduce", "double_binary_tree"), [1024 + 64] * 4),
        (("gather", "flat"), [1024, 256, 256, 256]),
        (("scatter", "flat"), [1024, 256, 256, 256]),
        (("all_to_all", "bruck"), [1536] * 4),  # its own, and half as much arriving: for each block another has gone
    ],
)
def test_memory_holds_only_what_is_needed(asked: tuple[str, str], peak: list[int]) -> None:
    assert build(*asked, 4).traffic(1024).peak_buffer_bytes.tolist() == peak
