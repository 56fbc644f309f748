"""`Schedule` and `Step`: what is written as text is read back, and what is wrong is said by line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.collectives import ALGORITHMS, Schedule, ScheduleError, build

from .cases import NAMES, built, options, schedules


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_text_is_read_back(collective: str, name: str) -> None:
    for n in (1, 2, 3, 8, 11):
        for setting in ({}, *options(collective, name, n)):
            schedule = built(collective, name, n, **setting)
            if schedule is not None:
                text = schedule.to_text()
                read = Schedule.from_text(text)
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
    ("reduce", "reduce_scatter_gather", 3): """
reduce reduce_scatter_gather ranks=3 chunks=2 root=0 ports=1 lag=1
0: 2>0:0-1+
1: 0>1:1+ 1>0:0+
2: 1>0:1=
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


HEAD = "allreduce mine ranks=4 chunks=3"
MALFORMED = [
    ("# only a comment", "header"),
    ("allreduce", "line 1"),
    ("\n\nallreduce ring ranks=4", "line 3"),
    ("allsum mine ranks=4 chunks=1", "line 1.*allsum"),
    ("allreduce mine ranks=4 root=1", "line 1.*chunks"),
    (f"{HEAD} root=4", "line 1.*root"),
    (f"{HEAD}\n1: 0>1:0+", "line 2.*0:"),
    (f"{HEAD}\n\n# a comment\n0: 0>1:0", "line 4.*0>1:0"),
]


@pytest.mark.parametrize(("text", "word"), MALFORMED)
def test_malformed_text_is_refused_by_line(text: str, word: str) -> None:
    with pytest.raises(ScheduleError, match=word):
        Schedule.from_text(text)


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
        assert Schedule.from_text(read.to_text()).to_text() == read.to_text()


def test_traffic() -> None:
    moved = build("allreduce", "ring", 4).traffic(1024)
    assert moved.tolist() == [[0, 1536, 0, 0], [0, 0, 1536, 0], [0, 0, 0, 1536], [1536, 0, 0, 0]]
    for name in ALGORITHMS["allreduce"]:
        for n in (1, 2, 5, 8, 12):
            schedule = built("allreduce", name, n)
            sent = schedule.traffic(960.0) if schedule else np.array(np.inf)
            assert sent.sum() >= 2 * (n - 1) * 960.0 * (1 - 1e-12)  # each share in, each sum out


def test_repr() -> None:
    assert repr(build("allreduce", "ring", 4)) == "<Schedule: allreduce ring, 4 ranks, 4 chunks, 6 steps>"
