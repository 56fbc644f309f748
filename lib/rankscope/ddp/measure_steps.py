"""`measure_ddp`, `measure_local_step`: a training step under DDP, run for real on several ranks and watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..machine.measuring.plan import node_sizes
from ..machine.provenance import of_machine, of_run
from ..timeline import Span, Timeline
from ..values.checks import number, of_type, one_of, truth, whole
from ..workers.errors import MOST_RANKS
from ..workers.launch import launch
from .buckets import parameter_specs
from .ddp_run import DDPRun, ObservedStep
from .local_step import MOST_ACCUMULATION, LocalStep
from .measure_rank import Loss, Optimizer, Record, Setting, be_rank

BACKENDS = ("gloo", "nccl", "mpi")
WARM_UP = 3  # DDP builds its buckets anew in the second step
NUM_WORKERS = {"gloo": 2}  # that carry out allreduces side by side; NCCL has one stream


def measure_ddp(
    module: nn.Module, loss: Loss, *, num_ranks: int | None = 2, bucket_cap_mb: float | None = None,
    iterations: int = 20, warm_up: int = WARM_UP, accumulation: int = 1, optimizer: Optimizer | None = None,
    gradient_as_bucket_view: bool = False, find_unused_parameters: bool = False, static_graph: bool = False,
    backend: str = "gloo", device: str | None = None, network: Any = None, observe: bool = True,
    communicate: bool = True, timeout_s: float = 120.0,
) -> DDPRun:  # fmt: skip
    """Train a copy of the module under DistributedDataParallel for some steps, and return what was seen.

    ``loss(module, rank, number)`` is called with the wrapped module for each micro-batch, makes or finds the batch, and
    returns a tensor of one number; it may be a lambda or live in a notebook. A step is `accumulation` micro-batches,
    all but the last under ``no_sync``, then one of ``optimizer(parameters)``; by default there is none. Gradients are
    cleared between steps, unmeasured. The ranks are those of `ranks.launch` (on the hosts of `network`, one of
    `machine.emulate.emulated`) or torchrun's, where num_ranks may be None. They start each step at one agreed instant.

    With `observe` a communication hook does DDP's own allreduce and stamps it, and a hook behind DDP's stamps each
    gradient; so that there is nothing to divide, the loss is divided by the number of ranks. Without, there are only
    the seconds of each step. Without `communicate` DDP does all but the allreduces. On CUDA stamps are events.

    Raises ValueError for bad input, RankError where a rank fails, dies, or has not ended after `timeout_s`.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> measure_ddp(model, lambda model, rank, number: model(torch.ones(4, 8)).mean(), iterations=4).buckets
    ((3, 2, 1, 0),)
    """
    options = {
        "bucket_cap_mb": None if bucket_cap_mb is None else number("bucket_cap_mb", bucket_cap_mb, above=0),
        "gradient_as_bucket_view": truth("gradient_as_bucket_view", gradient_as_bucket_view),
        "find_unused_parameters": truth("find_unused_parameters", find_unused_parameters),
        "static_graph": truth("static_graph", static_graph),
    }
    counts = iterations, warm_up, accumulation
    setting = _setting(counts, one_of("backend", backend, BACKENDS), device, options, communicate, observe)
    args = (*checked(module, loss, optimizer), setting)
    records: list[Record] = launcher(num_ranks, backend, network, timeout_s)(be_rank, args)
    return _run_of(records, setting, backend, "" if network is None else str(network))


def measure_local_step(module: nn.Module, loss: Loss, *, num_ranks: int | None = 1, **options: Any) -> LocalStep:
    """Return what a step of each of these ranks takes while all of them compute and none communicates.

    It is `measure_ddp` without the allreduces: DDP still copies gradients into buckets and back. Where ranks share
    cores, measure as many as are to be predicted. `options` are those of `measure_ddp`.

    >>> import torch
    >>> step = measure_local_step(nn.Linear(8, 1), lambda model, rank, number: model(torch.ones(4, 8)).mean())
    >>> [spec.name for spec in step.parameters], len(step.ready_s)
    (['weight', 'bias'], 2)
    """
    return measure_ddp(module, loss, num_ranks=num_ranks, communicate=False, **options).local_step()


def checked(
    module: nn.Module, loss: Callable[..., Tensor], optimizer: Optimizer | None
) -> tuple[nn.Module, Callable[..., Tensor], Optimizer | None]:
    """Return them if there is something to train, by functions; ValueError elsewhere."""
    parameter_specs(of_type("module", module, nn.Module))  # refuses one without a parameter that gets a gradient
    for name, value in (("loss", loss), ("optimizer", optimizer)):
        if not callable(value) and not (name == "optimizer" and value is None):
            raise ValueError(f"{name} must be a function, got {value!r}")
    return module, loss, optimizer


def _setting(
    counts: tuple[int, int, int],
    backend: str,
    device: str | None,
    ddp: dict[str, Any],
    communicate: bool,
    observe: bool,
) -> Setting:
    iterations, warm_up, accumulation = counts
    if ddp["static_graph"] and whole("accumulation", accumulation, 1) > 1:
        raise ValueError("static_graph must be False with accumulation: DDP's first backward of one must communicate")
    return Setting(
        iterations=whole("iterations", iterations, 1, 10_000),
        warm_up=whole("warm_up", warm_up, 2, 1000),
        accumulation=whole("accumulation", accumulation, 1, MOST_ACCUMULATION),
        device=one_of("device", device or ("cuda" if backend == "nccl" else "cpu"), ("cpu", "cuda")),
        ddp=ddp,
        communicate=truth("communicate", communicate),
        observe=truth("observe", observe),
    )


def launcher(
    num_ranks: int | None, backend: str, network: Any, timeout_s: float
) -> Callable[[Callable[..., Any], tuple[Any, ...]], list[Any]]:
    """Return what calls a function with arguments on these ranks; ValueError where there can be none such."""
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    if num_ranks is not None:
        whole("num_ranks", num_ranks, 1, MOST_RANKS)
    if network is None:
        return lambda fn, args: launch(fn, num_ranks, args, backend, timeout_s)
    hosts = getattr(network, "num_hosts", None)
    if backend != "gloo" or num_ranks is None or not hosts or num_ranks % hosts:
        wanted = f"an emulated one with hosts for {num_ranks} ranks, alike, on Gloo"
        raise ValueError(f"network must be {wanted}, got {network!s}")
    return lambda fn, args: network.launch(fn, args, timeout_s, num_ranks // hosts)


def _run_of(records: list[Record], setting: Setting, backend: str, network: str) -> DDPRun:
    """What all ranks saw together."""
    sizes = node_sizes(records[0].nodes)
    network = network or ("loopback" if len(sizes) == 1 else f"between {len(sizes)} nodes")
    ranks = {"num_ranks": len(records), "num_nodes": len(sizes), "ranks_per_node": sizes, "backend": backend}
    provenance = {**of_machine(), **of_run("", "measure_ddp", network), **ranks}
    slowest = np.max([record.step_s for record in records], axis=0)
    clean = np.all([record.clean for record in records], axis=0)
    observed = range(setting.iterations if setting.observe else 0)
    return DDPRun(
        provenance=provenance,
        setting={**setting.ddp, "accumulation": setting.accumulation, "communicate": setting.communicate},
        parameters=tuple(records[0].parameters),
        step_s=tuple(map(float, slowest)),
        clean=tuple(map(bool, clean)),
        steps=tuple(_step(records, place, NUM_WORKERS.get(backend, 1)) for place in observed),
    )


def _step(records: list[Record], place: int, num_workers: int) -> ObservedStep:
    seen = [record.buckets[place] for record in records]
    if any(buckets != seen[0] for buckets in seen):
        raise RuntimeError(f"ranks must launch the same buckets, got {seen}")
    spans = [span for rank, one in enumerate(records) for span in spans_of(rank, one, place, num_workers)]
    begins = [record.passes_s[place][-2] for record in records]
    ready_s = np.array([record.ready_s[place] for record in records]) - np.array(begins)[:, None]
    return ObservedStep(tuple(map(tuple, seen[0])), ready_s, Timeline.of(spans))


def spans_of(rank: int, record: Record, place: int, num_workers: int, with_loads: bool = False) -> list[Span]:
    """Return the spans of one rank in one iteration, from its start; with what fetched each micro-batch, if asked for.

    The last backward ends with its last gradient, or with what DDP does.
    """
    passes, done = record.passes_s[place], record.done_s[place]
    spans = []
    micros = zip(passes[:-1:2], record.loaded_s[place], passes[1::2], passes[2::2], strict=True)
    for micro, (begin, loaded, middle, end) in enumerate(micros):
        if with_loads:
            spans.append(Span(rank, "compute", "load", micro, begin, loaded))
        spans += [Span(rank, "compute", "forward", micro, loaded if with_loads else begin, middle)]
        spans += [Span(rank, "compute", "backward", micro, middle, end)]
    last = spans.pop()
    computed = min(max(last.start_s, float(np.nanmax(record.ready_s[place], initial=0.0))), last.stop_s)
    summed = min(max([computed, *done]), last.stop_s)
    end = record.end_s[place]
    rest = [("backward", last.item, last.start_s, computed), ("wait", -1, computed, summed)]
    rest += [("unpack", -1, summed, last.stop_s), ("optimizer", -1, last.stop_s, end)]
    spans += [Span(rank, "compute", *one) for one in rest if one[3] > one[2]]
    free = [0.0] * num_workers
    for item, (launched, stop) in enumerate(zip(record.launch_s[place], done, strict=True)):
        worker = free.index(min(free))
        start = min(max(launched, free[worker]), stop)
        lane = "allreduce" if worker == 0 else f"allreduce {worker + 1}"
        spans.append(Span(rank, lane, "allreduce", item, start, stop))
        free[worker] = stop
    return spans
