"""What several cells of the notebooks need: scores of what a reader builds, and the transformer of notebook 08."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from rankscope.cluster import Cluster, Link
from rankscope.collectives import Schedule, best, build, closed_form, simulate, verify
from rankscope.sampling import Assignment, assign, audit
from rankscope.train.fsdp import ModuleStep, ShardedLayer


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows of words and numbers under the names of their columns; the first column is left-aligned."""
    table = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for first, *others in table:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def sampler_score(mine: Callable[[int, int, int, int], Iterable[int]], size: int, num_ranks: int, epochs: int) -> None:
    """Print the audit of a sampler, ``mine(size, num_ranks, rank, epoch)``, next to torch's DistributedSampler."""

    def collected(epoch: int) -> Assignment:
        return Assignment.collect([mine(size, num_ranks, rank, epoch) for rank in range(num_ranks)], size, epoch)

    samplers: dict[str, Callable[[int], Assignment]] = {
        "yours": collected,
        "DistributedSampler": lambda epoch: assign(size, num_ranks, epoch=epoch),
        "with drop_last": lambda epoch: assign(size, num_ranks, epoch=epoch, drop_last=True),
    }
    rows = []
    for name, sampler in samplers.items():
        result = audit(sampler(epoch) for epoch in range(epochs))
        uneven_by = max(epoch.longest - epoch.shortest for epoch in result.epochs)
        rows.append((name, result.duplicates, result.dropped, uneven_by, len(result.repeated_orders)))
    print_table(("", "read twice", "left out", "uneven by", "repeated orders"), rows)


def schedule_score(text: str, cluster: Cluster, num_bytes: int) -> None:
    """Print the simulated time of an allreduce, as text, next to a ring, the best algorithm and the lower bound.

    Raises ScheduleError if it is not an allreduce of all ranks of the cluster.
    """
    yours = Schedule.from_text(text)
    verify(yours)
    ranking = best(num_bytes, cluster)
    fastest = ranking.candidates[0]
    schedules = {
        "yours": yours,
        f"{fastest.algorithm} (best)": build("allreduce", fastest.algorithm, cluster.num_ranks, **fastest.options),
        "ring": build("allreduce", "ring", cluster.num_ranks),
    }
    rows = []
    for name, schedule in schedules.items():
        seconds = simulate(schedule, num_bytes, cluster).makespan_s
        rows.append((name, schedule.num_steps, f"{seconds * 1e6:.1f} µs", f"{seconds / ranking.bound_s:.2f}"))
    rows.append(("lower bound", "", f"{ranking.bound_s * 1e6:.1f} µs", ""))
    print_table(("", "steps", "time", "× bound"), rows)


NUM_JOBS = 30
_USUAL_S = (0.004, 0.012, 0.018, 0.004, 0.002)  # of the phases loader, forward, backward, optimizer and host
_BACKWARD = 2  # its place among the phases


def culprit_score(mine: Callable[[NDArray[np.float64]], tuple[int, int] | None]) -> None:
    """Print how many of 30 made jobs ``mine(own_s)`` names right: (rank, phase), or None for a healthy one.

    `own_s` has the seconds of each rank's own work, 12 steps by 4 ranks by 5 phases. In 24 jobs a phase of one rank
    takes 60 ms longer, in each step or in every fourth.
    """

    def longest_backward(own_s: NDArray[np.float64]) -> tuple[int, int]:
        """Name the rank with the longest mean backward, in which each rank waits for the slowest rank of the step."""
        total_s = own_s.sum(axis=2)
        waiting_s = total_s.max(axis=1, keepdims=True) - total_s
        return int((own_s[:, :, _BACKWARD] + waiting_s).mean(axis=0).argmax()), _BACKWARD

    rows = []
    for name, answer in {"yours": mine, "longest backward, waiting included": longest_backward}.items():
        num_right = num_accused = num_healthy = 0
        for own_s, culprit in made_jobs():
            named = answer(own_s)
            num_right += named == culprit
            num_healthy += culprit is None
            num_accused += culprit is None and named is not None
        rows.append((name, f"{num_right} of {NUM_JOBS}", f"{num_accused} of {num_healthy}"))
    print_table(("", "named right", "healthy jobs accused"), rows)


def made_jobs() -> Iterator[tuple[NDArray[np.float64], tuple[int, int] | None]]:
    """Yield jobs: the seconds of their phases, and the late rank and phase, or None for a healthy job."""
    random = np.random.default_rng(0)
    for job in range(NUM_JOBS):
        own_s = np.array(_USUAL_S) * random.uniform(0.9, 1.1, (12, 4, 5))
        culprit = None
        if job % 5 != 0:
            rank = int(random.integers(4))
            phase = int(random.integers(5))
            step_interval = random.choice([1, 4])
            own_s[::step_interval, rank, phase] += 0.06
            culprit = (rank, phase)
        yield own_s, culprit


WIDTH = 4096
NUM_WORDS = 32_000
_BYTES_OF_16_BITS = 2
_FLOAT32_TO_16_BITS = 2  # what a step states for float32, compared with what 16-bit training keeps


def transformer(
    num_tokens: int,
    num_blocks: int = 16,
    *,
    flops_per_s: float = 400e12,
    recompute: bool = False,
    tensor_ranks: int = 1,
    tensor_link: Link | None = None,
) -> ModuleStep:
    """Return the step of a GPU with `num_tokens` tokens: an embedding, blocks of width 4096, and a head.

    A block has an "attn" of 4·width² and an "mlp" of 8·width² parameters. A pass takes 2 operations per parameter and
    token, and backward twice as many; the products of attention itself are left out. In 16-bit precision, a block
    keeps 34·tokens·width bytes for backward: equation 2 of Korthikanti and others, 2022
    (https://arxiv.org/abs/2205.05198), without attention's matrix. The step states twice that, because its parameters
    are float32, and `fsdp.predict` scales activations to ``param_dtype``. With `recompute`, it keeps only its input,
    and backward begins with another forward.

    If `tensor_ranks` is above 1, this number of GPUs split each layer and process their tokens together: Megatron-LM's
    tensor parallelism (https://arxiv.org/abs/1909.08053), here with the sequence parallelism of Korthikanti and others.
    The step is that of one of these GPUs. It computes and keeps as much as without tensor parallelism, but has fewer
    parameters. After each part of a block, in forward and in backward, the 16-bit activations of all their tokens are
    all-reduced in a ring over `tensor_link`, and likewise after the embedding in forward and after the head in
    backward. Nothing hides these all-reduces, so their times are part of the layers' times.
    """
    allreduce_s = 0.0
    if tensor_link is not None:
        allreduced_bytes = _BYTES_OF_16_BITS * num_tokens * tensor_ranks * WIDTH
        allreduce_s = float(closed_form("allreduce", "ring", tensor_ranks, allreduced_bytes, tensor_link))
    # Bytes that each part of a block keeps for backward, per token and unit of width. Of the 34 in all, attention keeps
    # 11, the mlp 19, and the layer norm before each of them 2. With `recompute`, only the block's input is kept.
    kept_per_value = {"attn": 13, "mlp": 21}
    if recompute:
        kept_per_value = {"attn": _BYTES_OF_16_BITS, "mlp": 0}
    num_rows = NUM_WORDS // tensor_ranks
    # A look-up itself takes next to no time.
    layers = [ShardedLayer("embed", (num_rows * WIDTH,), forward_s=allreduce_s)]
    for block in range(num_blocks):
        for part, num_parameters in (("attn", 4 * WIDTH**2), ("mlp", 8 * WIDTH**2)):
            # With tensor parallelism, a GPU computes 1/tensor_ranks of the part for tensor_ranks times as many tokens.
            computing_s = 2 * num_parameters * num_tokens / flops_per_s
            forward_s = computing_s + allreduce_s
            backward_s = 2 * computing_s + allreduce_s
            if recompute:
                backward_s += forward_s
            kept_bytes = _FLOAT32_TO_16_BITS * kept_per_value[part] * num_tokens * WIDTH
            own_parameters = num_parameters // tensor_ranks
            layers.append(
                ShardedLayer(
                    f"blocks.{block}.{part}",
                    (own_parameters,),
                    forward_s=forward_s,
                    backward_s=backward_s,
                    activation_bytes=kept_bytes,
                )
            )
    head_s = 2 * NUM_WORDS * WIDTH * num_tokens / flops_per_s
    kept_of_head = num_tokens * (_BYTES_OF_16_BITS * WIDTH + 4 * NUM_WORDS)  # its input, and the scores in float32
    layers.append(
        ShardedLayer(
            "head",
            (num_rows * WIDTH,),
            forward_s=head_s,
            backward_s=2 * head_s + allreduce_s,
            activation_bytes=_FLOAT32_TO_16_BITS * kept_of_head,
        )
    )
    return ModuleStep.of_layers(layers)
