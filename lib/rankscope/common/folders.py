"""Temporary folders that are deleted with their owner; if it was killed, the next process that makes one deletes them.

Other programs have folders in the same place, with similar names, which must not be deleted. So a folder is swept only
if all of these conditions hold: its name ends with the checksum that only we give to a name, for this user on this
machine; it is a folder, not a link to one; it and the marker in it belong to this user; the marker contains our text
with the folder's inode, which a copy of the folder does not have; no process holds the marker's lock.

A process may also be killed after it has made a folder and before the marker is complete, or after it has deleted the
marker and before it deletes the folder. Nothing else is in a folder then, so the name alone is enough to delete it. The
owner of a new folder may be alive and about to make the marker: it notices that the folder is gone, and makes another.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is swept
    fcntl = None  # type: ignore[assignment]

_NAME = re.compile(r"rankscope-([0-9a-f]{8})([0-9a-f]{8})")  # random digits, and their checksum
_MARKER = ".owner"
# Of each folder: the process that made it, and the descriptor of its marker, or None if it has none.
_owned: dict[Path, tuple[int, int | None]] = {}
_swept: set[Path] = set()  # the places that this process has swept


class _SweptError(Exception):
    """Another process has deleted a folder that had no marker yet."""


def make_folder(parent: Path | None = None) -> Path:
    """Make a folder in `parent`, by default the place for temporary files, after deleting those of ended processes.

    A folder belongs to the processes that hold the lock of its marker: this one and those that it forks. On a file
    system without locks the folder has no marker, and only its owner deletes it.
    """
    place = Path(tempfile.gettempdir() if parent is None else parent)
    if fcntl and place not in _swept:
        _swept.add(place)
        _sweep(place)
    while True:
        random_digits = secrets.token_hex(4)
        folder = place / f"rankscope-{random_digits}{_checksum(random_digits)}"
        try:
            folder.mkdir(mode=0o700)  # for this user only
        except FileExistsError:
            continue
        try:
            marker = _make_marker(folder)
        except _SweptError:
            continue
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _owned[folder] = os.getpid(), marker
        return folder


def delete_folder(folder: Path) -> None:
    """Delete a folder that `make_folder` made in this process, with its content; in a forked process, only close it."""
    owner, marker = _owned.pop(folder)
    if owner == os.getpid():
        delete_folder_of_ended_owner(folder)
    if marker is not None:
        os.close(marker)


def delete_folder_of_ended_owner(folder: Path) -> None:
    """Delete a folder that `make_folder` made, with its content, for a process that ends or has ended.

    If something in it cannot be deleted, it stays, and with its marker, so that a later sweep can try again.
    """
    if fcntl is None:  # nothing is swept, so the order does not matter
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            _delete(folder, descriptor)
        finally:
            os.close(descriptor)


def memory() -> Path | None:
    """Return the place for files in memory, or None if the system has none."""
    place = Path("/dev/shm")
    if not place.is_dir() or not os.access(place, os.W_OK):
        return None
    return place


def _checksum(random_digits: str) -> str:
    """Return the eight digits that end the name of a folder that begins with these."""
    # On a shared file system a lock may be known to one machine only, so each sweeps its own folders.
    user = os.geteuid() if fcntl else "of Windows"  # where nothing is swept
    text = f"temporary folder of rankscope on {platform.node()}, user {user}, {random_digits}"
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def _marker_text(inode: int) -> bytes:
    """Return the content of the marker in the folder with this inode."""
    return f"temporary folder of rankscope, inode {inode}\n".encode()


def _make_marker(folder: Path) -> int | None:
    """Make the marker, locked, and return its descriptor, or None if it cannot be locked here.

    Raises _SweptError if another process has deleted the folder, or is about to: it found no complete marker in it.
    Raises OSError if the marker cannot be written, for instance because there is no room.
    """
    if fcntl is None:
        return None
    path = folder / _MARKER
    try:
        marker = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileNotFoundError:
        raise _SweptError from None
    try:
        is_locked = _lock(marker)
        if is_locked:
            os.write(marker, _marker_text(folder.stat().st_ino))
            os.stat(path)  # the lock is of no use if the marker was deleted before this process had it
    except (BlockingIOError, FileNotFoundError):
        os.close(marker)
        raise _SweptError from None
    except BaseException:
        os.close(marker)
        raise
    if is_locked:
        return marker
    os.close(marker)  # first, because not every file system can delete a file that is open
    try:
        os.unlink(path)
    except FileNotFoundError:
        raise _SweptError from None
    return None


def _lock(marker: int) -> bool:
    """Lock a marker; return whether the file system has locks. Raises BlockingIOError if another process has it."""
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _sweep(place: Path) -> None:
    """Delete the folders in `place` that are ours and whose owners have ended."""
    names = list[str]()
    with contextlib.suppress(OSError):  # if the place cannot be listed
        names = [name for name in os.listdir(place) if _has_checksum(name)]
    for name in names:
        # An OSError means that the folder is not ours, that its owner holds the lock, or that it was just deleted.
        with contextlib.suppress(OSError):
            _sweep_folder(place / name)


def _has_checksum(name: str) -> bool:
    """Whether a name is one that we give to the folders of this user on this machine."""
    match = _NAME.fullmatch(name)
    return match is not None and match[2] == _checksum(match[1])


def _sweep_folder(path: Path) -> None:
    """Delete the folder with this name if it is ours and its owner has ended; raise OSError if it cannot be deleted."""
    with contextlib.ExitStack() as stack:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, folder)
        if os.fstat(folder).st_uid != os.geteuid():
            return
        try:
            # An exclusive lock on NFS needs a file that is open for writing. A FIFO or a device that another program
            # gave this name must not block the sweep.
            marker = os.open(_MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            # On a file system without locks, a folder without a marker may be in use, and locking it raises OSError.
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.rmdir()  # which deletes only an empty folder
            return
        stack.callback(os.close, marker)
        if _is_ours(folder, marker):
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _delete(path, folder)


def _is_ours(folder: int, marker: int) -> bool:
    """Whether the marker in a folder, both open, is this user's and was made for this folder."""
    about_marker = os.fstat(marker)
    if about_marker.st_uid != os.geteuid() or not stat.S_ISREG(about_marker.st_mode):
        return False
    if about_marker.st_size == 0:  # the owner was killed before it wrote the text
        return os.listdir(folder) == [_MARKER]
    text = _marker_text(os.fstat(folder).st_ino)
    return os.pread(marker, len(text) + 1, 0) == text


def _delete(path: Path, folder: int) -> None:
    """Delete an open folder, the marker last, so that a sweep can finish what was interrupted.

    It uses the descriptor, so if the name has been given to another folder meanwhile, that one stays. If something in
    the folder cannot be deleted, the rest is, and the marker stays.
    """
    for name in os.listdir(folder):
        if name != _MARKER:
            with contextlib.suppress(OSError):  # it cannot be deleted, or another process has just deleted it
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
    if any(name != _MARKER for name in os.listdir(folder)):
        return
    with contextlib.suppress(FileNotFoundError):  # where there are no locks, there is no marker
        os.unlink(_MARKER, dir_fd=folder)
    if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(folder)):
        path.rmdir()
