"""`watch`: the late rank and its cause while a job trains, without a profiler.

Stamps are taken where a step changes its phase: around the loader's `next`, by hooks of the forward, of its output's
backward and of all optimizers, and around each collective that Python asks for. DDP asks for its own from C++, and
waits for all of them at the end of backward: callbacks of the autograd engine stamp the begin and the end of this wait,
so that DDP itself runs as it does unwatched. Ranks send a few numbers through the store of the process group
(https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.Store): no collective is added, so that ranks
with different numbers of steps, and ranks that die, leave nobody waiting for a watch.
"""

from __future__ import annotations

import os
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial, wraps
from itertools import count, repeat
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ..timeline import Span, Timeline
from ..values.checks import of_type, whole
from .diagnosis import own_times
from .late_ranks import lateness
from .trace import Calls, Trace
from .verdict import headline

_WAIT_S = 60.0  # for the traces of the other ranks
_KINDS = {  # of what a process group is asked for, by the name of its method
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "_allgather_base": "allgather",
    "allgather_into_tensor_coalesced": "allgather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
}
_ENGINE: Any = torch.autograd.Variable._execution_engine
_numbers = count()


class Step(msgspec.Struct, array_like=True):
    """What a rank did from one `next` of the loader to the first one after its gradients were reduced.

    Stamps are nanoseconds of `time.perf_counter_ns`; on CUDA events of a stream, until they have come to pass. What the
    kernel says of the thread at the begin and at the end is text: how long it ran, and how long it could have but had
    no core, in ns.
    """

    number: int
    begin: Any
    ran: str
    end: Any = None
    ran_at_end: str = ""
    stamps: list[Any] = msgspec.field(default_factory=list)  # (phase, whether it begins, stamp)
    calls: list[Any] = msgspec.field(default_factory=list)  # [group, kind, bytes, launch, stop or None]


def watch(
    model: DistributedDataParallel,
    loader: Iterable[Any],
    every: int = 50,
    *,
    keep: int = 200,
    report: Callable[[str], object] = print,
) -> Watched:
    """Return a context in which the steps of a training script are watched; iterate over its `loader`.

        with rankscope.watch(model, loader) as watched:
            for inputs, targets in watched.loader:
                ...  # as before

    After each `every` steps, `report` is called on the first rank with a line that names the late rank and its cause.
    A step ends with the first `next` after gradients were reduced, so that micro-batches under `no_sync` belong to one.
    Afterwards `trace` is what this rank did in its last `keep` steps, and `traces` what all ranks did, for `diagnose`.

    DDP's allreduces appear as one call, from the end of backward to the end of the last of them; what backward hides is
    not seen. Each bucket is, at some 60 microseconds, where DDP asks for it from Python: give the model torch's
    `allreduce_hook` (https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html) before. All is undone at the end of the
    context, also after an error. On CUDA, stamps are events of the current stream, and none is waited for before the
    end.

    Raises ValueError for a model that is no DistributedDataParallel.
    """
    return Watched(
        of_type("model", model, DistributedDataParallel),
        of_type("loader", loader, Iterable),  # type: ignore[type-abstract]
        whole("every", every, 2, 10**6),
        whole("keep", keep, 1, 10**4),
        report,
    )


