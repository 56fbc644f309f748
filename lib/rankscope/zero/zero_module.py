"""What of a module decides its memory: its parameters' shapes and dtypes, its buffers, the layers it is gathered by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_CONTAINERS = ("ModuleList", "ModuleDict", "Sequential")


@dataclass(frozen=True)
class Parameter:
    """A parameter's name, shape and bytes per element, whether it is trained, and whether its dtype is a float's."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    trainable: bool = True
    floating: bool = True

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def rows_bound(self, num_ranks: int) -> int:
        """How many elements a rank's shard has room for: dimension 0 in equal chunks, rounded up.

        Raises ValueError for a parameter without a dimension, which `fully_shard` refuses, too.
        """
        if not self.shape:
            raise ValueError(f"fully_shard takes parameters of at least one dimension, and {self.name} has none")
        return self.size and -(-self.shape[0] // num_ranks) * (self.size // self.shape[0])

    def rows_held(self, num_ranks: int, rank: int) -> int:
        """How many elements of it a rank's shard holds: the last ranks have fewer, or none."""
        chunk = self.rows_bound(num_ranks)
        return min(max(self.size - rank * chunk, 0), chunk)


@dataclass(frozen=True)
class ModuleSizes:
    """A module's parameters, each once; the bytes of its buffers; and its layers, as places in the parameters."""

    parameters: tuple[Parameter, ...]
    buffer_bytes: int
    layers: tuple[tuple[int, ...], ...]

    @property
    def num_parameters(self) -> int:
        return sum(p.size for p in self.parameters)


def layers(module: Any) -> list[tuple[str, Any]]:
    """Return the submodules, by name, that are gathered one at a time: children, those of containers on their own.

    One that shares a parameter with another is left to the root, as `fully_shard` needs it, and so is one without any.

    >>> import torch.nn as nn
    >>> [name for name, _ in layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3))))]
    ['0', '2.0']
    """
    found = list(_leaves(module, ""))
    users = Counter(id(p) for _, child in found for p in child.parameters())
    own = [(name, child) for name, child in found if all(users[id(p)] == 1 for p in child.parameters())]
    return [(name, child) for name, child in own if any(True for _ in child.parameters())]


def sizes_of(module: Any) -> ModuleSizes:
    """Return what of a ``torch.nn.Module`` decides its memory; ValueError for what is none, or has no parameters.

    >>> import torch.nn as nn
    >>> sizes = sizes_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    >>> [p.shape for p in sizes.parameters], sizes.buffer_bytes, sizes.layers
    ([(3, 2), (3,), (3,), (3,)], 32, ((0, 1), (2, 3)))
    """
    if not callable(getattr(module, "named_parameters", None)):
        raise ValueError(f"num_parameters_or_module must be a number of parameters or a torch module, got {module!r}")
    named = list(module.named_parameters())  # a shared one comes once
    if not named:
        raise ValueError("num_parameters_or_module must have parameters, got a module without any")
    parameters = tuple(
        Parameter(name, tuple(map(int, p.shape)), p.element_size(), p.requires_grad, p.dtype.is_floating_point)
        for name, p in named
    )
    place = {id(p): number for number, (_, p) in enumerate(named)}
    units = [tuple(place[id(p)] for p in child.parameters()) for _, child in layers(module)]
    rest = tuple(sorted(set(place.values()) - {number for unit in units for number in unit}))
    buffer_bytes = sum(b.numel() * b.element_size() for b in module.buffers())
    return ModuleSizes(parameters, buffer_bytes, tuple(unit for unit in [*units, rest] if unit))


def _leaves(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        if type(child).__name__ in _CONTAINERS:
            yield from _leaves(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child
