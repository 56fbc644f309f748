"""A few of the right loaders and of the planted faults of tests/benchmarks/audits.py, which prints the whole table."""

from __future__ import annotations

import pytest

from tests.benchmarks.audits import RIGHT, RIGHT_WITH_WORKERS, WRONG, WRONG_WITH_WORKERS, num_accused, num_found

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", RIGHT)
def test_nobody_is_accused(name):
    assert num_accused(RIGHT[name], 4) == 0


@pytest.mark.parametrize("fault", WRONG, ids=": ".join)
def test_no_fault_is_missed(fault):
    assert num_found(WRONG[fault], fault[1], 4) == 4


@pytest.mark.slow
def test_also_with_workers():
    for make in RIGHT_WITH_WORKERS.values():
        assert num_accused(make, 1) == 0
    for (_, kind), make in WRONG_WITH_WORKERS.items():
        assert num_found(make, kind, 1) == 1
