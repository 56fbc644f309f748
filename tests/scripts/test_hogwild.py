"""Hogwild: the updates of all processes arrive in the shared model, and it learns as well as with one process."""

from __future__ import annotations

import re

import pytest

from rankscope.ranks import RankError

from ..extents import first_in_test
from .running import lines_of, text_of

pytestmark = pytest.mark.slow

RESULT = re.compile(r"(.*): loss (\S+), accuracy (\S+), updates that arrived: \[(.*)\]")
COUNTED = re.compile(r"(.*): ([\d,]+) of ([\d,]+) increments arrived")
# fork takes the place of spawn, which would import torch again in each process
QUICKER = [
    (
        "mp.spawn(work, (model, arrived, batches, train_data, counting), num_workers)",
        'mp.start_processes(work, (model, arrived, batches, train_data, counting), num_workers, start_method="fork")',
    ),
    ("20_000", "2_000"),
]


def check(lines: list[str]) -> None:
    """Raise AssertionError unless three processes have trained one model and lost as many increments as they must."""
    results = {match[1]: match for match in map(RESULT.fullmatch, lines) if match}
    assert list(results) == ["at the start", "one process", "Hogwild"]
    losses = {name: float(result[2]) for name, result in results.items()}
    accuracies = {name: float(result[3]) for name, result in results.items()}
    assert losses["Hogwild"] < losses["at the start"] / 3
    assert abs(accuracies["Hogwild"] - accuracies["one process"]) < 0.05
    assert results["one process"][4] == "300"
    arrived = [int(number) for number in results["Hogwild"][4].split(", ")]
    assert len(arrived) == 3
    for number in arrived:  # of 100 each, few are lost, and none counts twice
        assert 80 <= number <= 100

    counts = {match[1]: match for match in map(COUNTED.fullmatch, lines) if match}
    assert list(counts) == ["in step", "locked", "free"]
    assert counts["in step"][2] == "100"
    assert counts["locked"][2] == counts["in step"][3] == "300"
    free = int(counts["free"][2].replace(",", ""))
    assert 2_000 < free <= 6_000  # the increments of more than one process


def test_three_processes_train_one_model() -> None:
    check(lines_of(text_of("hogwild.py", *QUICKER), "3"))


@pytest.mark.parametrize(
    ("right", "wrong"),
    first_in_test(
        1,
        [
            ("    train(worker, model,", "    train(worker, copy.deepcopy(model),"),
            ("batches[worker :: len(arrived)], *data)", "batches[: 0 if worker else None], *data)"),
            (
                'with lock:\n            counters["locked"] += 1\n',
                'before = counters["locked"].clone()\n        barrier.wait()\n'
                '        counters["locked"].copy_(before + 1)\n        barrier.wait()\n',
            ),
        ],
    ),
    ids=["own model", "one process works", "no lock"],
)
def test_a_broken_copy_is_refused(right: str, wrong: str) -> None:
    broken = text_of("hogwild.py", *QUICKER, (right, wrong))
    with pytest.raises((AssertionError, RankError)):
        check(lines_of(broken, "3"))
