"""Ranks that run out of batches at different times: the timeline, the samples read, and the weight of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...common.checks import number, of_type, one_of, several, truth, whole
from ...sampling import Assignment, shard_files
from ...timeline import Tape, Timeline

HANDLINGS = ("hang", "drop", "pad", "throw", "join")
LANE = "training"
KINDS = ("step", "allreduce", "shadow", "wait")  # in the order of a legend, for a prediction and a run alike
_NO_SAMPLES = np.empty(0, dtype=np.int64)  # joined with a rank's batches or files, of which there may be none
_MOST_RANKS = 1024
_MOST_BATCHES = 1_000_000
_MOST_SAMPLES = 10**9


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
    - "drop": stop. "throw": stop, too, because Join with ``throw_on_early_termination`` raises.
    - "pad": continue; ranks without batches start again with their first.
    - "join": continue; ranks without batches shadow their allreduces (torch's Join).

    The time of Join's own messages, two allreduces of one number per step, is not included. Raises ValueError if there
    are no ranks, a number is out of range, or a rank has no batch to start again with.

    >>> [span.kind for span in simulate([1, 2], "join") if span.rank == 0]
    ['step', 'allreduce', 'wait', 'shadow']
    >>> [span.kind for span in simulate([1, 2], "hang") if span.rank == 1]
    ['step', 'allreduce', 'step', 'wait']
    """
    own_batches = steps_by_rank(num_batches, "join")  # checked; with Join each rank completes all
    completed = steps_by_rank(own_batches, handling)
    step_s = number("step_s", step_s, above=0)
    allreduce_s = number("allreduce_s", allreduce_s, 0)
    timeout_s = number("timeout_s", timeout_s, 0)
    num_steps = max(completed)
    tape = Tape()
    for item in range(num_steps):
        for rank, rank_steps in enumerate(completed):
            has_batch = item < rank_steps
            tape.add(rank, LANE, "step" if has_batch else "wait", item, step_s)
            tape.add(rank, LANE, "allreduce" if has_batch else "shadow", item, allreduce_s)
    for rank in _stuck_ranks(own_batches, handling):  # one more step, whose allreduce never ends
        tape.add(rank, LANE, "step", num_steps, step_s)
        tape.add(rank, LANE, "wait", num_steps, timeout_s)
    return tape.timeline().named(lanes=(), kinds=KINDS)


def steps_by_rank(num_batches: Sequence[int], handling: str) -> tuple[int, ...]:
    """Return the number of steps that each rank completes with its own batches. Raises ValueError as `simulate` does.

    >>> steps_by_rank([2, 3, 4], "join"), steps_by_rank([2, 3, 4], "pad"), steps_by_rank([2, 3, 4], "drop")
    ((2, 3, 4), (4, 4, 4), (2, 2, 2))
    """
    one_of("handling", handling, HANDLINGS)
    listed = several("num_batches", num_batches, "numbers, one for each rank")
    by_rank = tuple(whole("num_batches", batches, 0, _MOST_BATCHES) for batches in listed)
    if not 1 <= len(by_rank) <= _MOST_RANKS or not any(by_rank):
        raise ValueError(f"num_batches must be of 1 to {_MOST_RANKS} ranks, of which one has a batch; got {by_rank!r}")
    if handling == "pad" and not all(by_rank):
        raise ValueError(f"num_batches must be at least 1 to be padded, got {by_rank!r}")
    if handling == "join":
        return by_rank
    if handling == "pad":
        return (max(by_rank),) * len(by_rank)
    return (min(by_rank),) * len(by_rank)  # the others end with the first rank that has no batches left


class Counts(NamedTuple):
    """How often a rank reduced gradients, its own or others', and took part in Join's allreduces of single numbers."""

    gradients: int
    words: int


class Prediction(msgspec.Struct, frozen=True, eq=False):
    """The predicted result of an uneven epoch: `trained` are the samples of each rank's completed steps.

    `scale` is, per step, the sum of the weights of the ranks' gradients in DDP's average. `weights` is, per sample, the
    weight of its gradient in the sum over all steps. `counts` says what each rank takes part in, and `failed` which
    ranks end with an error.
    """

    trained: Assignment
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    counts: tuple[Counts, ...]
    failed: tuple[int, ...]


