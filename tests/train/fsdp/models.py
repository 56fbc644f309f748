"""Random modules, wrappings and settings of `fully_shard`, and a loss for each."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 12


class Residual(nn.Module):
    """Two layers next to a path that skips them; the second is defined first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.second = nn.Linear(width + 5, width, bias=False)
        self.first = nn.Linear(width, width + 5)
        self.norm = nn.LayerNorm(width)

    def forward(self, batch: Tensor) -> Tensor:
        hidden: Tensor = self.second(torch.relu(self.first(self.norm(batch))))
        return batch + hidden


class Passing(nn.Module):
    """A wrapper that returns what its only child returns, and owns no parameters."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.inner(batch)
        return output


class Scaled(nn.Module):
    """A parameter of its own, read directly, and two branches of which the second ends first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.left = nn.Linear(width, width)
        self.right = nn.Sequential(nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, width))

    def forward(self, batch: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            batch = batch * mask
        right: Tensor = self.right(batch)
        left: Tensor = self.left(batch)
        return left * self.scale + right


class Repeated(nn.Module):
    """A layer that is called twice, and one that is never called."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.never = nn.Linear(width, 3)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.layer(torch.tanh(self.layer(batch)))
        return output


class Tokens(nn.Module):
    """An embedding, whose input needs no gradient, blocks in a list, and a head."""

    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 5)
        self.embed = nn.Embedding(17, width)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


class Siamese(nn.Module):
    """An encoder that is called twice, so that its second call completes no gradient."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, width)

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.head(self.encoder(batch) - self.encoder(2 * batch))
        return output


class Shared(nn.Module):
    """A layer that two modules have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.Linear(width, width)
        self.first = nn.Sequential(layer, nn.Linear(width, width))
        self.second = nn.Sequential(layer, nn.Linear(width, width))

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(batch))
        return output


class Unused(nn.Module):
    """A branch whose result is not used, and one that ends in a mask, through which no gradient goes back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Linear(width, width)
        self.unused = nn.Linear(width, 3)
        self.gate = nn.Linear(width, width)

    def forward(self, batch: Tensor) -> Tensor:
        hidden: Tensor = self.body(batch)
        self.unused(hidden)
        return hidden * (self.gate(hidden) > 0)


class Detached(nn.Module):
    """A part whose result is detached, and a teacher that runs without gradients."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.target = nn.Linear(width, width)
        self.student = nn.Linear(width, width)
        self.teacher = nn.Linear(width, width)

    def forward(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            taught: Tensor = self.teacher(batch)
        output: Tensor = self.student(batch) - self.target(batch).detach() + taught
        return output


class Recomputed(nn.Module):
    """Two layers whose activations are computed again in backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = checkpoint(self.inner, batch, use_reentrant=False)
        return batch + output


class DrawnCase(NamedTuple):
    """A module, and the settings of `observe`; `takes_tokens` says what its batches are."""

    module: nn.Module
    takes_tokens: bool
    settings: dict[str, Any]

    def loss(self, module: nn.Module) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        if self.takes_tokens:
            batch = torch.randint(0, 17, (3,), generator=generator)
        else:
            batch = torch.randn(3, WIDTH, generator=generator)
        output: Tensor = module(batch)
        return output.float().square().mean()

    def __str__(self) -> str:
        return f"{self.module}\n{self.settings}"


def drawn_case(seed: int, num_ranks: int) -> DrawnCase:
    """Return a random case: nesting, wrapping, resharding, frozen parameters, mixed precision, HSDP."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    makers = [
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: Residual(WIDTH),
        lambda: Scaled(WIDTH),
        lambda: Passing(Residual(WIDTH)),
        lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, WIDTH)),
        lambda: nn.Sequential(Residual(WIDTH), nn.Identity()),
        lambda: Repeated(WIDTH),
        lambda: Siamese(Residual(WIDTH), WIDTH),
        lambda: Unused(WIDTH),
        lambda: Detached(WIDTH),
    ]
    blocks = [draw.choice(makers)() for _ in range(draw.randint(1, 5))]
    takes_tokens = draw.random() < 0.5
    module: nn.Module = nn.Sequential(*blocks)
    if takes_tokens:
        module = Tokens(blocks, WIDTH)
    elif draw.random() < 0.5:
        module = Passing(module)
    for parameter in module.parameters():
        if draw.random() < 0.15:
            parameter.requires_grad_(False)
    if draw.random() < 0.3:  # the first block is frozen as a whole
        blocks[0].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        next(iter(blocks[-1].parameters())).requires_grad_(True)
    settings: dict[str, Any] = {
        "num_ranks": num_ranks,
        "reshard_after_forward": draw.choice([True, False, None]),
    }
    if draw.random() < 0.4:
        settings["param_dtype"] = draw.choice([torch.bfloat16, torch.float16, torch.float32])
    if draw.random() < 0.4:
        settings["reduce_dtype"] = draw.choice([torch.float32, torch.bfloat16])
    if num_ranks == 4 and draw.random() < 0.4:
        settings["num_replicas"] = 2
    elif num_ranks == 4 and draw.random() < 0.3:
        settings["reshard_after_forward"] = 2
    candidates = [name for name, child in module.named_modules() if name and _can_be_wrapped(child)]
    settings["wrap"] = [name for name in candidates if draw.random() < 0.5]
    case = DrawnCase(module, takes_tokens, settings)
    if not case.loss(module).requires_grad:  # what is trainable is in a branch without gradients
        module.requires_grad_(True)
    return case


def _can_be_wrapped(module: nn.Module) -> bool:
    has_parameters = any(True for _ in module.parameters())
    return has_parameters and not isinstance(module, nn.ModuleList)
