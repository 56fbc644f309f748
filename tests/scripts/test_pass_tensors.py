"""Tensors passed to another process: by value it has a copy of its own, through shared memory the same bytes."""

from __future__ import annotations

import re

import pytest

from rankscope.ranks import RankError

from ..extents import first_in_test
from .running import lines_of, text_of

pytestmark = pytest.mark.slow

QUICKER = [("2**26", "2**22"), ('"spawn"', '"fork"')]
FACTS = [
    "by value: the sender's tensor is left where it is; it sees what the receiver writes: False",
    "handle: the sender's tensor is moved to shared memory; it sees what the receiver writes: True",
    "shared: the sender's tensor is left where it is; it sees what the receiver writes: True",
]
TIMES = re.compile(r"(\d+ .iB), fastest of 20 \[ms\]: by value (\S+), handle (\S+), shared (\S+)")


def check(lines: list[str]) -> None:
    """Raise AssertionError unless handles share memory, values do not, and what is shared already is not copied."""
    assert lines[:3] == FACTS
    rows = [match for match in map(TIMES.fullmatch, lines[3:]) if match]
    assert [row[1] for row in rows] == ["4 KiB", "1 MiB", "2 MiB", "64 MiB"]
    for row in rows:
        assert min(float(row[2]), float(row[3]), float(row[4])) > 0


def test_handles_share_the_bytes_and_values_do_not() -> None:
    check(lines_of(text_of("pass_tensors.py", *QUICKER)))


@pytest.mark.parametrize(
    ("right", "wrong"),
    first_in_test(
        1,
        [
            ("else tensor)", "else tensor.clone())"),
            ("        tensor.share_memory_()\n", "        pass\n"),
        ],
    ),
    ids=["a copy is sent", "not shared before"],
)
def test_a_broken_copy_is_refused(right: str, wrong: str) -> None:
    broken = text_of("pass_tensors.py", *QUICKER, (right, wrong))
    with pytest.raises((AssertionError, RankError)):
        check(lines_of(broken))
