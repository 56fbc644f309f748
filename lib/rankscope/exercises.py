"""The notebooks' exercises: `check` works the answer out afresh, raises on a wrong one and waits for a missing one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .cluster import Cluster, Link
from .collectives import Schedule, ScheduleError, build, closed_form, lower_bounds, simulate_executor, verify
from .exercises_09 import EXERCISES as _OF_09
from .exercises_10 import EXERCISES as _OF_10
from .machine.rows import busbw_factor
from .pipeline import Pipeline, Stage, idle_share, simulate, simulate_parts
from .sampling import assign, audit, shard_files
from .sampling.libtorch_samplers import DistributedRandomSampler


class WrongAnswer(ValueError):
    """The answer to an exercise is not right; the message says what it does instead."""


def check(exercise: str, answer: Any = ...) -> None:
    """Print that `answer` is right, raise WrongAnswer where it is not, and wait while it is ``...``.

    Exercises are named after their notebook: "01.2" is the second of notebook 01. Raises ValueError for a name that
    does not exist.

    >>> check("01.1", ...)
    01.1: not answered yet
    >>> check("01.1", 2)
    Traceback (most recent call last):
    rankscope.exercises.WrongAnswer: 01.1: 2 ranks read 1798 samples, of which 1 is a repeat
    """
    if exercise not in EXERCISES:
        raise ValueError(f"exercises are {', '.join(EXERCISES)}; got {exercise!r}")
    if answer is ...:
        print(f"{exercise}: not answered yet")
        return
    wrong = EXERCISES[exercise](answer.tolist() if hasattr(answer, "tolist") else answer)  # numpy's and torch's too
    if wrong:
        raise WrongAnswer(f"{exercise}: {wrong}")
    print(f"{exercise}: right")


def _no_padding(answer: Any) -> str | None:
    """The smallest number of ranks above 1 that shares 1,797 samples without padding."""
    if not isinstance(answer, int) or not 1 < answer <= 1797:
        return f"a number of ranks from 2 to 1797 is asked for, got {answer!r}"
    repeats = audit(assign(1797, answer)).duplicates
    if repeats:
        are = "is a repeat" if repeats == 1 else "are repeats"
        return f"{answer} ranks read {1797 + repeats} samples, of which {repeats} {are}"
    smaller = next((n for n in range(2, answer) if not audit(assign(1797, n)).findings), None)
    return f"{answer} ranks need no padding, but nor do fewer" if smaller else None


def _counted_twice(answer: Any) -> str | None:
    """How many reads too many 56 ranks count on 450 samples."""
    right = audit(assign(450, 56, shuffle=False)).duplicates
    return None if answer == right else f"56 ranks read a multiple of 56; what is beyond 450 is not {answer!r}"


def _colliding_seed(answer: Any) -> str | None:
    """The seed whose epoch 0 is epoch 4 of seed 3."""
    if not isinstance(answer, int) or isinstance(answer, bool):
        return f"a whole number is asked for, got {answer!r}"
    run = audit([assign(1797, 8, seed=3, epoch=4), assign(1797, 8, seed=answer, epoch=0)])
    return None if run.repeated_orders else f"seed {answer} reads epoch 0 in another order than seed 3 reads epoch 4"


def _never_seen(answer: Any) -> str | None:
    """The samples of 22 that libtorch's random sampler never reads over 4 ranks without duplicates."""
    run = (assign(22, 4, sampler="libtorch_random", epoch=epoch, drop_last=True) for epoch in range(50))
    right = set(audit(run).never_seen.tolist())
    if not isinstance(answer, (list, tuple, set)):
        return f"a list of samples is asked for, got {answer!r}"
    return None if set(answer) == right else f"50 epochs read one of {answer}, or miss another one"


def _smallest_world(answer: Any) -> str | None:
    """The smallest world size at which libtorch's random sampler leaves a dataset of 5 samples."""
    if not isinstance(answer, int) or answer < 1:
        return f"a world size is asked for, got {answer!r}"
    if not _strays(5, answer):
        return f"with {answer} ranks every index is below 5"
    return f"a world smaller than {answer} does it too" if any(_strays(5, n) for n in range(1, answer)) else None


