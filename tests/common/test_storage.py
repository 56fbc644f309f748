"""Files are written whole or not at all, and read back only if they are intact."""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from rankscope.cluster import Link
from rankscope.common import storage
from rankscope.common.checks import of_type
from rankscope.common.storage import (
    MOST_BYTES,
    StorageError,
    StoredFile,
    check_file,
    decoded,
    load,
    output_path,
    read_arrays,
    read_bytes,
    save,
    within,
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


def test_an_error_names_the_path_and_no_temporary_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path, lambda file: file.write(b"new"))
    assert str(caught.value).endswith(f": '{tmp_path}'")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError, match=f"Too many levels of symbolic links: '{loop}'"):
        write_atomically(loop, lambda file: file.write(b"new"))
    loop.unlink()
    other = tmp_path / "other"
    with pytest.raises(FileNotFoundError, match=re.escape(f": '{other}'")):
        write_atomically(tmp_path / "a.json", lambda file: file.write(other.read_bytes()))
    assert os.listdir(tmp_path) == []
    assert not list(tmp_path.parent.glob(".*.tmp"))


# ---- values under a head with a checksum


class About(StoredFile):
    about: dict[str, float]
    rows: list[Any]


class Rows(StoredFile):
    rows: Any


def build(stored: Any) -> Any:
    return {name: value for name, value in msgspec.structs.asdict(stored).items() if name in ("about", "rows")}


def test_what_is_saved_is_loaded_and_a_list_has_an_item_a_line(tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", "rankscope test", 2, about={"a": 1.5}, rows=[[1, None], ["x"]])
    assert load(path, "rankscope test", 2, About, build) == {"about": {"a": 1.5}, "rows": [[1, None], ["x"]]}
    assert '\n"rows": [\n[1,null],\n["x"]\n]' in path.read_text()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.replace("1.5", "1.6"), r"crc32 '\w+' does not fit"),
        (lambda text: text.replace('"version": 2', '"version": 3'), "version 3 is newer than 2"),
        (lambda text: text.replace('"version": 2', '"version": "2"'), "version must be a whole number of at least 1"),
        (lambda text: text.replace("rankscope test", "rankscope rest"), "format must be 'rankscope test'"),
        (lambda text: text.replace('"rows"', '"cows"'), r"crc32 '\w+' does not fit"),
        (lambda text: text.replace("{\n", '{\n"b": 2,\n', 1), "does not fit"),
        (lambda text: text.replace('"rows"', '"more": 1, "rows"'), "does not fit"),
        (lambda text: text[:40], "damaged, cut short or not JSON"),
        (lambda text: '{"a": ' * 100_000, r"nested too deeply|not JSON"),
        (lambda text: "[" * 100_000, "Expected `object`, got `array`"),
        (lambda text: "7", "Expected `object`, got `int`"),
        (lambda text: text.replace("1.5", "NaN"), "not JSON"),
        (lambda text: text.replace("1.5", "1e999"), r"does not fit|out of range"),
    ],
)
def test_a_file_that_differs_is_refused_with_its_path(tmp_path: Path, change: Any, problem: str) -> None:
    path = save(tmp_path / "a.json", "rankscope test", 2, about={"a": 1.5}, rows=[1])
    path.write_text(change(path.read_text()))
    with pytest.raises(StorageError, match=f"^{re.escape(str(path))}: not a readable rankscope test: .*({problem})"):
        load(path, "rankscope test", 2, About, build)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"about": {}}, "Object missing required field `rows`"),
        ({"about": {}, "rows": [], "cows": 1}, "Object contains unknown field `cows`"),
        ({"about": {"a": "b"}, "rows": []}, r"about\[...\]: Expected `float`, got `str`"),
        ({"about": {}, "rows": "b"}, "rows: Expected `array`, got `str`"),
    ],
)
def test_other_fields_and_types_are_refused_with_their_place(tmp_path: Path, fields: Any, problem: str) -> None:
    path = save(tmp_path / "a.json", "rankscope test", 2, **fields)
    with pytest.raises(StorageError, match=f"^{re.escape(str(path))}: not a readable rankscope test: {problem}$"):
        load(path, "rankscope test", 2, About, build)


@pytest.mark.parametrize("depth", range(500, 1000, 50))
def test_nesting_is_refused_at_any_depth(tmp_path: Path, depth: int) -> None:
    def build(stored: Rows, frames: int = 100) -> Any:
        return build(stored, frames - 1) if frames else of_type("rows", stored.rows, dict)

    path = save(tmp_path / "a.json", "rankscope test", 1, rows=msgspec.Raw(b"[" * depth + b"]" * depth))
    with pytest.raises(StorageError, match="nested too deeply|rows must be a dict"):
        load(path, "rankscope test", 1, Rows, build)


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(StorageError, match="more than 67108864 bytes"):
        load(path, "rankscope test", 1, Rows, build)


