"""Datasets of part files, loaded by the trainer itself or ahead of it, and steps that uneven trainers take together."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from ..common.checks import function, number, of_type, several, truth, whole
from ..ranks.errors import portable
from ..sampling import shard_files
from ..timeline import Recorder
from .files import Load, Part, PartError, load_part, loaded
from .simulate import TRAINER, loader_lane, parts_ahead

Batch = TypeVar("Batch")


class SyncPartDataset(IterableDataset[dict[str, Tensor]]):
    """The batches of one trainer's share of the part files; each part is loaded when the one before is used up.

    `files` are shuffled by `seed` plus epoch and dealt out by `shard_files`: each trainer has files of its own. `load`
    takes a path and returns a dict of arrays or CPU tensors with the same number of rows. A batch is a dict of tensors
    of `batch_size` rows, views of the part; none has rows of two parts, so a part ends with a shorter one, which
    `drop_last` leaves out. Spans go to `recorder` as rank `trainer_id`, lane "trainer": kind "load", item the part's
    place in the share.

    Give it to a DataLoader with ``batch_size=None`` and no workers: each of them would read the whole share again.
    Raises ValueError for what `shard_files` refuses and for numbers out of range; while it is iterated, PartError,
    whose cause is what `load` raised, and RuntimeError in a DataLoader's worker.
    """

    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        batch_size: int,
        num_trainers: int = 1,
        trainer_id: int = 0,
        seed: int = 0,
        *,
        load: Load = load_part,
        drop_last: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        one = isinstance(files, str | bytes | os.PathLike)  # shard_files says what is wrong with that
        self._files: Any = files if one else several("files", files, "file names")
        self.batch_size = whole("batch_size", batch_size, 1)
        self.num_trainers = whole("num_trainers", num_trainers, 1)
        self.trainer_id = whole("trainer_id", trainer_id, 0, self.num_trainers - 1)
        self.seed = whole("seed", seed)
        self.load, self.drop_last = function("load", load, "of a path"), truth("drop_last", drop_last)
        self.set_epoch(0)
        self.recorder = None
        if recorder is not None:
            self.recorder = of_type("recorder", recorder, Recorder).for_rank(self.trainer_id)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration deals out the files for. Raises ValueError for no whole number."""
        self.epoch = whole("epoch", epoch)
        shard = shard_files(self._files, self.num_trainers, self.trainer_id, self.seed + self.epoch)
        self.shard: list[str] = [os.fspath(file) for file in shard]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        _refuse_workers()
        for place, file in enumerate(self.shard):
            with self._span("load", place):
                part = loaded(self.load, file)
            yield from self._batches(part)

    def _batches(self, part: Part) -> Iterator[dict[str, Tensor]]:
        num_rows = len(next(iter(part.values())))
        stop = num_rows - num_rows % self.batch_size if self.drop_last else num_rows
        for start in range(0, stop, self.batch_size):
            yield {name: torch.as_tensor(rows[start : start + self.batch_size]) for name, rows in part.items()}

    def _span(self, kind: str, item: int) -> AbstractContextManager[None]:
        return self.recorder.span(TRAINER, kind, item) if self.recorder else nullcontext()