class Watched:
    """A watch over the steps of this rank, open within its `with`."""

    def __init__(
        self, model: DistributedDataParallel, loader: Iterable[Any], every: int, keep: int, report: Callable[[str], Any]
    ) -> None:
        self.loader = _Batches(self, loader)
        self._model: Any = model
        self._group: str = self._model.process_group.group_name
        self._every, self._report, self._rank = every, report, dist.get_rank()
        self._ranks = dist.get_process_group_ranks(self._model.process_group)
        store = dist.distributed_c10d._get_default_store()
        self._store: Any = dist.distributed_c10d.PrefixStore(f"rankscope.watch/{self._group}/{next(_numbers)}", store)
        self._is_cuda = next(model.parameters()).is_cuda
        self._undo, self._is_open = ExitStack(), False
        self._step: Step | None = None  # the one under way
        self._stamps: Any = deque(maxlen=0)  # of the step, if there is one
        self._now: Callable[[], Any] = _event if self._is_cuda else time.perf_counter_ns
        self._num_steps, self._syncs, self._reduces, self._in_backward = 0, False, False, False
        self._gradient_bytes = sum(one.nbytes for one in model.parameters() if one.requires_grad)
        self._ended = deque[Step]()  # whose stamps may lie ahead, on the GPU
        self._kept = deque[Step](maxlen=keep)
        self._window = list[Step]()  # the steps that the next line is about, and the one before them
        self._awaited: NDArray[np.int64] | None = None  # steps whose line waits for the other ranks' numbers

    def __enter__(self) -> Watched:
        model = self._model
        with ExitStack() as undo:
            for name, kind in _KINDS.items():
                method = getattr(dist.ProcessGroup, name)
                undo.callback(
                    setattr, dist.ProcessGroup, name, vars(dist.ProcessGroup)[name]
                )  # which binds, unlike `method`
                setattr(dist.ProcessGroup, name, self._asking(method, kind))
            method = torch.optim.Optimizer.zero_grad
            undo.callback(setattr, torch.optim.Optimizer, "zero_grad", method)
            setattr(torch.optim.Optimizer, "zero_grad", self._clearing(method))  # noqa: B010
            if model.broadcast_buffers and model.modules_buffers:
                undo.callback(model.module.register_forward_pre_hook(self._before_module, prepend=True).remove)
            for handle in (
                model.register_forward_pre_hook(self._before_forward, prepend=True),
                model.register_forward_hook(self._after_forward),
                register_optimizer_step_pre_hook(lambda *_: self._stamps.append(("optimizer", True, self._now()))),
                register_optimizer_step_post_hook(lambda *_: self._stamps.append(("optimizer", False, self._now()))),
            ):
                undo.callback(handle.remove)
            self._schedule = -1
            with suppress(OSError):  # Linux has it
                self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
                undo.callback(os.close, self._schedule)
            self._origin = self._now(), time.perf_counter_ns()
            if self._is_cuda:
                self._origin[0].synchronize()
                self._origin = self._origin[0], time.perf_counter_ns()
            self._undo, self._is_open = undo.pop_all(), True
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._turn(self._now(), goes_on=False)
            if self._is_cuda:
                torch.cuda.synchronize()
        self._undo.close()
        self._settle()
        self._is_open, self._model = False, None
        self._step, self._stamps = None, deque(maxlen=0)
        steps = zlib.compress(msgspec.json.encode(list(self._kept)), 1)
        with suppress(RuntimeError):  # a store is gone once the process that serves it has ended
            self._store.set(f"trace/{self._rank}", steps)

    @property
    def trace(self) -> Trace:
        """What this rank did in the last steps, in seconds from the first of them."""
        self._keep()
        return _trace(self._rank, list(self._kept))

    @property
    def timeline(self) -> Timeline:
        """The spans of `trace`."""
        return self.trace.timeline

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces of all ranks, on any of them, once each has left its watch; this waits for up to a minute.

        Those of ranks that have not left it by then are missing, with a warning. Raises RuntimeError within the watch.
        """
        if self._is_open:
            raise RuntimeError("traces of all ranks are there once the watch is closed; `trace` is this rank's so far")
        keys = {rank: f"trace/{rank}" for rank in self._ranks}
        try:
            self._store.wait(list(keys.values()), timedelta(seconds=_WAIT_S))
        except RuntimeError:
            missing = [rank for rank in keys if not self._store.check([keys[rank]])]
            warnings.warn(f"no traces of ranks {missing}, which have not left their watch", stacklevel=2)
            keys = {rank: key for rank, key in keys.items() if rank not in missing}
        found = [
            msgspec.json.decode(zlib.decompress(one), type=list[Step])
            for one in self._store.multi_get([*keys.values()])
        ]
        return tuple(_trace(rank, steps) for rank, steps in zip(keys, found, strict=True))

    # ---- stamps

    def _before_forward(self, model: Any, inputs: Any) -> None:
        if not vars(model).get("_divide_by_initial_world_size", True):  # join sets it
            raise ValueError("a watch needs model.join(divide_by_initial_world_size=True), which is its default")
        self._syncs = torch.is_grad_enabled() and model.require_backward_grad_sync
        self._reduces = self._reduces or self._syncs
        self._asked = self._now()
        self._stamps.append(("forward", True, self._asked))

    def _before_module(self, module: Any, inputs: Any) -> None:
        model = self._model
        if self._step is not None and model.will_sync_module_buffers():
            about = self._group, "broadcast", sum(buffer.nbytes for buffer in model.modules_buffers)
            self._step.calls.append([*about, self._asked, self._now()])

    def _after_forward(self, model: Any, inputs: Any, outputs: Any) -> None:
        self._stamps.append(("forward", False, self._now()))
        leaves = [outputs] if isinstance(outputs, Tensor) else tree_leaves(outputs)  # which takes its time
        for node in {leaf.grad_fn for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn}:
            node.register_prehook(self._before_backward)

    def _before_backward(self, gradients: Any) -> None:
        if self._is_open and not self._in_backward:
            self._in_backward = True
            self._stamps.append(("backward", True, self._now()))
            # called when all gradients are there: DDP's own callback, which waits, is queued later in backward
            _ENGINE.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        now, self._in_backward = self._now(), False
        self._stamps.append(("backward", False, now))
        if self._syncs and self._step is not None and not self._model._comm_hooks:  # theirs ask from Python
            call = [self._group, "allreduce", self._gradient_bytes, now, None]
            self._step.calls.append(call)
            _ENGINE.queue_callback(partial(self._done, call))  # called after DDP's

    def _asking(self, method: Any, kind: str) -> Callable[..., Any]:
        """A method of process groups that stamps its call and the call's end."""

        def ask(group: Any, *args: Any, **options: Any) -> Any:
            call = [group.group_name, kind, _num_bytes(args), self._now(), None]
            if self._step is not None:
                self._step.calls.append(call)
            work = method(group, *args, **options)
            with suppress(Exception):  # some kinds of work have no future
                work.get_future().add_done_callback(partial(self._answered, call))
            return work

        return ask

    def _clearing(self, method: Any) -> Any:
        @wraps(method)
        def clear(optimizer: Any, *args: Any, **options: Any) -> None:
            self._stamps.append(("zero_grad", True, self._now()))
            method(optimizer, *args, **options)
            self._stamps.append(("zero_grad", False, self._now()))

        return clear

    def _answered(self, call: list[Any], future: Any) -> None:
        with suppress(Exception):
            future.value()  # raises where the collective failed: that has no end
            self._done(call)

    def _done(self, call: list[Any]) -> None:
        call[-1] = self._now()

    def _turn(self, stamp: Any, goes_on: bool = True) -> None:
        """End the step under way if its gradients were reduced, and begin the next."""
        step = self._step
        if step is not None and goes_on and not self._reduces:
            return  # another micro-batch of this step
        ran = os.pread(self._schedule, 64, 0).decode() if self._schedule >= 0 else "0 0"
        if step is not None and self._reduces:
            step.end, step.ran_at_end = stamp, ran
            self._ended.append(step)
            self._num_steps += 1
            if len(self._ended) + len(self._window) > self._every or self._awaited is not None:
                self._settle()
        self._reduces = self._in_backward = False
        self._step = step = Step(self._num_steps, stamp, ran) if goes_on else None
        self._stamps = deque(maxlen=0) if step is None else step.stamps

    # ---- what the ranks tell each other

    def _keep(self) -> None:
        """Keep the steps that have come to pass."""
        while self._ended and (not self._is_cuda or self._ended[0].end.query()):
            step = self._ended.popleft()
            if self._is_cuda:
                step, self._origin = _in_ns(step, *self._origin)
            self._kept.append(step)
            self._window.append(step)

    def _settle(self) -> None:
        """Send the numbers of every so many steps to the first rank, which reports them."""
        self._keep()
        if len(self._window) > self._every:
            window, self._window = self._window[: self._every + 1], self._window[self._every :]
            own = own_times(_trace(self._rank, window))
            table = np.column_stack([own.steps, own.window_s, own.starved_s, own.phase_s])
            with suppress(RuntimeError):
                self._store.set(f"window/{self._rank}", np.append(table.shape[1], table).tobytes())
            self._awaited = own.steps if self._rank == self._ranks[0] else None
        elif self._awaited is not None:
            self._say(self._awaited)

    def _say(self, steps: NDArray[np.int64]) -> None:
        """Report a line about these steps, if all ranks have sent their numbers of them."""
        keys = [f"window/{rank}" for rank in self._ranks]
        sent = []
        with suppress(RuntimeError):
            sent = [np.frombuffer(one) for one in self._store.multi_get(keys)] if self._store.check(keys) else []
        tables = [one[1:].reshape(-1, int(one[0])) for one in sent]
        if not tables or any(not np.array_equal(table[:, 0], steps) for table in tables):
            return
        self._awaited = None
        both = np.stack(tables, axis=1)  # steps x ranks x numbers
        found = lateness(self._ranks, both[..., 1], both[..., 3:], both[..., 2])
        self._report(f"steps {steps[0]} to {steps[-1]}: {headline(found, steps.tolist())}")


