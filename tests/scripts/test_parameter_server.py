"""The parameter server trains as one process does, and asynchronously counts how late each gradient is."""

from __future__ import annotations

import re

import pytest

from rankscope.ranks import RankError

from ..extents import first_in_test
from .running import lines_of, text_of

pytestmark = pytest.mark.slow

WORKERS = 3
BATCHES = 60 * WORKERS
SERVED = re.compile(r"(.*): (\d+) updates, ([\d,]+) bytes, (\S+) updates behind on average")
WORKER = re.compile(r"  worker (\d): (\d+) gradients, (\S+) updates behind")
# `launch` sets up the process group and ends it
IN_A_RANK = [
    ('dist.init_process_group("gloo")', "pass"),
    ("dist.destroy_process_group()\n", ""),
    ("0.080 if", "0.040 if"),
    ("else 0.020)", "else 0.005)"),
]


def check(lines: list[str]) -> None:
    """Raise AssertionError unless all gradients were used once, and were as late as those of three workers must be."""
    heads = [match for match in map(SERVED.fullmatch, lines) if match]
    workers = [match for match in map(WORKER.fullmatch, lines) if match]
    assert len(heads) + len(workers) + 1 == len(lines)
    assert lines[1 + WORKERS] == "  equal to one process with the same batches, to 1e-12"
    assert [int(worker[1]) for worker in workers] == 2 * [1, 2, 3]
    num_bytes = f"{BATCHES * 2 * 64 * 10 * 8:,}"  # the parameters there and the gradient back
    assert [head[3] for head in heads] == [num_bytes, num_bytes]

    synchronous, asynchronous = heads
    assert synchronous.group(1, 2, 4) == ("synchronous", "60", "0.00")
    assert [worker.group(2, 3) for worker in workers[:WORKERS]] == WORKERS * [("60", "0.00")]

    assert asynchronous.group(1, 2) == ("asynchronous", str(BATCHES))
    counts = [int(worker[2]) for worker in workers[WORKERS:]]
    behind = [float(worker[3]) for worker in workers[WORKERS:]]
    assert sum(counts) == BATCHES
    assert counts[2] < max(counts)  # the slow worker
    assert behind[2] > min(behind)
    # All others compute during each update, except during the last ones: so the sum does not depend on who is how fast.
    total = (WORKERS - 1) * BATCHES - sum(range(WORKERS))
    assert asynchronous[4] == f"{total / BATCHES:.2f}"
    assert sum(count * late for count, late in zip(counts, behind, strict=True)) == pytest.approx(total, abs=1)


def test_it_serves_as_it_says() -> None:
    check(lines_of(text_of("parameter_server.py", *IN_A_RANK), num_ranks=1 + WORKERS))


@pytest.mark.parametrize(
    ("right", "wrong"),
    first_in_test(
        1,
        [
            (" / per_update", ""),
            ("            dist.send(parameters, worker)", "            dist.send(0 * parameters, worker)"),
            ("0.040 if worker == workers[-1] else 0.005", "0.005 if worker == workers[-1] else 0.040"),
        ],
    ),
    ids=["sum, no mean", "old parameters", "another worker is slow"],
)
def test_a_broken_copy_is_refused(right: str, wrong: str) -> None:
    broken = text_of("parameter_server.py", *IN_A_RANK, (right, wrong))
    with pytest.raises((AssertionError, RankError)):
        check(lines_of(broken, num_ranks=1 + WORKERS))
