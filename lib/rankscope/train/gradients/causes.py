"""Why the gradient that DDP delivers is not that of the whole batch: experiments in one process."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from ..work import Vector, Work, flat, relative_difference


def causes(work: Work, delivered: Vector, single: Vector, num_ranks: int, has_step: bool) -> tuple[str, ...]:
    """Return measured reasons why the `delivered` gradient is not `single`, that of one process.

    The mean of the parts' gradients stands between the two. If DDP delivered something else, the step changed it. If
    that mean is not the gradient of the whole batch, module or loss are the reason, and further experiments say which.
    An experiment that cannot be made says nothing.
    """
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        parts = [work.part(rank, num_ranks) for rank in range(num_ranks)]
        if _draws_random_numbers(work):
            return ("The module or the loss draws random numbers, and each rank draws its own.",)
        mean = np.mean([part.gradient() for part in parts], axis=0)
        found = []
        if relative_difference(delivered, mean) > work.rounding:
            if has_step:
                found.append("The step changes the gradients. Does it clip or scale before the last allreduce?")
            else:
                found.append("Module or loss behave differently under torch.distributed.")
        if relative_difference(mean, single) > work.rounding:
            # If the outputs are no tensor with a row for each sample, neither experiment can be made. One of them may
            # also fail alone: outputs may have shapes that cannot be joined, and the loss may fail on a part.
            for experiment in (_samples_affect_each_other, _losses_do_not_add_up):
                with suppress(Exception):
                    found += experiment(work, parts)
        return tuple(found)


def _draws_random_numbers(work: Work) -> bool:
    torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs, too
    first = work.gradient()
    torch.default_generator.manual_seed(1)
    return bool((work.gradient() != first).any())


def _outputs(work: Work) -> Tensor:
    outputs: Tensor = copy.deepcopy(work.module)(work.inputs)
    return outputs


def _samples_affect_each_other(work: Work, parts: Sequence[Work]) -> list[str]:
    """Compare the outputs of the whole batch with those of its parts."""
    outputs_of_parts = torch.cat([_outputs(part) for part in parts])
    if relative_difference(flat([outputs_of_parts]), flat([_outputs(work)])) > work.rounding:
        return ["Samples of a batch affect each other, as in BatchNorm, and each rank sees only its own."]
    return []


def _losses_do_not_add_up(work: Work, parts: Sequence[Work]) -> list[str]:
    """Compare the loss of the whole batch's outputs with those of the ranks' parts of the same outputs."""
    outputs = _outputs(work)
    whole = work.loss_fn(outputs, work.targets).item()
    of_parts = []
    for part, part_outputs in zip(parts, outputs.chunk(len(parts)), strict=True):
        of_parts.append(part.loss_fn(part_outputs, part.targets).item())
    tolerance = work.rounding * max(map(abs, [whole, *of_parts]))
    if abs(sum(of_parts) - whole) <= tolerance:
        return ["Is the loss a sum? DDP averages over ranks."]
    if abs(sum(of_parts) / len(parts) - whole) > tolerance:
        return [
            "The loss of the whole batch is not the mean of the ranks' losses. Do ranks divide by different numbers of "
            "samples or tokens, or does the loss compare samples with each other?"
        ]
    return []
