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
    copy = place / "rankscope-evidence"  # somebody looks into what a killed process has left
    shutil.copytree(killed_owners_folder(place), copy)
    before = contents([copy])
    folders._sweep(place)
    assert contents([copy]) == before
    assert [path.name for path in place.iterdir()] == [copy.name]


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


def test_a_folder_has_its_locked_marker_before_it_has_its_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process sweeps at each moment at which this one makes a folder: it never takes it."""
    moments = list[str]()
    rename = Path.rename

    def swept_then_renamed(draft: Path, target: Path) -> Path:
        folders._sweep(place)
        moments.append("before")
        assert (draft / ".owner").exists()
        renamed = rename(draft, target)
        folders._sweep(place)
        moments.append("after")
        return renamed

    monkeypatch.setattr(Path, "rename", swept_then_renamed)
    folder = folders.make_folder(place)
    assert moments == ["before", "after"]
    assert [path.name for path in place.iterdir()] == [folder.name]
    assert folders._NAME.fullmatch(folder.name)
    folders.delete_folder(folder)


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


def test_an_error_while_making_one_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(draft: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(KeyboardInterrupt):
        folders.make_folder(place)
    assert list(place.iterdir()) == []


def test_what_cannot_be_deleted_keeps_its_marker(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed_owners_folder(place)

    def refused(name: str, *, dir_fd: int) -> None:
        raise PermissionError(13, "Permission denied", name)

    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", refused)
        folders._sweep(place)
    assert (folder / ".owner").exists()
    folders._sweep(place)
    assert not folder.exists()


def test_a_place_that_cannot_be_listed_is_left_alone(tmp_path: Path) -> None:
    folders._sweep(tmp_path / "none")
    shutil.rmtree(tmp_path)
    folders._sweep(tmp_path)
