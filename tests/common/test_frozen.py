"""Frozen values check their fields as they are made, and stay as they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from functools import cached_property

import attrs
import msgspec
import numpy as np
import pytest

from rankscope.common.checks import number, of_type, whole
from rankscope.common.frozen import ReadOnly, checked, frozen, mapping, optional


@frozen
class Value:
    count: int = checked(whole, 1, 9)
    name: str = checked(str, default="a")
    share: float | None = checked(optional, number, 0, 1, default=None)
    options: Mapping[str, int] = checked(mapping, factory=dict, hash=False)

    @cached_property
    def square(self) -> list[int]:
        return [self.count**2]


@pytest.mark.parametrize("given", [{"count": 0}, {"count": "1"}, {"name": 2}, {"share": 2}, {"options": []}])
def test_each_field_is_checked(given: dict[str, object]) -> None:
    (field,) = given
    with pytest.raises(ValueError, match=field):
        Value(**{"count": 1, **given})  # type: ignore[arg-type]


def test_what_is_kept_is_what_the_check_returned() -> None:
    own = {"a": 1}
    value = Value(np.int64(3), share=np.float32(0.5), options=own)  # type: ignore[arg-type]
    own["b"] = 2
    assert (type(value.count), type(value.share), value.options) == (int, float, {"a": 1})


def test_a_value_stays_as_it_is_and_its_twins_are_equal() -> None:
    value = Value(3, options={"a": 1})
    with pytest.raises(AttributeError):
        value.count = 4  # type: ignore[misc]
    assert value.square is value.square
    for twin in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), attrs.evolve(value)):
        assert (twin, hash(twin)) == (value, hash(value))
    assert attrs.evolve(value, count=4) != value
    with pytest.raises(ValueError, match="count must be"):
        attrs.evolve(value, count=10)


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.update(b=1), lambda one: one.pop("a"), lambda one: one.popitem(), lambda one: one.clear(),
        lambda one: one.setdefault("b", 1), lambda one: one.__setitem__("a", 2), lambda one: one.__delitem__("a"),
        lambda one: one.__ior__({"b": 1}),
    ],
)  # fmt: skip
def test_a_read_only_mapping_cannot_be_changed(change: object) -> None:
    one = ReadOnly(a=1)
    with pytest.raises(TypeError, match="read-only"):
        change(one)  # type: ignore[operator]
    assert one == {"a": 1}
    assert msgspec.json.encode(one) == b'{"a":1}'


def test_values_that_hold_arrays_are_equal_to_themselves_only() -> None:
    @frozen(eq=False)
    class Column:
        values: object = checked(of_type, np.ndarray)

    one, other = Column(np.arange(3)), Column(np.arange(3))
    assert one == one
    assert one != other
    assert len({one, other}) == 2
