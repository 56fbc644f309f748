"""`observe` against `fully_shard` on real ranks: order, kinds and bytes of all collectives, and live bytes."""

from __future__ import annotations

import copy
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankscope.ranks import Recording, launch, recording
from rankscope.timeline import Span, Timeline
from rankscope.train import fsdp
from rankscope.train.fsdp.measured import Run
from rankscope.train.fsdp.observed import Sharding
from tests.extents import first_in_test

from .models import DrawnCase, Recomputed, Shared, drawn_case

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")]
RELEASE_S = 0.005  # a thread of Gloo refers to the tensors of a collective for some moments after it has ended


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """After each operator, the bytes of all storages that operators have seen and that are still alive."""

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.peak_bytes = 0
        for tensor in tensors:
            self._see(tensor)

    def _see(self, tensor: Any) -> None:
        local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        self._alive[storage._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented
        outputs = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            time.sleep(RELEASE_S)
        seen: Any = (args, kwargs, outputs)
        if func is torch.ops.aten.copy_.default:
            seen = args[0]  # Gloo copies out of a storage of its own while somebody waits for it
        if not func.is_view:
            for value in tree_leaves(seen):
                if isinstance(value, Tensor):
                    self._see(value)
        self.peak_bytes = max(self.peak_bytes, sum(storage.nbytes() for storage in list(self._alive.values())))
        return outputs


def step_on_rank(case: DrawnCase) -> tuple[list[tuple[str, int]], int]:
    """Return the recorded collectives of a second step, and the least peak of live bytes in three later ones.

    A thread of Gloo may hold tensors for some moments, which can only make a peak higher. FSDP keeps what it shards
    after a forward pass until the next one, so a step before them lets `Live` see it.
    """
    Sharding(**case.settings).checked(case.module, case.loss).apply(case.module)
    optimizer = torch.optim.Adam(case.module.parameters())

    def step() -> None:
        case.loss(case.module).backward()  # type: ignore[no-untyped-call]

    step()
    optimizer.step()
    optimizer.zero_grad()
    with recording() as recorder:
        step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    peaks = []
    with Live([*case.module.parameters(), *case.module.buffers(), *states]) as live:
        for _ in range(4):
            optimizer.zero_grad()
            live.peak_bytes = 0
            step()
            peaks.append(live.peak_bytes)
    recorded = recorder.result()
    calls = []
    for span, num_bytes in zip(recorded.timeline, recorded.num_bytes.tolist(), strict=True):
        if span.lane.startswith("collectives"):
            calls.append((span.kind, num_bytes))
    return calls, min(peaks[1:])


def steps_on_rank(cases: list[DrawnCase]) -> list[tuple[list[tuple[str, int]], int]]:
    return [step_on_rank(case) for case in cases]


def differences(cases: list[DrawnCase], executed: list[tuple[list[tuple[str, int]], int]]) -> list[str]:
    """The cases in which what is observed differs from what rank 0 of real ranks has done."""
    found = []
    for case, (calls, peak_bytes) in zip(cases, executed, strict=True):
        step = fsdp.observe(case.module, case.loss, optimizer=torch.optim.Adam, **case.settings)
        if step.collectives != calls:
            found.append(f"{case}: {calls} executed, {step.collectives} observed")
        if abs(step.peak_bytes / peak_bytes - 1) > 0.02:
            found.append(f"{case}: peak of {peak_bytes} executed, {step.peak_bytes} observed")
    return found


def mean_square(model: nn.Module) -> Tensor:
    outputs: Tensor = model(torch.ones(4, 16, 64))
    return outputs.square().mean()


class Chosen(DrawnCase):
    """A case with a loss of its own."""

    def loss(self, module: nn.Module) -> Tensor:
        return mean_square(module)


def chosen_cases() -> list[DrawnCase]:
    """Modules that recompute, share or attend, on two ranks."""
    encoder = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(3)))
    recomputed = nn.Sequential(*(Recomputed(64) for _ in range(3)))
    chosen: list[tuple[nn.Module, dict[str, Any]]] = [
        (recomputed, {"wrap": ["*.inner.0", "*.inner.2"]}),
        (recomputed, {"wrap": ["*", "*.inner"], "reshard_after_forward": False}),
        (Shared(64), {"wrap": ["first.0", "first", "second"]}),
        (encoder, {"wrap": ["*"], "param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}),
        (encoder, {"wrap": ["*"], "reshard_after_forward": False}),
    ]
    return [Chosen(copy.deepcopy(module), False, {"num_ranks": 2, **settings}) for module, settings in chosen]


@pytest.mark.parametrize(("num_ranks", "count"), first_in_test(2, [(2, 0), (4, 3), (2, 25), (3, 25), (4, 25)]))
def test_modules_do_on_real_ranks_what_was_observed(num_ranks: int, count: int) -> None:
    """Order, kinds and bytes of all collectives, and the peak."""
    cases = [drawn_case(1000 * num_ranks + seed, num_ranks) for seed in range(count)]
    if num_ranks == 2:
        cases += chosen_cases()
    executed = launch(steps_on_rank, num_ranks, (cases,), timeout_s=300)[0]
    assert differences(cases, executed) == []
    wrong = [case._replace(settings={**case.settings, "wrap": []}) for case in cases]
    assert len(differences(wrong, executed)) > count / 2


# ---- run


def batch_of_rank(model: nn.Module) -> Tensor:
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    generator = torch.Generator().manual_seed(rank)
    outputs: Tensor = model(torch.randn(2, 64, generator=generator))
    return outputs.square().mean()


def test_a_run_has_the_collectives_and_the_peak_that_are_observed_and_spans_of_every_rank() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    settings: dict[str, Any] = {"num_ranks": 2, "wrap": ["0"], "optimizer": torch.optim.SGD}
    executed = fsdp.run(module, batch_of_rank, num_steps=3, **settings)
    observed = fsdp.observe(module, batch_of_rank, **settings)
    assert executed.collectives == observed.collectives
    assert executed.observed[0].peak == observed.peak
    for rank in range(2):
        own = executed.timeline.select(rank=rank)
        kinds = [span.kind for span in own if span.lane.startswith("collectives")]
        assert kinds == [call.kind for call in observed.collectives]
        assert {"forward", "backward", "optimizer", "step"} <= {span.kind for span in own}
    assert executed.step_s == pytest.approx(executed.timeline.select(lane="step").makespan_s, rel=0.5)


def made_run(seconds: dict[str, list[float]], works: tuple[fsdp.Work, ...]) -> Run:
    """A step of 10 s on two ranks: collectives by kind, in each of which rank 1 waits a second for rank 0."""
    rows = []
    for rank in (0, 1):
        rows.append(Span(rank, "step", "step", 0, 0.0, 10.0))
        for kind, kind_s in [(kind, kind_s) for kind, of_kind in seconds.items() for kind_s in of_kind]:
            begin_s = 3.0 * len(rows)
            rows.append(Span(rank, "collectives", kind, 0, begin_s - rank, begin_s + kind_s))
    step = fsdp.Step(works, ())
    return Run(Recording(Timeline.of(rows), np.zeros(len(rows), dtype=np.int64)), (step, step))


def work(kind: str, num_bytes: int, flops: int = 0, lane: str = "") -> fsdp.Work:
    return fsdp.Work(lane or kind, kind, "", frozenset(), flops, num_bytes)


def test_a_cost_shares_the_step_among_its_works() -> None:
    gathers = work("allgather", 100), work("allgather", 300)
    scatter = work("reduce_scatter", 200)
    part_of_it = work("copy_out", 200, lane="reduce_scatter")
    forward, backward = work("forward", 50, 1000, "compute"), work("backward", 500, 0, "compute")
    works = (*gathers, scatter, part_of_it, forward, backward)
    run = made_run({"allgather": [1.0, 1.0], "reduce_scatter": [2.0]}, works)
    cost = run.cost()
    assert tuple(map(cost, works)) == pytest.approx((0.5, 1.5, 2.0, 0.0, 1.0, 5.0))  # the last two by operations, bytes
    assert run.observed[0].timeline(cost, overlap=False).makespan_s == pytest.approx(run.step_s) == 10.0
