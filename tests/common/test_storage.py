"""Files are written whole or not at all, and a damaged one is one clear error."""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from rankscope.common.folders import delete_folder, make_folder
from rankscope.common.storage import (
    StorageError,
    StoredFile,
    check_output,
    load,
    read_arrays,
    save,
    unpacked,
    write_atomically,
)


def test_a_link_stays_a_link_and_a_file_as_readable_as_it_was(tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link"
    (tmp_path / "plain").write_text("")
    assert write_atomically(path, lambda file: file.write(b"first")) == path
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
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


def test_a_place_that_is_taken_by_no_file_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        write_atomically(tmp_path, lambda file: file.write(b"new"))
    assert os.listdir(tmp_path) == []


def test_an_output_is_no_input_and_has_its_ending(tmp_path: Path) -> None:
    there = tmp_path / "a.json"
    there.write_text("{}")
    check_output("--output", tmp_path / "new.json", [there], (".json",))
    for output in (there, tmp_path, tmp_path / "new.svg"):
        with pytest.raises(ValueError, match="--output"):
            check_output("--output", output, [there], (".json",))


class About(StoredFile):
    about: dict[str, float]
    rows: list[Any]


def build(stored: About) -> tuple[dict[str, float], list[Any]]:
    if not stored.rows:
        raise ValueError("no rows")
    return stored.about, stored.rows


def test_what_is_saved_is_loaded_and_a_list_has_an_item_a_line(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", "rankscope test", 2, about={"a": 1.5}, rows=[[1, None], ["x"]])
    assert load(path, "rankscope test", 2, About, build) == ({"a": 1.5}, [[1, None], ["x"]])
    assert '\n"rows": [\n[1,null],\n["x"]\n]' in path.read_text()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("1.5", "1.6"),
        lambda text: text.replace('"version": 2', '"version": 3'),
        lambda text: text.replace("rankscope test", "rankscope rest"),
        lambda text: text.replace('"rows"', '"more": 1, "rows"'),
        lambda text: text[:40],
        lambda text: "",
        lambda text: '{"a": ' * 100_000,
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_file_is_one_error_with_its_path(tmp_path: Path, change: Any) -> None:
    path = save(tmp_path / "a.json", "rankscope test", 2, about={"a": 1.5}, rows=[1])
    path.write_text(change(path.read_text()))
    with pytest.raises(StorageError, match=re.escape(str(path))):
        load(path, "rankscope test", 2, About, build)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"about": {}}, "rows"),
        ({"about": {}, "rows": [1], "cows": 1}, "cows"),
        ({"about": {"a": "b"}, "rows": [1]}, "about"),
        ({"about": {}, "rows": []}, "no rows"),
    ],
)
def test_other_fields_types_and_values_are_refused_with_their_place(tmp_path: Path, fields: Any, place: str) -> None:
    path = save(tmp_path / "a.json", "rankscope test", 2, **fields)
    with pytest.raises(StorageError, match=place):
        load(path, "rankscope test", 2, About, build)


def test_an_error_passes_between_processes() -> None:
    error = StorageError(Path("a.json"), "it is empty")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (StorageError, "a.json: it is empty")


def test_an_archive_is_read_without_pickles_and_refused_if_it_is_damaged_or_too_large() -> None:
    packed, pickled = io.BytesIO(), io.BytesIO()
    np.savez(packed, a=np.arange(3), b=np.ones((2, 0)))
    np.savez(pickled, a=np.array([{}], dtype=object))
    raw = packed.getvalue()
    arrays = read_arrays(raw, 280)
    assert sorted(arrays) == ["a", "b"]
    assert arrays["a"].tolist() == [0, 1, 2]
    assert arrays["b"].shape == (2, 0)
    for wrong, most_bytes in ((raw, 279), (raw[:-40], 1000), (b"no archive", 1000), (pickled.getvalue(), 1000)):
        with pytest.raises((ValueError, zipfile.BadZipFile)):
            read_arrays(wrong, most_bytes)


def test_a_gzipped_file_unpacks_up_to_its_limit() -> None:
    import gzip

    assert unpacked(gzip.compress(b"a" * 100), 100) == b"a" * 100
    with pytest.raises(ValueError, match="99 bytes"):
        unpacked(gzip.compress(b"a" * 100), 99)


def test_a_folder_is_its_makers_alone_and_goes_with_its_content(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "file").write_text("")
    child = os.fork()
    if child == 0:
        delete_folder(folder)  # of another process: it stays
        os._exit(0)
    os.waitpid(child, 0)
    assert (folder / "file").exists()
    delete_folder(folder)
    assert os.listdir(tmp_path) == []
