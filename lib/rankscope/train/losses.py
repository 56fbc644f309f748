"""The functions of the user's that make a training step, and what the loss must return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Loss: TypeAlias = Callable[[nn.Module], Tensor]
Optimizer: TypeAlias = Callable[..., torch.optim.Optimizer]  # of the parameters


def checked_loss(loss: Any, name: str = "loss") -> Tensor:
    """Return what the user's function `name` returned as the loss of a step.

    Raises ValueError for anything but a tensor of one element that requires a gradient.
    """
    expected = f"{name} must return a tensor of one element that requires a gradient"
    if not isinstance(loss, Tensor):
        raise ValueError(f"{expected}, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ValueError(f"{expected}, got one of shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise ValueError(f"{expected}, got one that requires none")
    return loss
