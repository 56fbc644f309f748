"""`Recorder`: the works and the live bytes of everything that runs while it is entered."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from .internals import TorchDispatchMode, key_of, tensors_in
from .step import COLLECTIVES, MemoryChange, Step, Work
from .streams import Device

_KINDS = {"_allgather_base_": "allgather", "_reduce_scatter_base_": "reduce_scatter", "allreduce_": "allreduce"}
# What each transfer of FSDP allocates, and the kind of its copies.
_TERMS = {"unshard": "gather_buffers", "wait_for_unshard": "gathered_parameters", "post_backward": "reduce_buffers"}
_COPIES = {"unshard": "copy_in", "wait_for_unshard": "copy_out"}
_RELEASE_S = 0.005  # a thread of Gloo refers to the tensors of a collective for some moments after it has ended


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what torch passes to it: each operator, collectives included.

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

    def begin_pass(self, name: str) -> None:
        """Record what follows as the "forward" or the "backward" pass of the root."""
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
        term = "activations"
        if self.transfers:
            term = _TERMS[self.transfers[-1][0]]
        if not func.is_view:  # which makes no storage; Gloo looks into one of its own while FSDP waits for it
            self._add_new(outputs, term)
        costs_nothing = func.is_view or func is torch.ops.aten.empty.memory_format
        if costs_nothing or func.namespace in ("prim", "profiler"):
            return output
        sizes = {id(tensor): tensor.nbytes for tensor in inputs + outputs}
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            self._add_work(_KINDS.get(name, name), 0, max(sizes.values(), default=0))
        else:
            count_flops = flop_registry.get(func.overloadpacket, _no_flops)
            flops = count_flops(*args, **(kwargs or {}), out_val=output)
            self._add_work(self._kind(), flops, sum(sizes.values()))
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

    def place(self) -> tuple[int, int]:
        """Return how many works and changes there are, as the begin of a step."""
        return len(self._works), len(self._changes)

    def step_from(self, num_works: int, num_changes: int) -> Step:
        """Return the step from this place on; what is there before are changes at its begin."""
        works = []
        for work in self._works[num_works:]:
            after = frozenset([index - num_works for index in work.after if index >= num_works])
            works.append(work._replace(after=after))
        changes = []
        for change in self._changes:
            changes.append(change._replace(num_works=max(change.num_works - num_works, 0)))
        before: dict[str, int] = {}
        for change in changes[:num_changes]:
            before[change.term] = before.get(change.term, 0) + change.num_bytes
        at_begin = [MemoryChange(0, term, num_bytes) for term, num_bytes in before.items()]
        return Step(tuple(works), (*at_begin, *changes[num_changes:]))


def _no_flops(*_args: Any, **_options: Any) -> int:
    return 0
