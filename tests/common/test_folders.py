"""Temporary folders: those of dead processes are deleted, and no others, whatever their names and however old."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch.distributed as dist

from rankscope.common import folders
from rankscope.ranks import fork_server, launch

from ..foreign_folders import contents, plant

MAKE = """
import sys
from pathlib import Path
from rankscope.common import folders
folder = folders.make_folder(Path(sys.argv[1]))
(folder / "nested").mkdir()
(folder / "nested" / "data").write_bytes(b"x" * 1000)
print(folder, flush=True)
input()
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The places that are swept: the temporary directory, and what stands in for /dev/shm."""
    temporary = tmp_path / "temporary"
    memory = tmp_path / "memory"
    temporary.mkdir()
    memory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(folders, "memory", lambda: memory)
    monkeypatch.setattr(folders, "_swept", set())
    return [temporary, memory]


@pytest.fixture(params=["the temporary directory", "memory"])
def place(request: pytest.FixtureRequest, places: list[Path]) -> Path:
    """One of the two."""
    temporary, memory = places
    return memory if request.param == "memory" else temporary


def owner_of_a_folder(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has made a folder with something in it, and the folder."""
    owner = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


def killed_owners_folder(place: Path) -> Path:
    owner, folder = owner_of_a_folder(place)
    owner.kill()
    owner.communicate()
    assert (folder / "nested" / "data").exists()
    return folder


def rank() -> int:
    return dist.get_rank()


def test_folders_of_others_stay_to_the_byte_and_one_of_a_killed_process_is_deleted(place: Path) -> None:
    planted = plant(place)
    before = contents(planted)
    killed = killed_owners_folder(place)
    folders._sweep(place)
    assert not killed.exists()
    assert contents(planted) == before
    assert {path.name for path in planted} == {path.name for path in place.iterdir()}


@pytest.mark.slow
def test_starting_workers_leaves_folders_of_others_alone(places: list[Path]) -> None:
    fork_server._close()  # so that the next launch makes folders, and sweeps before
    planted = [path for place in places for path in plant(place)]
    before = contents(planted)
    killed = [killed_owners_folder(place) for place in places]
    assert launch(rank, 2) == [0, 1]
    fork_server._close()
    assert not any(folder.exists() for folder in killed)
    assert contents(planted) == before


def test_one_whose_owner_lives_stays(place: Path) -> None:
    owner, folder = owner_of_a_folder(place)
    os.utime(folder, (0, 0))
    os.utime(folder / ".owner", (0, 0))
    before = contents([folder])
    folders._sweep(place)
    assert contents([folder]) == before
    owner.communicate("\n")


def test_one_of_this_process_stays_until_it_deletes_it(place: Path) -> None:
    folder = folders.make_folder(place)
    folders._sweep(place)
    assert folder.exists()
    folders.delete_folder(folder)
    assert list(place.iterdir()) == []


def test_one_of_another_user_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed_owners_folder(place)
    real_user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real_user + 1)
    folders._sweep(place)
    assert folder.exists()
    monkeypatch.undo()
    folders._sweep(place)
    assert not folder.exists()


def test_one_of_another_machine_on_a_shared_file_system_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed_owners_folder(place)
    monkeypatch.setattr("platform.node", lambda: "another-machine")
    folders._sweep(place)
    assert folder.exists()


def test_a_copy_of_one_stays(place: Path) -> None:
    folder = killed_owners_folder(place)
    moved = place / "moved"
    folder.rename(moved)
    shutil.copytree(moved, folder)  # has the name and the marker, but not the inode
    before = contents([folder])
    folders._sweep(place)
    assert contents([folder]) == before


def test_a_link_out_of_a_swept_folder_is_deleted_and_what_it_points_to_stays(place: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "results.csv").write_text("mine")
    folder = killed_owners_folder(place)
    (folder / "nested" / "link").symlink_to(data)
    (folder / "link").symlink_to(data)
    folders._sweep(place)
    assert not folder.exists()
    assert (data / "results.csv").read_text() == "mine"


def test_a_folder_that_took_the_name_meanwhile_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed_owners_folder(place)
    moved = place / "moved"
    check = folders._is_ours

    def replace_then_check(*descriptors: int) -> bool:
        folder.rename(moved)
        folder.mkdir()
        (folder / "thesis.tex").write_text("mine")
        return check(*descriptors)

    monkeypatch.setattr(folders, "_is_ours", replace_then_check)
    folders._sweep(place)
    assert (folder / "thesis.tex").read_text() == "mine"
    assert list(moved.iterdir()) == []


def test_a_sweep_at_any_moment_leaves_a_folder_that_is_being_made(place: Path) -> None:
    """Another process sweeps at each call that this one makes: it gets a folder all the same, which stays."""
    moment, num_calls = 0, 1
    while moment < num_calls:
        num_calls = 0

        def sweep_once(frame: object, event: str, argument: object) -> None:
            nonlocal num_calls
            num_calls += 1
            if num_calls == moment + 1:  # noqa: B023 - it is called in this turn of the loop only
                sys.setprofile(None)
                folders._sweep(place)
                sys.setprofile(sweep_once)

        sys.setprofile(sweep_once)
        try:
            folder = folders.make_folder(place)
        finally:
            sys.setprofile(None)
        folders._sweep(place)
        assert list(place.iterdir()) == [folder], moment
        assert (folder / ".owner").read_bytes() == folders._marker_text(folder.stat().st_ino), moment
        folders.delete_folder(folder)
        assert list(place.iterdir()) == [], moment
        moment += 1
    assert num_calls > 50


