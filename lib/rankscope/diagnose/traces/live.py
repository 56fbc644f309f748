"""`watch`: the late rank and its cause while a job trains, without a profiler.

The recorder of `rankscope.ranks` takes the times of the passes and of each collective. A thread sends a few numbers of
each step through the store of the process group
(https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.Store): no collective is added, so that ranks
with different numbers of steps, ranks that die and a store that does not answer leave nobody waiting for a watch. An
error of the watch itself ends the watch with a line on stderr, and never reaches the training loop.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...common.checks import of_type, whole
from ...ranks.recorder import RankRecorder, recording
from ...timeline import Span, Timeline
from .late_ranks import lateness
from .own_times import own_times
from .trace import Call, Trace
from .verdict import headline

_NOT_OF_GRADIENTS = ("broadcast", "barrier")  # DDP's buffers, and what scripts often have between steps
_FEWEST_STEPS = 3  # of the last window, with the one before them: one step would say nothing of the job
_KEPT_STEPS = 200
_ANSWER_S = 10.0  # how long the first rank waits for a window of the others
_CLOSE_S = 1.0  # how long leaving a watch may wait for its thread
_TRACES_S = 60.0  # how long `traces` waits for other ranks
_LOOK_S = 0.02  # between two looks for what other ranks send
# By name of a group, how many watches this process has made in it. Each watch has its own keys in the store, with its
# number in its group, which is the same on all ranks of the group.
_num_watches = Counter[str]()


def watch(
    model: DistributedDataParallel, loader: Iterable[Any], every: int = 50, *, report: Callable[[str], object] = print
) -> Watched:
    """Return a context manager that watches the steps of a training script; iterate over its `loader`.

        with rankscope.watch(model, loader) as watched:
            for inputs in watched.loader:
                ...  # as before

    After every `every` steps, and after the last ones, `report` is called on the first rank with a line that names the
    late rank and its cause. It is called in a thread, so that neither it nor the network delays the training. A step
    ends with the first `next` of the loader after gradients were reduced, so that micro-batches under `no_sync` belong
    to the same step. After the block, `traces` are those of all ranks' last 200 steps, for `diagnose`.

    All ranks of the model's process group must make its watches in the same order. A process can be in one watch at a
    time; entering a second one raises RuntimeError.

    Raises ValueError if `model` is not a DistributedDataParallel, if `loader` cannot be iterated over, or if `every` is
    not from 2 to 1,000,000. FSDP cannot be watched, because its collectives run within forward and backward, where only
    a profiler shows the waits; record traces and pass them to `diagnose`.
    """
    return Watched(
        of_type("model", model, DistributedDataParallel),
        of_type("loader", loader, Iterable),  # type: ignore[type-abstract]
        whole("every", every, 2, 10**6),
        report,
    )


class Watched:
    """A watch over the steps of this rank, open within its `with`, which is entered once."""

    def __init__(
        self, model: DistributedDataParallel, loader: Iterable[Any], every: int, report: Callable[[str], Any]
    ) -> None:
        group: Any = model.process_group
        name = group.group_name
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store outlives the ranks of an attempt
        prefix = f"rankscope.watch/{attempt}/{name}/{_num_watches[name]}"
        _num_watches[name] += 1
        self._store: Any = dist.distributed_c10d.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
        self._ranks = dist.get_process_group_ranks(group)
        self._rank = dist.get_rank()
        self._every = every
        self._report = report
        self.loader = _Loader(self, loader)
        self._steps: list[list[Span]] = []  # from a `next` of the loader to the first one after a reduction
        self._num_steps = 0  # that have begun
        self._is_reduced = False  # whether gradients were reduced since the step began
        self._num_windows = 0  # that were sent
        self._span: Any = None  # of the step under way
        self._is_iterating = False  # over the loader: behind its end, DDP's `join` calls what is of no step
        self._is_over = False
        self._posted = queue.Queue[Any]()
        self._thread = threading.Thread(target=self._serve, name="rankscope.watch", daemon=True)

    def __enter__(self) -> Watched:
        self._recorder = RankRecorder(self._on_collective)
        self._recording = recording(self._recorder)
        self._recording.__enter__()
        self._thread.start()
        atexit.register(self._close)  # a thread that returns from the store while Python ends would abort the process
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._recording.__exit__(*error)
        finally:
            if self._is_reduced:
                self._end_step()
            self._is_over = True
            self._close()
            atexit.unregister(self._close)

    def _close(self) -> None:
        """Have the thread end once it has done what it can in a second."""
        self._posted.put(None)
        self._thread.join(_CLOSE_S)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces of all ranks, on any of them, once each has left its watch; this waits for up to a minute.

        Those of ranks that have not left it by then are missing, with a warning. Raises RuntimeError before this rank
        has left its own.
        """
        if not self._is_over:
            raise RuntimeError("`traces` is available only after the `with` block ends")
        deadline = time.monotonic() + _TRACES_S
        messages = {rank: self._sent(f"trace/{rank}", deadline) for rank in sorted(self._ranks)}
        missing = [rank for rank, message in messages.items() if message is None]
        if missing:
            warnings.warn(f"no traces of ranks {missing}, which have not left their watch", stacklevel=2)
        return tuple(
            _trace(rank, msgspec.json.decode(message, type=list[list[Span]]))
            for rank, message in messages.items()
            if message is not None
        )

    # ---- called in the training loop

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Record that the loader is asked for a batch, with which a step may begin."""
        if self._is_over or self._thread.ident is None:  # not entered yet
            yield
            return
        if self._is_reduced:
            self._end_step()
        if self._span is None:
            self._recorder.item = self._num_steps
            self._num_steps += 1
            self._span = self._recorder.span("step", lane="step")
            self._span.__enter__()
        with self._recorder.span("loader"):
            yield

    def _on_collective(self, kind: str, _: Any) -> None:
        if self._is_iterating and kind not in _NOT_OF_GRADIENTS:
            self._is_reduced = True

    def _end_step(self) -> None:
        self._is_reduced = False
        if self._span is None:
            return
        self._span.__exit__(None, None, None)
        self._span = None
        take = self._recorder.take()
        if self._thread.is_alive():
            self._posted.put(take)

    # ---- the thread

    def _serve(self) -> None:
        try:
            num_new = 0
            for take in iter(self._posted.get, None):
                self._steps.append(list(take().timeline))
                num_new += 1
                if num_new > self._every:  # a window has one step more, as a step begins where the one before it ends
                    self._judge(self._every + 1)
                    num_new = 1
                    del self._steps[:-_KEPT_STEPS]
            if num_new >= _FEWEST_STEPS:
                self._judge(num_new)
        except BaseException as error:  # such as of `report`, or of a store that is gone
            with suppress(Exception):
                what = f"{type(error).__name__}: {' '.join(str(error).split())}"
                print(f"rankscope.watch: rank {self._rank}: no more lines, {what}", file=sys.stderr)
        with suppress(Exception):
            self._store.set(f"trace/{self._rank}", msgspec.json.encode(self._steps[-_KEPT_STEPS:]))

    def _judge(self, num_steps: int) -> None:
        """Send the numbers of the last steps to the first rank, which reports them once it has those of all ranks."""
        own = own_times(_trace(self._rank, self._steps[-num_steps:]))
        table = np.column_stack([own.steps, own.window_s, own.phase_s])
        key = f"window/{self._num_windows}"
        self._num_windows += 1
        if self._rank != self._ranks[0]:
            self._store.set(f"{key}/{self._rank}", table.tobytes())
            return
        tables = [table]
        for rank in self._ranks[1:]:
            message = self._sent(f"{key}/{rank}", time.monotonic() + _ANSWER_S)
            if message is None or len(message) != table.nbytes:
                return
            with suppress(RuntimeError, NotImplementedError):  # not all stores can delete
                self._store.delete_key(f"{key}/{rank}")
            tables.append(np.frombuffer(message).reshape(table.shape))
        numbers = np.stack(tables, axis=1)  # steps by ranks by columns
        steps = table[:, 0].astype(int).tolist()
        are_same = (numbers[..., 0] == numbers[:, :1, 0]).all()  # else ranks ended with different numbers of steps
        if steps and are_same:
            line = headline(lateness(self._ranks, numbers[..., 1], numbers[..., 2:]), steps)
            self._report(f"steps {steps[0]} to {steps[-1]}: {line}")

    def _sent(self, key: str, deadline: float) -> bytes | None:
        """Return what another rank has sent, or None if there is nothing before the deadline."""
        with suppress(RuntimeError):  # the store is gone once the process that serves it has ended
            while not self._store.check([key]):
                if time.monotonic() > deadline:
                    return None
                time.sleep(_LOOK_S)
            return bytes(self._store.get(key))
        return None


class _Loader:
    """A loader whose `next` is recorded while a watch is open."""

    def __init__(self, watched: Watched, loader: Iterable[Any]) -> None:
        self._watched = watched
        self._loader: Any = loader

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while True:
            with self._watched._loading():
                batch = next(batches, self)
            self._watched._is_iterating = batch is not self
            if batch is self:  # there is no other batch
                return
            yield batch

    def __len__(self) -> int:
        return len(self._loader)


def _trace(rank: int, steps: Sequence[list[Span]]) -> Trace:
    """Return the trace of these steps. DDP waits at the end of the backward, which so ends with its last collective."""
    spans = []
    calls: list[Call] = []
    for step in steps:
        asked_s = [span.start_s for span in step if span.lane.startswith("collectives")]
        for span in step:
            if span.lane.startswith("collectives"):
                spans.append(span._replace(lane="gloo", item=len(calls)))
                calls.append(Call(span.kind, span.start_s, span.start_s, span.stop_s))
            elif span.kind == "backward":
                in_backward_s = [at_s for at_s in asked_s if span.start_s <= at_s <= span.stop_s]
                spans.append(span._replace(lane="backward", stop_s=max(in_backward_s, default=span.stop_s)))
            else:
                spans.append(span._replace(lane="main"))
    return Trace(rank, Timeline.of(spans), tuple(calls))
