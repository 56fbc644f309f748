"""`shards_of`: everything between a loader and its dataset that divides the samples among ranks.

Frameworks divide a loader's batches or samples among the ranks by wrapping its sampler. If the sampler is distributed
already, the samples are divided twice, and with N ranks all ranks together read about 1/N of the dataset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .elastic import ElasticSampler

# The attributes in which loaders, samplers and their wrappers keep the next inner layer.
_INNER_NAMES = ("base_dataloader", "batch_sampler", "sampler", "_sampler", "dataset")
# The attributes for the number of ranks and this rank: in torch's samplers, accelerate, and Hugging Face datasets.
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
    while waiting:
        layer = waiting.pop(0)
        # A layer can be found twice: a loader and its batch sampler refer to the same sampler. It is recognised by
        # identity, because equal objects may be different layers.
        if any(layer is other for other in layers):
            continue
        layers.append(layer)
        # The object's own attributes, because `getattr` of many wrappers also returns those of what they wrap.
        attributes = getattr(layer, "__dict__", {})
        for name in _INNER_NAMES:
            inner = attributes.get(name)
            if hasattr(inner, "__dict__"):  # unlike None, and unlike a list or a range of samples
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
        num_ranks = 2  # at least: DataLoaderDispatcher does not say how many, but it exists on several ranks only
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
    # split_dataset_by_node of Hugging Face datasets keeps both in an object of their own.
    owners = [layer, _own_attribute(layer, "_distributed")]
    for owner in owners:
        for count_name, rank_name in _RANK_NAMES:
            count = _own_attribute(owner, count_name)
            # The rank is not read, because a property may raise an error before there is a process group.
            has_rank = hasattr(type(owner), rank_name) or rank_name in getattr(owner, "__dict__", {})
            # If it is not a number, or there is no rank with it, the attribute has another meaning.
            if isinstance(count, int) and has_rank:
                return count
    return None


def _own_attribute(owner: Any, name: str) -> Any:
    """Return an attribute of an object or of its class, such as a property, and None if neither has it."""
    if hasattr(type(owner), name):
        return getattr(owner, name, None)  # a property may raise AttributeError
    return getattr(owner, "__dict__", {}).get(name)


def twice_sharded(shards: tuple[DividingLayer, ...]) -> str:
    """Return what is wrong if samples are divided more than once, and which layer to remove; "" if nothing is wrong.

    `shards` are the dividing layers, the outermost first. The message names the outermost and the innermost.

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
    if inner.is_grouped:
        advice = f"remove {outer.name}, which would undo what {inner.name} is for"
        if outer.switch:
            advice += f": {outer.switch}"
    else:
        advice = f"remove {inner.name} and pass a sampler that is not distributed"
        if outer.switch:
            advice += f", or {outer.switch}"
    return f"{problem}; {advice}"
