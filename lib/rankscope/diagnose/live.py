"""`watch`: the late rank and its cause while a job trains, without a profiler.

Stamps are taken where a step changes its phase: around the loader's `next`, by hooks of the forward, of its output's
backward and of all optimizers, and around each collective that Python asks for. DDP asks for its own from C++, so a
communication hook does the same allreduce from Python. Ranks send a few numbers through the store of the process group
(https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.Store): no collective is added, so that ranks
with different numbers of steps, and ranks that die, leave nobody waiting for a watch.
"""

from __future__ import annotations

import math
import os
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial, wraps
from itertools import count
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

from ..timeline import Span, Timeline
from ..values.checks import of_type, whole
from .diagnosis import culprits_of, own_times
from .trace import Calls, Trace

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
_numbers = count()


class Step(NamedTuple):
    """What a rank did from one `next` of the loader to the first one after its gradients were reduced.

    Stamps are nanoseconds of `time.perf_counter_ns`; on CUDA events of a stream, until they have come to pass.
    """

    number: int
    begin: Any
    end: Any
    marks: list[Any]  # (lane, kind, start, stop)
    calls: list[Any]  # [group, kind, bytes, launch, stop or None]
    cpu_ns: list[int]  # how long the thread ran, and how long it could have but had no core


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

    Gradients stay DDP's own, to the bit; only with `gradient_as_bucket_view` and ``zero_grad(set_to_none=False)`` on a
    number of ranks that is no power of two the last bit may differ. A communication hook that the model has already is
    kept. DDP cannot forget a hook: the one that `watch` gives it stays, and does DDP's allreduce. All else is undone at
    the end of the context, also after an error. On CUDA, stamps are events of the current stream, and none is waited
    for before the end.

    Raises ValueError for a model that is no DistributedDataParallel, or has a hook that is built in; RuntimeError where
    there is no process group.
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
        self._group: Any = model.process_group
        self._every, self._report, self._rank = every, report, dist.get_rank()
        self._ranks = dist.get_process_group_ranks(self._group)
        store = dist.distributed_c10d._get_default_store()
        self._store: Any = dist.distributed_c10d.PrefixStore(
            f"rankscope.watch/{self._group.group_name}/{next(_numbers)}", store
        )
        self._is_cuda = next(model.parameters()).is_cuda
        self._undo, self._is_open = ExitStack(), False
        self._step: Step | None = None  # the one under way
        self._num_steps, self._reduces, self._begun = 0, False, dict[str, list[Any]]()
        self._ended = deque[Step]()  # whose stamps may lie ahead, on the GPU
        self._kept = deque[Step](maxlen=keep)
        self._window = list[Step]()  # the steps that the next line is about, and the one before them
        self._awaited: NDArray[np.int64] | None = None  # steps whose line waits for the other ranks' numbers

    def __enter__(self) -> Watched:
        model = self._model
        with ExitStack() as undo:
            if not model._comm_hooks:
                try:  # DDP refuses annotations that are strings
                    model.register_comm_hook(self._group, lambda group, bucket: _average(group, bucket))
                except RuntimeError as error:
                    raise ValueError(f"model must have no built-in communication hook: {error}") from None
            for name, kind in _KINDS.items():
                method = getattr(dist.ProcessGroup, name)
                undo.callback(
                    setattr, dist.ProcessGroup, name, vars(dist.ProcessGroup)[name]
                )  # which binds, unlike `method`
                setattr(dist.ProcessGroup, name, self._asking(method, kind))
            method = torch.optim.Optimizer.zero_grad
            undo.callback(setattr, torch.optim.Optimizer, "zero_grad", method)
            setattr(torch.optim.Optimizer, "zero_grad", self._clearing(method))  # noqa: B010
            for handle in (
                model.register_forward_pre_hook(self._before_forward, prepend=True),
                model.module.register_forward_pre_hook(self._before_module, prepend=True),
                model.register_forward_hook(self._after_forward),
                register_optimizer_step_pre_hook(lambda *_: self._begin("optimizer")),
                register_optimizer_step_post_hook(lambda *_: self._end("main", "optimizer")),
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
        self._is_open, self._step, self._model = False, None, None
        steps = zlib.compress(msgspec.json.encode(list(self._kept)), 1)
        with suppress(RuntimeError):  # a store is gone once the process that serves it has ended
            self._store.set(f"trace/{self._rank}", steps)

    @property
    def trace(self) -> Trace:
        """What this rank did in the last steps, in seconds from the first of them."""
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

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter_ns()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _begin(self, kind: str) -> None:
        self._begun.setdefault(kind, []).append(self._now())

    def _end(self, lane: str, kind: str) -> None:
        begun = self._begun.get(kind)
        if begun:  # and not where the step began within this phase
            start = begun.pop()
            if not begun:  # the outermost of phases within each other
                self._mark(lane, kind, start)

    def _before_forward(self, model: Any, inputs: Any) -> None:
        if not getattr(model, "_divide_by_initial_world_size", True):  # join sets it
            raise ValueError("a watch needs model.join(divide_by_initial_world_size=True), which is its default")
        if torch.is_grad_enabled() and model.require_backward_grad_sync:
            self._reduces = True
        self._begin("forward")

    def _before_module(self, module: Any, inputs: Any) -> None:
        model = self._model
        if self._begun.get("forward") and model.will_sync_module_buffers() and self._step is not None:
            about = self._group.group_name, "broadcast", sum(buffer.nbytes for buffer in model.modules_buffers)
            self._step.calls.append([*about, self._begun["forward"][-1], self._now()])

    def _after_forward(self, model: Any, inputs: Any, outputs: Any) -> None:
        self._end("main", "forward")
        for node in {leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.grad_fn}:
            node.register_prehook(self._before_backward)

    def _before_backward(self, gradients: Any) -> None:
        if self._is_open and not self._begun.get("backward"):
            self._begin("backward")
            # called when all gradients are there, and before DDP waits for its allreduces
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end("backward", "backward"))

    def _asking(self, method: Any, kind: str) -> Callable[..., Any]:
        """A method of process groups that stamps its call and the call's end."""

        def ask(group: Any, *args: Any, **options: Any) -> Any:
            call = [group.group_name, kind, _num_bytes(args), self._now(), None]
            if self._step is not None:
                self._step.calls.append(call)
            work = method(group, *args, **options)
            with suppress(Exception):  # some kinds of work have no future
                work.get_future().add_done_callback(partial(self._done, call))
            return work

        return ask

    def _clearing(self, method: Any) -> Any:
        @wraps(method)
        def clear(optimizer: Any, *args: Any, **options: Any) -> None:
            start = self._now()
            method(optimizer, *args, **options)
            self._mark("main", "zero_grad", start)

        return clear

    def _done(self, call: list[Any], future: Any) -> None:
        with suppress(Exception):
            future.value()  # raises where the collective failed: that has no end
            call[-1] = self._now()

    def _mark(self, lane: str, kind: str, start: Any) -> None:
        if self._step is not None:
            self._step.marks.append((lane, kind, start, self._now()))

    def _turn(self, stamp: Any, goes_on: bool = True) -> None:
        """End the step under way if its gradients were reduced, and begin the next."""
        ran = [int(word) for word in os.pread(self._schedule, 64, 0).split()[:2]] if self._schedule >= 0 else [0, 0]
        step = self._step
        if step is not None and self._reduces:
            cpu_ns = [now - before for now, before in zip(ran, step.cpu_ns, strict=True)]
            self._ended.append(step._replace(end=stamp, cpu_ns=cpu_ns))
            self._num_steps += 1
            self._settle()
        if not goes_on:
            self._step = None
        elif step is None or self._reduces:
            self._step = Step(self._num_steps, stamp, None, [], [], ran)
            self._begun.clear()
        self._reduces = self._reduces and self._step is step

    # ---- what the ranks tell each other

    def _settle(self) -> None:
        """Keep the steps that have come to pass, and send the numbers of every so many to the first rank."""
        while self._ended and (not self._is_cuda or self._ended[0].end.query()):
            step = self._ended.popleft()
            if self._is_cuda:
                step, self._origin = _in_ns(step, *self._origin)
            self._kept.append(step)
            self._window.append(step)
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
        found = []
        with suppress(RuntimeError):
            found = [np.frombuffer(one) for one in self._store.multi_get(keys)] if self._store.check(keys) else []
        tables = [one[1:].reshape(-1, int(one[0])) for one in found]
        if not tables or any(not np.array_equal(table[:, 0], steps) for table in tables):
            return
        self._awaited = None
        both = np.stack(tables, axis=1)  # steps x ranks x numbers
        late = culprits_of(self._ranks, both[..., 1], both[..., 3:], both[..., 2])
        about, step_s = f"steps {steps[0]} to {steps[-1]}", float(both[..., 1].mean())
        if late:
            rank, cause, cost_s = late[0]
            why = "it is starved of its core" if cause == "starved" else f"because of its {cause}"
            cost = f"{cost_s * 1e3:.0f} ms of each step of {step_s * 1e3:.0f} ms"
            self._report(f"{about}: rank {rank} is late, {why}: {cost}")
        else:
            self._report(f"{about}: balanced, {step_s * 1e3:.0f} ms per step")


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
                watched._mark("main", "loader", begin)
            if batch is last:
                return
            yield batch
            begin = watched._now()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _average(group: Any, bucket: Any) -> Any:
    """Do the allreduce that DDP does itself where it has no hook.

    It multiplies by 1/n, and divides where gradients are sparse:
    https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp
    """
    gradients = bucket.buffer()
    _ = gradients.div_(group.size()) if gradients.is_sparse else gradients.mul_(1 / group.size())
    work: Any = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _num_bytes(args: tuple[Any, ...]) -> int:
    """The bytes that a rank puts into a collective, where there are inputs and outputs into the last of the two."""
    tensors = [tree_leaves(arg) for arg in args[:2] if isinstance(arg, Tensor | list | tuple)]
    return sum(one.numel() * one.element_size() for one in tensors[-1] if isinstance(one, Tensor)) if tensors else 0


