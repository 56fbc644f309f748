"""`verify` passes every algorithm, and fails every corrupted one, saying where."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from rankscope.collectives import ALGORITHMS, Schedule, ScheduleError, Step, build, verify
from rankscope.collectives.verify import Verified
from tests.extents import SAMPLE_OR_EVERYTHING

from .cases import NAMES, built, is_right, options

# ---- every algorithm


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_every_algorithm_at_every_number_of_ranks(collective: str, name: str, everything: bool) -> None:
    """`is_right` counts in plain Python, up to 40 ranks; beyond, and for most chunks, `verify` alone does."""
    for n in [*range(1, 41), 64, 100] if everything else [*range(1, 12), 16, 17, 31, 64]:
        schedule = built(collective, name, n)
        if schedule is None:
            continue
        assert (schedule.collective, schedule.algorithm, schedule.num_ranks) == (collective, name, n)
        verified = verify(schedule)
        assert verified.num_steps == schedule.num_steps
        assert max(verified.most_sends, verified.most_receives) == (schedule.ports if n > 2 else min(1, n - 1)), n
        if n <= 40 and schedule.num_chunks <= (400 if everything else 40):
            assert is_right(schedule), n


@pytest.mark.slow
@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_every_setting(collective: str, name: str, everything: bool) -> None:
    """All roots, shapes, and odd numbers of segments."""
    for n in [*range(1, 10), 12, 16, 24] if everything else [1, 2, 3, 4, 6, 8]:
        for settings in options(collective, name, n):
            schedule = built(collective, name, n, **settings)
            if schedule is not None:
                assert verify(schedule).num_steps == schedule.num_steps
                assert is_right(schedule), (n, settings)
                assert schedule.root == settings.get("root", 0)


# ---- corrupted schedules

Row = tuple[Any, ...]
KINDS = ("drop", "double", "double later", "redirect", "flip")


def rows_of(schedule: Schedule) -> list[list[Row]]:
    return [list(step.by_chunk().rows()) for step in schedule.steps()]


def of_rows(schedule: Schedule, rows: list[list[Row]], **header: Any) -> Schedule:
    steps = [Step.of(*zip(*step, strict=True)) if step else Step.from_words([]) for step in rows]
    return replace(schedule, source=steps, **header)


def corrupted(rows: list[list[Row]], num_ranks: int, kind: str, rng: random.Random) -> list[list[Row]] | None:
    """The rows with one transfer changed at random, or None where there is none to change like that."""
    rows = [list(step) for step in rows]
    step, place = rng.choice([(step, place) for step, row in enumerate(rows) for place in range(len(row))])
    src, dst, chunk, count, reduce = row = rows[step][place]
    if kind == "drop":
        del rows[step][place]
    elif kind == "double":
        rows[step].append(row)
    elif kind == "double later":
        rows.append([])
        rows[rng.randint(step + 1, len(rows) - 1)].append(row)
    elif kind == "flip":
        rows[step][place] = (src, dst, chunk, count, not reduce)
    else:
        others = [rank for rank in range(num_ranks) if rank not in (src, dst)]
        if not others:
            return None
        rows[step][place] = (src, rng.choice(others), chunk, count, reduce)
    return rows


@pytest.mark.slow
@SAMPLE_OR_EVERYTHING
def test_every_corrupted_schedule_is_caught(everything: bool) -> None:
    """Each algorithm, corrupted at random in each way. Where `verify` finds nothing, `is_right` must agree with it.

    That happens where a redirected share is passed on by the rank that received it: another tree, and no corruption.
    A rank of a barrier may also replace what it has heard by more.
    """
    tried: Counter[str] = Counter()
    still_right = 0
    for (collective, name), n in itertools.product(NAMES, [2, 3, 4, 5, 8, *([6, 7, 9, 12, 16] if everything else [])]):
        schedule = built(collective, name, n)
        if schedule is None:
            continue
        rows = rows_of(schedule)
        assert verify(of_rows(schedule, rows)).num_steps == schedule.num_steps
        rng = random.Random(f"{collective} {name} {n}")
        for kind in KINDS * 2:
            wrong = corrupted(rows, n, kind, rng)
            if wrong is None:
                continue
            tried[kind] += 1
            changed = of_rows(schedule, wrong)
            error = error_of(changed)
            if error is None:
                assert kind == "redirect" or collective == "barrier", (
                    f"{kind} at {n} ranks is not caught: {changed.to_text()}"
                )
                assert is_right(changed), changed.to_text()
                still_right += 1
                continue
            assert error.rank is not None
            for noun in ("step", "rank", "chunk"):
                number = getattr(error, noun)
                assert number is None or f"{noun} {number}" in str(error)
    assert min(tried[kind] for kind in KINDS) >= 200, tried
    assert still_right <= 0.01 * sum(tried.values())


def error_of(schedule: Schedule) -> ScheduleError | None:
    """What verify finds wrong, if anything."""
    try:
        verify(schedule)
    except ScheduleError as error:
        return error
    return None


def test_counting_sees_what_is_wrong() -> None:
    """The judge of the tests above, seen to fail."""
    schedule = build("allreduce", "ring", 4)
    rows = rows_of(schedule)
    for kind in ("drop", "double", "flip"):
        wrong = corrupted(rows, 4, kind, random.Random(1))
        assert wrong is not None
        assert not is_right(of_rows(schedule, wrong)), kind
    src, dst, *rest = rows[-1][0]
    rows[-1][0] = (src, (dst + 1) % 4, *rest)
    assert not is_right(of_rows(schedule, rows))


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_doing_nothing_is_right_for_one_rank_only(collective: str) -> None:
    assert verify(Schedule(collective, "idle", 1, 1, [])) == Verified(0, 0, 0, 0)
    with pytest.raises(ScheduleError, match="the result lacks"):
        verify(Schedule(collective, "idle", 3, 9, []))


# ---- what is said, and where


def schedule_of(collective: str, text: str, num_ranks: int = 3, num_chunks: int = 1, **header: Any) -> Schedule:
    """A schedule whose steps are given as in its text, separated by semicolons."""
    words = [f"{collective} mine ranks={num_ranks} chunks={num_chunks}"]
    words += [f"{name}={value}" for name, value in header.items()]
    steps = [f"{number}: {step}" for number, step in enumerate(text.split(";"))]
    return Schedule.from_text("\n".join([" ".join(words), *steps]))


def one_step(*columns: int) -> Schedule:
    return Schedule("allreduce", "mine", 3, 2, [Step.of(*columns)])


# Wrong schedules, and the step, the rank and the chunk that the error names.
ERRORS: list[tuple[Schedule, int | None, int, int | None]] = [
    (schedule_of("broadcast", "1>2:0="), 0, 1, 0),  # sends what it does not have
    (schedule_of("broadcast", "0>1:0=;2>1:0="), 1, 2, 0),
    (schedule_of("broadcast", "0>1:0= 1>2:0="), 0, 1, 0),  # has it only after the step
    (schedule_of("broadcast", "0>1:0="), None, 2, 0),  # lacks it in the end
    (schedule_of("broadcast", "0>0:0="), 0, 0, 0),  # sends to itself
    (schedule_of("broadcast", "0>1:0+"), 0, 1, 0),  # nothing is added up
    (schedule_of("broadcast", "0>1:0= 0>2:0="), 0, 0, None),  # more messages than ports
    (schedule_of("reduce", "0>2:0+ 1>2:0+", root=2), 0, 2, None),
    (schedule_of("reduce", "0>1:0+ 1>2:0+", ports=2), None, 0, 0),  # lacks shares in the end
    (Schedule("reduce", "idle", 70, 1, []), None, 0, 0),
    (schedule_of("reduce", "1>0:0+;2>0:0+;1>0:0+"), 2, 0, 0),  # a share a second time
    (schedule_of("allreduce", "2>0:1+ 2>0:1+", 3, 2), 0, 0, 1),
    (schedule_of("barrier", "0>1:0+;0>1:0+"), 1, 1, 0),
    (schedule_of("allreduce", "1>0:0= 2>0:0=", ports=2), 0, 0, 0),  # written twice
    (schedule_of("allreduce", "1>0:0= 2>0:0+", ports=2), 0, 0, 0),
    (schedule_of("allreduce", "1>0:0+ 2>0:0+ 1>3:1= 2>3:1+", 4, 2, ports=3), 0, 3, 1),
    (schedule_of("allgather", "0>1:0=;0>1:0=", 3, 3), 1, 1, 0),  # receives what it has
    (schedule_of("reduce", "1>0:0+;2>0:0+", lag=2), 1, 0, 0),  # a sum used too soon
    (one_step(0, 3, 0), 0, 3, None),  # no such rank, or chunk
    (one_step(-1, 1, 0), 0, -1, None),
    (one_step(0, 1, 2), 0, 0, 2),
    (one_step(0, 1, 1, 2), 0, 0, 1),
    (one_step(0, 1, -1), 0, 0, -1),
    (one_step(0, 1, 0, 0), 0, 0, 0),
    (schedule_of("allreduce", "0>1:3+"), 0, 0, 3),
]


@pytest.mark.parametrize(("schedule", "step", "rank", "chunk"), ERRORS)
def test_errors_say_where(schedule: Schedule, step: int | None, rank: int, chunk: int | None) -> None:
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    assert (caught.value.step, caught.value.rank, caught.value.chunk) == (step, rank, chunk)
    for noun, number in (("step", step), ("rank", rank), ("chunk", chunk)):
        assert number is None or f"{noun} {number}" in str(caught.value)


# ---- who holds what before each step
