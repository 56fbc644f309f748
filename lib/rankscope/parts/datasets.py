"""Datasets of part files, loaded by the trainer itself or ahead of it, and steps that uneven trainers take together."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from ..common.checks import function, number, of_type, truth, whole
from ..common.portable import portable
from ..sampling.files import shard_of_sorted, sorted_files
from ..timeline import Recorder
from .files import Load, Part, PartError, load_part, loaded, num_rows
from .simulate import TRAINER, loader_lane, parts_ahead

Batch = TypeVar("Batch")
_NO_BATCH = object()  # after the last batch of a rank


class SyncPartDataset(IterableDataset[dict[str, Tensor]]):
    """The batches of one trainer's share of the part files. Each part is loaded only after the previous one is read.

    `files` are shuffled by `seed` plus epoch and distributed by `shard_files`, so each trainer has its own files.
    `load` takes a path and returns a dict of arrays or CPU tensors with the same number of rows. A batch is a dict of
    tensors of `batch_size` rows, which are views of the part. No batch has rows of two parts, so the last batch of a
    part may be shorter; `drop_last` leaves it out. Spans are written to `recorder` as rank `trainer_id`, lane
    "trainer", kind "load"; their item is the part's index in the share.

    Pass it to a DataLoader with ``batch_size=None`` and no workers, because each worker would read the whole share
    again. Raises ValueError if `shard_files` rejects the files or a number is out of range. Iterating raises PartError,
    whose cause is the error of `load`, if a part cannot be loaded; RuntimeError in a worker of a DataLoader.
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
        self._files = sorted_files(files)  # once for all epochs
        self.batch_size = whole("batch_size", batch_size, 1)
        self.num_trainers = whole("num_trainers", num_trainers, 1)
        self.trainer_id = whole("trainer_id", trainer_id, 0, self.num_trainers - 1)
        self.seed = whole("seed", seed)
        self.load = function("load", load, "of a path")
        self.drop_last = truth("drop_last", drop_last)
        self.set_epoch(0)
        self.recorder = None
        if recorder is not None:
            self.recorder = of_type("recorder", recorder, Recorder).for_rank(self.trainer_id)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for which the next iteration distributes the files. Raises ValueError if it is not whole."""
        self.epoch = whole("epoch", epoch)
        shard = shard_of_sorted(self._files, self.num_trainers, self.trainer_id, self.seed + self.epoch)
        self.shard: list[str] = [os.fspath(file) for file in shard]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        _refuse_workers()
        for index, file in enumerate(self.shard):
            with self._span("load", index):
                part = loaded(self.load, file)
            yield from self._batches(part)

    def _batches(self, part: Part) -> Iterator[dict[str, Tensor]]:
        """Yield the batches of one part."""
        stop = num_rows(part)
        if self.drop_last:
            stop -= stop % self.batch_size
        for start in range(0, stop, self.batch_size):
            yield {name: torch.as_tensor(rows[start : start + self.batch_size]) for name, rows in part.items()}

    def _span(self, kind: str, item: int) -> AbstractContextManager[None]:
        return self.recorder.span(TRAINER, kind, item) if self.recorder else nullcontext()


class AsyncPartDataset(SyncPartDataset):
    """The batches of `SyncPartDataset`, in the same order, from parts that workers of a torch DataLoader load ahead.

    `num_loaders` workers load the parts in turn. At most `queue_size` + `num_loaders` parts, rounded up to a multiple
    of `num_loaders`, are loaded or being loaded ahead of the trainer. Parts are passed through shared memory, so a
    reference to a batch keeps its whole part in memory. Workers record kind "load" on lanes "loader 0", …; the trainer
    records kind "wait" on lane "trainer".

    The workers start with the first iteration, or earlier in a `with` block. They stay for the next epoch, and end with
    `close`, with the dataset, or if an iteration is abandoned. On Linux they are forked, so `load` may be defined in a
    notebook; elsewhere it is pickled. In addition to the errors of `SyncPartDataset`, iterating raises PartError, which
    names the file, if the worker that loads a part dies or takes longer than `timeout_s`; its cause is torch's own
    error, which names the process.

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
        shard.files = self.shard  # those of this epoch
        parts = iter(loader)
        try:
            for index, file in enumerate(shard.files):
                with self._span("wait", index):
                    part = _next_part(parts, file)
                if isinstance(part, PartError):
                    raise part
                yield from self._batches(part)
            self._idle.append(loader)
        finally:
            # The traceback of an error would keep these, and so workers that are not idle, which should end here.
            del loader, parts

    def close(self) -> None:
        """Stop the idle workers. The next iteration starts new ones."""
        self._idle.clear()

    def __enter__(self) -> AsyncPartDataset:
        self._idle.append(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}  # workers belong to this process

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
            worker_init_fn=_leave_inherited_objects,
            timeout=self.timeout_s,
            multiprocessing_context="fork" if sys.platform == "linux" else None,
        )
        for _ in loader:  # an epoch without files, which starts the workers
            pass
        return loader


