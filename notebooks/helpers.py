"""What cells of the notebooks need: recordings, scores of what a reader builds, and models of notebooks 00 and 08."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from rankscope.cluster import Cluster, Link
from rankscope.collectives import Schedule, best, build, simulate, verify
from rankscope.common.files import read_json
from rankscope.diagnose.traces.trace import Trace
from rankscope.networks import CostTable
from rankscope.sampling import Assignment, assign, audit
from rankscope.timeline import Span, Timeline
from rankscope.train import ddp
from rankscope.train.ddp import Contention, LocalStep, resnet50_step


def print_wrapped(result: object) -> None:
    """Print the lines of a result, broken between words at the width of a code cell."""
    for line in str(result).splitlines():
        print(textwrap.fill(line, 88, subsequent_indent="    "))


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


class _Recorded(msgspec.Struct):
    provenance: dict[str, Any]
    traces: dict[str, tuple[Trace, ...]]


def recorded_jobs(path: str) -> dict[str, tuple[Trace, ...]]:
    """Read what scripts/record_slow_jobs.py wrote: by slow phase, the traces of all ranks of a job."""
    return read_json(path, _Recorded).traces


class Sweep(msgspec.Struct, eq=False):
    """Recorded steps of a model on a network: what predicts them, and by bucket cap the seconds of each step."""

    name: str
    num_ranks: int
    network: str
    local: LocalStep
    cost: CostTable
    contention: Contention
    measured: list[tuple[float | None, list[float]]]


class _Sweeps(msgspec.Struct):
    provenance: dict[str, Any]
    sweeps: list[Sweep]


def recorded_sweeps(path: str) -> list[Sweep]:
    """Read recorded steps of DDP by bucket cap, those on shared cores first."""
    sweeps = read_json(path, _Sweeps).sweeps
    return sorted(sweeps, key=lambda sweep: (sweep.network != "loopback", sweep.num_ranks))


NETWORK_RANKS = 32
_IMAGES = 32  # of a batch
_READ_S = 0.020  # eight workers that take 5 ms for an image
_COPY_S = _IMAGES * 3 * 224 * 224 * 4 / 25e9  # float32, from pinned memory at 25 GB/s
_OPTIMIZER_S = 25.6e6 * 4 * 5 / 1.5e12  # SGD with momentum reads or writes five values of each parameter at 1.5 TB/s


def whole_step(gb_per_s: float) -> Timeline:
    """Return a modelled step of ResNet-50 on one of 32 ranks with 40 TFLOP/s, on a ring of such links.

    The rank copies its batch to the GPU and trains on it, while its workers read the next batch.
    """
    local = replace(resnet50_step(_IMAGES, 40e12), optimizer_s=_OPTIMIZER_S)
    cost = ddp.cost(Link(alpha_s=10e-6, bytes_per_s=gb_per_s * 1e9), NETWORK_RANKS)
    spans = [
        Span(0, "workers", "read next batch", -1, 0.0, _READ_S),
        Span(0, "copy", "copy", -1, 0.0, _COPY_S),
        *ddp.simulate(local, cost).shifted(_COPY_S),
    ]
    return Timeline.of(spans)


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


class Attention(nn.Module):
    """Attention with heads of 128, of which each token sees those before it: 4·width² parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        heads = self.qkv(self.norm(values)).unflatten(-1, (3, -1, 128)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        output: Tensor = values + self.out(attended.transpose(1, 2).flatten(2))
        return output


class MLP(nn.Module):
    """Two layers: 8·width² parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = values + self.down(gelu(self.up(self.norm(values))))
        return output


class Block(nn.Module):
    """An "attn" and an "mlp"; with `recompute`, only the block's input is kept for backward."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.attn = Attention()
        self.mlp = MLP()
        self.recompute = recompute

    def forward(self, values: Tensor) -> Tensor:
        if self.recompute:
            output: Tensor = checkpoint(self.parts, values, use_reentrant=False)
            return output
        return self.parts(values)

    def parts(self, values: Tensor) -> Tensor:
        output: Tensor = self.mlp(self.attn(values))
        return output


class Transformer(nn.Module):
    """An embedding "embed", "blocks" of width 4096, and a "head"; without memory, on the device "meta"."""

    def __init__(self, num_blocks: int = 16, recompute: bool = False) -> None:
        super().__init__()
        with torch.device("meta"):
            self.embed = nn.Embedding(NUM_WORDS, WIDTH)
            self.blocks = nn.ModuleList([Block(recompute) for _ in range(num_blocks)])
            self.head = nn.Linear(WIDTH, NUM_WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        values: Tensor = self.embed(tokens)
        for block in self.blocks:
            values = block(values)
        scores: Tensor = self.head(values)
        return scores


def loss_of(num_tokens: int) -> Callable[[nn.Module], Tensor]:
    """Return the loss of a sequence of so many tokens."""

    def loss(model: nn.Module) -> Tensor:
        tokens = torch.zeros(1, num_tokens, dtype=torch.int64)
        return cross_entropy(model(tokens)[0].float(), tokens[0])

    return loss
