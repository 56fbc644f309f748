"""One battery for every value that is kept in a file: frozen, copied and pickled whole, the same again from its file,
from files of the first version too, and refused in one sentence when the file is damaged, cut or another's."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from ..contributed import contributed
from .kinds import Kind

KINDS: list[Kind] = []
for module in contributed("stored_cases"):
    KINDS.extend(module.KINDS)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.stored.name.split(".")[0])


def fields(value: Any) -> dict[str, Any] | None:
    """The fields of a frozen value by name, None for anything else."""
    if attrs.has(type(value)):
        return {one.name: getattr(value, one.name) for one in attrs.fields(type(value))}
    known = getattr(value, "__dataclass_fields__", {})
    return {name: getattr(value, name) for name, field in known.items() if field.init} or None


def same(one: Any, other: Any) -> bool:
    """Whether two values hold the same, arrays and all, whether or not their class says so itself."""
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if type(one).__eq__ is object.__eq__:
        known = fields(one)
        return known is not None and same(known, fields(other))
    return bool(one == other)


def outcome(kind: Kind, path: Path) -> tuple[Any, str]:
    """What a file holds, or the message with which it is refused."""
    try:
        return kind.load(path), ""
    except ValueError as error:
        return None, str(error)


def value_of(kind: Kind) -> Any:
    return kind.load(kind.stored)


@every_kind
def test_a_file_of_the_first_version_still_loads_and_is_the_same_when_written_again(kind: Kind, tmp_path: Path) -> None:
    value, path = value_of(kind), tmp_path / kind.stored.name
    kind.save(value, path)
    assert same(kind.load(path), value)
    assert os.listdir(tmp_path) == [kind.stored.name]


@every_kind
def test_it_is_frozen_and_copied_and_pickled_whole(kind: Kind) -> None:
    value = value_of(kind)
    for one in value if isinstance(value, list) else [value]:
        for name, field in (fields(one) or {}).items():
            with pytest.raises(AttributeError):
                setattr(one, name, field)
            if isinstance(field, Mapping):
                with pytest.raises(TypeError):
                    field["new"] = 1  # type: ignore[index]
            for array in field if isinstance(field, tuple) else [field]:
                assert not isinstance(array, np.ndarray) or not array.flags.writeable
        for twin in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
            assert same(twin, one)


@every_kind
def test_a_damaged_file_is_refused_in_one_line_that_names_it(kind: Kind, tmp_path: Path) -> None:
    value, whole = value_of(kind), kind.stored.read_bytes()
    path, refused = tmp_path / kind.stored.name, 0
    for place in np.random.default_rng(1).integers(0, len(whole), 60).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        found, message = outcome(kind, path)
        refused += bool(message)
        assert "\n" not in message
        if kind.signed:  # in a zip's own head there are bytes that do not count
            assert str(path) in message or same(found, value)
    assert refused > (40 if kind.signed else 0)


@every_kind
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_cut_short_is_refused(kind: Kind, share: float, tmp_path: Path) -> None:
    whole = kind.stored.read_bytes()
    path = tmp_path / kind.stored.name
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"\S") as caught:
        kind.load(path)
    assert not kind.signed or str(path) in str(caught.value)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.stored.suffix == ".txt"], ids=lambda kind: kind.stored.name
)
def test_a_text_is_not_quoted_without_end_nor_raw(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / kind.stored.name
    path.write_text(kind.stored.read_text().replace("0: ", "\x1b[2J" + "9" * 10**5, 1))
    _, message = outcome(kind, path)
    assert 100 < len(message) < 410
    assert message.isprintable()


@every_kind
def test_the_files_of_other_kinds_are_refused(kind: Kind) -> None:
    for other in KINDS:
        if other is not kind:
            with pytest.raises(ValueError, match=r"\S"):
                kind.load(other.stored)


@every_kind
def test_what_is_no_file_is_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kind.load(tmp_path / "nothing")
    with pytest.raises((ValueError, IsADirectoryError), match=str(tmp_path)):
        kind.load(tmp_path)
