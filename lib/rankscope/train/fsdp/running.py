"""`run`: a module under `fully_shard` on real ranks, with its collectives, their times and the live bytes recorded."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakTensorKeyDictionary

from ...collectives.timing import Ranks, TimedTask
from ...common.checks import function, of_type, optional, whole
from ...timeline import Span, Timeline
from ..losses import checked_loss
from ..zero.run import storages
from .calls import step_without_events
from .live import LiveCounter
from .memory import LiveBytes
from .observed import FSDPIteration, FSDPRun
from .replay import NO_GROUP, CollectiveCall, ShardSettings, groups_of, matching
from .where import HERE, Loss, Optimizer, Where

WARM_UP = 2  # steps: the first one allocates what later ones use again
MOST_ITERATIONS = 10_000
# The functions of torch.distributed that FSDP calls, by their names in torch 2.13 and in older ones.
_CALLS = {
    "all_gather_single": "allgather",
    "all_gather_into_tensor": "allgather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce": "allreduce",
}
# the lane and kind of each copy's span; a collective has a lane and a kind of its own name
_LANES_AND_KINDS = {
    "copy_in": ("copy_in", "copy_in"),
    "copy_out": ("compute", "copy_out"),
    "reduce_copy_in": ("compute", "copy_in"),
    # The copy out of a reduced buffer runs behind the last collective, with HSDP on the stream of the all-reduce.
    "reduce_scatter_copy_out": ("reduce_scatter", "copy_out"),
    "allreduce_copy_out": ("allreduce", "copy_out"),
}
# FSDP's functions that gather, copy out and reduce the parameters of a group; each call is a stage.
_STAGES = ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce")


class FSDPJob(NamedTuple):
    """One job of `run_jobs`: a module, its loss, and how it is wrapped."""

    module: nn.Module
    loss: Loss
    wrapped: tuple[str, ...]
    settings: ShardSettings
    iterations: int = 1
    optimizer: Optimizer | None = None


def run(
    module: nn.Module,
    loss: Loss,
    *,
    num_ranks: int = 2,
    wrap: Iterable[str] = (),
    iterations: int = 5,
    optimizer: Optimizer | None = None,
    where: Where = HERE,
    **settings: Any,
) -> FSDPRun:
    """Train a copy of the module under `fully_shard` for some steps, and return what was recorded.

    ``loss(module, rank, number)`` is called as by `ddp.measure`: with the sharded module, for each step, on each rank.
    ``optimizer(parameters)`` makes the optimizer; by default there is none. `wrap` and `settings` are those of
    `collectives`. All ranks start each step at one agreed instant; gradients are cleared between steps, unmeasured.

    The functions of torch.distributed through which FSDP communicates are wrapped in each rank for the time of a step,
    so the job computes what it does without rankscope. On the CPU, FSDP issues collectives on the only thread that
    there is, so each one blocks: nothing overlaps. Gloo sums and FSDP divides, because older versions of Gloo cannot
    average. One more forward and backward, which are not timed, record the live bytes of all tensors.

    Raises ValueError if an argument is invalid or `collectives` rejects it; RankError if a rank fails, dies, or has not
    ended after ``where.timeout_s``.

    >>> module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    >>> observed = run(module, lambda model, rank, number: model(torch.ones(4, 8)).mean(), wrap=["0"], iterations=1)
    >>> observed.collectives[0]
    CollectiveCall(kind='allgather', num_bytes=72)
    """
    checked = ShardSettings.of(num_ranks, settings)
    of_type("where", where, Where)
    function("loss", loss)
    optional("optimizer", optimizer, function)
    iterations = whole("iterations", iterations, 1, MOST_ITERATIONS)
    wrapped = wrapped_names(module, wrap, checked)
    job = FSDPJob(module, loss, wrapped, checked, iterations, optimizer)
    (observed,) = run_jobs([job], where)
    return observed


def wrapped_names(module: nn.Module, wrap: Iterable[str], settings: ShardSettings) -> tuple[str, ...]:
    """Return the names to wrap. Raises ValueError as `collectives` does, before any rank is started."""
    step = step_without_events(module)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type != "cpu":
            raise ValueError(f"module must be on the CPU, where its ranks are, got {name!r} on {tensor.device}")
    wrapped = matching(step, wrap)
    groups_of(step, wrapped, settings)  # for its errors
    return wrapped


def run_jobs(jobs: Sequence[FSDPJob], where: Where = HERE) -> list[FSDPRun]:
    """Run several jobs of equally many ranks, one after the other, on ranks that are launched once."""
    sizes = {job.settings.num_ranks for job in jobs}
    if len(sizes) != 1:
        raise ValueError(f"jobs must have one number of ranks, got {sorted(sizes)}")
    by_rank: list[list[_FSDPRankRecord]] = where.launch(_be_rank, (list(jobs),), sizes.pop())
    by_job = zip(*by_rank, strict=True)
    return [_observed(job, records) for job, records in zip(jobs, by_job, strict=True)]


# ---- on each rank


class _FSDPPiece(NamedTuple):
    """Something that FSDP did: a collective, or one of the stages around it; `group` is the index of its group.

    `kind` is one of the values of `_CALLS`, one of `_STAGES`, or, after `_named_stages`, a key of `_LANES_AND_KINDS`.
    Times are those of ``time.perf_counter``.
    """

    kind: str
    group: int
    start_s: float
    stop_s: float
    num_bytes: int = 0


class _FSDPRankStep(NamedTuple):
    """One step of a rank, with spans in seconds from its start; `clean` says whether the host left it undisturbed."""

    step_s: float
    clean: bool
    collectives: tuple[CollectiveCall, ...]
    spans: list[Span]


class _FSDPRankRecord(NamedTuple):
    """The record that one rank returns for a job."""

    steps: list[_FSDPRankStep]
    live: LiveBytes


def _be_rank(jobs: list[FSDPJob]) -> list[_FSDPRankRecord]:
    ranks = Ranks()
    return [_run_job(job, ranks) for job in jobs]


def _run_job(job: FSDPJob, ranks: Ranks) -> _FSDPRankRecord:
    """Run the steps of a job on this rank, and one more forward and backward in which live bytes are counted."""
    stepper = _FSDPStepper(job)
    steps = []
    for iteration in range(WARM_UP + job.iterations):
        seconds, clean = ranks.once(TimedTask(stepper.run, stepper.before))
        if iteration >= WARM_UP:
            steps.append(stepper.record(seconds, clean))
    stepper.before()
    live = stepper.run_with_live_bytes()
    return _FSDPRankRecord(steps, live)


def shard(module: nn.Module, wrapped: Sequence[str], settings: ShardSettings) -> nn.Module:
    """Apply `fully_shard` to the wrapped submodules, the innermost first, and to the module; set what is prefetched."""
    # Imported here, on the ranks: this import takes about a second, and predictions do without.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape: tuple[int, ...] = (settings.num_shards,)
    names: tuple[str, ...] = ("shard",)
    if settings.num_replicas > 1:  # HSDP: `fully_shard` takes the first dimension of the mesh as that of the replicas
        shape = (settings.num_replicas, settings.num_shards)
        names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(
        param_dtype=_torch_dtype(settings.param_dtype), reduce_dtype=_torch_dtype(settings.reduce_dtype)
    )
    innermost_first = sorted(wrapped, key=lambda name: -name.count("."))
    modules_to_shard: list[Any] = [module.get_submodule(name) for name in innermost_first]
    for part in [*modules_to_shard, module]:
        fully_shard(part, mesh=mesh, reshard_after_forward=settings.reshard_after_forward, mp_policy=policy)
        if hasattr(part, "set_force_sum_reduction_for_comms"):  # since torch 2.8; Gloo cannot average
            part.set_force_sum_reduction_for_comms(True)
    if settings.prefetch:
        _set_prefetch([module.get_submodule(name) for name in wrapped], settings.prefetch)
    return module


def _set_prefetch(parts: Sequence[Any], depth: int) -> None:
    """Have each part gather those that follow it in forward, and those before it in backward, the nearest first."""
    for index, part in enumerate(parts):
        part.set_modules_to_forward_prefetch(parts[index + 1 : index + 1 + depth])
        part.set_modules_to_backward_prefetch(parts[max(index - depth, 0) : index][::-1])


def _torch_dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    dtype: torch.dtype = getattr(torch, name)
    return dtype


class _FSDPStepper:
    """Takes one step after the other, and records what FSDP does in it.

    A group is known by its index: 0 is the root's, and those of the wrapped modules follow in their order.
    """

    def __init__(self, job: FSDPJob) -> None:
        self._rank = dist.get_rank()
        module = copy.deepcopy(job.module)
        self._group_of_parameter = _groups_of_parameters(module, job.wrapped)
        self._module = shard(module, job.wrapped, job.settings)
        # After `shard`, so that in forward these hooks run after those of FSDP: a module computes once it is gathered.
        for group, name in enumerate(["", *job.wrapped]):
            self._watch(self._module.get_submodule(name), group)
        self._loss = job.loss
        self._optimizer = None if job.optimizer is None else job.optimizer(self._module.parameters())
        self._number = 0  # of the next step
        # What is recorded of a step. Times are those of ``time.perf_counter``.
        self._pieces: list[_FSDPPiece] = []  # what FSDP does, in the order in which it ends
        self._marks: list[tuple[float, int]] = []  # an instant, and the group whose module computes from then on
        # For each module that is in its forward, the innermost last: the group whose module computed before.
        self._around: list[int] = []
        self._marked_outputs: Any = WeakTensorKeyDictionary()  # tensors whose gradient is marked: their nodes

    def _watch(self, module: nn.Module, group: int) -> None:
        """Mark when a group's module begins to compute, and when the module around it goes on, in both passes.

        A group without parameters, and one whose inputs need no gradient, have no node that ends their backward. So
        what the module around computes after their backward counts to them, up to the next mark.
        """

        def mark(computing_group: int) -> None:
            self._marks.append((time.perf_counter(), computing_group))

        def before_forward(_: nn.Module, args: Any, kwargs: Any) -> None:
            # The last mark has the group around: that of the module that makes this call, or, if checkpointing repeats
            # this forward in backward, that of the backward that asks for it.
            group_around = self._marks[-1][1] if self._marks else 0
            self._around.append(group_around)
            mark(group)
            for node in _post_backward_nodes(module, (args, kwargs)):
                node.register_hook(lambda *_: mark(group_around))

        def after_forward(_: nn.Module, args: Any, output: Any) -> None:
            mark(self._around.pop())
            # In backward, the module begins to compute when the gradient of one of its outputs is there. If an inner
            # module has returned this output, too, that one begins, unless this one has changed it in place since,
            # which makes another node. Its version would not tell: a change that autograd does not see raises it, too.
            for item in tree_iter(output):
                if not isinstance(item, Tensor) or not item.requires_grad:
                    continue
                if item not in self._marked_outputs or self._marked_outputs[item] is not item.grad_fn:
                    hooked: Any = item
                    hooked.register_hook(lambda _: mark(group))
                    self._marked_outputs[item] = item.grad_fn

        module.register_forward_pre_hook(before_forward, with_kwargs=True)
        module.register_forward_hook(after_forward)

    def before(self) -> None:
        """Clear gradients and what was recorded of the last step; this is not measured."""
        self._module.zero_grad(set_to_none=True)
        self._pieces = []
        self._marks = []
        self._around = []
        self._marked_outputs.clear()  # a node may keep its output, which would then never be freed

    def run(self) -> None:
        self._forward_and_backward()
        if self._optimizer is not None:
            self._optimizer.step()
        self._end_s = time.perf_counter()

    def _forward_and_backward(self, counter: LiveCounter | None = None) -> None:
        with _watched(self._pieces.append, self._group_of, counter):
            self._begin_s = time.perf_counter()
            loss: Any = checked_loss(self._loss(self._module, self._rank, self._number))
            self._backward_begin_s = time.perf_counter()
            loss.backward()
            self._backward_end_s = time.perf_counter()
        self._number += 1

    def run_with_live_bytes(self) -> LiveBytes:
        """Return the live bytes of all tensors over one more forward and backward."""
        tensors: list[Tensor] = [*self._module.parameters(), *self._module.buffers()]
        if self._optimizer is not None:
            for state in self._optimizer.state.values():
                tensors += [value for value in state.values() if isinstance(value, Tensor)]
        counter = LiveCounter(storages(tensors))
        with counter:
            self._forward_and_backward(counter)
        # The batch is counted as if it had been there from the begin, though the counter meets it only when it is read.
        return LiveBytes(np.array(counter.at_s) - self._begin_s, np.array(counter.totals) + counter.input_bytes)

    def _group_of(self, parameters: Any) -> int:
        """Return the group of a list of FSDP's own parameters, which all are of one group.

        FSDP sets their names at the first forward (``FSDPState._init_fqns``), and a shared one has only its first name.
        """
        return self._group_of_parameter[parameters[0]._param_fqn]

    def record(self, seconds: float, clean: bool) -> _FSDPRankStep:
        """Return the record of the step that has just run."""
        calls = [CollectiveCall(piece.kind, piece.num_bytes) for piece in self._pieces if piece.kind in _CALLS.values()]
        return _FSDPRankStep(seconds, clean, tuple(calls), self._spans())

    def _spans(self) -> list[Span]:
        """The spans of the step, by the lanes and kinds of `predict`, in seconds from its begin.

        On the CPU FSDP blocks the thread that trains. So whatever it does on another lane, the compute lane waits for.
        """
        pieces = sorted(_named_stages(self._pieces), key=lambda piece: piece.start_s)
        spans = []
        for piece in pieces:
            lane, kind = _LANES_AND_KINDS.get(piece.kind, (piece.kind, piece.kind))
            spans.append(self._span(lane, kind, piece.group, piece.start_s, piece.stop_s))
            if lane != "compute":
                spans.append(self._span("compute", "wait", NO_GROUP, piece.start_s, piece.stop_s))
        for start_s, stop_s in self._gaps(pieces):
            spans += self._compute_spans(start_s, stop_s)
        if self._optimizer is not None:
            spans.append(self._span("compute", "optimizer", NO_GROUP, self._backward_end_s, self._end_s))
        return spans

    def _span(self, lane: str, kind: str, item: int, start_s: float, stop_s: float) -> Span:
        return Span(self._rank, lane, kind, item, start_s - self._begin_s, stop_s - self._begin_s)

    def _gaps(self, pieces: Sequence[_FSDPPiece]) -> list[tuple[float, float]]:
        """Return the starts and stops of the intervals between the pieces, in which the module computes.

        `pieces` are in the order of their starts, and do not overlap, because FSDP blocks the only thread.
        """
        gaps = []
        gap_start_s = self._begin_s
        for piece in pieces:
            if piece.start_s > gap_start_s:
                gaps.append((gap_start_s, piece.start_s))
            gap_start_s = piece.stop_s
        if self._backward_end_s > gap_start_s:
            gaps.append((gap_start_s, self._backward_end_s))
        return gaps

    def _compute_spans(self, start_s: float, stop_s: float) -> list[Span]:
        """Return the spans of one gap, which is cut where another group's module begins to compute."""
        marks = sorted([*self._marks, (self._backward_begin_s, 0)])  # backward begins with the root
        group = 0  # before the first mark, the loss has not called the module yet; that counts to the root
        spans = []
        for at_s, next_group in marks:
            if at_s >= stop_s:
                break
            if at_s > start_s:  # an earlier mark only decides with which group the gap begins
                spans.append(self._compute_span(group, start_s, at_s))
                start_s = at_s
            group = next_group
        spans.append(self._compute_span(group, start_s, stop_s))
        return spans

    def _compute_span(self, group: int, start_s: float, stop_s: float) -> Span:
        kind = "forward" if start_s < self._backward_begin_s else "backward"
        return self._span("compute", kind, group, start_s, stop_s)