class AsyncPartDataset(SyncPartDataset):
    """The same batches in the same order, from parts that the workers of a torch DataLoader load ahead.

    `num_loaders` workers load the parts in turn. They are at most `queue_size` + `num_loaders` parts ahead of the
    trainer, rounded up to a multiple of `num_loaders`: that many are loaded or being loaded. Parts come through shared
    memory, so a batch that is kept keeps its whole part. Workers record kind "load" on lanes "loader 0", …; the trainer
    records kind "wait" on lane "trainer".

    The workers start with the first iteration (`with` starts them before), stay for the next epoch, and end with
    `close`, with the dataset, and with an iteration that is not finished. On Linux they are forked, so `load` may be of
    a notebook; elsewhere it is pickled. Beyond what `SyncPartDataset` raises: PartError, naming the file, if the worker
    that loads it dies, or if it takes longer than `timeout_s`; the cause is torch's own error, which names the process.

    >>> AsyncPartDataset([], batch_size=32, queue_size=0)
    Traceback (most recent call last):
    ValueError: queue_size must be a whole number of at least 1, got 0
    """

    def __init__(
        self,
        files: Iterable[str | os.PathLike[str]],
        batch_size: int,
        num_trainers: int = 1,
        trainer_id: int = 0,
        seed: int = 0,
        *,
        queue_size: int = 2,
        num_loaders: int = 1,
        load: Load = load_part,
        drop_last: bool = False,
        recorder: Recorder | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        super().__init__(
            files, batch_size, num_trainers, trainer_id, seed, load=load, drop_last=drop_last, recorder=recorder
        )
        self.queue_size = whole("queue_size", queue_size, 1)
        self.num_loaders = whole("num_loaders", num_loaders, 1)
        self.timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
        self._idle: list[DataLoader[Any]] = []

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        _refuse_workers()
        loader = self._idle.pop() if self._idle else self._start()
        shard: Any = loader.sampler
        shard.files = self.shard
        parts = iter(loader)
        try:
            for place, file in enumerate(shard.files):
                with self._span("wait", place):
                    part = _next_part(parts, file)
                if isinstance(part, PartError):
                    raise part
                yield from self._batches(part)
            next(parts, None)  # tells the loader that its epoch is over
            self._idle.append(loader)
        finally:
            del loader, parts  # which end the workers, unless they are idle; a traceback would keep them

    def close(self) -> None:
        """End the workers that wait for an epoch; the next iteration starts new ones."""
        self._idle.clear()

    def __enter__(self) -> AsyncPartDataset:
        self._idle.append(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}

    def _start(self) -> DataLoader[Any]:
        """Return a DataLoader whose workers have started and wait for an epoch."""
        loader = DataLoader(
            _PartFiles(self.load, self.recorder),
            batch_size=None,
            sampler=_ShardFiles(),
            num_workers=self.num_loaders,
            prefetch_factor=parts_ahead(self.queue_size, self.num_loaders) // self.num_loaders,
            persistent_workers=True,
            collate_fn=_as_it_is,
            timeout=self.timeout_s,
            multiprocessing_context="fork" if sys.platform == "linux" else None,
        )
        for _ in loader:  # an epoch without files
            pass
        return loader


class _ShardFiles(Sampler[tuple[int, str]]):
    """The files of the next epoch, each with its place in the shard."""

    def __init__(self) -> None:
        self.files: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(list(enumerate(self.files)))


class _PartFiles(Dataset[Any]):
    """What a worker does: load the part of a file. A part that cannot be loaded is its error, as a value."""

    def __init__(self, load: Load, recorder: Recorder | None) -> None:
        self._load = load
        self._recorder = recorder

    def __getitem__(self, item: tuple[int, str]) -> dict[str, Tensor] | _LoadFailure:
        place, file = item
        worker: Any = get_worker_info()
        recording = self._recorder.span(loader_lane(worker.id), "load", place) if self._recorder else nullcontext()
        try:
            with recording:
                part = loaded(self._load, file)
        except PartError as error:
            return _LoadFailure(str(error), portable(error.__cause__ or error))
        return {name: torch.as_tensor(rows) for name, rows in part.items()}


class _LoadFailure(NamedTuple):
    """Why there is no part: the words of its PartError, and what `load` raised."""

    words: str
    cause: BaseException


def _next_part(parts: Iterator[Any], file: str) -> Part | PartError:
    """Return the next part from the workers, or the error if it could not be loaded or did not arrive."""
    try:
        part: Any = next(parts)
    except RuntimeError as error:  # torch's, for a worker that has died or is too late
        part = _LoadFailure(f"part file {file} did not arrive: {error}", error.with_traceback(None))
    if not isinstance(part, _LoadFailure):
        found: Part = part
        return found
    problem = PartError(part.words)
    problem.__cause__ = part.cause
    return problem


def _as_it_is(part: Any) -> Any:
    return part


def in_step(
    batches: Iterable[Batch], group: Any = None, recorder: Recorder | None = None, device: str = "cpu"
) -> Iterator[Batch | None]:
    """Yield this rank's batches, then None until the last rank has had its own: all ranks do the same number of steps.

    Before each step the ranks of `group` (the default group) agree whether any of them has a batch left, by an
    all-reduce of one number on `device` (for NCCL: the rank's GPU). A rank that gets None must still take part in what
    the others do together in that step. Waiting is recorded on lane "trainer": kind "barrier", item the step. Raises
    what the all-reduce raises where a rank is gone; a rank that stops early must leave the group.
    """
    if group is None:
        group = torch.distributed.group.WORLD
        if group is None:
            raise ValueError("group must be a process group where there is no default group, got None")
    nothing, step, iterator = object(), 0, iter(batches)
    while True:
        batch: Any = next(iterator, nothing)
        left = torch.tensor([batch is not nothing], dtype=torch.int64, device=device)
        with recorder.span(TRAINER, "barrier", step) if recorder else nullcontext():
            group.allreduce([left]).wait()
            any_left = bool(left.item())
        if not any_left:
            return
        yield None if batch is nothing else batch
        step += 1


def _refuse_workers() -> None:
    if get_worker_info() is not None:
        raise RuntimeError("part files must be read in the trainer: give the DataLoader num_workers=0")
