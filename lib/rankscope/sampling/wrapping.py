"""`shards_of`: everything between a loader and its dataset that divides the samples among ranks.

Frameworks divide a loader's batches or samples among the ranks by wrapping its sampler. If the sampler is distributed
already, the samples are divided twice, and with N ranks all ranks together read about 1/N of the dataset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .elastic import ElasticSampler

_MOST_LAYERS = 100  # of wrappers around each other
_INNER_NAMES = ("base_dataloader", "batch_sampler", "sampler", "_sampler", "dataset")
_RANK_NAMES = (("num_replicas", "rank"), ("num_processes", "process_index"), ("world_size", "rank"))


class _Framework(NamedTuple):
    """How a framework's wrapper is recognised, and how to make the framework leave it out."""

    module: str
    class_name: str
    title: str
    switch: str


_PREPARE = "do not pass the loader to Accelerator.prepare"
_FRAMEWORKS = (
    _Framework("accelerate", "BatchSamplerShard", "accelerate (and transformers' Trainer)", _PREPARE),
    _Framework("accelerate", "IterableDatasetShard", "accelerate (and transformers' Trainer)", _PREPARE),
    _Framework("accelerate", "DataLoaderDispatcher", "accelerate", "pass dispatch_batches=False to Accelerator"),
    _Framework("lightning", "DistributedSamplerWrapper", "Lightning", "pass use_distributed_sampler=False to Trainer"),
    _Framework("lightning", "UnrepeatedDistributedSamplerWrapper", "Lightning", "pass use_distributed_sampler=False"),
)


class DividingLayer(NamedTuple):
    """An object that gives each rank a part of what it reads from.

    `framework` is the name of the framework that adds such wrappers, empty for a sampler of one's own, and `switch`
    says how to make it leave the wrapper out. `is_grouped` says that the sampler decides which samples are in a batch,
    or how often each is read, so that a wrapper would undo what it is for.
    """

    name: str
    num_ranks: int
    framework: str = ""
    switch: str = ""
    is_grouped: bool = False


def shards_of(loader: Any) -> tuple[DividingLayer, ...]:
    """Return what divides a loader's samples among more than one rank, the outermost first.

    >>> from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
    >>> inner = DistributedSampler(range(8), num_replicas=2, rank=0)
    >>> outer = DistributedSampler(inner, num_replicas=2, rank=0)  # as Lightning wraps samplers
    >>> [shard.name for shard in shards_of(DataLoader(range(8), sampler=outer))]
    ['DistributedSampler', 'DistributedSampler']
    """
    shards = [_shard_of(layer) for layer in layers_of(loader)]
    return tuple(shard for shard in shards if shard is not None)


def layers_of(loader: Any) -> list[Any]:
    """Return a loader and everything between it and its data, the outermost first."""
    waiting = [loader]
    layers: list[Any] = []
    while waiting and len(layers) < _MOST_LAYERS:
        layer = waiting.pop(0)
        if any(layer is other for other in layers):  # by identity, because equal objects may be different layers
            continue
        layers.append(layer)
        for name in _INNER_NAMES:
            # `vars` instead of `getattr`, which in many wrappers also returns the attributes of what they wrap.
            inner = vars(layer).get(name) if hasattr(layer, "__dict__") else None
            if hasattr(inner, "__dict__"):
                waiting.append(inner)
    return layers


def _shard_of(layer: Any) -> DividingLayer | None:
    """Return how an object divides samples among several ranks, or None if it does not."""
    kind = type(layer)
    framework = None
    for candidate in _FRAMEWORKS:
        if kind.__name__ == candidate.class_name and candidate.module in kind.__module__:
            framework = candidate
    num_ranks = _num_ranks(layer)
    if framework is not None and num_ranks is None:
        num_ranks = 2  # DataLoaderDispatcher does not say how many, and exists on several ranks only
    if num_ranks is None or num_ranks < 2:
        return None
    is_grouped = isinstance(layer, ElasticSampler) and layer.is_grouped
    if framework is None:
        return DividingLayer(kind.__name__, num_ranks, is_grouped=is_grouped)
    return DividingLayer(kind.__name__, num_ranks, framework.title, framework.switch)


def _num_ranks(layer: Any) -> int | None:
    """Return among how many ranks an object divides its samples, if it says so, and None otherwise.

    The number and the rank must be the object's own. Wrappers that pass on the attributes of what they wrap (with
    `__getattr__`) do not divide the samples themselves.
    """
    owners = [layer]
    distributed = vars(layer).get("_distributed") if hasattr(layer, "__dict__") else None
    if distributed is not None:  # split_dataset_by_node of Hugging Face datasets
        owners.append(distributed)
    for owner in owners:
        for count_name, rank_name in _RANK_NAMES:
            own_attributes = getattr(owner, "__dict__", {})
            count = getattr(owner, count_name, None) if hasattr(type(owner), count_name) else None
            if count is None:
                count = own_attributes.get(count_name)
            has_rank = hasattr(type(owner), rank_name) or rank_name in own_attributes
            if isinstance(count, int) and not isinstance(count, bool) and has_rank:
                return count
    return None


def twice_sharded(shards: tuple[DividingLayer, ...]) -> str:
    """Return what is wrong if the samples are divided more than once, and which of the two to remove; else nothing.

    >>> twice_sharded((DividingLayer("DistributedSampler", 4),))
    ''
    """
    if len(shards) < 2:
        return ""
    outer = shards[0]
    inner = shards[-1]
    wrapper = outer.name
    if outer.framework:
        wrapper = f"{outer.name} of {outer.framework}"
    # All ranks together read everything that the outermost layer divides. But each inner layer passes on only this
    # rank's part.
    num_parts = 1
    for inner_layer in shards[1:]:
        num_parts *= inner_layer.num_ranks
    problem = f"{wrapper} wraps {inner.name}, which is distributed already: about 1/{num_parts} of the samples are read"
    if inner.is_grouped and outer.switch:
        return f"{problem}; remove {outer.name}, which would undo what {inner.name} is for: {outer.switch}"
    if inner.is_grouped:
        return f"{problem}; remove {outer.name}, which would undo what {inner.name} is for"
    advice = f"remove {inner.name} and pass a sampler that is not distributed"
    if outer.switch:
        advice += f", or {outer.switch}"
    return f"{problem}; {advice}"
