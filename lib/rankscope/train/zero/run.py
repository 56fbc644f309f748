"""Train on real ranks with DDP, ZeroRedundancyOptimizer or fully_shard: measure their memory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from ...common.checks import each, function, of_type, one_of, whole
from ...ranks.launcher import launch
from ...ranks.recorder import RankRecorder, recording
from .model import RECIPES, TERMS, WAYS, ZeroMemory, layers, memory

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer

_OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 1e-3}),
    "momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
}


# ---- memory


class LiveMemory(msgspec.Struct, frozen=True):
    """The memory of one rank, by term, and the bytes of the last step's collectives, by collective."""

    way: str
    rank: int
    memory: ZeroMemory
    exchanged: Mapping[str, int]


def measure(
    make_model: Callable[[], nn.Module],
    batch: Tensor,
    num_ranks: int,
    ways: Sequence[str] = tuple(WAYS),
    recipe: str = "fp32",
    optimizer: str = "adam",
    num_steps: int = 3,
    backend: str = "gloo",
    timeout_s: float = 120.0,
) -> list[LiveMemory]:
    """Train on `num_ranks` real ranks in each way, and return each rank's memory in its last step, way by way.

    Memory is counted between forward and backward, when everything is present: gradients and states of the previous
    step, and parameters gathered by the forward pass. A storage counts once, with all of its bytes, padding included.
    "largest_layer" is the largest array that a gather filled (stage 3), and the largest that was reduced (stages 2 and
    3). Activations are left out. Every rank trains on `batch`, which the model maps to one tensor; `ways` are some of
    WAYS. With recipe "bf16" the model is converted; with "mixed" fully_shard gathers and reduces in bfloat16.

    Raises ValueError if an argument is invalid; RankError if a rank fails.

    >>> import torch
    >>> live = measure(lambda: torch.nn.Linear(64, 32, bias=False), torch.ones(2, 64), 2, ["fully_shard"])
    >>> [rank.memory.terms["optimizer_states"] for rank in live]  # 2048 · 2 · 4 bytes on two ranks, and a counter
    [8196, 8196]
    """
    of_type("batch", batch, Tensor)
    whole("num_steps", num_steps, 2)
    whole("num_ranks", num_ranks, 2)
    function("make_model", make_model, "that returns a module")
    one_of("optimizer", optimizer, tuple(_OPTIMIZERS))
    one_of("recipe", recipe, tuple(RECIPES))
    chosen = each("ways", ways, one_of, tuple(WAYS))
    if not chosen:
        raise ValueError("ways must be at least one, got none")
    model = make_model()
    for way in chosen:  # raises errors before ranks are started
        memory(model, num_ranks, way, recipe, optimizer)
    args = (chosen, make_model, batch, recipe, optimizer, num_steps)
    by_rank = launch(_measure_all, num_ranks, args, backend=backend, timeout_s=timeout_s)
    by_way = zip(*by_rank, strict=True)
    return list(chain.from_iterable(by_way))


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage of these tensors, by address; for a DTensor, of this rank's part.

    >>> tensor = torch.zeros(3, 4)
    >>> list(storages([tensor, tensor[1], tensor.T]).values())
    [48]
    """
    with torch.no_grad():
        local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    untyped = [tensor.untyped_storage() for tensor in local]
    return {address_of(storage): storage.nbytes() for storage in untyped if storage.nbytes()}


def address_of(storage: Any) -> int:
    """Return the address of a storage's data, or of the storage itself if it has no data, as on the meta device."""
    return int(storage.data_ptr() or storage._cdata)


