"""`observe` against `fully_shard` on real ranks: order, kinds and bytes of all collectives, and live bytes."""

from __future__ import annotations

import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankscope.ranks import RankError, Recording, launch, recording
from rankscope.timeline import Span, Timeline
from rankscope.train import fsdp
from rankscope.train.fsdp.measured import Run
from rankscope.train.fsdp.observed import Sharding

from ...extents import SAMPLE_OR_EVERYTHING
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
    """Return the recorded collectives of a second step, and the least peak of live bytes in three more.

    A thread of Gloo may hold tensors for some moments, which can only make a peak higher.
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
    for _ in range(3):
        optimizer.zero_grad()
        with Live([*case.module.parameters(), *case.module.buffers(), *states]) as live:
            step()
        peaks.append(live.peak_bytes)
    recorded = recorder.result()
    calls = []
    for span, num_bytes in zip(recorded.timeline, recorded.num_bytes.tolist(), strict=True):
        if span.lane.startswith("collectives"):
            calls.append((span.kind, num_bytes))
    return calls, min(peaks)


def steps_on_rank(cases: list[DrawnCase]) -> list[tuple[list[tuple[str, int]], int]]:
    return [step_on_rank(case) for case in cases]


def differences(cases: list[DrawnCase]) -> list[str]:
    """The cases in which what is observed differs from what rank 0 of real ranks does."""
    executed = launch(steps_on_rank, cases[0].settings["num_ranks"], (cases,), timeout_s=300)[0]
    found = []
    for case, (calls, peak_bytes) in zip(cases, executed, strict=True):
        step = fsdp.observe(case.module, case.loss, optimizer=torch.optim.Adam, **case.settings)
        if step.collectives != calls:
            found.append(f"{case}: {calls} executed, {step.collectives} observed")
        if abs(step.peak_bytes / peak_bytes - 1) > 0.02:
            found.append(f"{case}: peak of {peak_bytes} executed, {step.peak_bytes} observed")
    return found


@SAMPLE_OR_EVERYTHING
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_random_modules_do_on_real_ranks_what_was_observed(num_ranks: int, everything: bool) -> None:
    """Order, kinds and bytes of all collectives, and the peak: 15 modules of the sample, 75 of everything."""
    count = 25 if everything else 5
    assert differences([drawn_case(1000 * num_ranks + seed, num_ranks) for seed in range(count)]) == []


def mean_square(model: nn.Module) -> Tensor:
    outputs: Tensor = model(torch.ones(4, 16, 64))
    return outputs.square().mean()


class Chosen(DrawnCase):
    """A case with a loss of its own."""

    def loss(self, module: nn.Module) -> Tensor:
        return mean_square(module)


def encoder() -> nn.Sequential:
    return nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(3)))


def recomputed() -> nn.Sequential:
    return nn.Sequential(*(Recomputed(64) for _ in range(3)))


CHOSEN: list[tuple[nn.Module, dict[str, Any]]] = [
    (recomputed(), {"num_ranks": 2, "wrap": ["*.inner.0", "*.inner.2"], "prefetch": 1}),
    (recomputed(), {"num_ranks": 2, "wrap": ["*", "*.inner"], "reshard_after_forward": False}),
    (Shared(64), {"num_ranks": 2, "wrap": ["first.0", "first", "second"]}),
    (encoder(), {"num_ranks": 2, "wrap": ["*"], "param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}),
    (encoder(), {"num_ranks": 2, "wrap": ["*"], "reshard_after_forward": False, "prefetch": 1}),
]


def test_recomputed_shared_and_attending_modules_do_what_was_observed() -> None:
    assert differences([Chosen(module, False, settings) for module, settings in CHOSEN]) == []


def test_a_wrong_observation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn_case(2003, 2)
    assert case.settings["reshard_after_forward"] is False
    observe = fsdp.observe
    monkeypatch.setattr(
        fsdp, "observe", lambda *args, **settings: observe(*args, **{**settings, "reshard_after_forward": True})
    )
    assert differences([case])


# ---- run


def batch_of_rank(model: nn.Module) -> Tensor:
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    generator = torch.Generator().manual_seed(rank)
    outputs: Tensor = model(torch.randn(2, 64, generator=generator))
    if rank == 0:
        print(f"{outputs.sum().item():.5f}")
    return outputs.square().mean()


def test_a_run_has_the_collectives_and_the_peak_that_are_observed_and_spans_of_every_rank() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    settings: dict[str, Any] = {"num_ranks": 4, "num_replicas": 2, "wrap": ["0"], "optimizer": torch.optim.SGD}
    executed = fsdp.run(module, batch_of_rank, num_steps=3, **settings)
    observed = fsdp.observe(module, batch_of_rank, **settings)
    assert executed.collectives == observed.collectives
    assert executed.observed[0].peak == observed.peak
    assert executed.peak_bytes == max(step.peak_bytes for step in executed.observed)
    for rank in range(4):
        own = executed.timeline.select(rank=rank)
        kinds = [span.kind for span in own if span.lane.startswith("collectives")]
        assert kinds == [call.kind for call in observed.collectives]
        assert {"forward", "backward", "optimizer", "step"} <= {span.kind for span in own}
    assert executed.step_s == pytest.approx(executed.timeline.select(lane="step").makespan_s, rel=0.5)


def test_training_is_as_without_sharding(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 2))
    fsdp.run(module, batch_of_rank, num_ranks=1, wrap=["0"], num_steps=2, optimizer=torch.optim.SGD)
    printed = [line.removeprefix("[rank 0] ") for line in capfd.readouterr().out.splitlines()]
    optimizer = torch.optim.SGD(module.parameters())
    for _ in range(5):  # three steps that warm up, and two that are recorded
        optimizer.zero_grad()
        batch_of_rank(module).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert printed[:5] == capfd.readouterr().out.splitlines()


def made_run() -> Run:
    """Two ranks of one step of 10 s: two all-gathers and a reduce-scatter, in which rank 1 waits for rank 0."""
    works = (
        fsdp.Work("allgather", "allgather", "0", frozenset(), 0, 100),
        fsdp.Work("compute", "forward", "0", frozenset([0]), 1000, 50),
        fsdp.Work("allgather", "allgather", "1", frozenset(), 0, 300),
        fsdp.Work("compute", "backward", "1", frozenset([2]), 0, 500),
        fsdp.Work("reduce_scatter", "reduce_scatter", "1", frozenset([3]), 0, 200),
    )
    rows = []
    for rank, late_s in ((0, 0.0), (1, 1.0)):
        rows.append(Span(rank, "step", "step", 0, 0.0, 10.0))
        rows.append(Span(rank, "collectives", "allgather", 0, 1.0 - late_s, 2.0))
        rows.append(Span(rank, "collectives", "allgather", 0, 4.0, 5.0))
        rows.append(Span(rank, "collectives", "reduce_scatter", 0, 7.0 - late_s, 9.0))
    step = fsdp.Step(works, ())
    return Run(Recording(Timeline.of(rows), np.zeros(len(rows), dtype=np.int64)), (step, step))


def test_a_cost_shares_the_step_among_its_works() -> None:
    executed = made_run()
    cost = executed.cost()
    allgather, forward, second, backward, reduce_scatter = executed.observed[0].works
    assert cost(allgather) + cost(second) == pytest.approx(2.0)
    assert cost(second) == 3 * cost(allgather)
    assert cost(reduce_scatter) == pytest.approx(2.0)
    assert cost(backward) == 5 * cost(forward)  # by its bytes; the other one by its operations
    assert executed.observed[0].timeline(cost, overlap=False).makespan_s == pytest.approx(executed.step_s) == 10.0


def failing(model: nn.Module) -> Tensor:
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        raise ArithmeticError("no more samples")
    return batch_of_rank(model)


def test_a_failing_rank_is_named() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1 .*no more samples"):
        fsdp.run(nn.Linear(64, 4), failing, num_ranks=2)