def _strays(size: int, num_ranks: int) -> int:
    return audit(assign(size, num_ranks, sampler="libtorch_random")).out_of_range


def _resumed(answer: Any) -> str | None:
    """What a rank still reads after being saved in the middle of an epoch and loaded."""
    sampler = DistributedRandomSampler(20, num_replicas=2, rank=1)
    sampler.next(7)
    right = sampler.next(20)
    return None if answer == right else f"the three reads that are left, in order, are not {answer!r}"


def _enough_decoders(answer: Any) -> str | None:
    """The smallest number of decoders that leaves the step as the bottleneck."""
    if not isinstance(answer, int) or answer < 1:
        return f"a number of decoders is asked for, got {answer!r}"

    def bottleneck(decoders: int) -> str:
        return Pipeline([Stage("decode", 0.050, num_workers=decoders), Stage("compute", 0.012)]).bottleneck

    if bottleneck(answer) == "decode":
        return f"{answer} x 20 batches/s are fewer than the step's 83.3"
    return None if bottleneck(answer - 1 or 1) == "decode" else f"fewer than {answer} decoders are enough"


def _last_step(answer: Any) -> str | None:
    """When four steps of 2 s end that wait for reads of 1, 4, 1 and 1 s."""
    right = simulate(Pipeline([Stage("read", [1.0, 4.0, 1.0, 1.0]), Stage("train", 2.0)]), 4).end_s
    return None if answer == right else f"the steps do not end at {answer!r} s"


def _cost_of_order(answer: Any) -> str | None:
    """How much longer 21 batches take in order, the first being slow."""
    kept = Pipeline([Stage("decode", [9.0] + [1.0] * 20, num_workers=3), Stage("train", 0.0)])
    right = simulate(kept, 21).end_s - simulate(kept.changed("decode", ordered=False), 21).end_s
    return None if answer == right else f"the order does not cost {answer!r} s"


def _steps_together(answer: Any) -> str | None:
    """The steps of four trainers on 10 files of 100 rows, in batches of 32."""
    longest = max(len(shard_files([f"{file:02d}" for file in range(10)], 4, trainer)) for trainer in range(4))
    return None if answer == longest * -(-100 // 32) else f"the longest shard does not give {answer!r} batches"


def _alone_and_loading(answer: Any) -> str | None:
    """The idle share of a trainer that loads for 300 ms and then steps for 200 ms."""
    right = idle_share(simulate_parts([[0.3] * 10], 4, 0.05))
    close = isinstance(answer, (int, float)) and abs(answer - right) < 0.005
    return None if close else f"a share of the time is asked for, and it is not {answer!r}"


def _enough_loaders(answer: Any) -> str | None:
    """The smallest number of loaders that keeps up with a trainer."""
    if not isinstance(answer, int) or isinstance(answer, bool) or answer < 1:
        return f"a number of loaders is asked for, got {answer!r}"

    def idle(loaders: int) -> float:
        return idle_share(simulate_parts([[0.3] * 200], 4, 0.05, queue_size=4, num_loaders=loaders))

    if idle(answer) >= 0.05:
        return f"with {answer} the trainer waits for {idle(answer):.0%} of the time"
    return "fewer do, too" if answer > 1 and idle(answer - 1) < 0.05 else None


def _dealt_out(answer: Any) -> str | None:
    """What rank 3 has after an all-to-all among four ranks, of which rank r has 1 … 4 times 10^r."""
    return None if answer == [4 * 10**rank for rank in range(4)] else f"rank 3 does not end with {answer!r}"


def _tree_steps(answer: Any) -> str | None:
    """The steps of a binomial broadcast among 1,000 ranks."""
    right = build("broadcast", "binomial", 1000).num_steps
    return None if answer == right else f"it does not take {answer!r} steps"


def _one_step_allreduce(answer: Any) -> str | None:
    """A line that makes an allreduce of one chunk among two ranks."""
    try:
        verify(Schedule.from_text(f"allreduce yours ranks=2 chunks=1\n{answer}"))
    except ScheduleError as error:
        return str(error)
    return (
        None if answer.strip().startswith("0:") and "\n" not in answer.strip() else "one line, for step 0, is asked for"
    )


def _messages_of_the_root(answer: Any) -> str | None:
    """How many messages pass the root's port in a flat allreduce among six ranks."""
    steps = build("allreduce", "flat", 6).steps()
    right = sum(int(((step.src == 0) | (step.dst == 0)).sum()) for step in steps)
    return None if answer == right else f"there are not {answer!r}"


def _latency_half(answer: Any) -> str | None:
    """From how many ranks on a ring of 20 µs and 25 GB/s spends more than half of its time for 10 MB on latency."""
    if not isinstance(answer, int) or isinstance(answer, bool) or answer < 2:
        return f"a number of ranks is asked for, got {answer!r}"

    def latency(ranks: int) -> float:
        whole_s = closed_form("allreduce", "ring", ranks, 10e6, Link(20e-6, 25e9))
        return float(2 * (ranks - 1) * 20e-6 / whole_s)

    if latency(answer) <= 0.5 + 1e-12:
        return f"with {answer} it is {latency(answer):.0%}"
    return "fewer do, too" if latency(answer - 1) > 0.5 + 1e-12 else None


def _doubling_to_bound(answer: Any) -> str | None:
    """How many times the lower bound recursive doubling takes among eight ranks, where only bytes cost."""
    wire = Link(0.0, 1.0)
    right = (
        closed_form("allreduce", "recursive_doubling", 8, 1.0, wire) / lower_bounds("allreduce", 8, 1.0, wire).seconds
    )
    return None if _is_near(answer, right) else f"it does not take {answer!r} times as long"


def _latencies_on_the_wire(answer: Any) -> str | None:
    """How many latencies the executor's recursive doubling takes among eight ranks for a few bytes."""
    cluster = Cluster.uniform(8, Link(1.0, math.inf))
    right = round(simulate_executor(build("allreduce", "recursive_doubling", 8), 8, cluster).makespan_s)
    return None if answer == right else f"it does not take {answer!r} latencies"


def _bytes_through_the_root(answer: Any) -> str | None:
    """The seconds of a flat allreduce of 1 MB among five ranks, where a card takes 10 MB/s and nothing else counts."""
    right = simulate_executor(build("allreduce", "flat", 5), 1_000_000, Cluster.uniform(5, Link(0.0, 10e6))).makespan_s
    return None if _is_near(answer, right) else f"the root's card is not busy for {answer!r} s"


def _bus_bandwidth(answer: Any) -> str | None:
    """The busbw in GB/s of an allreduce of 64 MiB among eight ranks in 20 ms."""
    right = busbw_factor("allreduce", 8) * 2**26 / 0.020 / 1e9
    return None if _is_near(answer, right) else f"it is not {answer!r} GB/s: decimal ones, and 2(N-1)/N times algbw"


def _is_near(answer: Any, right: float) -> bool:
    return isinstance(answer, (int, float)) and abs(answer - right) < 0.005 * right


EXERCISES: dict[str, Callable[[Any], str | None]] = {
    "01.1": _no_padding,
    "01.2": _counted_twice,
    "01.3": _colliding_seed,
    "02.1": _never_seen,
    "02.2": _smallest_world,
    "02.3": _resumed,
    "03.1": _enough_decoders,
    "03.2": _last_step,
    "03.3": _cost_of_order,
    "04.1": _steps_together,
    "04.2": _alone_and_loading,
    "04.3": _enough_loaders,
    "05.1": _dealt_out,
    "05.2": _tree_steps,
    "05.3": _one_step_allreduce,
    "06.1": _messages_of_the_root,
    "06.2": _latency_half,
    "06.3": _doubling_to_bound,
    "07.1": _latencies_on_the_wire,
    "07.2": _bytes_through_the_root,
    "07.3": _bus_bandwidth,
    **_OF_09,
    **_OF_10,
}
