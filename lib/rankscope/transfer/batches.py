"""Map the tensors of a batch, however they are nested, by the rules of torch's pin_memory."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import UserString
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence, Set
from typing import Any

import torch

_FLAT = str | bytes | bytearray | memoryview | range | UserString  # sequences without tensors


def mapped(value: Any, move: Callable[[Any], Any]) -> Any:
    """Return the batch with `move` applied to each tensor and each object that can move itself.

    Lists, tuples, named tuples, mappings and dataclasses are rebuilt, with the same type if possible. Objects can move
    themselves if they have `pin_memory` and `to`, or if they have `to` and are not containers. The rest is unchanged.

    >>> mapped({"x": [torch.ones(2)], "name": "a"}, lambda tensor: tensor.tolist())
    {'x': [[1.0, 1.0]], 'name': 'a'}
    """
    if isinstance(value, torch.Tensor) or is_pinnable(value):
        return move(value)
    if isinstance(value, _FLAT):
        return value
    if isinstance(value, Mapping):
        return _rebuilt(value, {key: mapped(item, move) for key, item in value.items()}, MutableMapping)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple; its class may take other arguments
        return value._make([mapped(item, move) for item in value])
    if isinstance(value, Sequence):
        return _rebuilt(value, [mapped(item, move) for item in value], MutableSequence)
    if _has(value, "to"):
        return move(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        new_value = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):  # a field without a value may be missing
                new_item = mapped(getattr(value, field.name), move)
                object.__setattr__(new_value, field.name, new_item)  # also if the dataclass is frozen
        return new_value
    return value


def leaves(value: Any) -> list[Any]:
    """Return the objects that `mapped` moves, in order.

    >>> [tensor.tolist() for tensor in leaves((torch.ones(1), {"y": [torch.zeros(2)]}))]
    [[1.0], [0.0, 0.0]]
    """
    objects: list[Any] = []

    def add(leaf: Any) -> Any:
        objects.append(leaf)
        return leaf

    mapped(value, add)
    return objects


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield each tensor in an object once, at any depth: in containers, attributes and slots."""
    visited: dict[int, Any] = {}  # by id; a container may make its items anew, and a freed one would pass its id on
    to_visit = [value]
    while to_visit:
        item = to_visit.pop()
        if id(item) in visited or isinstance(item, type | _FLAT):
            continue
        visited[id(item)] = item
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, Mapping):
            to_visit.extend(item.values())
        elif isinstance(item, Sequence | Set):
            to_visit.extend(item)
        else:
            to_visit.extend(getattr(item, "__dict__", {}).values())
            for kind in type(item).__mro__:
                to_visit.extend(getattr(item, name, None) for name in _slots(kind))


def is_pinnable(value: Any) -> bool:
    """Whether an object has its own `pin_memory` and ``to(device, non_blocking=True)``."""
    return _has(value, "pin_memory") and _has(value, "to")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is plain host memory: no subclass, no autograd graph, no sparse layout."""
    ordinary = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    special = tensor.is_nested or tensor.is_quantized or tensor.requires_grad
    return ordinary and tensor.device.type == "cpu" and not special


def copied_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the copy that ``tensor.to(device)`` makes: those of the tensor if it has no gaps.

    `empty_like` chooses strides by the same rule. On the device "meta", it reserves no memory.

    >>> copied_strides(torch.zeros(4, 6).t()), copied_strides(torch.zeros(4, 6)[:, ::2])
    ((1, 6), (3, 1))
    """
    return torch.empty_like(tensor, device="meta").stride()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a copy of the tensor is one copy of bytes."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return not lazy and (tensor.is_contiguous() or tensor.stride() == copied_strides(tensor))


def _has(value: Any, name: str) -> bool:
    return not isinstance(value, type) and callable(getattr(value, name, None))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    if isinstance(slots, str):
        return (slots,)
    return tuple(slots)


def _rebuilt(value: Any, items: dict[Any, Any] | list[Any], mutable: type) -> Any:
    """Return a container of the value's type with these items, or just the items if it cannot be rebuilt.

    `mutable` is the abstract type of containers of this kind whose items can be set.
    """
    try:
        if not isinstance(value, mutable):
            container: Any = type(value)(items)
            if isinstance(value, tuple) and not _has_items(container, items):  # its class takes the items one by one
                return items
            return container
        container = copy.copy(value)  # with all other attributes that the container may have
        pairs = items.items() if isinstance(items, dict) else enumerate(items)
        for key, item in pairs:
            container[key] = item
        return container
    except TypeError:
        return items


def _has_items(container: Any, items: Any) -> bool:
    """Return whether a tuple has these items, the same objects in the same order."""
    return len(container) == len(items) and all(map(operator.is_, container, items))
