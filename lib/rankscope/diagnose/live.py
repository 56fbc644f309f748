"""`watch`: the late rank and its cause while a job trains, without a profiler.

Stamps are taken where a step changes its phase: around the loader's `next` and the model's call, by hooks of its
output's backward and of all optimizers, and around each collective that Python asks for. DDP asks for its own from C++,
and waits for all of them at the end of backward: callbacks of the autograd engine stamp the begin and the end of this
wait, so that DDP itself runs as it does unwatched. A thread sends a few numbers through the store of the process group
(https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.Store): no collective is added, so that ranks
with different numbers of steps, ranks that die and a store that does not answer leave nobody waiting for a watch. An
error of the watch itself ends the watch with a line on stderr, and never reaches the training loop.
"""

from __future__ import annotations

import os
import time
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial, wraps
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from ..common.checks import of_type, whole
from ..ranks.recorder import cuda_event
from ..timeline import Span, Timeline
from . import patches
from .exchange import BoundedStore, StoreExchange, described, tell
from .late_ranks import lateness
from .own_times import own_times
from .trace import Calls, Trace
from .verdict import headline

_SHARDED = ("FSDPModule", "FullyShardedDataParallel")  # classes of FSDP2 and FSDP1, whose import takes time
_WAIT_S = 60.0  # for the traces of other ranks
_LOOK_S = 0.05  # between two looks for them
_FEWEST_STEPS = 2  # of the last, shorter window: a line about one step would say nothing of the job
_SCHEDSTAT_BYTES = 64  # enough for all of /proc/thread-self/schedstat, which has three numbers
_UNKNOWN_SCHEDSTAT = "0 0"  # the same at the begin and at the end of a step, so that the thread seems not to have run
_ENGINE: Any = torch.autograd.Variable._execution_engine
# By name of a group, how many watches this process has made in it. Each watch has its own keys in the store, with its
# number in its group, which is the same on all ranks of the group even if some of them also watch in other groups.
_num_watches = Counter[str]()


