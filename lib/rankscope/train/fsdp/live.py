"""`LiveCounter`: the bytes of all tensors that are alive, counted while a step runs."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ..zero.run import address_of

# A thread of Gloo refers to the tensors of a collective for some moments after it has ended. While bytes are counted,
# each rank pauses for that, so that the count does not depend on when the thread runs.
_RELEASE_S = 0.005


class LiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that are alive: those that exist at the begin, and all that operators make.

    torch calls `__torch_dispatch__` instead of each operator while the mode is entered. FSDP frees a gathered parameter
    by resizing its storage, which is no operator, so this replaces that method while it counts. A storage counts once,
    whole.

    `sizes` are the bytes of the storages that exist at the begin and belong to the job, by the address of their data
    (`address_of`). Storages that are made later are known by ``_cdata``, the address of torch's object for them, which
    stays the same if they are resized.
    """

    def __init__(self, sizes: dict[int, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._total = sum(sizes.values())
        self._peak = self._total  # since the last call of `take_peak`
        self._initial = set(sizes)  # addresses of storages that are in the total from the begin
        self._sizes: dict[int, int] = {}  # by ``_cdata``, of storages that operators have made or read since
        # ``_cdata`` of storages that were resized, whose changes are in the total. Resizing may move the data, after
        # which an initial storage is no longer known by its address.
        self._resized: set[int] = set()
        self._is_in_collective = False  # what a backend allocates for itself is not counted
        self.input_bytes = 0  # of what existed before and operators read, such as a batch
        self.at_s: list[float] = []  # when the total changed, by ``time.perf_counter``
        self.totals: list[int] = []  # the total after each of these changes

    def __enter__(self) -> LiveCounter:
        """Begin to count: replace the method that resizes storages, and have torch pass operators to this mode."""
        self._original_resize = torch.UntypedStorage.resize_

        def counted(storage: Any, size: int) -> Any:
            """Resize a storage, and count the bytes by which it grows or shrinks."""
            bytes_before = storage.nbytes()
            result = self._original_resize(storage, size)
            self._change(storage.nbytes() - bytes_before)
            self._resized.add(storage._cdata)
            if storage._cdata in self._sizes:
                self._sizes[storage._cdata] = storage.nbytes()  # what `_remove` will subtract
            return result

        storage_class: Any = torch.UntypedStorage  # Any, because its type does not allow another method
        storage_class.resize_ = counted
        self._change(0)  # so that the bytes at the begin are among the totals
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        storage_class: Any = torch.UntypedStorage
        storage_class.resize_ = self._original_resize
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count the storages that it reads or makes and that are not known yet."""
        if kwargs is None:
            kwargs = {}
        if self._is_in_collective:
            return func(*args, **kwargs)
        for tensor in _plain_tensors((args, kwargs)):
            storage: Any = tensor.untyped_storage()
            if not self._is_known(storage):  # no operator has made it, so it existed before, as a batch does
                self._sizes[storage._cdata] = storage.nbytes()
                self.input_bytes += storage.nbytes()
                weakref.finalize(storage, self._forget, storage._cdata)
        output = func(*args, **kwargs)
        for tensor in _plain_tensors(output):
            storage = tensor.untyped_storage()
            if not self._is_known(storage):
                self._add(storage)
        return output

    @contextmanager
    def in_collective(self) -> Iterator[None]:
        """Leave out what the backend allocates for itself, and wait until it has let go of the job's tensors."""
        self._is_in_collective = True
        try:
            yield
        finally:
            self._is_in_collective = False
            time.sleep(_RELEASE_S)

    def _is_known(self, storage: Any) -> bool:
        key = storage._cdata
        return key in self._sizes or key in self._resized or address_of(storage) in self._initial

    def _add(self, storage: Any) -> None:
        """Count a storage from now until Python deletes it."""
        key = storage._cdata
        self._sizes[key] = storage.nbytes()
        self._change(storage.nbytes())
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self._change(-self._sizes[key])
        self._forget(key)

    def _forget(self, key: int) -> None:
        """Know a storage no longer that Python has deleted, because another one may get its address."""
        del self._sizes[key]
        self._resized.discard(key)

    @property
    def total(self) -> int:
        """The bytes that are alive now, without those of inputs."""
        return self._total

    def take_peak(self) -> int:
        """Return the most bytes that were alive since the last call."""
        peak = self._peak
        self._peak = self._total
        return peak

    def _change(self, num_bytes: int) -> None:
        self._total += num_bytes
        self._peak = max(self._peak, self._total)
        self.at_s.append(time.perf_counter())
        self.totals.append(self._total)


def _plain_tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors that have a storage of their own, which a DTensor has not."""
    for value in tree_iter(values):
        if isinstance(value, Tensor) and not hasattr(value, "to_local"):
            yield value
