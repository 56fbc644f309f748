"""What a rank does by itself: what is accepted, what is modelled, and in which order gradients are ready."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rankscope.ddp.local_step import Contention, LocalStep, ParameterSpec


def step(**changed: Any) -> LocalStep:
    values: dict[str, Any] = {"parameters": (ParameterSpec("a", 4), ParameterSpec("b", 8)), "ready_s": [0.2, 0.1],
                              "forward_s": 0.1, "backward_s": 0.2}  # fmt: skip
    return LocalStep(**values | changed)


def test_what_it_holds_cannot_be_changed_from_outside() -> None:
    ready_s = np.array([0.2, 0.1])
    made = step(ready_s=ready_s)
    ready_s[0] = 7
    assert made.ready_s.tolist() == [0.2, 0.1]
    with pytest.raises(ValueError, match="read-only"):
        made.ready_s[0] = 1
    assert (made.num_bytes, made.optimizer_s) == (12, 0.0)


def test_gradients_that_are_ready_at_once_come_as_the_backward_does() -> None:
    specs = tuple(ParameterSpec(name, 4) for name in "abcd")
    assert step(parameters=specs, ready_s=[0.2, 0.1, 0.1, 0.1]).ready_order == (3, 2, 1, 0)
    assert step(parameters=specs, ready_s=[0.0, math.nan, 0.2, 0.1]).ready_order == (0, 3, 2)


def test_a_modelled_backward_takes_shares_of_the_work() -> None:
    by_bytes = LocalStep.modelled([100, 300], backward_s=1.0)
    assert by_bytes.ready_s.tolist() == [1.0, 0.75]
    assert by_bytes.forward_s == 0.5
    by_work = LocalStep.modelled([100, ParameterSpec("w", 300)], 1.0, work=[1, 1], forward_s=0.0, optimizer_s=0.2)
    assert by_work.ready_s.tolist() == [1.0, 0.5]
    assert [spec.name for spec in by_work.parameters] == ["0", "w"]


@pytest.mark.parametrize("work", [None, [0, 0]])
def test_no_work_is_done_at_once(work: Any) -> None:
    assert LocalStep.modelled([0, 0], backward_s=1.0, work=work).ready_s.tolist() == [0.0, 0.0]
    assert LocalStep.modelled([], backward_s=1.0).ready_order == ()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"backward_s": -1}, "backward_s must be a finite number of at least 0, got -1"),
        ({"forward_s": math.inf}, "forward_s must be a finite number"),
        ({"optimizer_s": "1"}, "optimizer_s must be a finite number"),
        ({"parameters": None}, "parameters must be a list of ParameterSpec values, got None"),
        ({"ready_s": "soon"}, "ready_s must be a list of numbers, got 'soon'"),
        ({"parameters": (4, 8)}, "parameters must be a ParameterSpec, got 4"),
        ({"ready_s": [0.1]}, "ready_s must have one time for each of 2 parameters"),
        ({"ready_s": [0.1, 0.3]}, "ready_s must lie in the backward of 0.2 s, got 0.3 for 'b'"),
        ({"ready_s": [-0.1, 0.2]}, "ready_s must lie in the backward of 0.2 s, got -0.1 for 'a'"),
        ({"ready_s": [math.inf, 0.2]}, "ready_s must lie in the backward of 0.2 s, got inf for 'a'"),
    ],
)
def test_what_no_step_can_be_is_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        step(**changed)


@pytest.mark.parametrize("work", [[1], [1, -1], [1, math.nan], [[1, 1]], [1e308, 1e308]])
def test_work_that_is_none_is_refused(work: Any) -> None:
    with pytest.raises(ValueError, match="work must be a finite number of at least 0 for each of 2 parameters"):
        LocalStep.modelled([1, 2], 1.0, work=work)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ParameterSpec("a", -1), "num_bytes must be a whole number from 0 to 1125899906842624, got -1"),
        (lambda: ParameterSpec(3, 1), "name must be a str, got 3"),  # type: ignore[arg-type]
        (lambda: ParameterSpec("a", 1, sparse=1), "sparse must be True or False, got 1"),  # type: ignore[arg-type]
        (lambda: Contention(1.0, 0.9), "communication must be a finite number of at least 1, got 0.9"),
        (lambda: LocalStep.modelled(4, 1.0), "parameters must be a list of ParameterSpec values or bytes, got 4"),  # type: ignore[arg-type]
        (lambda: LocalStep.modelled([4], 1.0, work="x"), "work must be a list of numbers, got 'x'"),  # type: ignore[arg-type]
        (lambda: LocalStep.modelled([1.5], 1.0), "num_bytes must be a whole number from 0 to .*, got 1.5"),  # type: ignore[list-item]
    ],
)
def test_what_is_no_parameter_and_no_contention_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
