"""`record` and `recording`: what ranks do in a training step, as spans of its passes and of every collective.

Each is watched where that costs least and changes nothing:

- Collectives by a kernel of the dispatcher in front of each operator ``c10d::…``. Every collective of a process group
  is such an operator, also one that C++ asks for, as DDP's reducer does. A TorchDispatchMode sees the same, but costs
  microseconds for each operator of the step. Replaced methods of ProcessGroup would cost a third, but are called by
  Python only, and not by DDP, ``_broadcast_coalesced`` or compiled code. A communication hook is for DDP only, which
  can have one, and then does not average.
- Forward, backward and loader by replacing the functions that everybody calls. Hooks of modules would run for each
  inner module, and torch.compile would trace them; these functions step aside for it, so its graphs stay as they are.
- Optimizers by torch's hooks for all optimizers.

Ten collectives that do nothing take 0.1 ms more of a core of 2.6 GHz, mostly because the arguments of each operator
become objects of Python and back. On Gloo it is 0.3 to 0.5 ms, and for ten buckets of DDP 0.5 to 1.1 ms, because Gloo's
threads then need the interpreter to note each end. ``python -m tests.benchmarks.recorder`` prints this.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..common.checks import function, whole
from ..timeline import Span, Timeline
from ..timeline.intervals import first_free
from .launcher import launch

KIND_OF_OPERATOR = {  # the kinds of collectives, by their operators, without those that torch has deprecated
    "allreduce_": "allreduce",
    "broadcast_": "broadcast",
    "allgather_": "allgather",
    "allgather_into_tensor_coalesced_": "allgather",
    "_allgather_base_": "allgather",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "alltoall_": "alltoall",
    "alltoall_base_": "alltoall",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv_": "recv",
}
_PASSES = (  # an owner, its function, and the kind of the function's spans
    (nn.Module, "__call__", "forward"),
    (torch.autograd, "backward", "backward"),
    (_BaseDataLoaderIter, "__next__", "loader"),
)

OnCollective = Callable[[str, Any], object] | None
_KEY = torch._C.DispatchKey.BackendSelect  # in front of the backends' keys, and in use on every thread
_KEYS_BELOW = torch._C._dispatch_keyset_full_after(_KEY)
_GIL_S = 0.0001  # after which a thread of Gloo gets the interpreter, to note an end; Python's own 5 ms are too long
open_recorders: list[RankRecorder] = []  # that of the recording which is open, if there is one


class Recording(NamedTuple):
    """The spans of ranks, of each in the order of their starts, and the bytes of each span, 0 if it is no collective.

    The bytes are those of the larger side, input or output, as one rank sees it; a barrier has one. Lane "compute" has
    the outermost calls of modules ("forward"), of ``backward`` ("backward"), of optimizers' ``step`` ("optimizer") and
    of a DataLoader's ``next`` ("loader"); what runs inside another of these has no span.
    Collectives are on lane "collectives", and those that overlap on "collectives 2" and so on. Lane "step" has the
    steps of `record`. The item is the step.

    A collective's span begins when it is asked for, so it includes the wait for other ranks. It ends when its future is
    done, as Gloo's thread says, or, where Gloo has no future (reduce_scatter, send, recv), when somebody's `wait` for
    it has returned. If neither has come, because it failed or nobody waited, it ends where the recording is read. On a
    GPU all instants are CUDA events: a collective of NCCL begins when the stream that asks for it gets there, and ends
    when NCCL's stream has done it; other spans are those of the stream, not of Python.

    Times are those of ``time.perf_counter``, one clock for all processes of a machine. Ranks of several machines are
    not aligned.
    """

    timeline: Timeline
    num_bytes: NDArray[np.int64]

    @classmethod
    def of_ranks(cls, recordings: Sequence[Recording]) -> Recording:
        """Join the recordings of several ranks of one machine."""
        timeline = Timeline.concat([recording.timeline for recording in recordings])
        return cls(timeline, np.concatenate([recording.num_bytes for recording in recordings]))


def record(
    make_step: Callable[[], Callable[[], object]],
    num_ranks: int | None,
    num_steps: int = 5,
    warm_up: int = 3,
    backend: str = "gloo",
    timeout_s: float = 60.0,
) -> Recording:
    """Record `num_steps` steps on real ranks, after `warm_up` steps that are left out.

    Each rank calls `make_step`, which prepares the training and returns the step, a function without arguments. All
    ranks begin each step together, after a barrier. Time 0 is the begin of the first step.

    Raises ValueError if a number is invalid, and as `launch` does, with which the ranks are started; RankError if a
    rank fails, such as in a step.

    >>> def make_step():
    ...     import torch
    ...     model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    ...     return lambda: model(torch.ones(4, 8)).sum().backward()
    >>> recording = record(make_step, 2, num_steps=1)
    >>> [(span.kind, int(size)) for span, size in zip(*recording) if span.rank == 0]
    [('step', 0), ('forward', 0), ('backward', 0), ('allreduce', 36)]
    """
    function("make_step", make_step, "that returns a step")
    whole("num_steps", num_steps, 1)
    whole("warm_up", warm_up, 0)
    by_rank = launch(_record_rank, num_ranks, (make_step, num_steps, warm_up), backend, timeout_s)
    timeline, num_bytes = Recording.of_ranks(by_rank)
    return Recording(timeline.shifted(-timeline.begin_s), num_bytes)


def _record_rank(make_step: Callable[[], Callable[[], object]], num_steps: int, warm_up: int) -> Recording:
    step = function("what make_step returns", make_step(), "without arguments")
    with recording() as recorder:
        for number in range(-warm_up, num_steps):
            recorder.item = -1  # barriers are left out, as is the warm-up
            dist.barrier()
            recorder.item = number
            with recorder.span("step", lane="step"):
                step()
    timeline, num_bytes = recorder.result()
    recorded = np.flatnonzero(timeline.item >= 0)
    return Recording(timeline.take(recorded), num_bytes[recorded])


@contextmanager
def recording(recorder: RankRecorder | None = None) -> Iterator[RankRecorder]:
    """Record what this rank does within the block; the value is its `RankRecorder`.

    At the end, collectives that still run are waited for, unless an error ends the block, and all changes to torch are
    undone. Raises RuntimeError within another recording of this process.

    >>> with recording() as recorder:
    ...     _ = nn.Linear(2, 1)(torch.ones(3, 2))
    >>> [span.kind for span in recorder.result().timeline]
    ['forward']
    """
    if open_recorders:
        raise RuntimeError("this process is already being recorded")
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_GIL_S)
        recorder = recorder or RankRecorder()
        open_recorders.append(recorder)
        stack.callback(open_recorders.clear)
        for owner, name, kind in _PASSES:
            original = getattr(owner, name)
            setattr(owner, name, _spanned(recorder, kind, original))
            stack.callback(setattr, owner, name, original)
        stack.callback(register_optimizer_step_pre_hook(recorder._begin_optimizer).remove)
        stack.callback(register_optimizer_step_post_hook(recorder._end_optimizer).remove)
        wait = dist.Work.wait
        stack.callback(setattr, dist.Work, "wait", vars(dist.Work)["wait"])  # as the class has it, and not as it looks
        dist.Work.wait = lambda *args: recorder._wait(wait, *args)  # type: ignore[method-assign]
        library = stack.enter_context(torch.library._scoped_library("c10d", "IMPL"))
        for name, kind in KIND_OF_OPERATOR.items():
            operator = getattr(torch.ops.c10d, name).default
            kernel = partial(recorder._collective, operator._handle.redispatch_boxed, kind)
            library.impl(name, kernel, _KEY.name, with_keyset=True)
        yield recorder
        while recorder._running:
            time.sleep(_GIL_S)


def _spanned(recorder: RankRecorder, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records the outermost calls of another one. What torch.compile traces is the other one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or "compute" in recorder.lanes_in_use:
            return original(*args, **kwargs)
        with recorder.span(kind):
            return original(*args, **kwargs)

    return call


@dataclass(eq=False)
class _Event:
    """A span. Its instants are seconds, or CUDA events; `stop` is None before the end."""

    lane: str
    kind: str
    item: int
    num_bytes: int
    start: Any
    stop: Any = None


class RankRecorder:
    """Records one rank, while `recording` is open. `item` is that of spans which begin from now on, such as a step.

    ``on_collective(kind, tensors)`` is called before each collective, with nested sequences of its outputs and inputs.
    """

    def __init__(self, on_collective: OnCollective = None) -> None:
        self.item = 0
        self._on_collective = on_collective
        self.lanes_in_use = set[str]()
        self._events: list[_Event] = []
        self._optimizers: list[_Event] = []  # whose step has begun; one may call another
        self._running = set[_Event]()  # collectives with a future that is not done
        self._without_future: dict[Any, _Event] = {}  # collectives by their work
        self._now: Callable[[], Any] = time.perf_counter
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._now = cuda_event
            self._origin = cuda_event()
            self._origin.synchronize()
            self._origin_s = time.perf_counter()

    @contextmanager
    def span(self, kind: str, lane: str = "compute") -> Iterator[None]:
        """Record a span of the caller's own. Within a span of the same lane it is left out."""
        if lane in self.lanes_in_use:
            yield
            return
        self.lanes_in_use.add(lane)
        event = self._begin(lane, kind)
        try:
            yield
        finally:
            event.stop = self._now()
            self.lanes_in_use.discard(lane)

    def result(self) -> Recording:
        """Return the spans so far."""
        return self._recording_of(self._events, self._now())

    def take(self) -> Callable[[], Recording]:
        """Return a function that returns the spans so far, and may wait for the GPU, and forget these spans.

        Such functions must be called in the order in which they were returned.
        """
        events = self._events
        self._events = []
        return partial(self._taken, events, self._now())

    def _taken(self, events: list[_Event], end: Any) -> Recording:
        taken = self._recording_of(events, end)
        if not isinstance(end, float):  # the next spans count from here, as `elapsed_time` has 24 bits
            self._origin_s = self._seconds(end)
            self._origin = end
        return taken

    def _recording_of(self, events: list[_Event], end: Any) -> Recording:
        rank = dist.get_rank() if dist.is_initialized() else 0
        spans = []
        num_bytes = []
        free_s: list[float] = []  # when each lane of collectives is free again
        computed_s = 0.0  # when the lane of passes is
        for event in sorted(events, key=lambda event: self._seconds(event.start)):
            start_s = self._seconds(event.start)
            stop_s = self._seconds(event.stop or end)
            lane = event.lane
            if lane == "compute":
                # What runs within an optimizer's step is not left out before. Nothing tells when such a step raises.
                if start_s < computed_s or event.stop is None:
                    continue
                computed_s = stop_s
            if lane == "collectives":
                place = first_free(free_s, start_s, stop_s)
                if place:
                    lane = f"collectives {place + 1}"
            spans.append(Span(rank, lane, event.kind, event.item, start_s, stop_s))
            num_bytes.append(event.num_bytes)
        return Recording(Timeline.of(spans), np.array(num_bytes, dtype=np.int64))

    def _seconds(self, instant: Any) -> float:
        if isinstance(instant, float):
            return instant
        instant.synchronize()
        return self._origin_s + self._origin.elapsed_time(instant) / 1000  # type: ignore[no-any-return]

    def _begin(self, lane: str, kind: str, num_bytes: int = 0) -> _Event:
        event = _Event(lane, kind, self.item, num_bytes, self._now())
        self._events.append(event)
        return event

    def _begin_optimizer(self, *_: Any) -> None:
        self._optimizers.append(self._begin("compute", "optimizer"))

    def _end_optimizer(self, *_: Any) -> None:
        self._optimizers.pop().stop = self._now()

    def _collective(self, redispatch: Callable[..., Any], kind: str, keys: Any, *args: Any) -> Any:
        """Call an operator as the dispatcher would without this, and record the collective that it starts."""
        if self._on_collective:
            self._on_collective(kind, args[:2])  # the other arguments of all operators are no tensors
        event = self._begin("collectives", kind, max(_num_bytes(args[0]), _num_bytes(args[1])))
        result = redispatch(keys & _KEYS_BELOW, *args)
        work = dist.Work.unbox(result[-1] if isinstance(result, tuple) else result)
        if work is None:  # NCCL starts it later, together with others
            event.stop = self._now()
            return result
        try:
            future = work.get_future()
        except RuntimeError:
            self._without_future[work] = event
        else:
            self._running.add(event)
            future.add_done_callback(partial(self._end, event))
        return result

    def _end(self, event: _Event, future: Any) -> None:
        event.stop = self._now()
        try:
            future.value()
        except Exception:  # the collective has failed
            event.stop = None
        self._running.discard(event)

    def _wait(self, original: Callable[..., Any], work: Any, *args: Any) -> Any:
        result = original(work, *args)
        event = self._without_future.pop(work, None)
        if event is not None:
            event.stop = self._now()
        return result


def cuda_event() -> Any:
    """Return an event that the current stream has just recorded, and which has a time."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _num_bytes(tensors: Any) -> int:
    if isinstance(tensors, list):
        return sum(map(_num_bytes, tensors))
    return tensors.nbytes if isinstance(tensors, Tensor) else 0