class _Batches:
    """A loader whose `next` is stamped while a watch is open."""

    def __init__(self, watched: Watched, loader: Iterable[Any]) -> None:
        self._watched, self._loader = watched, loader

    def __iter__(self) -> Iterator[Any]:
        watched, begin = self._watched, self._watched._now()
        batches, last = iter(self._loader), object()
        while True:
            batch = next(batches, last)
            if watched._is_open:
                watched._turn(begin, goes_on=batch is not last)
                watched._stamps += ("loader", True, begin), ("loader", False, watched._now())
            if batch is last:
                return
            yield batch
            begin = watched._now()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _event() -> Any:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _num_bytes(args: tuple[Any, ...]) -> int:
    """The bytes that a rank puts into a collective, where there are inputs and outputs into the last of the two."""
    tensors = [tree_leaves(arg) for arg in args[:2] if isinstance(arg, Tensor | list | tuple)]
    return sum(one.numel() * one.element_size() for one in tensors[-1] if isinstance(one, Tensor)) if tensors else 0


def _in_ns(step: Step, event: Any, ns: int) -> tuple[Step, tuple[Any, int]]:
    """The step with nanoseconds in the place of events, and its begin in both; `event` came to pass at `ns`."""

    def at(stamp: Any) -> int | None:
        return ns + round(event.elapsed_time(stamp) * 1e6) if stamp is not None and stamp.query() else None

    stamps = [(phase, begins, at(stamp)) for phase, begins, stamp in step.stamps]
    calls = [[*about, at(launch), at(stop)] for *about, launch, stop in step.calls]
    begin: Any = at(step.begin)  # the clock is read from step to step: elapsed_time has 24 bits
    return Step(step.number, begin, step.ran, at(step.end), step.ran_at_end, stamps, calls), (step.begin, begin)


