"""`shards_of`: everything between a loader and its dataset that divides the samples among ranks.

Frameworks divide a loader's batches or samples among the ranks by wrapping its sampler. If the sampler is distributed
already, the samples are divided twice, and with N ranks all ranks together read about 1/N of the dataset.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from .elastic import ElasticSampler

# The attributes in which loaders, samplers and their wrappers keep the next inner layer.
_INNER_NAMES = ("base_dataloader", "batch_sampler", "sampler", "_sampler", "dataset")
# The attributes for the number of ranks and this rank: in torch's samplers, accelerate, and Hugging Face datasets.
_RANK_NAMES = (("num_replicas", "rank"), ("num_processes", "process_index"), ("world_size", "rank"))


_PREPARE = "do not pass the loader to Accelerator.prepare"
_KEEP = "pass use_distributed_sampler=False to Trainer"
# The wrappers of frameworks by class: a word in the module, the framework, and how to make it leave the wrapper out.
_WRAPPERS = {
    "BatchSamplerShard": ("accelerate", "accelerate (and transformers' Trainer)", _PREPARE),
    "IterableDatasetShard": ("accelerate", "accelerate (and transformers' Trainer)", _PREPARE),
    "DataLoaderDispatcher": ("accelerate", "accelerate", "pass dispatch_batches=False to Accelerator"),
    "DistributedSamplerWrapper": ("lightning", "Lightning", _KEEP),
    "UnrepeatedDistributedSamplerWrapper": ("lightning", "Lightning", _KEEP),
}


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
    shards = []
    for layer in layers_of(loader):
        name = type(layer).__name__
        module, framework, switch = _WRAPPERS.get(name, ("", "", ""))
        if module not in type(layer).__module__:  # a class of the user's own
            framework = ""
            switch = ""
        num_ranks = _num_ranks(layer)
        if num_ranks == 0 and framework:
            num_ranks = 2  # at least: DataLoaderDispatcher does not say how many, but it exists on several ranks only
        if num_ranks > 1:
            is_grouped = isinstance(layer, ElasticSampler) and layer.is_grouped
            shards.append(DividingLayer(name, num_ranks, framework, switch, is_grouped))
    return tuple(shards)


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


def _num_ranks(layer: Any) -> int:
    """Return among how many ranks an object divides its samples, if it says so, and 0 otherwise.

    The number and the rank must be the object's own. Wrappers that pass on the attributes of what they wrap (with
    `__getattr__`) do not divide the samples themselves.
    """
    # split_dataset_by_node of Hugging Face datasets keeps both in an object of their own.
    for owner in (layer, _own_attribute(layer, "_distributed")):
        for count_name, rank_name in _RANK_NAMES:
            count = _own_attribute(owner, count_name)
            # The rank is not read, because a property may raise an error before there is a process group.
            has_rank = hasattr(type(owner), rank_name) or rank_name in getattr(owner, "__dict__", {})
            # If it is not a number, or there is no rank with it, the attribute has another meaning.
            if isinstance(count, int) and has_rank:
                return count
    return 0


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
    num_parts = prod(layer.num_ranks for layer in shards[1:])
    problem = f"{wrapper} wraps {inner.name}, which is distributed already: about 1/{num_parts} of the samples are read"
    if inner.is_grouped:
        advice = f"remove {outer.name}, which would undo what {inner.name} is for"
        choice = ": "
    else:
        advice = f"remove {inner.name} and pass a sampler that is not distributed"
        choice = ", or "
    if outer.switch:
        advice += f"{choice}{outer.switch}"
    return f"{problem}; {advice}"