def test_what_the_fields_cannot_make_is_refused_with_its_path(tmp_path: Path) -> None:
    def link(stored: Rows) -> Link:
        with within("rows[0]"):
            return Link(**stored.rows[0])

    path = save(tmp_path / "a.json", "rankscope test", 1, rows=[{"alpha_s": -1, "bytes_per_s": 1}])
    with pytest.raises(StorageError, match=r"a.json: not a readable rankscope test: rows\[0\]: alpha_s must be"):
        load(path, "rankscope test", 1, Rows, link)


def test_an_error_is_one_printable_line_of_bounded_length(tmp_path: Path) -> None:
    message = str(StorageError("a\x1b[31m.json", "x\n" * 1000))
    assert message.isprintable()
    assert len(message) < 410


def test_an_error_passes_between_processes() -> None:
    error = StorageError(Path("a.json"), "it is empty")
    error.add_note("raised in another process")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is StorageError
    assert str(again) == str(error) == "a.json: it is empty"
    assert again.__notes__ == ["raised in another process"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_place_that_is_taken_by_no_file_is_left_alone(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "there")
    with pytest.raises(OSError, match="it exists and is not a file"):
        save(tmp_path / "there", "rankscope test", 1)
    with pytest.raises(StorageError, match="it is not a file"):
        load(tmp_path / "there", "rankscope test", 1, Rows, build)


# ---- archives of arrays


def npz(shape: str, content: bytes = b"", kind: str = "<i8", **more: Any) -> bytes:
    """An archive of one array with this header; `more` is for its entry in the archive."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + content, **more)
    return packed.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        npz(f"(0, {2**70})"),
        npz(f"({2**63}, 0)"),
        npz(f"(-{2**70}, 0)"),
        npz(f"(-1, {2**62})"),
        npz("(1.5,)"),
        npz("('a',)"),
        npz("(0,)", kind="<U1000000000"),
        npz("(True,)", bytes(8)),
        npz("(1,)", bytes(8)).replace(b"\x14\0\0\0\0\0", b"\x14\0\0\0\x63\0"),  # another compression
        npz("(1,)", bytes(8)).replace(b"\x14\0\0\0\0\0", b"\x14\0\1\0\0\0"),  # encrypted
        npz("(1,)", compress_type=zipfile.ZIP_DEFLATED).replace(b"NUMPY", b"numpy"),
    ],
    ids=range(11),
)
def test_an_archive_that_is_none_of_arrays_is_a_value_error(raw: bytes) -> None:
    """numpy raises OverflowError for a size above 64 bits, and zipfile NotImplementedError and RuntimeError."""
    with suppress(ValueError, zipfile.BadZipFile):
        for array in read_arrays(raw, 1 << 20).values():
            assert array.nbytes <= len(raw)


def test_a_size_above_64_bits_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=rf"a\.npy must have sizes from 0 to {2**62 - 1}, got \(0, {2**70}\)$"):
        read_arrays(npz(f"(0, {2**70})"), 1 << 20)


def test_archives_with_any_byte_changed_are_read_or_refused() -> None:
    good = bytearray(npz("(3,)", bytes(24), compress_type=zipfile.ZIP_DEFLATED))
    for place in range(len(good)):
        for bit in (1, 128):
            spoilt = good.copy()
            spoilt[place] ^= bit
            with suppress(ValueError, zipfile.BadZipFile):
                read_arrays(bytes(spoilt), 1 << 20)


def test_a_file_that_cannot_be_read_or_written_is_named() -> None:
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        read_bytes("/proc/self/mem")
    with pytest.raises(OSError, match="it exists and is not a file: '/dev/null'"):
        output_path("/dev/null")


def test_links_that_lead_to_themselves_are_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("none/../a")
    for name in ("a", "a/x.json", "c", "none/../a"):
        with pytest.raises(OSError, match=f"(Too many levels of symbolic links|No such file).*: '{tmp_path / name}'"):
            write_atomically(tmp_path / name, lambda file: file.write(b""))
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_an_intact_file_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.json", "rankscope test", 1, rows=[1])
    kinds = []

    def counted(raw: bytes, kind: type[Any]) -> Any:
        kinds.append(kind)
        return decoded(raw, kind)

    monkeypatch.setattr(storage, "decoded", counted)
    assert load(path, "rankscope test", 1, Rows, build) == {"rows": [1]}
    assert kinds == [Rows]


def test_a_path_is_refused_alike_where_it_is_given_and_where_it_is_written(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(ValueError, match=f"^--output must be a file, got '{path}'$"):
            check_file("--output", path)
        with pytest.raises(OSError, match=f"it exists and is not a file: '{path}'"):
            output_path(path)
    for path in (tmp_path / "new", Path(__file__)):
        check_file("--output", path)
        assert output_path(path) == path.resolve()