def _post_backward_nodes(module: nn.Module, inputs: Any) -> set[Any]:
    """Return FSDP's own autograd nodes in front of a module's inputs, which end its backward and reduce its gradients.

    FSDP puts them there before the forward (``FSDPParamGroup._register_post_backward_hook``). A node that is there for
    a module around this one is left out.
    """
    nodes = set()
    for item in tree_iter(inputs):
        node: Any = item.grad_fn if isinstance(item, Tensor) else None
        param_group = getattr(node, "param_group", None)
        if param_group is not None and module in param_group.modules:
            nodes.add(node)
    return nodes


def _groups_of_parameters(module: nn.Module, wrapped: Sequence[str]) -> dict[str, int]:
    """Return the index of each parameter's group by the parameter's name: that of the innermost wrapped module."""
    groups = {name: index for index, name in enumerate(["", *wrapped])}
    group_of_parameter = {}
    for name, _ in module.named_parameters(remove_duplicate=False):
        around = [part for part in wrapped if name.startswith(f"{part}.")]
        innermost = max(around, key=len, default="")  # of modules that contain one another, the longest name
        group_of_parameter[name] = groups[innermost]
    return group_of_parameter


def _named_stages(pieces: Sequence[_FSDPPiece]) -> Iterator[_FSDPPiece]:
    """Yield the copies and collectives of which FSDP's stages consist, with the group of their stage.

    ``foreach_all_gather`` is a copy-in and an all-gather, ``foreach_all_gather_copy_out`` is a copy-out, and
    ``foreach_reduce`` is a copy-in, a reduce-scatter, with HSDP an all-reduce, and a copy-out. A collective is recorded
    right before the stage that it is part of, because it ends first.
    """
    collectives: list[_FSDPPiece] = []  # of the next stage
    for piece in pieces:
        if piece.kind in _CALLS.values():
            collectives.append(piece)
        elif piece.kind == "foreach_all_gather_copy_out":
            yield piece._replace(kind="copy_out")
        else:
            is_reduce = piece.kind == "foreach_reduce"
            copy_in = "reduce_copy_in" if is_reduce else "copy_in"
            yield piece._replace(kind=copy_in, stop_s=collectives[0].start_s)
            for collective in collectives:
                yield collective._replace(group=piece.group)
            if is_reduce:
                last = collectives[-1]
                yield piece._replace(kind=f"{last.kind}_copy_out", start_s=last.stop_s)
            collectives = []


