"""Files are written whole or not at all, and one that cannot be read is one error with its path."""

from __future__ import annotations

import gzip
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.common.files import FileError, check_output, read_bytes, read_json, read_start, write_json, write_whole


class Column(msgspec.Struct, eq=False):
    name: str
    values: NDArray[np.float64]


def test_a_link_stays_a_link_and_a_file_as_readable_as_it_was(tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link"
    (tmp_path / "plain").write_text("")
    assert write_whole(path, b"first") == path
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_private_file_that_is_replaced_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret.json"
    path.touch(0o600)
    opened = os.open
    modes = []

    def noted(*args: Any) -> int:
        descriptor = opened(*args)
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        return descriptor

    monkeypatch.setattr(os, "open", noted)
    umask = os.umask(0)
    try:
        write_whole(path, b"new")
    finally:
        os.umask(umask)
    assert modes == [0o600]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [OSError(28, "no space"), KeyboardInterrupt()])
def test_a_write_that_breaks_off_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def broken(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(type(error)) as caught:
        write_whole(path, b"new")
    assert getattr(caught.value, "filename", str(path)) == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_output_is_no_input_and_no_folder_and_has_its_ending(tmp_path: Path) -> None:
    there = tmp_path / "a.json"
    there.write_text("{}")
    check_output("--output", tmp_path / "new.json", [there], (".json",))
    for output in (there, tmp_path, tmp_path / "new.svg"):
        with pytest.raises(ValueError, match="--output"):
            check_output("--output", output, [there], (".json",))
    with pytest.raises(FileError, match=re.escape(str(tmp_path))):
        write_whole(tmp_path, b"new")


def test_a_value_with_an_array_is_the_same_again(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", Column("a", np.array([1.5, np.nan])))
    again = read_json(path, Column)
    assert (again.name, again.values.dtype) == ("a", np.float64)
    np.testing.assert_array_equal(again.values, [1.5, np.nan])
    with pytest.raises(NotImplementedError):
        write_json(path, object())
    assert read_json(path, Column).name == "a"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"name": "a"}', "values"),
        ('{"name": 1, "values": []}', r"\$\.name"),
        ('{"name": "a", "values": ["b"]}', "'b'"),
        ('{"name": "a", "val', "truncated"),
        ("", "truncated"),
        ("[" * 100_000, "Expected"),
        ('{"a": ' * 100_000, "recursion"),
        ("\x1f\udc8b", "Compressed file ended"),
    ],
)
def test_a_damaged_file_is_one_error_with_its_path(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(FileError, match=rf"^{re.escape(str(path))}: .*{place}") as caught:
        read_json(path, Column)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_file_is_unpacked_and_read_up_to_its_limit(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed.gz"
    plain.write_bytes(b"a" * 100)
    packed.write_bytes(gzip.compress(b"a" * 100))
    for path in (plain, packed):
        assert read_bytes(path, 100) == b"a" * 100
        with pytest.raises(FileError, match="99 bytes"):
            read_bytes(path, 99)
    assert read_start(plain, 3) == b"aaa"


@pytest.mark.parametrize("read", [read_bytes, lambda path: read_start(path, 1)])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, read: Callable[[Path], bytes]) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(FileError, match="not a file"):
            read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")
