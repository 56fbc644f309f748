"""Train on real ranks with DDP and ZeroRedundancyOptimizer, and measure their memory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from ...common.checks import function, of_type, one_of, whole
from ...ranks.launcher import launch
from ...ranks.recorder import RankRecorder, recording
from .model import TERMS, WAYS, ZeroMemory

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer


class LiveMemory(msgspec.Struct, frozen=True):
    """The memory of one rank, by term, and the bytes of the last step's collectives, by collective."""

    way: str
    rank: int
    memory: ZeroMemory
    exchanged: Mapping[str, int]


def measure(
    make_model: Callable[[], nn.Module], batch: Tensor, num_ranks: int, way: str, timeout_s: float = 120.0
) -> list[LiveMemory]:
    """Train three steps with Adam on real ranks in one of `WAYS`, and return each rank's memory in the last.

    Memory is counted between forward and backward, when everything is present: gradients and states of the step before
    are alive. A storage counts once. Activations are left out. Every rank trains on `batch`, which the model maps to
    one tensor.

    Raises ValueError if an argument is invalid; RankError if a rank fails.

    >>> live = measure(lambda: nn.Linear(64, 32, bias=False), torch.ones(2, 64), 2, "zero_redundancy_optimizer")
    >>> [rank.memory.terms["optimizer_states"] for rank in live]  # of one matrix, which rank 0 updates
    [16388, 0]
    """
    of_type("batch", batch, Tensor)
    whole("num_ranks", num_ranks, 2)
    function("make_model", make_model, "that returns a module")
    one_of("way", way, tuple(WAYS))
    return launch(_measure, num_ranks, (way, make_model, batch), timeout_s=timeout_s)


def _measure(way: str, make_model: Callable[[], nn.Module], batch: Tensor) -> LiveMemory:
    """Train in one way on this rank, and count the last step's memory and collectives."""
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model(), gradient_as_bucket_view=way != "ddp")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if way == "zero_redundancy_optimizer":
        sharded = zero_redundancy_class()(trained, optimizer_class=torch.optim.Adam)
        optimizer: torch.optim.Optimizer = sharded
        own_optimizer = sharded.optim
    else:
        optimizer = own_optimizer = torch.optim.Adam(trained)
    reduced: dict[int, int] = {}  # the storages of allreduces in the last step

    def note(kind: str, tensors: Any) -> None:
        if kind == "allreduce":
            reduced.update(storages(tree_leaves(tensors[0])))

    for _ in range(3):
        reduced.clear()
        with recording(RankRecorder(note)) as recorder:
            loss = model(batch).square().mean()
            states = chain.from_iterable(state.values() for state in own_optimizer.state.values())
            alive = {
                "parameters": storages(model.parameters()),
                "gradients": storages(parameter.grad for parameter in trained if parameter.grad is not None),
                "optimizer_states": storages(value for value in states if isinstance(value, Tensor)),
                "buffers": storages(model.buffers()),
            }
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    alive["buckets"] = reduced  # the last term, so that buckets that are the gradients count as those
    terms = dict.fromkeys(TERMS, 0)
    counted = set[int]()
    for term, num_bytes in alive.items():
        terms[term] = sum(size for address, size in num_bytes.items() if address not in counted)
        counted |= set(num_bytes)
    exchanged = Counter[str]()
    for span, size in zip(*recorder.result(), strict=True):
        if span.lane != "compute":
            exchanged[span.kind] += int(size)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    memory = ZeroMemory(num_parameters, dist.get_world_size(), WAYS[way], terms)
    return LiveMemory(way, dist.get_rank(), memory, exchanged)


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage of these tensors, by its address.

    >>> tensor = torch.zeros(3, 4)
    >>> list(storages([tensor, tensor[1], tensor.T]).values())
    [48]
    """
    untyped = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in untyped if storage.nbytes()}


def zero_redundancy_class() -> type[ZeroRedundancyOptimizer]:
    """Return torch's class, without the deprecation warning of torch's own code on import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer
