"""All private names of torch that observing a step needs, so that a new torch changes this module alone.

They are the same in torch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group, _fsdp_state
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

if TYPE_CHECKING:
    from .dispatch import StepObserver

__all__ = ["FakeTensorMode", "TorchDispatchMode", "key_of", "tensors_in", "watching"]

# Methods of a group of parameters: those that gather, copy and reduce, and those around the work of its module.
_TRANSFERS = ("unshard", "wait_for_unshard", "post_backward")
_BEGINS = ("pre_forward", "pre_backward")
_END = "post_forward"


def tensors_in(values: Any) -> Iterator[Any]:
    """Yield the tensors in nested values, without DTensors, which have no storage of their own."""
    for value in tree_iter(values):
        if isinstance(value, Tensor) and not hasattr(value, "to_local"):
            yield value


def key_of(storage: Any) -> int:
    """Return the address of torch's own object for a storage, which stays the same when it is resized."""
    key: int = storage._cdata
    return key


@contextmanager
def watching(observer: StepObserver) -> Iterator[None]:
    """Give FSDP the observer's device instead of its own, and tell the observer what FSDP does for which group."""
    with ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        resize: Any = torch.UntypedStorage.resize_

        def watched_resize(storage: Any, size: int) -> None:
            resize(storage, size)
            observer.resized(storage)

        replace(torch.UntypedStorage, "resize_", watched_resize)
        for module in (_fsdp_collectives, _fsdp_param_group, _fsdp_state):
            replace(module, "_get_device_handle", lambda device_type: observer.device)
        replace(torch.accelerator, "current_stream", observer.device.current_stream)
        if not observer.on_gloo:
            replace(_fsdp_param, "_chunk_with_empty", _first_chunks)
        groups = _fsdp_param_group.FSDPParamGroup
        for name in (*_TRANSFERS, *_BEGINS, _END):
            replace(groups, name, _watched(observer, name, getattr(groups, name)))
        yield


def _first_chunks(tensor: Tensor, num_chunks: int, dim: int) -> list[Tensor]:
    """Return the chunk of rank 0, which alone is there, also in the places of the others.

    FSDP uses no other, and to make each of 4,096 would take seconds.
    """
    length = -(-tensor.size(dim) // num_chunks)
    return [tensor.narrow(dim, 0, length)] * num_chunks


def _watched(observer: StepObserver, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a group of parameters that also keeps the observer's lists of what runs."""

    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        group_name = group._module_fqn or ""
        if name in _TRANSFERS:
            observer.transfers.append((name, group_name))
        result = original(group, *args, **kwargs)
        if name in _BEGINS:
            observer.computing.append(group_name)
        elif name == _END:
            observer.computing.pop()
        else:
            observer.transfers.pop()
            for parameter in group.fsdp_params:
                _after_transfer(observer, name, parameter)
        return result

    return method


def _after_transfer(observer: StepObserver, name: str, parameter: Any) -> None:
    """Label the gradients of one parameter, and give it its values if it has just been gathered."""
    if name == "post_backward" and parameter.sharded_param.grad is not None:
        observer.label(parameter.sharded_param.grad, "gradients")
    if name != "wait_for_unshard" or parameter.sharded_state != _fsdp_param.ShardedState.UNSHARDED:
        return
    gathered = parameter._unsharded_param
    if gathered.requires_grad and not gathered._post_accumulate_grad_hooks:
        gathered.register_post_accumulate_grad_hook(lambda gathered: observer.label(gathered.grad, "gradients"))
    if parameter._param_fqn in observer.originals:
        with _disable_current_modes():
            gathered.data.copy_(observer.originals[parameter._param_fqn])