def predict(epoch: Assignment, handling: str = "join", divide_by_initial_world_size: bool = True) -> Prediction:
    """Predict the result of `measure`; `epoch` has each rank's samples, and `handling` is as for `simulate`.

    The loss of a batch is the mean over its samples, and DDP averages over N ranks, so a sample in a batch of b has the
    weight 1/(N·b). Join also divides by the initial number of ranks, finished ones included, so its steps get smaller.
    With ``divide_by_initial_world_size=False`` it divides by the n ranks that still have a batch, so the last samples
    have the weight 1/(n·b). In the gradient of the mean loss, all weights would be equal.

    The counts are for a module without buffers, which would need further messages. In each step, Join asks how many
    ranks still have a batch and whether to reduce gradients. When none has, it asks once more, and then which rank has
    the final model. With "throw" it asks a third time in each step, and stops in the middle of the last one. With
    "hang", a rank that continues counts the allreduce in which it is stuck. It may be stuck before that, in a broadcast
    of DDP's forward pass: in the second step, in which DDP rebuilds its buckets, or if the module has buffers.

    Raises ValueError if `simulate` rejects an argument or the epoch has no loader, because its batches are unknown.

    >>> epoch = files_epoch([4, 2, 4], num_ranks=2, batch_size=2)
    >>> [indices.tolist() for indices in epoch.ranks]
    [[6, 7, 8, 9, 4, 5], [0, 1, 2, 3]]
    >>> dropped = predict(epoch, "drop")
    >>> [indices.tolist() for indices in dropped.trained.ranks], dropped.weights.tolist()
    ([[6, 7, 8, 9], [0, 1, 2, 3]], [0.25, 0.25, 0.25, 0.25, 0.0, 0.0, 0.25, 0.25, 0.25, 0.25])
    >>> joined = predict(epoch, "join")
    >>> joined.scale.tolist(), joined.counts[0]
    ([1.0, 1.0, 0.5], Counts(gradients=3, words=8))
    >>> predict(epoch, "join", divide_by_initial_world_size=False).weights.tolist()
    [0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    """
    own_batches = batches_by_rank(epoch)
    completed = steps_by_rank(own_batches, handling)
    num_steps = max(completed)
    num_ranks = len(own_batches)
    # Arrays with an entry for each step: how many ranks have completed all their steps before it, and how many not.
    num_finished = np.searchsorted(np.sort(completed), np.arange(num_steps), side="right")
    num_active = num_ranks - num_finished
    divisor = num_active
    if truth("divide_by_initial_world_size", divide_by_initial_world_size):
        divisor = np.full(num_steps, num_ranks)
    ranks = []
    weights = np.zeros(epoch.size)
    for rank, rank_steps in enumerate(completed):
        batches = epoch.batches(rank)
        trained = [batches[step % len(batches)] for step in range(rank_steps)]  # from the first on again if padded
        for batch, step_divisor in zip(trained, divisor[:rank_steps].tolist(), strict=True):
            np.add.at(weights, batch, 1 / (step_divisor * batch.size))
        ranks.append(np.concatenate([_NO_SAMPLES, *trained]))
    stuck = _stuck_ranks(own_batches, handling)
    failed = stuck
    if handling == "throw" and max(own_batches) > min(own_batches):
        failed = tuple(range(num_ranks))
    num_words = _num_words(handling, num_steps)
    counts = []
    for rank in range(num_ranks):
        num_allreduces = num_steps
        if rank in stuck:
            num_allreduces += 1  # the one that never ends
        counts.append(Counts(num_allreduces, num_words))
    return Prediction(
        trained=replace(epoch, ranks=tuple(ranks)),
        scale=np.asarray(num_active / divisor),
        weights=weights,
        counts=tuple(counts),
        failed=failed,
    )


def _num_words(handling: str, num_steps: int) -> int:
    """Return how many allreduces of a single number Join makes in so many steps; see `predict`."""
    if handling == "join":
        return 2 * num_steps + 2
    if handling == "throw":
        # If all ranks end together, the last two are those of "join"; else they belong to the step that Join stops.
        return 3 * num_steps + 2
    return 0


def _stuck_ranks(own_batches: Sequence[int], handling: str) -> tuple[int, ...]:
    """The ranks that start a collective in which not all ranks take part."""
    if handling != "hang":
        return ()
    return tuple(rank for rank, batches in enumerate(own_batches) if batches > min(own_batches))


def files_epoch(file_sizes: Sequence[int], num_ranks: int, batch_size: int, seed: int = 0) -> Assignment:
    """Return an epoch in which each rank reads the files that `shard_files` assigns to it, batch by batch.

    The dataset has the samples of file 0 first, then those of file 1, and so on. A rank's last batch may be short.

    >>> files_epoch([3, 1, 4], num_ranks=2, batch_size=2).ranks[0].tolist()
    [4, 5, 6, 7, 3]
    """
    listed = several("file_sizes", file_sizes, "numbers of samples")
    sizes = [whole("file_sizes", size, 0, _MOST_SAMPLES) for size in listed]
    whole("the samples of all files", sum(sizes), 0, _MOST_SAMPLES)
    names = [f"{file:09}" for file in range(len(sizes))]  # numbers that sort as names, too
    starts = np.cumsum([0, *sizes])  # the first sample of each file, and the number of all samples
    ranks = []
    for rank in range(whole("num_ranks", num_ranks, 1, _MOST_RANKS)):
        files_of_rank = [int(name) for name in shard_files(names, num_ranks, rank, seed)]
        samples = [np.arange(starts[file], starts[file + 1]) for file in files_of_rank]
        ranks.append(np.concatenate([_NO_SAMPLES, *samples]))
    return Assignment(int(starts[-1]), tuple(ranks), sampler="files", seed=seed).with_loader(batch_size)


def batches_by_rank(epoch: Assignment) -> tuple[int, ...]:
    """Return the number of batches of each rank. Raises ValueError for an epoch without a loader."""
    if of_type("epoch", epoch, Assignment).loader is None:
        raise ValueError("epoch must have a loader, whose batches its ranks read: epoch.with_loader(batch_size)")
    return tuple(len(epoch.batches(rank)) for rank in range(epoch.num_ranks))
