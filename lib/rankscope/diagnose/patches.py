"""Methods of torch that watches stamp, replaced while any watch is open and put back when the last one closes.

Each method is replaced once for all open watches, so that these can be closed in any order. `torch.compile` does not
trace the replacements, but it traces the methods that they call: hooks on the model would be traced, at a graph break
for each stamp.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.parallel import DistributedDataParallel

KINDS = {  # the kinds of collectives, by the method of a process group that starts them
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "_allgather_base": "allgather",
    "allgather_into_tensor_coalesced": "allgather",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "alltoall",
    "alltoall_base": "alltoall",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
}


class Watcher(Protocol):
    """What is called before and after the methods; none of this raises."""

    def watches(self, model: object) -> bool: ...

    def before_forward(self) -> None: ...

    def after_forward(self, outputs: Any) -> None: ...

    def before_broadcast(self) -> None: ...

    def after_broadcast(self) -> None: ...

    def before_collective(self, group: Any, kind: str, args: tuple[Any, ...]) -> Any: ...  # None: not recorded

    def answered(self, call: Any, future: Any) -> None: ...  # `call` is what `before_collective` returned

    def stamp(self, phase: str, begins: bool) -> None: ...


class _Patch(NamedTuple):
    """A replaced method: the class, its own attribute of this name (None if it inherits it), and the replacement."""

    owner: Any
    name: str
    original: Any
    replacement: Any


class _WatcherList:
    """The watchers that replacements call. All replacements that are made at once share one list.

    The first watch makes them, and the last one ends them. Other code that has replaced a replacement goes on calling
    it. It then has no watchers any more, so that the next watch, which replaces that other method, is called only once.
    """

    def __init__(self) -> None:
        # A replacement reads this once per call, so that a watcher that comes or goes during a call gets the begin and
        # the end of it, or neither.
        self.watchers: tuple[Watcher, ...] = ()


_lock = threading.Lock()
_watcher_list = _WatcherList()
_patches: list[_Patch] = []


def start(watcher: Watcher) -> None:
    """Have the methods call this watcher, too."""
    global _watcher_list
    with _lock:
        if not _watcher_list.watchers:
            _watcher_list = _WatcherList()
            _replace_all(_watcher_list)
        _watcher_list.watchers = (*_watcher_list.watchers, watcher)


def stop(watcher: Watcher) -> None:
    """Do not call it any more; with the last one, all methods are as they were before the first."""
    with _lock:
        _watcher_list.watchers = tuple(other for other in _watcher_list.watchers if other is not watcher)
        if not _watcher_list.watchers:
            _restore_all()


def _replace_all(watcher_list: _WatcherList) -> None:
    for name, kind in KINDS.items():
        _replace(dist.ProcessGroup, name, partial(_collective, watcher_list, kind))
    _replace(torch.optim.Optimizer, "zero_grad", partial(_zero_grad, watcher_list))
    _replace(DistributedDataParallel, "__call__", partial(_forward, watcher_list))
    _replace(DistributedDataParallel, "_sync_buffers", partial(_broadcast, watcher_list))
    _replace(OptimizedModule, "__call__", partial(_forward, watcher_list))


def _replace(owner: Any, name: str, replacement_of: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace a method of a class by what `replacement_of` returns for it, and note that in `_patches`."""
    method = getattr(owner, name, None)
    if method is None:  # this version of torch does not have it
        return
    replacement = wraps(method)(replacement_of(method))
    # `torch.compile` leaves out the replacement alone, and traces the method that it calls
    replacement = torch.compiler.disable(replacement, recursive=False)  # type: ignore[no-untyped-call]
    _patches.append(_Patch(owner, name, vars(owner).get(name), replacement))
    setattr(owner, name, replacement)


def _restore_all() -> None:
    """Put all methods back, unless other code has replaced them in the meantime."""
    while _patches:
        patch = _patches.pop()
        if vars(patch.owner).get(patch.name) is not patch.replacement:
            # other code has replaced it in turn, and may call it: without watchers, it only calls the original
            continue
        if patch.original is None:
            delattr(patch.owner, patch.name)
        else:
            setattr(patch.owner, patch.name, patch.original)


# ---- the replacements


def _forward(watcher_list: _WatcherList, method: Any) -> Callable[..., Any]:
    """Return a replacement for a model's call, compiled or not, which stamps the forward.

    A compiled model may call the replacement for the model itself, so that one forward is stamped within another.
    """

    def call(module: Any, *args: Any, **options: Any) -> Any:
        model = module._orig_mod if isinstance(module, OptimizedModule) else module
        watchers = [watcher for watcher in watcher_list.watchers if watcher.watches(model)]
        for watcher in watchers:
            watcher.before_forward()
        outputs = method(module, *args, **options)
        for watcher in watchers:
            watcher.after_forward(outputs)
        return outputs

    return call


def _broadcast(watcher_list: _WatcherList, method: Any) -> Callable[..., Any]:
    """Return a replacement for the method in which DDP broadcasts its buffers."""

    def sync_buffers(model: Any, *args: Any, **options: Any) -> Any:
        watchers = [watcher for watcher in watcher_list.watchers if watcher.watches(model)]
        for watcher in watchers:
            watcher.before_broadcast()
        result = method(model, *args, **options)
        for watcher in watchers:
            watcher.after_broadcast()
        return result

    return sync_buffers


def _collective(watcher_list: _WatcherList, kind: str, method: Any) -> Callable[..., Any]:
    """Return a replacement for a collective, whose end its future reports."""

    def ask(group: Any, *args: Any, **options: Any) -> Any:
        watchers = watcher_list.watchers
        calls = [watcher.before_collective(group, kind, args) for watcher in watchers]
        work = method(group, *args, **options)
        for watcher, call in zip(watchers, calls, strict=True):
            if call is not None:
                with suppress(Exception):  # some kinds of work have no future
                    work.get_future().add_done_callback(partial(watcher.answered, call))
        return work

    return ask


def _zero_grad(watcher_list: _WatcherList, method: Any) -> Callable[..., Any]:
    """Return a replacement for an optimizer's `zero_grad`."""

    def clear(optimizer: Any, *args: Any, **options: Any) -> Any:
        watchers = watcher_list.watchers
        for watcher in watchers:
            watcher.stamp("zero_grad", True)  # it begins
        result = method(optimizer, *args, **options)
        for watcher in watchers:
            watcher.stamp("zero_grad", False)  # it has ended
        return result

    return clear
