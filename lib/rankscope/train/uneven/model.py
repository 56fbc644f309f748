"""Ranks that run out of batches at different times: the timeline, the samples read, and the weight of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...common.checks import each, number, of_type, one_of, several, whole
from ...sampling import Assignment
from ...timeline import Tape, Timeline

HANDLINGS = ("hang", "drop", "pad", "join")
LANE = "training"


def simulate(
    num_batches: Sequence[int],
    handling: str = "hang",
    step_s: float = 0.010,
    allreduce_s: float = 0.002,
    timeout_s: float = 0.1,
) -> Timeline:
    """Return the timeline of an epoch in which rank r has ``num_batches[r]`` batches; each step ends with an allreduce.

    Spans are of kind "step", "allreduce", "shadow" (the same allreduce on a rank that has no batches left and adds
    zeros) and "wait". When the first rank has no batches left, the others

    - "hang": continue. Their next allreduce waits until `timeout_s` for a rank that never joins it.
    - "drop": stop.
    - "pad": continue; ranks without batches start again with their first.
    - "join": continue; ranks without batches shadow their allreduces (torch's Join).

    The time of Join's own messages, two allreduces of one number per step, is not included. Raises ValueError if there
    are no ranks, a number is out of range, or a rank has no batch to start again with.

    >>> [span.kind for span in simulate([1, 2], "join") if span.rank == 0]
    ['step', 'allreduce', 'wait', 'shadow']
    >>> [span.kind for span in simulate([1, 2], "hang") if span.rank == 1]
    ['step', 'allreduce', 'step', 'wait']
    """
    num_batches = several("num_batches", num_batches)
    completed = steps_by_rank(num_batches, handling)
    number("step_s", step_s, above=0)
    number("allreduce_s", allreduce_s, 0)
    number("timeout_s", timeout_s, 0)
    tape = Tape()
    for item in range(max(completed)):
        for rank, num_steps in enumerate(completed):
            kinds = ("step", "allreduce") if item < num_steps else ("wait", "shadow")
            tape.add(rank, LANE, kinds[0], item, step_s)
            tape.add(rank, LANE, kinds[1], item, allreduce_s)
    for rank, own in enumerate(num_batches):
        if handling == "hang" and own > completed[rank]:  # one more step, whose allreduce never ends
            tape.add(rank, LANE, "step", completed[rank], step_s)
            tape.add(rank, LANE, "wait", completed[rank], timeout_s)
    return tape.timeline()


def steps_by_rank(num_batches: Sequence[int], handling: str) -> list[int]:
    """Return the number of steps that each rank completes with its own batches. Raises ValueError as `simulate` does.

    >>> steps_by_rank([2, 3, 4], "join"), steps_by_rank([2, 3, 4], "pad"), steps_by_rank([2, 3, 4], "drop")
    ([2, 3, 4], [4, 4, 4], [2, 2, 2])
    """
    one_of("handling", handling, HANDLINGS)
    own = list(each("num_batches", num_batches, whole, 0))
    if not any(own) or (handling == "pad" and not all(own)):
        raise ValueError(f"num_batches must have a batch, and to be padded one for each rank, got {num_batches!r}")
    if handling == "join":
        return own
    return [max(own) if handling == "pad" else min(own)] * len(own)


class Prediction(msgspec.Struct, frozen=True, eq=False):
    """The predicted result of an uneven epoch: `trained` are the samples of each rank's completed steps.

    `scale` is, per step, the sum of the weights of the ranks' gradients in DDP's average. `weights` is, per sample, the
    weight of its gradient in the sum over all steps.
    """

    trained: Assignment
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]


def predict(epoch: Assignment, handling: str = "join") -> Prediction:
    """Predict the result of `measure`; `epoch` has each rank's samples, and `handling` is as for `simulate`.

    The loss of a batch is the mean over its samples, and DDP averages over N ranks, so a sample in a batch of b has the
    weight 1/(N·b). Join also divides by the initial number of ranks, finished ones included, so its steps get smaller,
    unless you pass it ``divide_by_initial_world_size=False``. In the gradient of the mean loss, all weights would be
    equal.

    Raises ValueError if `simulate` rejects an argument or the epoch has no loader, because its batches are unknown.

    >>> from itertools import pairwise
    >>> ranks = [np.arange(4), np.arange(4, 10)]
    >>> epoch = Assignment(10, ranks).with_loader(2)
    >>> predict(epoch, "drop").weights.tolist()
    [0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.0, 0.0]
    >>> predict(epoch, "join").scale.tolist()
    [1.0, 1.0, 0.5]
    """
    batches = batches_of(epoch)
    num_batches = [len(own) for own in batches]
    completed = steps_by_rank(num_batches, handling)
    num_active = [sum(num_steps > step for num_steps in completed) for step in range(max(completed))]
    weights = np.zeros(epoch.size)
    ranks = []
    for own, num_steps in zip(batches, completed, strict=True):
        trained = list(islice(cycle(own), num_steps))
        for batch in trained:
            np.add.at(weights, batch, 1 / (len(batches) * batch.size))
        ranks.append(np.concatenate([np.empty(0, dtype=np.int64), *trained]))
    return Prediction(
        trained=replace(epoch, ranks=tuple(ranks)),
        scale=np.divide(num_active, len(batches)),
        weights=weights,
    )


def batches_of(epoch: Assignment) -> list[list[NDArray[np.int64]]]:
    """Return each rank's batches of samples. Raises ValueError for an epoch without a loader."""
    if of_type("epoch", epoch, Assignment).loader is None:
        raise ValueError("epoch must have a loader, whose batches its ranks read: epoch.with_loader(batch_size)")
    return [list(epoch.batches(rank)) for rank in range(epoch.num_ranks)]
