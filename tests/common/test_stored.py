"""Every value that is kept in a file is the same again from its file, and refused if the file is damaged."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from . import stored_cases
from .kinds import Kind

KINDS: list[Kind] = stored_cases.KINDS
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.stored.name.split(".")[0])


@every_kind
def test_a_file_loads_and_is_the_same_when_written_again(kind: Kind, tmp_path: Path) -> None:
    value = kind.load(kind.stored)
    first, second = tmp_path / kind.stored.name, tmp_path / f"again-{kind.stored.name}"
    kind.save(value, first)
    kind.save(pickle.loads(pickle.dumps(kind.load(first))), second)
    assert second.read_bytes() == first.read_bytes()


@every_kind
def test_a_file_cut_short_is_one_error(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / kind.stored.name
    whole = kind.stored.read_bytes()
    path.write_bytes(whole[: int(len(whole) * 0.6)])
    with pytest.raises(ValueError, match=r"\S") as caught:
        kind.load(path)
    assert not kind.signed or str(path) in str(caught.value)