KILLED_AT_EACH_CALL = """
import os, signal, sys
from pathlib import Path
from rankscope.common import folders
place = Path(sys.argv[1])

def live_and_be_killed(moment):
    num_calls = 0
    def kill(frame, event, argument):
        nonlocal num_calls
        num_calls += 1
        if num_calls > moment:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(kill)
    folder = folders.make_folder(place)
    (folder / "nested").mkdir()
    (folder / "nested" / "data").write_text("data")
    (folder / "data").write_text("data")
    folders.delete_folder(folder)
    os._exit(0)

moment, status, num_left = 0, 1, 0
while status:
    child = os.fork()
    if not child:
        live_and_be_killed(moment)
    status = os.waitpid(child, 0)[1]
    num_left += bool(os.listdir(place))
    folders._sweep(place)
    left = [(path.name, os.listdir(path)) for path in place.iterdir()]
    if left:
        sys.exit(f"killed at call {moment}: {left} is left")
    moment += 1
print(moment, num_left)
"""


def test_a_process_that_is_killed_at_any_moment_leaves_nothing_that_is_not_swept(tmp_path: Path) -> None:
    """From before it makes a folder until it has deleted it."""
    command = [sys.executable, "-c", KILLED_AT_EACH_CALL, str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    num_moments, num_left = map(int, finished.stdout.split())
    assert num_moments > 100
    assert num_left > 50, "after most kills there was something to sweep"


def test_an_empty_folder_of_another_name_stays(place: Path) -> None:
    folder = killed_owners_folder(place)
    last = folder.name[-1]
    empty = place / f"{folder.name[:-1]}{'0' if last != '0' else '1'}"  # one digit of the checksum is wrong
    empty.mkdir()
    folders._sweep(place)
    assert list(place.iterdir()) == [empty]


def test_without_locks_folders_are_made_and_deleted_but_never_swept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(folders.fcntl, "flock", no_locks)
    folder = folders.make_folder(place)
    assert list(folder.iterdir()) == []
    folders._sweep(place)
    assert folder.exists()
    folders.delete_folder(folder)
    assert list(place.iterdir()) == []


def test_without_locks_and_where_an_open_file_cannot_be_deleted_folders_are_made_and_deleted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[int]()
    closed = list[int]()
    real_close, real_unlink = os.close, os.unlink

    def no_locks(descriptor: int, operation: int) -> None:
        opened.append(descriptor)
        raise OSError(38, "Function not implemented")

    def closes(descriptor: int) -> None:
        closed.append(descriptor)
        real_close(descriptor)

    def refuses_open_files(path: str | Path, **options: int) -> None:
        if set(opened) - set(closed):
            raise PermissionError(13, "The file is in use")
        real_unlink(path, **options)

    monkeypatch.setattr(folders.fcntl, "flock", no_locks)
    monkeypatch.setattr(os, "close", closes)
    monkeypatch.setattr(os, "unlink", refuses_open_files)
    folder = folders.make_folder(place)
    (descriptor,) = opened
    assert closed.count(descriptor) == 1, "another thread may have the number of a closed descriptor"
    assert list(folder.iterdir()) == []
    folders.delete_folder(folder)
    assert list(place.iterdir()) == []


def test_without_locks_another_is_made_if_the_first_one_is_deleted_meanwhile(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = []

    def delete_the_first(descriptor: int, operation: int) -> None:
        if not deleted:
            (folder,) = place.iterdir()
            shutil.rmtree(folder)
            deleted.append(folder)
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(folders.fcntl, "flock", delete_the_first)
    folder = folders.make_folder(place)
    assert list(place.iterdir()) == [folder]
    assert deleted != [folder]
    folders.delete_folder(folder)


def test_an_error_while_making_one_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int, data: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(KeyboardInterrupt):
        folders.make_folder(place)
    assert list(place.iterdir()) == []


def test_a_marker_that_cannot_be_written_is_an_error_and_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without one could be swept while it is in use."""

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        folders.make_folder(place)
    assert list(place.iterdir()) == []


def test_what_cannot_be_deleted_keeps_its_marker(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed_owners_folder(place)
    (folder / "a file").touch()
    (folder / "the last file").touch()

    def refused(name: str, *, ignore_errors: bool, dir_fd: int) -> None:
        raise PermissionError(13, "Permission denied", name)

    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", refused)
        folders._sweep(place)
    assert sorted(path.name for path in folder.iterdir()) == [".owner", "nested"], "all else is deleted"
    folders._sweep(place)
    assert not folder.exists()


def test_a_place_that_cannot_be_listed_is_left_alone(tmp_path: Path) -> None:
    folders._sweep(tmp_path / "none")
    shutil.rmtree(tmp_path)
    folders._sweep(tmp_path)
