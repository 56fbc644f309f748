"""What the packages compute is what was stored before they were rewritten: a sample, and all of it as an oracle."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from typing import Any

import pytest

from .make import PARTS, cases_of, computed, stored
from .values import differences

SAMPLE = {  # cases of each part in `make test`; of parts that take a second, all
    "pipeline": 100,
    "box": 20,
    "logs": 40,
    "nccl": 100,
}
_SEED = 20


def problems(part: str, names: Iterable[str], stored_values: dict[str, Any]) -> list[str]:
    """Return the differences in these cases, all of one case before those of the next one."""
    cases = cases_of(part)
    found = []
    for name in names:
        if name not in cases or name not in stored_values:
            found.append(f"{name} is only {'stored' if name in stored_values else 'computed'}")
        else:
            found += [f"{name}: {problem}" for problem in differences(stored_values[name], computed(cases[name]))]
    return found


def check(part: str, names: Iterable[str]) -> None:
    if not cases_of(part):
        pytest.skip("the folder of published measurements is not next to the checkout")
    found = problems(part, names, stored(part))
    assert not found, (
        f"{part} has {len(found)} differences, the first is in case {found[0]}. "
        f"`python -m tests.golden.make {part} --show CASE` prints what a case computes now."
    )


def sample(part: str) -> list[str]:
    names = sorted(stored(part))
    return random.Random(_SEED).sample(names, min(SAMPLE[part], len(names)))


@pytest.mark.parametrize("part", PARTS)
def test_a_sample_of_the_outputs_is_as_stored(part: str) -> None:
    check(part, sample(part))


@pytest.mark.oracle
@pytest.mark.parametrize("part", PARTS)
def test_all_outputs_are_as_stored(part: str) -> None:
    check(part, {**stored(part), **cases_of(part)})


@pytest.mark.parametrize("part", PARTS)
def test_one_changed_number_is_noticed(part: str) -> None:
    """The comparison names the case; the last number of a case is moved by a millionth, or by 1."""
    if not cases_of(part):
        pytest.skip("the folder of published measurements is not next to the checkout")
    name = next(name for name in sample(part) if _leaves(stored(part)[name]))
    changed = copy.deepcopy(stored(part))
    holder, key = _leaves(changed[name])[-1]
    number = holder[key]
    holder[key] = number + 1 if isinstance(number, int) else number + (abs(number) or 1) * 1e-6
    found = problems(part, [name], changed)
    assert len(found) == 1, found
    assert found[0].startswith(name), found


def _leaves(value: Any) -> list[tuple[Any, Any]]:
    """Return where each number of a value stands: its list or dict, and its place there."""
    places: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(entry, int | float) and not isinstance(entry, bool):
                places.append((value, key))
            places += _leaves(entry)
    return places
