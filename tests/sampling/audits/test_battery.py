"""A few of the right loaders and of the planted faults of tests/benchmarks/audits.py, which prints the whole table."""

from __future__ import annotations

import pytest

from tests.benchmarks.audits import RIGHT, RIGHT_WITH_WORKERS, WRONG_WITH_WORKERS, num_accused, num_found, wrong

pytestmark = pytest.mark.filterwarnings("ignore")


def test_nobody_is_accused():
    assert {name: num_accused(make, 4) for name, make in RIGHT.items()} == dict.fromkeys(RIGHT, 0)


def test_no_fault_is_missed():
    faults = wrong()
    found = {fault: num_found(make, fault[1], 4) for fault, make in faults.items()}
    assert found == dict.fromkeys(faults, 4)


@pytest.mark.slow
def test_also_with_workers():
    for make in RIGHT_WITH_WORKERS.values():
        assert num_accused(make, 1) == 0
    for (_, kind), make in WRONG_WITH_WORKERS.items():
        assert num_found(make, kind, 1) == 1
