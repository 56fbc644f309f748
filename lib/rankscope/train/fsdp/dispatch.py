"""`StepObserver`: the works and the live bytes of everything that runs while it is entered."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from ...ranks.recorder import KIND_OF_OPERATOR
from .internals import TorchDispatchMode, key_of, tensors_in
from .step import COLLECTIVES, MemoryChange, Step, Work
from .streams import Device

# What each transfer of FSDP allocates, and the kind of its copies.
_TERMS = {"unshard": "gather_buffers", "wait_for_unshard": "gathered_parameters", "post_backward": "reduce_buffers"}
_COPIES = {"unshard": "copy_in", "wait_for_unshard": "copy_out"}
_RELEASE_S = 0.005  # a thread of Gloo refers to the tensors of a collective for some moments after it has ended


class StepObserver(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what torch passes to it: each operator, collectives included.

    A storage counts from the operator that makes it until Python deletes it. `originals` are the parameters by name
    whose values all-gathers do not bring, because the other ranks do not exist.
    """

    def __init__(self, originals: Mapping[str, Tensor], on_gloo: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = Device()
        self.originals = originals
        self.transfers: list[tuple[str, str]] = []  # FSDP's methods that run, the innermost last, with their groups
        self.computing: list[str] = []  # the groups whose modules compute, the innermost last
        self._pass = ""
        self.on_gloo = on_gloo
        self._works: list[Work] = []
        self._changes: list[MemoryChange] = []
        self._storages: dict[int, tuple[str, int]] = {}  # the term and bytes of each live storage
        self._num_earlier = 0, 0  # works and changes, which are those before the step

    def begin_step(self) -> None:
        """Leave out what has run so far but the memory that it has left."""
        self._num_earlier = len(self._works), len(self._changes)

    def begin_pass(self, name: str) -> None:
        """Note what follows as the "forward" or the "backward" pass of the root."""
        self._pass = name
        self.computing = [""]

    # ---- works

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "to_local") for kind in types):
            return NotImplemented  # a DTensor comes again as what is local
        if self.on_gloo and self._works and self._works[-1].kind in COLLECTIVES:
            time.sleep(_RELEASE_S)
        inputs = list(tensors_in((args, kwargs)))
        if not self.transfers:  # in which Gloo reads what it has allocated for itself
            self._add_new(inputs, "inputs")
        output = func(*args, **(kwargs or {}))
        outputs = list(tensors_in(output))
        if not func.is_view:  # which makes no storage; Gloo looks into one of its own while FSDP waits for it
            self._add_new(outputs, _TERMS[self.transfers[-1][0]] if self.transfers else "activations")
        costs_nothing = func.is_view or func is torch.ops.aten.empty.memory_format
        if costs_nothing or func.namespace in ("prim", "profiler"):
            return output
        sizes = {id(tensor): tensor.nbytes for tensor in inputs + outputs}.values()
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            self._add_work(KIND_OF_OPERATOR.get(name, name), 0, max(sizes, default=0))
            return output
        flops = 0
        if func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=output)
        self._add_work(self._kind(), flops, sum(sizes))
        return output

    def _kind(self) -> str:
        if not self.transfers:
            return self._pass
        stream = self.device.current_stream()
        default = "copy_in" if stream.lane == "compute" else "copy_out"  # of gradients, into and out of the buffer
        return _COPIES.get(self.transfers[-1][0], default)

    def _add_work(self, kind: str, flops: int, num_bytes: int) -> None:
        group = self.computing[-1]
        if self.transfers:
            group = self.transfers[-1][1]
        stream = self.device.current_stream()
        self._works.append(Work(stream.lane, kind, group, stream.issued, flops, num_bytes))
        stream.issued = frozenset([len(self._works) - 1])

    def end_step(self, is_updating: bool) -> None:
        """Wait for all gradients, and let an optimizer, if there is one, read what a rank stores and write it."""
        stored = ("parameters", "gradients", "optimizer_states")
        num_bytes = sum(size for term, size in self._storages.values() if term in stored)
        self.computing = [""]
        self._add_work("optimizer", 0, 2 * num_bytes * is_updating)

    # ---- memory

    def _change(self, term: str, num_bytes: int) -> None:
        self._changes.append(MemoryChange(len(self._works), term, num_bytes))

    def _add_new(self, tensors: list[Any], term: str) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = key_of(storage)
            if key not in self._storages:
                self._storages[key] = (term, storage.nbytes())
                self._change(term, storage.nbytes())
                weakref.finalize(storage, self._count, key, "", 0).atexit = False

    def _count(self, key: int, term: str, num_bytes: int) -> None:
        """Count a storage with this term and size from now on; without a term, it has been deleted."""
        old_term, old_bytes = self._storages.pop(key)
        self._change(old_term, -old_bytes)
        if term:
            self._storages[key] = (term, num_bytes)
            self._change(term, num_bytes)

    def label(self, tensor: Any, term: str) -> None:
        """Count a tensor's storage in this term from now on."""
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        self._add_new([local], term)
        storage = local.untyped_storage()
        self._count(key_of(storage), term, storage.nbytes())

    def resized(self, storage: Any) -> None:
        """Count a storage anew: FSDP frees gathered parameters by resizing their storages to 0."""
        term, _ = self._storages[key_of(storage)]
        self._count(key_of(storage), term, storage.nbytes())

    # ---- the result

    def step(self) -> Step:
        """Return the step since its begin, in which works are counted from 0."""
        num_works, num_changes = self._num_earlier
        works = []
        for work in self._works[num_works:]:
            after = frozenset([index - num_works for index in work.after if index >= num_works])
            works.append(work._replace(after=after))
        at_begin = Counter[str]()
        for change in self._changes[:num_changes]:
            at_begin[change.term] += change.num_bytes
        changes = [MemoryChange(0, term, num_bytes) for term, num_bytes in at_begin.items()]
        for change in self._changes[num_changes:]:
            changes.append(change._replace(num_works=change.num_works - num_works))
        return Step(tuple(works), tuple(changes))
