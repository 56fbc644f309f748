"""A value of a user's is checked as it is made, and holds plain numbers."""

from __future__ import annotations

import pickle

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from rankscope.common.checks import check_field, each, number, whole


class Value(msgspec.Struct, frozen=True):
    count: int
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_field(self, "count", whole, 1, 9)
        check_field(self, "shares", each, number, 0, high=1)


@pytest.mark.parametrize("given", [{"count": 0}, {"count": "1"}, {"shares": [2]}, {"shares": 1}])
def test_each_field_is_checked_whenever_a_value_is_made(given: dict[str, object]) -> None:
    (field,) = given
    for make in (lambda: Value(**{"count": 1, **given}), lambda: replace(Value(1), **given)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=field):
            make()


def test_numbers_of_numpy_become_plain() -> None:
    value = Value(np.int64(3), np.array([0.5]))  # type: ignore[arg-type]
    assert (type(value.count), value.shares, type(value.shares[0])) == (int, (0.5,), float)
    assert pickle.loads(pickle.dumps(value)) == value
    assert hash(replace(value)) == hash(value)
    with pytest.raises(AttributeError):
        value.count = 4  # type: ignore[misc]
