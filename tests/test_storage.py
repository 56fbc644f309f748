"""Files are written whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

import pytest

from rankscope.storage import write_atomically


def test_a_file_is_replaced_in_one_step_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    assert write_atomically(path, lambda file: file.write(b"new")) == path
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_it_may_be_read_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "atomic", lambda file: file.write(b""))
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_a_link_and_a_private_file_private(tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path)
    write_atomically(link, lambda file: file.write(b"new"))
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def write(file: BinaryIO) -> None:
        file.write(b"ne")
        raise error

    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "a.json"
    with pytest.raises(FileNotFoundError, match=re.escape(f": '{path}'")):
        write_atomically(path, lambda file: file.write(b""))


def test_an_error_names_the_path_and_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path, lambda file: file.write(b"new"))
    assert str(caught.value).endswith(f": '{tmp_path}'")
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError, match=re.escape(f": '{other}'")):
        write_atomically(tmp_path / "a.json", lambda file: file.write(other.read_bytes()))
    assert os.listdir(tmp_path) == []
    assert not list(tmp_path.parent.glob(".*.tmp"))
