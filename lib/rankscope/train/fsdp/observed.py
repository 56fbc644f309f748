"""`observe`: one step of a module under `fully_shard`, as one of any number of ranks, in this process."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ...common.checks import function, of_type, optional, several, whole
from ..fake_group import fake_group
from ..losses import Loss, Optimizer, checked_loss
from .dispatch import StepObserver
from .internals import FakeTensorMode, watching
from .step import CollectiveCall, Step


class Sharding(NamedTuple):
    """How a module is sharded: the arguments of `observe` of the same names."""

    num_ranks: int
    wrap: Iterable[str] = ()
    num_replicas: int = 1
    reshard_after_forward: bool | int | None = True
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None

    def checked(self, module: nn.Module, loss: Loss) -> Sharding:
        """Return it with the names of all wrapped parts. Raises ValueError if an argument of `observe` is wrong."""
        of_type("module", module, nn.Module)
        function("loss", loss, "of the module")
        num_ranks = whole("num_ranks", self.num_ranks, 1)
        if num_ranks % whole("num_replicas", self.num_replicas, 1):
            raise ValueError(f"num_replicas must divide the {num_ranks} ranks, got {self.num_replicas}")
        return self._replace(wrap=matching(module, several("wrap", self.wrap, "names of submodules")))

    def apply(self, module: nn.Module) -> None:
        """Shard a module in place, inner parts first."""
        mesh = init_device_mesh("cpu", (self.num_ranks,))
        if self.num_replicas > 1:
            sizes = (self.num_replicas, self.num_ranks // self.num_replicas)
            mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
        policy = MixedPrecisionPolicy(param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype)
        parts: list[Any] = [module.get_submodule(name) for name in self.wrap]
        for part in [*sorted(parts, key=lambda part: len(list(part.modules()))), module]:
            fully_shard(part, mesh=mesh, reshard_after_forward=self.reshard_after_forward, mp_policy=policy)
            part.set_force_sum_reduction_for_comms(True)  # Gloo cannot average


def matching(module: nn.Module, wrap: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the submodules that match, in the order of `wrap`. Raises ValueError if a part has none."""
    names: dict[str, None] = {}
    for pattern in wrap:
        found = []
        for name, _ in module.named_modules():
            if name and name.count(".") == pattern.count(".") and fnmatchcase(name, pattern):
                found.append(name)
        if not found:
            raise ValueError(f"wrap must name submodules, got {pattern!r}, which matches none")
        names |= dict.fromkeys(found)
    return tuple(names)


def observe(
    module: nn.Module,
    loss: Loss,
    *,
    num_ranks: int,
    wrap: Iterable[str] = (),
    optimizer: Optimizer | None = None,
    num_replicas: int = 1,
    reshard_after_forward: bool | int | None = True,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
) -> Step:
    """Take a step of ``loss(module)`` under `fully_shard`, after one that warms up, and return what rank 0 does.

    `wrap` are the names of the submodules to shard before the module itself, where "*" is one part of a name.
    `num_replicas` above 1 is HSDP. ``optimizer(parameters)`` makes the optimizer, whose states are counted. Other
    settings are those of `fully_shard`.

    The step runs in this process on torch's fake process group, which communicates nothing. A module on the device
    "meta" is observed without any memory of its own. The caller's module stays as it is. While this runs, names of
    torch are replaced, so nothing else in the process should train.

    Raises ValueError for a wrong argument, also `fully_shard`'s own; RuntimeError if the process has a process group.
    """
    optional("optimizer", optimizer, function)
    sharding = Sharding(num_ranks, wrap, num_replicas, reshard_after_forward, param_dtype, reduce_dtype)
    sharding = sharding.checked(module, loss)
    with fake_group(num_ranks):
        return observe_rank(module, loss, sharding, optimizer)


def collectives(module: nn.Module, loss: Loss, **settings: Any) -> list[CollectiveCall]:
    """Return the collectives of a step in the order of issue; arguments and errors are those of `observe`."""
    return observe(module, loss, **settings).collectives


def observe_rank(module: nn.Module, loss: Loss, sharding: Sharding, optimizer: Optimizer | None) -> Step:
    """Observe a step as a rank of the process group that there is, fake or real."""
    on_meta = any(parameter.is_meta for parameter in module.parameters())
    on_gloo = dist.get_backend() == "gloo"
    originals = {}
    if not on_meta and not on_gloo:
        originals = dict(module.named_parameters(remove_duplicate=False))
    fake_mode: AbstractContextManager[Any] = nullcontext()
    if on_meta:
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    observer = StepObserver(originals, on_gloo)
    with watching(observer):
        with fake_mode:
            module = _copied(module)
        sharding.apply(module)
        with fake_mode:
            return _second_step(module, loss, optimizer, observer)


def _copied(module: nn.Module) -> nn.Module:
    """Copy a module; what is on "meta" becomes fake tensors, which say that they are on the CPU."""
    fakes: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_meta:
            fake = torch.empty_like(tensor, device="cpu")
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, tensor.requires_grad)
            fakes[id(tensor)] = fake
    return copy.deepcopy(module, fakes)


def _second_step(module: nn.Module, loss: Loss, optimizer: Optimizer | None, observer: StepObserver) -> Step:
    """Take two steps of a sharded module, and return the second one: the first one allocates for both.

    The optimizer only makes its states in the first one. That it steps in the second one is known without it.
    """
    optimizing = None
    if optimizer is not None:
        optimizing = optimizer(module.parameters())
    for parameter in module.parameters():
        observer.label(parameter, "parameters")
    for buffer in module.buffers():
        observer.label(buffer, "buffers")
    for is_first in (True, False):
        observer.begin_step()
        with observer:
            observer.begin_pass("forward")
            value = checked_loss(loss(module))
            observer.begin_pass("backward")
            value.backward()  # type: ignore[no-untyped-call]
            del value
        observer.end_step(is_updating=optimizing is not None)
        if is_first and optimizing is not None:
            optimizing.step()
            for state in optimizing.state.values():
                for tensor in state.values():
                    if isinstance(tensor, Tensor):
                        observer.label(tensor, "optimizer_states")
        module.zero_grad()
    return observer.step()