def _stamping(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method that is called in the middle of a training step.

    It does nothing when no step is watched, `torch.compile` does not trace it, and an error in it ends the watch.
    """

    @wraps(method)
    def guarded(watched: Watched, *args: Any) -> Any:
        if not watched._is_open:
            return None
        try:
            return method(watched, *args)
        except Exception as error:
            watched._fail(error)
            return None

    return torch.compiler.disable(guarded)  # type: ignore[no-untyped-call,no-any-return]


class WatchedCall(msgspec.Struct, array_like=True):
    """A collective; `launch` and `stop` are stamps, as in `WatchedStep`. `stop` is None until it has ended.

    `is_joint` says whether it stands for the allreduces of all of DDP's buckets in a backward.
    """

    group: str
    kind: str
    num_bytes: int
    launch: Any
    stop: Any = None
    is_joint: bool = False


class WatchedStep(msgspec.Struct, array_like=True):
    """What a rank did from one `next` of the loader to the first one after its gradients were reduced.

    Stamps are nanoseconds of `time.perf_counter_ns`; on CUDA they are events of a stream, until `_in_ns` replaces them.
    """

    number: int
    begin: Any
    # The text of /proc/thread-self/schedstat at the begin, and at the end: how long the thread has run, and how long it
    # has waited for a core, in ns, and how often it was given one.
    schedstat: str
    end: Any = None
    schedstat_at_end: str = ""
    stamps: list[Any] = msgspec.field(default_factory=list)  # (phase, whether it begins, stamp)
    calls: list[WatchedCall] = msgspec.field(default_factory=list)


def watch(
    model: DistributedDataParallel,
    loader: Iterable[Any],
    every: int = 50,
    *,
    keep: int = 200,
    report: Callable[[str], object] = print,
) -> Watched:
    """Return a context manager that watches the steps of a training script; iterate over its `loader`.

        with rankscope.watch(model, loader) as watched:
            for inputs, targets in watched.loader:
                ...  # as before

    After every `every` steps, and after the last ones, `report` is called on the first rank with a line that names the
    late rank and its cause. It is called in a thread, so that neither it nor the network delays the training. If it
    raises an error, or if the store of the process group does not answer for ten seconds, one line on stderr says so,
    and reporting ends. A step ends with the first `next` after gradients were reduced, so that micro-batches under
    `no_sync` belong to the same step.

    A watch can be entered only once; entering it again raises RuntimeError. All ranks of the model's process group must
    make its watches in the same order, also those that they do not enter: the first on one rank belongs to the first on
    the others. A watch adds no graph breaks to a model that `torch.compile` compiles.

    After the block, `trace` is the trace of this rank's last `keep` steps, and `traces` are those of all ranks, for
    `diagnose`.

    DDP's allreduces appear as one call, from the end of backward to the end of the last of them; what backward hides is
    not seen. To see each bucket, at a cost of some 60 microseconds each, let DDP request its allreduces from Python:
    register torch's `allreduce_hook` (https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html) on the model before the
    watch. All changes are undone at the end of the block, even after an error. On CUDA, stamps are events of the
    current stream, and the watch waits for none of them before the end.

    Raises ValueError if `model` is not a DistributedDataParallel, if `loader` cannot be iterated over, if `every` is
    not from 2 to 1,000,000, or if `keep` is not from 1 to 10,000. FSDP cannot be watched, because its collectives run
    within forward and backward, where only a profiler shows the waits; record traces and pass them to `diagnose`.
    """
    if any(base.__name__ in _SHARDED for base in type(model).__mro__):
        raise ValueError(
            "model must be a DistributedDataParallel, got one of FSDP, which watch cannot follow; record traces with "
            "torch.profiler, and pass them to rankscope diagnose"
        )
    return Watched(
        of_type("model", model, DistributedDataParallel),
        of_type("loader", loader, Iterable),  # type: ignore[type-abstract]
        whole("every", every, 2, 10**6),  # in a window of one step, no rank could be late in two, and none is named
        whole("keep", keep, 1, 10**4),
        report,
    )


class Watched:
    """A watch over the steps of this rank, open within its `with`, which is entered once."""

    def __init__(
        self, model: DistributedDataParallel, loader: Iterable[Any], every: int, keep: int, report: Callable[[str], Any]
    ) -> None:
        self.loader = _Batches(self, loader)
        self._model: Any = model
        self._group: str = self._model.process_group.group_name
        self._every = every
        self._rank = dist.get_rank()
        self._ranks = dist.get_process_group_ranks(self._model.process_group)
        store = dist.distributed_c10d._get_default_store()
        prefix = f"rankscope.watch/{self._group}/{_num_watches[self._group]}"
        _num_watches[self._group] += 1
        self._store = BoundedStore(dist.distributed_c10d.PrefixStore(prefix, store))
        self._exchange = StoreExchange(self._store, self._rank, self._ranks, self._numbers_of, self._line_of, report)
        self._is_cuda = next(model.parameters()).is_cuda
        self._undo = ExitStack()  # undoes all changes of `__enter__`
        self._was_entered = False
        self._is_open = False  # whether stamps are taken
        self._is_closed = False
        self._step: WatchedStep | None = None  # the step under way
        self._stamps: Any = deque(maxlen=0)  # those of the step under way; without one, a deque that keeps nothing
        self._now: Callable[[], Any] = cuda_event if self._is_cuda else time.perf_counter_ns
        self._num_steps = 0
        self._forward_syncs = False  # whether the gradients of the last forward will be reduced, and not under no_sync
        self._step_syncs = False  # whether those of any forward of the step will be, so that the step ends after it
        self._in_backward = False
        self._broadcast: WatchedCall | None = None  # DDP's broadcast of buffers, while it runs
        self._gradient_bytes = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
        self._ended = deque[WatchedStep]()  # steps whose stamps the GPU may not have reached yet
        self._last_steps = deque[WatchedStep](maxlen=keep)
        self._window = list[WatchedStep]()  # the steps that the next line is about, and the one before them

    def __enter__(self) -> Watched:
        if self._was_entered:
            raise RuntimeError(
                "this watch has already been entered; make a new one with rankscope.watch(model, loader)"
            )
        self._was_entered = True
        with ExitStack() as undo:  # if anything below fails, what was changed before is undone
            patches.start(self)
            undo.callback(patches.stop, self)
            undo.callback(register_optimizer_step_pre_hook(self._before_optimizer).remove)
            undo.callback(register_optimizer_step_post_hook(self._after_optimizer).remove)
            self._schedstat_file = -1  # a file descriptor; -1 if there is no such file
            with suppress(OSError):  # only Linux has this file
                self._schedstat_file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
                undo.callback(os.close, self._schedstat_file)
            # A stamp, and its time in nanoseconds. On CUDA, the times of later events count from there, so the clock is
            # read when the GPU reaches the event, and not when it is put into the stream.
            origin = self._now()
            if self._is_cuda:
                origin.synchronize()
            self._origin = _TimeOrigin(origin, time.perf_counter_ns())
            self._exchange.start()
            self._undo = undo.pop_all()
            self._is_open = True
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Undo all changes, and send what the other ranks need.

        After an error, the last step has no end, and the last lines are not waited for: others may never send theirs.
        """
        if kind is None:
            self._end_last_step()
        self._end_last_window()
        self._is_open = False  # not before: the two calls above do nothing in a watch that is not open
        self._is_closed = True
        self._undo.close()
        self._step = None
        self._stamps = deque(maxlen=0)
        self._model = None  # who keeps the watch for its traces does not keep the model
        trace = msgspec.json.encode(list(self._last_steps))
        self._exchange.send_trace(zlib.compress(trace, level=1))  # the fastest level, as the training loop waits for it
        self._exchange.close(last_lines=kind is None)

    def _fail(self, error: Exception) -> None:
        """End the watch before its `with` does, as stamps could not be taken."""
        self._is_open = False
        self._step = None
        self._stamps = deque(maxlen=0)
        tell(f"rank {self._rank}: the watch ends, {described(error)}; training goes on")

    @property
    def trace(self) -> Trace:
        """What this rank did in the last steps, in seconds from the first of them."""
        self._take_ended()
        return _trace(self._rank, list(self._last_steps))

    @property
    def timeline(self) -> Timeline:
        """The spans of `trace`."""
        return self.trace.timeline

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces of all ranks, on any of them, once each has left its watch; this waits for up to a minute.

        Those of ranks that have not left it by then are missing, with a warning. Raises RuntimeError before this rank
        has left its own.
        """
        if not self._is_closed:
            raise RuntimeError(
                "`traces` is available only after the `with` block ends; `trace` is this rank's trace so far"
            )
        by_rank = {self._rank: list(self._last_steps)}
        others = [rank for rank in self._ranks if rank != self._rank]
        deadline = time.monotonic() + _WAIT_S
        try:
            while not self._has_traces(others) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            for rank in others:
                if self._has_traces([rank]):
                    message = self._store.call("get", f"trace/{rank}")
                    by_rank[rank] = msgspec.json.decode(zlib.decompress(message), type=list[WatchedStep])
            reason = "which have not left their watch"
        except (RuntimeError, OSError) as error:  # the store is gone, or its server is stopped
            reason = described(error)
        missing = [rank for rank in others if rank not in by_rank]
        if missing:
            warnings.warn(f"no traces of ranks {missing}, {reason}", stacklevel=2)
        return tuple(_trace(rank, by_rank[rank]) for rank in self._ranks if rank in by_rank)

    def _has_traces(self, ranks: list[int]) -> bool:
        """Return whether the store has the traces of all these ranks; without ranks, the store is not asked."""
        return not ranks or bool(self._store.call("check", [f"trace/{rank}" for rank in ranks]))

    # ---- stamps

    @_stamping
    def moment(self) -> Any:
        return self._now()

    @_stamping
    def after_next(self, begin: Any, goes_on: bool) -> None:
        """Stamp a batch that was asked for at `begin`, or the loader's end if it does not go on.

        `begin` is None if the watch was opened in between.
        """
        if begin is None:
            begin = self._now()
        self._change_step(begin, goes_on)
        self._stamps += ("loader", True, begin), ("loader", False, self._now())

    def watches(self, model: object) -> bool:
        return model is self._model

    @_stamping
    def stamp(self, phase: str, begins: bool) -> None:
        self._stamps.append((phase, begins, self._now()))

    def _before_optimizer(self, *args: Any) -> None:
        self.stamp("optimizer", True)

    def _after_optimizer(self, *args: Any) -> None:
        self.stamp("optimizer", False)

    @_stamping
    def before_forward(self) -> None:
        self._forward_syncs = torch.is_grad_enabled() and self._model.require_backward_grad_sync
        self._step_syncs = self._step_syncs or self._forward_syncs
        self._stamps.append(("forward", True, self._now()))

    @_stamping
    def before_broadcast(self) -> None:
        num_bytes = sum(buffer.nbytes for buffer in self._model.modules_buffers)
        self._broadcast = WatchedCall(self._group, "broadcast", num_bytes, self._now())

    @_stamping
    def after_broadcast(self) -> None:
        if self._step is not None and self._broadcast is not None:
            self._broadcast.stop = self._now()
            self._step.calls.append(self._broadcast)

    @_stamping
    def after_forward(self, outputs: Any) -> None:
        """Stamp the end of the forward, and have the backward stamped where it begins: at the outputs' own nodes."""
        self._stamps.append(("forward", False, self._now()))
        leaves = [outputs] if isinstance(outputs, Tensor) else tree_leaves(outputs)  # the latter is slower
        nodes = {leaf.grad_fn for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn}
        for node in nodes:
            node.register_prehook(self._before_backward)

    @_stamping
    def _before_backward(self, gradients: Any) -> None:
        """Stamp the begin of the backward, at the first of the outputs' nodes that autograd reaches."""
        if not self._in_backward:
            self._in_backward = True
            self._stamps.append(("backward", True, self._now()))
            # called when all gradients are there: DDP's own callback, which waits, is queued later in backward
            _ENGINE.queue_callback(self._after_backward)

    @_stamping
    def _after_backward(self) -> None:
        """Stamp the end of the backward, which is where DDP begins to wait for its allreduces."""
        now = self._now()
        self._in_backward = False
        self._stamps.append(("backward", False, now))
        # with a communication hook, the allreduces are requested from Python, where `before_collective` records each
        if self._forward_syncs and self._step is not None and not self._model._comm_hooks:
            call = WatchedCall(self._group, "allreduce", self._gradient_bytes, now, is_joint=True)
            self._step.calls.append(call)
            _ENGINE.queue_callback(partial(self._end_call, call))  # called after DDP's own, which waits

    @_stamping
    def before_collective(self, group: Any, kind: str, args: tuple[Any, ...]) -> WatchedCall | None:
        if self._step is None:
            return None
        call = WatchedCall(group.group_name, kind, _num_bytes(args), self._now())
        self._step.calls.append(call)
        return call

    def answered(self, call: WatchedCall, future: Any) -> None:
        with suppress(Exception):
            future.value()  # raises an error if the collective failed: then it has no end
            self._end_call(call)

    def _end_call(self, call: WatchedCall) -> None:
        call.stop = self._now()

    @_stamping
    def _change_step(self, stamp: Any, goes_on: bool) -> None:
        """End the step under way at `stamp`, and begin the next one there if the loader goes on.

        If its gradients were not reduced, the step goes on with another micro-batch, or is dropped at the loader's end.
        """
        step = self._step
        if step is not None and goes_on and not self._step_syncs:
            return
        schedstat = _UNKNOWN_SCHEDSTAT
        if self._schedstat_file >= 0:
            schedstat = os.pread(self._schedstat_file, _SCHEDSTAT_BYTES, 0).decode()
        if step is not None and self._step_syncs:
            step.end = stamp
            step.schedstat_at_end = schedstat
            self._ended.append(step)
            self._num_steps += 1
            if len(self._ended) + len(self._window) > self._every:  # a window has one step more than `every`
                self._end_windows()
        self._step_syncs = False
        self._in_backward = False  # it is still True if the last backward raised an error, as that calls no callbacks
        self._step = None
        self._stamps = deque(maxlen=0)
        if goes_on:
            self._step = WatchedStep(self._num_steps, stamp, schedstat)
            self._stamps = self._step.stamps

    # ---- windows, for the other ranks

    @_stamping
    def _end_last_step(self) -> None:
        goes_on = False
        self._change_step(self._now(), goes_on)
        if self._is_cuda:
            torch.cuda.synchronize()  # `_take_ended` leaves out steps whose stamps the GPU has not reached

    def _take_ended(self) -> None:
        """Move the steps whose stamps the GPU has reached to the last steps, and to the window."""
        while self._ended and (not self._is_cuda or _is_reached(self._ended[0])):
            step = self._ended.popleft()
            if self._is_cuda:
                step, self._origin = _in_ns(step, self._origin)
            self._last_steps.append(step)
            self._window.append(step)

    def _end_windows(self) -> None:
        """Have the numbers of each `every` steps sent to the first rank, which reports them.

        A window has one step more, because a step is judged from the end of the gradients' collectives of the step
        before it. So the last step of a window is in the next one, too.
        """
        self._take_ended()
        while len(self._window) > self._every:
            self._exchange.post(self._window[: self._every + 1])
            self._window = self._window[self._every :]

    @_stamping
    def _end_last_window(self) -> None:
        """Have the numbers of the last steps sent, too."""
        self._end_windows()
        num_judged = len(self._window) - 1  # see `_end_windows`
        if num_judged >= _FEWEST_STEPS:
            self._exchange.post(self._window)

    # ---- called in the thread of the exchange

    def _numbers_of(self, steps: list[WatchedStep]) -> NDArray[np.float64]:
        """Return the number of each step, its window, the wait for a core, and the own time by phase, as columns."""
        own = own_times(_trace(self._rank, steps))
        return np.column_stack([own.steps, own.window_s, own.starved_s, own.phase_s])

    def _line_of(self, numbers: NDArray[np.float64]) -> str:
        """Return a line about the numbers of all ranks, steps x ranks x columns of `_numbers_of`."""
        steps = numbers[:, 0, 0].astype(int)
        window_s = numbers[..., 1]
        starved_s = numbers[..., 2]
        phase_s = numbers[..., 3:]
        line = headline(lateness(self._ranks, window_s, phase_s, starved_s), steps.tolist())
        return f"steps {steps[0]} to {steps[-1]}: {line}"


class _Batches:
    """A loader whose `next` is stamped while a watch is open."""

    def __init__(self, watched: Watched, loader: Iterable[Any]) -> None:
        self._watched = watched
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        watched = self._watched
        batches = iter(self._loader)
        end = object()  # no batch is this object
        while True:
            begin = watched.moment()
            batch = next(batches, end)
            watched.after_next(begin, batch is not end)
            if batch is end:
                return
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _num_bytes(args: tuple[Any, ...]) -> int:
    """Return the bytes that a rank puts into a collective; 0 for one without tensors, such as a barrier.

    The first arguments are the inputs, or the outputs and then the inputs. After these come options, a root, or the
    lists of sizes by which an all-to-all splits its tensors.
    """
    tensors_of_arguments = [tree_leaves(arg) for arg in args[:2] if isinstance(arg, Tensor | list | tuple)]
    if not tensors_of_arguments:
        return 0
    inputs = tensors_of_arguments[-1]
    return sum(tensor.numel() * tensor.element_size() for tensor in inputs if isinstance(tensor, Tensor))


class _TimeOrigin(NamedTuple):
    """A stamp from which times count, and its time; on CUDA, the time at which the GPU reached the event."""

    stamp: Any
    ns: int


def _is_reached(step: WatchedStep) -> bool:
    """Whether the GPU has reached all events of a step, except the ends of calls, which may go on after it.

    The end of the step is not enough: a script may use several streams, and each event is in the one that was current.
    """
    events = [step.end, step.begin, *(stamp for _, _, stamp in step.stamps), *(call.launch for call in step.calls)]
    return all(event.query() for event in events)


def _in_ns(step: WatchedStep, origin: _TimeOrigin) -> tuple[WatchedStep, _TimeOrigin]:
    """Return a step with nanoseconds in the place of events, and the origin for the next step, the begin of this one.

    The GPU must have reached the step, see `_is_reached`. Each step needs an origin of its own, because `elapsed_time`
    has 24 bits, which are too few for the time of a whole job.
    """

    def at(stamp: Any) -> int:
        elapsed_ms: float = origin.stamp.elapsed_time(stamp)
        return origin.ns + round(elapsed_ms * 1e6)

    def end_of(call: WatchedCall) -> int | None:
        """Return the nanoseconds of the end of a call; None if there is none, or if the GPU has not reached it."""
        if call.stop is None or not call.stop.query():
            return None
        return at(call.stop)

    begin = at(step.begin)
    in_ns = WatchedStep(
        number=step.number,
        begin=begin,
        schedstat=step.schedstat,
        end=at(step.end),
        schedstat_at_end=step.schedstat_at_end,
        stamps=[(phase, begins, at(stamp)) for phase, begins, stamp in step.stamps],
        calls=[msgspec.structs.replace(call, launch=at(call.launch), stop=end_of(call)) for call in step.calls],
    )
    return in_ns, _TimeOrigin(step.begin, begin)


def _trace(rank: int, steps: Sequence[WatchedStep]) -> Trace:
    """Return the trace of these steps, in seconds from the begin of the first."""
    calls = [call for step in steps for call in step.calls]
    spans: list[_StampedSpan] = []
    for step in steps:
        spans.append(_StampedSpan("main", "step", step.number, step.begin, step.end))
        spans += _phases(step)
        spans += _cpu_spans(step)
    for index, call in enumerate(calls):
        spans.append(_StampedSpan("main", "launch", index, call.launch, call.launch))
        if call.stop is not None:  # on the lane of calls without a stream, for NCCL, too: a watch sees no streams
            spans.append(_StampedSpan("gloo", call.kind, index, call.launch, call.stop))
    first = steps[0].begin if steps else 0
    # whole nanoseconds are subtracted before scaling, because floats have no bits to spare for absolute times
    start_s = (np.array([span.start for span in spans], np.int64) - first) * 1e-9
    stop_s = (np.array([span.stop for span in spans], np.int64) - first) * 1e-9
    times = zip(start_s.tolist(), stop_s.tolist(), strict=True)
    timeline = Timeline.of(
        Span(rank, span.lane, span.kind, span.item, start, stop)
        for span, (start, stop) in zip(spans, times, strict=True)
    )
    joint_calls = np.array([index for index, call in enumerate(calls) if call.is_joint], np.int64)
    return Trace(rank, timeline, _calls(calls, first), source="watch", joint_calls=joint_calls)


def _calls(calls: Sequence[WatchedCall], first: int) -> Calls:
    """Return calls whose stamps are nanoseconds, in seconds from `first`."""
    groups = tuple(dict.fromkeys(call.group for call in calls))  # each once
    kinds = tuple(dict.fromkeys(call.kind for call in calls))
    launch_s = (np.array([call.launch for call in calls], float) - first) * 1e-9
    stop_s = (np.array([call.stop for call in calls], float) - first) * 1e-9  # None becomes nan
    return Calls(
        group=np.array([groups.index(call.group) for call in calls], np.int64),
        kind=np.array([kinds.index(call.kind) for call in calls], np.int64),
        num_bytes=np.array([call.num_bytes for call in calls], np.int64),
        launch_s=launch_s,
        start_s=launch_s,  # no stamp shows when the work begins
        stop_s=stop_s,
        groups=groups,
        kinds=kinds,
    )


class _StampedSpan(NamedTuple):
    """A span whose times are stamps, in nanoseconds."""

    lane: str
    kind: str
    item: int
    start: int
    stop: int


def _cpu_spans(step: WatchedStep) -> list[_StampedSpan]:
    """Return how long the thread ran, and how long it waited for a core.

    The kernel only states the two sums, so the spans are one after the other from the begin of the step.
    """
    ran_before_ns, waited_before_ns = (int(word) for word in step.schedstat.split()[:2])
    ran_after_ns, waited_after_ns = (int(word) for word in step.schedstat_at_end.split()[:2])
    ran_ns = ran_after_ns - ran_before_ns
    waited_ns = waited_after_ns - waited_before_ns
    if not ran_ns:  # see `_UNKNOWN_SCHEDSTAT`
        return []
    end_of_running = step.begin + ran_ns
    return [
        _StampedSpan("cpu", "ran", step.number, step.begin, end_of_running),
        _StampedSpan("cpu", "starved", step.number, end_of_running, end_of_running + waited_ns),
    ]


def _phases(step: WatchedStep) -> Iterator[_StampedSpan]:
    """Yield the outermost of nested phases, without one that had begun before the step."""
    open_starts: dict[str, list[int]] = {}  # by phase, the starts of those that have not ended, the outermost first
    for phase, begins, stamp in step.stamps:
        starts = open_starts.setdefault(phase, [])
        if begins:
            starts.append(stamp)
        elif starts:
            start = starts.pop()
            is_outermost = not starts
            if is_outermost:
                # These are the lanes of a `Trace`: that of backward also has the gradients.
                lane = "backward" if phase == "backward" else "main"
                yield _StampedSpan(lane, phase, step.number, start, stamp)
