"""`Work`: a module, a whole batch and a loss; and gradients as vectors that can be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn

from ..common.checks import function, of_type
from .losses import checked_loss

LossFn = Callable[[Tensor, Tensor], Tensor]
Vector = NDArray[np.float64]  # all parameters, or their gradients, one after the other
_ROUNDING = 64  # times the dtype's epsilon, because sums in another order differ by a few epsilons


class Work(msgspec.Struct, frozen=True, eq=False):
    """A module, a whole batch, and ``loss_fn(outputs, targets)``, which is usually a mean over the samples.

    Raises ValueError if no parameter gets a gradient or if inputs and targets differ in length or are empty.

    >>> Work(nn.Linear(3, 1), torch.ones(8, 3), torch.ones(7, 1), nn.functional.mse_loss)
    Traceback (most recent call last):
    ValueError: inputs and targets must have equally many samples, got 8 and 7
    """

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    loss_fn: LossFn

    def __post_init__(self) -> None:
        function("loss_fn", self.loss_fn, "of outputs and targets")
        if not any(parameter.requires_grad for parameter in of_type("module", self.module, nn.Module).parameters()):
            raise ValueError(f"module must have a parameter that gets a gradient, got {self.module!r}")
        num_inputs = len(of_type("inputs", self.inputs, Tensor))
        num_targets = len(of_type("targets", self.targets, Tensor))
        if num_inputs != num_targets or num_inputs == 0:
            raise ValueError(f"inputs and targets must have equally many samples, got {num_inputs} and {num_targets}")

    def part(self, index: int, num_parts: int) -> Work:
        """Return the same work on one of equal parts of the batch. Raises ValueError if the batch does not divide."""
        if len(self.inputs) % num_parts:
            raise ValueError(f"inputs must be a multiple of {num_parts} samples, got {len(self.inputs)}")
        inputs = self.inputs.chunk(num_parts)[index]
        return replace(self, inputs=inputs, targets=self.targets.chunk(num_parts)[index])

    def loss(self, module: nn.Module) -> Tensor:
        """Return the loss of that module on this batch."""
        return checked_loss(self.loss_fn(module(self.inputs), self.targets), "loss_fn")

    def gradient(self) -> Vector:
        """Return the gradient of the whole batch in one process, without changing the module."""
        module = copy.deepcopy(self.module)
        module.zero_grad()
        self.loss(module).backward()  # type: ignore[no-untyped-call]
        return gradient_of(module)

    @property
    def rounding(self) -> float:
        """The allowed difference of values that depend on the order of sums, as a share of the largest value."""
        return _ROUNDING * max(torch.finfo(parameter.dtype).eps for parameter in self.module.parameters())


def flat(tensors: Iterable[Tensor]) -> Vector:
    """Return all elements in one vector, a complex one as its real and its imaginary part.

    >>> flat([torch.tensor([1.0, 2.0]), torch.tensor(3 + 4j)])
    array([1., 2., 3., 4.])
    """
    vectors = []
    for tensor in tensors:
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())  # torch cannot view a conjugate that is not computed yet
        vectors.append(tensor.double().numpy().ravel())
    return np.concatenate(vectors)


def gradient_of(module: nn.Module) -> Vector:
    """Return all gradients in one vector, 0 for a parameter that has none."""
    return flat(
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in module.parameters()
    )


def relative_difference(vector: Vector, reference: Vector) -> float:
    """Return the largest difference of two vectors, as a share of the largest entry of the second.

    If all entries of the second are 0, return the difference itself.
    """
    largest = np.abs(reference).max() or 1.0
    return float(np.abs(vector - reference).max() / largest)