# ---- watching FSDP


class _WatchedDistributed:
    """torch.distributed as FSDP's module of collectives sees it, with its collectives timed."""

    def __init__(self, add: Callable[[_FSDPPiece], None], counter: LiveCounter | None) -> None:
        self._add = add
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        """Return what torch.distributed has under a name; a collective is replaced by a function that times it."""
        value = getattr(dist, name)
        kind = _CALLS.get(name)
        if kind is None:
            return value

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin_s = time.perf_counter()
            if self._counter is None:
                result = value(*args, **kwargs)
            else:
                with self._counter.in_collective():  # it waits at its end, so a run that counts bytes takes longer
                    result = value(*args, **kwargs)
            stop_s = time.perf_counter()
            # The whole buffer is the larger one of input and output. The stage around the call knows its group.
            sizes = [argument.nbytes for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)]
            self._add(_FSDPPiece(kind, group=0, start_s=begin_s, stop_s=stop_s, num_bytes=max(sizes)))
            return result

        return timed


@contextmanager
def _watched(
    add: Callable[[_FSDPPiece], None], group_of: Callable[[Any], int], counter: LiveCounter | None
) -> Iterator[None]:
    """Call `add` with each collective and stage of FSDP while the context is open.

    `group_of` returns the index of the group of a list of FSDP's parameters. The counter, if there is one, leaves out
    what collectives allocate. FSDP looks its functions up in two modules, so they are replaced there.
    """
    communication: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    groups: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_param_group")

    def stage(name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a stage and record it. Its list of parameters is the second argument of a copy-out, else the first."""
        begin_s = time.perf_counter()
        position = 1 if name == "foreach_all_gather_copy_out" else 0
        parameters = kwargs["fsdp_params"] if "fsdp_params" in kwargs else args[position]
        group = group_of(parameters)
        result = original(*args, **kwargs)
        add(_FSDPPiece(name, group, begin_s, time.perf_counter()))
        return result

    replaced: list[tuple[ModuleType, str, Any]] = [(communication, "dist", communication.dist)]
    communication.dist = _WatchedDistributed(add, counter)
    for name in _STAGES:
        original = getattr(groups, name)
        replaced.append((groups, name, original))
        setattr(groups, name, partial(stage, name, original))
    try:
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)


# ---- the records of all ranks


def _observed(job: FSDPJob, records: Sequence[_FSDPRankRecord]) -> FSDPRun:
    """Join the records of all ranks. Raises RuntimeError if their collectives differ in any step."""
    iterations = []
    for steps in zip(*(record.steps for record in records), strict=True):
        collectives = steps[0].collectives
        if any(step.collectives != collectives for step in steps):
            raise RuntimeError(f"ranks must issue the same collectives, got {[step.collectives for step in steps]}")
        spans = [span for step in steps for span in step.spans]
        slowest_s = max(step.step_s for step in steps)
        is_clean = all(step.clean for step in steps)
        iterations.append(FSDPIteration(slowest_s, is_clean, collectives, Timeline.of(spans)))
    live = tuple([record.live for record in records])
    return FSDPRun(job.settings, ("", *job.wrapped), tuple(iterations), live)
