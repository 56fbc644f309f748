"""The processes that load part files ahead of a trainer, and the trainer's end of them.

Loader n of L loads parts n, n + L, …. A part enters the queue when it is loaded, the part before has entered, and there
is room. Both are tokens in named pipes: the turn goes from loader to loader, room is given back by the trainer. A part
itself goes straight from its loader to the trainer, through shared memory.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..timeline import Recorder
from ..workers.crew import Crew, Worker, stands
from ..workers.errors import WorkerError, portable
from ..workers.worker import Post
from .files import Load, Part, PartError, loaded
from .simulate import loader_lane

_MOST_ROOM = 1 << 14  # tokens in a pipe


class LoaderDied(RuntimeError):
    """A loader ended: killed, out of memory, crashed; or it hangs, or could not be started."""


class Setting(NamedTuple):
    """What the loaders must know."""

    load: Load
    queue_size: int
    num_loaders: int
    recorder: Recorder | None = None
    timeout_s: float = 300.0


class PartLoaders:
    """The trainer's end: starts the loaders, takes parts, and ends the loaders when it is closed or collected.

    Raises ValueError where another process cannot load `load`, and LoaderDied where a loader cannot be started.
    """

    def __init__(self, setting: Setting) -> None:
        self.workers: list[Any] = []
        self._setting, self._owner, crew = setting, os.getpid(), Crew()
        self._folder = crew.folder
        self._room, self._turn = _pipe(crew.folder, "room"), _pipe(crew.folder, "turn 0")
        self.close = weakref.finalize(self, _end, crew, self._room, self._turn)
        self._files: Sequence[str] = ()
        self._taken = 0
        try:
            os.write(self._room, b"." * min(setting.queue_size, _MOST_ROOM))
            self.workers = _started(crew, setting)
        except BaseException:
            self.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether this process started them and has not closed them."""
        return self.close.alive and self._owner == os.getpid()

    def begin(self, files: Sequence[str]) -> None:
        """Let the loaders start on an epoch; every part of the one before must have been taken."""
        self._files, self._taken = files, 0
        for loader in self.workers:
            with contextlib.suppress(ConnectionError):  # who is gone is named when we next listen
                loader.post.send(list(files))
        os.write(self._turn, b".")

    def take(self) -> Part:
        """Wait for the next part and take it out of the queue. Raises PartError where it could not be loaded."""
        loader = self.workers[self._taken % len(self.workers)]
        message = self._message(loader)
        self._taken += 1
        with contextlib.suppress(ConnectionError):
            loader.post.send(None)  # memory that is free again goes along
        os.write(self._room, b".")
        try:
            value = loader.post.exchange.unpack(message)
        except FileNotFoundError:  # the memory has gone with the server
            self.check()
            raise
        if isinstance(value, tuple):
            text, cause = value
            raise PartError(text) from cause
        return value  # type: ignore[no-any-return]

    def check(self) -> None:
        """Raise LoaderDied where a loader has ended; takes some microseconds."""
        if not self.close.alive:
            raise LoaderDied("the part loaders were closed while parts were still to come")
        gone: list[Any] = list(wait(self.workers, 0))
        for loader in gone:
            self._bury(loader)

    def _message(self, loader: Worker) -> bytes:
        connection, timeout_s = loader.post.connection, self._setting.timeout_s
        while True:
            self.check()
            ready = wait([connection, *self.workers], timeout_s)
            if not ready:
                late = f"has not brought {self._files[self._taken]} after {timeout_s:g} s (timeout_s)"
                raise LoaderDied(f"{loader} {late}: it {stands([loader])[0]}")
            if connection in ready:
                try:
                    return connection.recv_bytes()
                except (EOFError, ConnectionError):
                    self._bury(loader)

    def _bury(self, loader: Worker) -> NoReturn:
        try:
            ending = loader.obituary()
        except WorkerError as error:  # the server is gone
            raise LoaderDied(str(error)) from None
        note = self._folder / f"part of {self.workers.index(loader)}"
        part = int((note.exists() and note.read_text()) or -1)  # empty where it has just been made
        doing = "while it waited" if part < 0 else f"while it loaded {self._files[part]}"
        raise LoaderDied(f"{ending} {doing}")


def _started(crew: Crew, setting: Setting) -> list[Worker]:
    problem = f"load must be a function that can be sent to another process, got {setting.load!r}"
    try:
        name = crew.pack(partial(_load_parts, setting, crew.folder))
    except Exception as error:
        raise ValueError(f"{problem}: {type(error).__name__}: {error}") from error
    try:
        labels = [f"part loader {loader}" for loader in range(setting.num_loaders)]
        loaders = crew.start(name, labels, timeout_s=setting.timeout_s)
        for loader in loaders:
            loader.ready()
    except WorkerError as error:
        raise LoaderDied(f"{error} (num_loaders={setting.num_loaders})") from error
    except ValueError as error:
        raise ValueError(f"{problem}: {error}") from error
    return loaders


def _pipe(folder: Path, name: str) -> int:
    """Open a named pipe, made by whoever comes first."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(folder / name)
    return os.open(folder / name, os.O_RDWR)


def _end(crew: Crew, *descriptors: int) -> None:
    crew.close()
    for descriptor in descriptors:
        os.close(descriptor)


# ---- in a loader


def _load_parts(setting: Setting, folder: Path, post: Post, number: int) -> None:
    """Load the parts of one epoch after the other."""
    room, turn = _pipe(folder, "room"), _pipe(folder, f"turn {number}")
    next_turn = _pipe(folder, f"turn {(number + 1) % setting.num_loaders}")
    lane, recorder = loader_lane(number), setting.recorder
    note = os.open(folder / f"part of {number}", os.O_WRONLY | os.O_CREAT)

    def working_on(part: int) -> None:
        os.pwrite(note, b"%9d" % part, 0)

    def take(token: int) -> None:
        while token not in wait([token, post.connection]):
            post.receive()  # memory that is free again
        os.read(token, 1)

    while True:
        files: list[str] | None = None
        while files is None:
            files = post.receive()
        for part in range(number, len(files), setting.num_loaders):
            while post.connection.poll():
                post.receive()
            working_on(part)
            with recorder.span(lane, "load", part) if recorder else contextlib.nullcontext():
                message = _packed(post, setting.load, files[part])
            working_on(-1)
            take(turn)
            take(room)
            following = part + setting.num_loaders
            working_on(following if following < len(files) else -1)  # before the trainer goes on, which may end us
            post.connection.send_bytes(message)
            if part + 1 < len(files):
                os.write(next_turn, b".")


def _packed(post: Post, load: Load, file: str) -> bytes:
    """The message with a part, or with why there is none: the text and the cause."""
    try:
        return post.exchange.pack(loaded(load, file))
    except Exception as error:
        text = str(error) if isinstance(error, PartError) else f"part file {file} could not be passed on: {error}"
        return post.exchange.pack((text, portable(error.__cause__ or error)))