def _trace(rank: int, steps: Sequence[Step]) -> Trace:
    """What these steps were, in the words of a `Trace`, from the begin of the first."""
    rows, calls = list[tuple[Any, ...]](), [call for step in steps for call in step.calls]
    for step in steps:
        rows.append(("main", "step", step.number, step.begin, step.end))
        rows += _phases(step)
        before, after = ([int(word) for word in text.split()[:2]] for text in (step.ran, step.ran_at_end))
        ran, queued = after[0] - before[0], after[1] - before[1]
        if ran:
            rows.append(("cpu", "ran", step.number, step.begin, step.begin + ran))
            rows.append(("cpu", "starved", step.number, step.begin + ran, step.begin + ran + queued))
    for place, (_, kind, _, launch, stop) in enumerate(calls):
        rows.append(("main", "launch", place, launch, launch))
        if stop is not None:
            rows.append(("gloo", kind, place, launch, stop))
    first = steps[0].begin if steps else 0
    lanes, kinds, items, *times = list(zip(*rows, strict=True)) or [()] * 5
    start_s, stop_s = ((np.array(column, np.int64) - first) * 1e-9 for column in times)
    timeline = Timeline.of(map(Span, repeat(rank), lanes, kinds, items, start_s.tolist(), stop_s.tolist()))
    groups, kinds, num_bytes, *times = list(zip(*calls, strict=True)) or [()] * 5
    launch_s, stop_s = ((np.array(column, float) - first) * 1e-9 for column in times)  # nan where there is none
    known: Any = [tuple(dict.fromkeys(words)) for words in (groups, kinds)]
    places: Any = [[*map(known[0].index, groups)], [*map(known[1].index, kinds)]]
    columns: Any = num_bytes, launch_s, launch_s, stop_s
    return Trace(rank, timeline, Calls(*places, *columns, *known), source="watch")


def _phases(step: Step) -> Iterator[tuple[Any, ...]]:
    """The outermost of phases within each other, without one that the step began within."""
    begun = dict[str, list[int]]()
    for phase, begins, stamp in step.stamps:
        stack = begun.setdefault(phase, [])
        if begins:
            stack.append(stamp)
        elif stack:
            start = stack.pop()
            if not stack:
                yield "backward" if phase == "backward" else "main", phase, step.number, start, stamp