class _ShardFiles(Sampler[tuple[int, str]]):
    """The files of the next epoch, each with its index in the shard."""

    def __init__(self) -> None:
        self.files: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(enumerate(self.files))


class _PartFiles(Dataset[Any]):
    """The dataset in a worker: it loads the part of a file, and returns an error as a value."""

    def __init__(self, load: Load, recorder: Recorder | None) -> None:
        self._load = load
        self._recorder = recorder

    def __getitem__(self, item: tuple[int, str]) -> dict[str, Tensor] | _LoadFailure:
        index, file = item
        worker: Any = get_worker_info()
        span: AbstractContextManager[None] = nullcontext()
        if self._recorder:
            span = self._recorder.span(loader_lane(worker.id), "load", index)
        try:
            with span:
                part = loaded(self._load, file)
        except PartError as error:
            cause = error.__cause__ or error  # `loaded` always sets a cause, which a type checker cannot know
            return _LoadFailure(str(error), portable(cause))
        return {name: torch.as_tensor(rows) for name, rows in part.items()}


class _LoadFailure(NamedTuple):
    """The message of a PartError, and the error that `load` raised."""

    message: str
    cause: BaseException


def _next_part(parts: Iterator[Any], file: str) -> Part | PartError:
    """Return the next part from the workers, or the error if it could not be loaded or did not arrive.

    It is returned because the traceback of an error that is raised here would keep `parts`, and so the workers.
    """
    try:
        part: Part | _LoadFailure = next(parts)
    except RuntimeError as error:  # of torch, for a worker that has died or is too late
        cause = error.with_traceback(None)  # its traceback would keep the loader, and so the workers
        part = _LoadFailure(f"part file {file} did not arrive: {error}", cause)
    if isinstance(part, _LoadFailure):
        problem = PartError(part.message)
        problem.__cause__ = part.cause
        return problem
    return part


def _leave_inherited_objects(worker: int) -> None:
    """Be the worker_init_fn: from here on, the worker's garbage collector leaves out what is the trainer's.

    A forked worker inherits the trainer's garbage. Its collector would run finalizers that belong to the trainer, such
    as that of an earlier DataLoader, which raises AssertionError where the workers are not its own. If that is
    formatted while numpy parses the header of an array, Python 3.11 raises SystemError there.
    """
    gc.freeze()


def _as_it_is(part: Any) -> Any:
    """Be the collate_fn: torch's own would look into the part, or into a `_LoadFailure`, for arrays to convert."""
    return part


def in_step(
    batches: Iterable[Batch], group: Any = None, recorder: Recorder | None = None, device: str = "cpu"
) -> Iterator[Batch | None]:
    """Yield this rank's batches, then None until all ranks have yielded theirs, so that all take the same steps.

    Before each step the ranks of `group` (by default the default group) determine whether any of them has a batch left,
    by an all-reduce of one number on `device` (for NCCL, the rank's GPU). A rank that receives None must still take
    part in the collectives of that step. Waiting is recorded on lane "trainer" with kind "barrier"; the item is the
    step. If a rank has ended, the error of the all-reduce is raised; a rank that stops early must leave the group.
    """
    if group is None:
        group = torch.distributed.group.WORLD
        if group is None:
            raise ValueError("group must be a process group where there is no default group, got None")
    iterator = iter(batches)
    for step in count():
        batch: Any = next(iterator, _NO_BATCH)
        num_ranks_left = torch.tensor([batch is not _NO_BATCH], dtype=torch.int64, device=device)
        with recorder.span(TRAINER, "barrier", step) if recorder else nullcontext():
            group.allreduce([num_ranks_left]).wait()
            is_end = num_ranks_left.item() == 0  # inside the span, because with NCCL only this waits
        if is_end:
            return
        yield None if batch is _NO_BATCH else batch


def _refuse_workers() -> None:
    """Raise RuntimeError in a worker of a DataLoader."""
    if get_worker_info() is not None:
        raise RuntimeError("part files must be read in the trainer: give the DataLoader num_workers=0")
