"""`buckets`: which gradients share an allreduce, as DistributedDataParallel's own Reducer says."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...common.checks import function, number, of_type, optional
from ..fake_group import fake_group
from ..losses import Loss, checked_loss
from .bucketing import DDPBuckets, Gradient, caps_bytes

_ITERATIONS = 3  # DDP rebuilds its buckets in the second one, with a static graph in the third


def gradients_of(module: nn.Module) -> dict[Tensor, Gradient]:
    """Return each parameter that requires a gradient, in the order in which DDP numbers them, and its gradient.

    One that several modules share counts as one of the first. Raises ValueError if there is none.
    """
    found: dict[Tensor, Gradient] = {}
    for prefix, owner in module.named_modules():
        sparse = isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.sparse
        for name, parameter in owner.named_parameters(prefix, recurse=False):
            if parameter.requires_grad and parameter not in found:
                dtype = str(parameter.dtype).removeprefix("torch.")
                found[parameter] = Gradient(name, parameter.nbytes, dtype, sparse)
    if not found:
        raise ValueError("module must have a parameter that requires a gradient, and has none")
    return found


def buckets(module: nn.Module, loss: Loss, bucket_cap_mb: float | None = None, **options: Any) -> DDPBuckets:
    """Train a copy of the module for three steps under DistributedDataParallel, and return the buckets that it makes.

    ``loss(module)`` returns a tensor of one number. The steps run in this process, on torch's fake process group, which
    communicates nothing. `options` are DDP's own, such as ``find_unused_parameters`` and ``static_graph``. If ranks
    differ in the order in which gradients get ready, all follow rank 0.

    In the first iteration all gradients of a dtype share a bucket. DDP then knows in which order they get ready, and
    fills buckets in that order, up to the cap in MiB; with ``static_graph`` an iteration later. With
    ``find_unused_parameters`` it fills them once, in the order of definition, and launches the last one first. If there
    is no cap, it is 25, and that of the bucket that is filled first is 1.

    Raises ValueError if no parameter requires a gradient, if the module is on the device "meta", or if the loss goes
    around DDP; RuntimeError as DDP does, such as if a parameter gets no gradient, and in a process that has a process
    group already.

    >>> layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])
    >>> print(buckets(layers, lambda module: module(torch.ones(1, 512)).sum(), bucket_cap_mb=2))
    from iteration 0: 1 bucket of 4 MiB
    from iteration 1: 2 buckets of 2 MiB, 2 MiB
    """
    copied = copy.deepcopy(of_type("module", module, nn.Module))
    function("loss", loss, "of the module")
    optional("bucket_cap_mb", bucket_cap_mb, number, 0)
    gradients = gradients_of(copied)
    if any(parameter.is_meta for parameter in copied.parameters()):
        raise ValueError("module must have values, and has parameters on the device meta")
    numbers = {parameter: number for number, parameter in enumerate(gradients)}
    iterations = []
    with fake_group(2):
        wrapped = DistributedDataParallel(copied, bucket_cap_mb=bucket_cap_mb, **options)
        launched: list[tuple[int, ...]] = []

        def note(bucket: Any) -> torch.futures.Future[Tensor]:
            launched.append(tuple([numbers[parameter] for parameter in bucket.parameters()]))
            return unreduced(bucket)

        wrapped.register_comm_hook(None, lambda state, bucket: note(bucket))
        for _ in range(_ITERATIONS):
            launched.clear()
            value: Any = checked_loss(loss(wrapped))
            value.backward()
            if not launched:
                raise ValueError("loss must call the module that it gets, outside no_sync: DDP reduced nothing")
            iterations.append(tuple(launched))
        del wrapped  # a DDP that outlives its group may hang at exit
    return DDPBuckets(tuple(gradients.values()), tuple(iterations), caps_bytes(bucket_cap_mb))


def unreduced(bucket: Any) -> torch.futures.Future[Tensor]:
    """Return what a communication hook of DDP returns if it leaves the bucket as it is."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