def zero_redundancy_class() -> type[ZeroRedundancyOptimizer]:
    """Return torch's class, without the deprecation warning of torch's own code on import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer


def _measure_all(ways: Sequence[str], *args: Any) -> list[LiveMemory]:
    return [_measure(way, *args) for way in ways]


def _measure(
    way: str, make_model: Callable[[], nn.Module], batch: Tensor, recipe: str, optimizer: str, num_steps: int
) -> LiveMemory:
    """Train in one way on this rank, and count the last step's memory and collectives."""
    torch.manual_seed(0)
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    module = make_model().to(device)
    batch = batch.to(device)
    if recipe == "bf16":
        module = module.to(torch.bfloat16)
        if batch.is_floating_point():
            batch = batch.to(torch.bfloat16)
    num_parameters = sum(p.numel() for p in module.parameters())
    model = _wrapped(module, way, recipe)
    parameters = list(model.parameters())
    torch_optimizer = _optimizer([p for p in parameters if p.requires_grad], way, optimizer)
    reduced: dict[int, int] = {}  # the storages of allreduces in the last step, as `storages` returns them

    def note(kind: str, tensors: Any) -> None:
        if kind == "allreduce":
            reduced.update(storages(tree_leaves(tensors[0])))

    for _ in range(num_steps):
        reduced.clear()
        with recording(RankRecorder(note)) as recorder:
            loss = model(batch).float().square().mean()
            terms = _storages_by_term(model, parameters, torch_optimizer)
            torch_optimizer.zero_grad()
            loss.backward()
            torch_optimizer.step()
    exchanged = Counter[str]()  # bytes of all collectives, by kind
    largest = Counter[str]()  # bytes of the largest one
    for span, size in zip(*recorder.result(), strict=True):
        if span.lane != "compute":
            exchanged[span.kind] += int(size)
            largest[span.kind] = max(largest[span.kind], int(size))
    # The shard is the only copy of the parameters, or, next to gathered or cast ones, their master copy.
    shard_term = "parameters"
    if way == "fully_shard_keep" or recipe == "mixed":
        shard_term = "master_copy"
    terms[shard_term] = terms.pop("shard") | terms[shard_term]
    terms["buckets"] = reduced  # the last term, so that buckets that are the gradients count as those
    stage = WAYS[way].stage
    num_bytes = _bytes_by_term(terms)
    num_bytes["largest_layer"] = largest["reduce_scatter"]
    if stage == 3:  # in stage 2 all parameters are gathered when memory is counted, and have terms of their own
        num_bytes["largest_layer"] += largest["allgather"]
    all_terms = {term: num_bytes.get(term, 0) for term in TERMS}
    measured = ZeroMemory(num_parameters, dist.get_world_size(), stage, recipe, optimizer, all_terms)
    return LiveMemory(way, dist.get_rank(), measured, exchanged)


def _wrapped(module: nn.Module, way: str, recipe: str) -> nn.Module:
    """Return the module in DDP or, layer by layer, in `fully_shard`."""
    if WAYS[way].partition != "rows":
        return DistributedDataParallel(module, gradient_as_bucket_view=not WAYS[way].buckets)
    # Imported here, on the ranks: this import takes about a second, and the other ways do without.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if recipe == "mixed":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    outer = nn.Sequential(module)  # a root that has no parameters: older torch never drops the root's after forward
    for part in [*(layer for _, layer in layers(module)), module, outer]:
        fully_shard(part, reshard_after_forward=WAYS[way].stage == 3, mp_policy=policy)
        if hasattr(part, "set_force_sum_reduction_for_comms"):  # since torch 2.8; older Gloo cannot average
            part.set_force_sum_reduction_for_comms(True)
    return outer


def _optimizer(parameters: list[nn.Parameter], way: str, name: str) -> torch.optim.Optimizer:
    kind, options = _OPTIMIZERS[name]
    if way != "zero_redundancy_optimizer":
        return kind(parameters, **options)
    return zero_redundancy_class()(parameters, optimizer_class=kind, **options)


def _storages_by_term(
    model: nn.Module, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, dict[int, int]]:
    """The storages of each term, for `parameters` that the model had before the forward pass.

    The term "shard" has the DTensors among them. The model itself may have whole parameters after the forward pass. A
    storage of several terms counts in the first of them, so their order matters.
    """
    states: list[Tensor] = []
    own_optimizer = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer has another one for its own part
    for state in own_optimizer.state.values():
        states += [value for value in state.values() if isinstance(value, Tensor)]
    return {
        "parameters": storages(p for p in model.parameters() if not hasattr(p, "to_local")),
        "master_copy": {},  # the caller finds out whether the shard is one
        "shard": storages(p for p in parameters if hasattr(p, "to_local")),
        "gradients": storages(p.grad for p in parameters if p.grad is not None),
        "optimizer_states": storages(states),
        "buffers": storages(model.buffers()),
    }


def _bytes_by_term(terms: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """The bytes of each term's storages. A storage counts once, in the first term that has it."""
    num_bytes = {}
    counted = set[int]()
    for name, by_address in terms.items():
        num_bytes[name] = sum(size for address, size in by_address.items() if address not in counted)
        counted |= set(by_address)
    return num_bytes
