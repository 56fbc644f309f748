"""What `gradient_as_bucket_view` saves: the memory of gradients and buckets in a rank, each storage counted once."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..ranks import launch
from ..values.checks import count_of, of_type
from ..zero.measure_zero import storages
from .demos import TIMEOUT_S, DemoError, on_bucket

_NUM_STEPS = 3  # DDP makes its buckets anew after the first


@dataclass(frozen=True)
class GradientMemory:
    """The bytes of a rank's gradients, of DDP's buckets, and of the memory that the two take together."""

    gradient_bytes: int
    bucket_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class BucketView:
    """The same module without and with `gradient_as_bucket_view`."""

    without: GradientMemory
    with_view: GradientMemory

    @property
    def saved_bytes(self) -> int:
        return self.without.held_bytes - self.with_view.held_bytes

    def check(self) -> None:
        """Raise DemoError unless the view saves exactly what the gradients take, which then lie in the buckets."""
        size = self.without.gradient_bytes
        if self.saved_bytes != size or self.with_view.held_bytes != self.with_view.bucket_bytes:
            raise DemoError(f"the view should save the gradients' {count_of(size, 'byte')}, but: {self}")


def bucket_view_memory(module: nn.Module, inputs: Tensor) -> BucketView:
    """Take three steps of a module on two ranks of DDP, and count the memory that gradients and buckets hold.

    Every parameter must be used, and get a dense gradient of its own type.

    >>> import torch
    >>> view = bucket_view_memory(nn.Linear(100, 10), torch.ones(2, 100))
    >>> view.without.held_bytes, view.with_view.held_bytes
    (8080, 4040)
    """
    of_type("module", module, nn.Module), of_type("inputs", inputs, Tensor)
    both = [launch(_held, 2, (module, inputs, view), timeout_s=TIMEOUT_S)[0] for view in (False, True)]
    return BucketView(*both)


def _held(module: nn.Module, inputs: Tensor, as_view: bool) -> GradientMemory:
    ddp = DistributedDataParallel(copy.deepcopy(module), gradient_as_bucket_view=as_view)
    buckets: dict[int, int] = {}
    on_bucket(ddp, lambda buffer: buckets.update(storages([buffer])))
    for _ in range(_NUM_STEPS):
        buckets.clear()
        ddp.zero_grad()
        ddp(inputs).sum().backward()
    gradients: dict[int, int] = {}
    num_bytes = 0
    for parameter in ddp.parameters():
        if parameter.grad is not None:
            gradients.update(storages([parameter.grad]))
            num_bytes += parameter.grad.nbytes
    return GradientMemory(num_bytes, sum(buckets.values()), sum((gradients | buckets).values()))
