"""The processes behind `AsyncPartDataset`: a manager, which keeps the queue, and the loaders that it forks.

The manager is a fresh interpreter without torch and with one thread: forking from it is safe and quick, and nothing of
the trainer's (its pipes, its threads, its script) is inherited. Parts go from loader to trainer through shared memory;
the manager passes on the short messages only.

Who dies is noticed by its pidfd, or at the other end of a pipe or socket: a loader by the manager, which says so and
ends; the manager by the trainer and by the loaders; the trainer by the manager. Nobody polls.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

from ..timeline import Recorder
from ..workers.failures import portable
from ..workers.host import how_it_ended
from ..workers.lifelines import Lifeline, Watched, watch
from ..workers.shared import Exchange, delete_folder
from .files import Load, Part, check_part
from .simulate import loader_lane

_Pipe: TypeAlias = "Connection[Any, Any]"


class PartError(RuntimeError):
    """A part file could not be loaded; the cause is what `load` raised."""


@dataclass(frozen=True)
class Setting:
    """What the processes must know; it is pickled, and `load` is imported by the manager."""

    load: Load
    queue_size: int
    num_loaders: int
    recorder: Recorder | None = None


def loaded(load: Load, file: str) -> Part:
    """Load a part, ready to be cut into batches. Raises PartError, naming the file, whatever `load` raises."""
    try:
        return check_part(load(file), f"what is loaded from {file}")
    except Exception as error:
        raise PartError(f"part file {file} could not be loaded: {type(error).__name__}: {error}") from error


def exchange_folder(folder: Path, loader: int) -> Path:
    """Where a loader and the trainer have their memory."""
    return folder / str(loader)


def manage(descriptor: int, folder: Path, trainer_pid: int) -> None:
    """Be the manager, for the trainer at the other end of a socket, until it closes that or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    trainer: _Pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, ConnectionError, ProcessLookupError):  # the trainer is gone
        try:
            message = trainer.recv_bytes()
            try:
                setting: Setting = pickle.loads(message)
            except Exception as error:  # whatever the module of `load` raises
                trainer.send(("refused", f"{type(error).__name__}: {error}"))
                return
            _Manager(trainer, watch(trainer_pid), folder, setting).run()
        finally:
            delete_folder(folder)


@dataclass(eq=False)
class _Loader:
    number: int
    watched: Watched
    pipe: _Pipe
    part: int = -1
    file: str | None = None  # what it is loading
    returned: list[bytes] = field(default_factory=list)  # memory that the trainer gives back


class _Manager:
    """Keeps the queue: which parts have entered it, and which were taken; of a part it sees the message only."""

    def __init__(self, trainer: _Pipe, trainer_death: int | None, folder: Path, setting: Setting) -> None:
        self._trainer, self._folder, self._setting = trainer, folder, setting
        self._files: list[str] = []
        self._held: dict[int, bytes] = {}  # parts that are loaded and have not entered the queue
        self._entered = self._taken = 0
        self._loaders: list[_Loader] = []
        self._trainer_death = trainer_death  # its socket may be held by processes that it has forked, too
        self._sources: list[Any] = [trainer] if trainer_death is None else [trainer, trainer_death]

    def run(self) -> None:
        """Serve until the trainer is gone, which may raise EOFError or ConnectionError, or a loader is."""
        try:
            if self._fork_all():
                self._trainer.send(("ready", [loader.watched.process.pid for loader in self._loaders]))
                while self._serve(wait(self._sources)):
                    pass
        finally:
            for loader in self._loaders:
                loader.watched.process.kill()
            for loader in self._loaders:
                loader.watched.exit_code(1.0)

    def _fork_all(self) -> bool:
        """Start the loaders, or tell the trainer why that is impossible."""
        try:
            self._lifeline = Lifeline(self._folder)
            for number in range(self._setting.num_loaders):
                self._loaders.append(self._fork(number))
        except OSError as error:
            problem = f"not all part loaders could be started: {type(error).__name__}: {error}"
            self._trainer.send(("died", f"{problem} (num_loaders={self._setting.num_loaders})"))
            return False
        for loader in self._loaders:
            self._sources += [loader.pipe, loader.watched.death]
        return True

    def _fork(self, number: int) -> _Loader:
        context = get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [self._trainer, ours, *(loader.pipe for loader in self._loaders)]
        arguments = (number, theirs, inherited, self._lifeline, self._folder, self._setting)
        process = context.Process(target=_load_parts, args=arguments)
        process.start()
        theirs.close()
        return _Loader(number, Watched(process), ours)

    def _serve(self, ready: list[Any]) -> bool:
        """Do what is to be done, and return whether to go on."""
        if self._trainer_death in ready:
            return False
        if self._trainer in ready:
            self._listen()
        for loader in self._loaders:
            try:
                if loader.watched.death in ready:
                    raise EOFError
                if loader.pipe in ready:
                    self._held[loader.part] = loader.pipe.recv_bytes()
                    loader.file = None
            except (EOFError, ConnectionError):
                self._trainer.send(("died", _obituary(loader)))
                return False
        while self._entered in self._held and self._entered - self._taken < self._setting.queue_size:
            number = self._entered % len(self._loaders)
            self._trainer.send(("part", (number, self._held.pop(self._entered))))
            self._start(self._entered + len(self._loaders))
            self._entered += 1
        return True

    def _listen(self) -> None:
        kind, value = self._trainer.recv()
        if kind == "taken":
            self._taken += 1
            for loader, message in zip(self._loaders, value, strict=True):
                loader.returned.append(message)
        else:
            self._files, self._entered, self._taken = value, 0, 0
            for part in range(len(self._loaders)):
                self._start(part)

    def _start(self, part: int) -> None:
        """Let a loader begin with a part, if there is one: loader n loads parts n, n + loaders, …."""
        if part < len(self._files):
            loader = self._loaders[part % len(self._loaders)]
            loader.part, loader.file = part, self._files[part]
            with contextlib.suppress(ConnectionError):  # it is dead, as will be noticed
                loader.pipe.send((part, loader.file, loader.returned))
            loader.returned = []


def _obituary(loader: _Loader) -> str:
    code = loader.watched.exit_code(1.0)
    doing = "while it waited" if loader.file is None else f"while it loaded {loader.file}"
    return f"part loader {loader.number} (pid {loader.watched.process.pid}) {how_it_ended(code)} {doing}"


# ---- in the loaders


def _load_parts(
    number: int, pipe: _Pipe, inherited: list[_Pipe], lifeline: Lifeline, folder: Path, setting: Setting
) -> None:
    """Be a loader: load what the manager says, until it is gone."""
    for other in inherited:
        other.close()
    lifeline.tie()
    exchange = Exchange(exchange_folder(folder, number), 1)
    recorder, lane = setting.recorder, loader_lane(number)
    try:
        while True:
            part, file, returned = pipe.recv()
            for message in returned:
                exchange.unpack(message)
            with recorder.span(lane, "load", part) if recorder else contextlib.nullcontext():
                message = _packed(exchange, setting.load, file)
            pipe.send_bytes(message)
    except (EOFError, ConnectionError):
        lifeline.end()


def _packed(exchange: Exchange, load: Load, file: str) -> bytes:
    """The message with a part, or with why there is none: the text and the cause."""
    try:
        return exchange.pack(loaded(load, file))
    except Exception as error:
        text = str(error) if isinstance(error, PartError) else f"part file {file} could not be passed on: {error}"
        return exchange.pack((text, portable(error.__cause__ or error)))