def _in_ns(step: Step, event: Any, ns: int) -> tuple[Step, tuple[Any, int]]:
    """The step with nanoseconds in the place of events, and its begin in both; `event` came to pass at `ns`."""

    def at(stamp: Any) -> int | None:
        return ns + round(event.elapsed_time(stamp) * 1e6) if stamp is not None and stamp.query() else None

    marks = [(*names, at(start), at(stop)) for *names, start, stop in step.marks]
    calls = [[*about, at(launch), at(stop)] for *about, launch, stop in step.calls]
    begin: Any = at(step.begin)  # the clock is read from step to step: elapsed_time has 24 bits
    return Step(step.number, begin, at(step.end), marks, calls, step.cpu_ns), (step.begin, begin)


def _trace(rank: int, steps: Sequence[Step]) -> Trace:
    """What these steps were, in the words of a `Trace`, from the begin of the first."""
    spans, calls = list[Span](), list[list[Any]]()
    first = steps[0].begin if steps else 0

    def seconds(stamp: int | None) -> float:
        return math.nan if stamp is None else (stamp - first) * 1e-9

    def add(lane: str, kind: str, item: int, start: int, stop: int) -> None:
        spans.append(Span(rank, lane, kind, item, seconds(start), seconds(stop)))

    for number, begin, end, marks, asked, (ran, queued) in steps:
        add("main", "step", number, begin, end)
        for lane, kind, start, stop in marks:
            add(lane, kind, number, start, stop)
        if ran:
            add("cpu", "ran", number, begin, begin + ran)
            add("cpu", "starved", number, begin + ran, begin + ran + queued)
        for group, kind, num_bytes, launch, stop in asked:
            add("main", "launch", len(calls), launch, launch)
            if stop is not None:
                add("gloo", kind, len(calls), launch, stop)
            calls.append([group, kind, num_bytes, seconds(launch), seconds(launch), seconds(stop)])
    groups, kinds, *columns = list(zip(*calls, strict=True)) or [()] * 6
    known: Any = [tuple(dict.fromkeys(words)) for words in (groups, kinds)]
    places: Any = [[*map(known[0].index, groups)], [*map(known[1].index, kinds)]]
    return Trace(rank, Timeline.of(spans), Calls(*places, *columns, *known), source="watch")
