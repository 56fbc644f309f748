"""Scores of things that a reader builds: each function here makes the `Score` of one kind of thing.

`at_most` and similar arguments are the goal of an exercise. Something that does not work at all raises ValueError, as
it does in the library. Nothing is timed: all times come from the library's models, so a score is the same on every
machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cluster import Cluster, Link
from ...collectives import ALGORITHMS, Schedule, best, build, simulate, verify
from ...common.checks import count_of, function, number, of_type, several, whole
from ...common.units import decimal_words, percent_words, three_digits, times_in_one_unit
from ...pipeline import Pipeline
from ...sampling import Assignment, assign, audit
from ...train import ddp, fsdp
from ...train.ddp.cost import Cost
from ...train.pipeline_parallel import PipelineSchedule, simulated_bubble
from ...train.pipeline_parallel import build as build_pipeline
from ...train.pipeline_parallel import verify as verify_pipeline
from ...train.zero import partition
from .kinds import Score, amount

_EQUAL = 1.005  # times as long still counts as equally long
_ROUNDING = 1e-9  # by which the rounding of floats may change a number


def sampler_score(
    mine: Callable[[int, int, int, int], Iterable[int]],
    size: int,
    num_ranks: int,
    epochs: Iterable[int] = (0, 1),
    allow: Iterable[str] = (),
) -> Score:
    """Return the audit of a sampler, ``mine(size, num_ranks, rank, epoch)``, next to torch's DistributedSampler.

    `allow` names the kinds of findings of `sampling.audit` that the exercise accepts.
    """
    function("the answer", mine, "of size, num_ranks, rank and epoch")
    epochs = list(epochs)

    def collected(epoch: int) -> Assignment:
        return Assignment.collect([mine(size, num_ranks, rank, epoch) for rank in range(num_ranks)], size, epoch)

    audits = {
        "yours": audit(collected(epoch) for epoch in epochs),
        "DistributedSampler": audit(assign(size, num_ranks, epoch=epoch) for epoch in epochs),
        "with drop_last": audit(assign(size, num_ranks, epoch=epoch, drop_last=True) for epoch in epochs),
    }
    rows = {}
    for name, result in audits.items():
        uneven = max(epoch.longest - epoch.shortest for epoch in result.epochs)
        rows[name] = (str(result.duplicates), str(result.dropped), str(uneven), str(len(result.repeated_orders)))
    allowed = set(allow)
    faults = [finding.message for finding in audits["yours"].findings if finding.kind not in allowed]
    return Score(("read twice", "left out", "uneven by", "repeated orders"), rows, "; ".join(faults) or None)


def schedule_score(mine: Schedule | str, collective: str, cluster: Cluster, num_bytes: float) -> Score:
    """Return the verified schedule's time next to those of a ring, the best algorithm and the lower bound.

    `mine` is a Schedule or its text, with equal chunks and as many ports as the cluster, which must limit them. It
    solves the exercise if it takes as long as the best algorithm. Raises ValueError if the cluster has no such limit,
    or if the schedule is of another collective, number of ranks, root or number of ports, or has unequal chunks.
    """
    ports = whole("cluster.ports", cluster.ports, 1)
    schedule = Schedule.from_text(mine) if isinstance(mine, str) else of_type("a schedule", mine, Schedule)
    settings = (schedule.collective, schedule.num_ranks, schedule.root, schedule.ports)
    if settings != (collective, cluster.num_ranks, 0, ports):
        wanted = f"{collective} yours ranks={cluster.num_ranks} chunks={schedule.num_chunks} root=0 ports={ports}"
        raise ValueError(f"the schedule must begin with {wanted!r}, got {schedule.to_text().splitlines()[0]!r}")
    if schedule.weights is not None:  # the schedules that it is compared with send chunks of equal sizes
        raise ValueError(f"the schedule must have equal chunks, got weights {schedule.weights}")
    verify(schedule)  # also that its sums keep to its lag, which is free: the time is that of a real overlap
    ranking = best(num_bytes, cluster, collective)
    fastest = ranking.candidates[0]  # they are sorted by their times
    best_name = f"{fastest.algorithm} (best)"
    schedules = {
        "yours": schedule,
        best_name: build(collective, fastest.algorithm, cluster.num_ranks, **fastest.options),
    }
    if fastest.algorithm != "ring" and "ring" in ALGORITHMS[collective]:
        schedules["ring"] = build(collective, "ring", cluster.num_ranks)
    seconds = {}  # all simulated, because the times in the ranking may come from closed forms
    for name, compared in schedules.items():
        timeline = simulate(compared, num_bytes, cluster, detail="ranks")  # no spans of messages: only its end counts
        seconds[name] = timeline.makespan_s
    *times, bound = times_in_one_unit(*seconds.values(), ranking.bound_s)
    rows = {}
    for (name, compared), time in zip(schedules.items(), times, strict=True):
        rows[name] = (str(compared.num_steps), time, _multiple(seconds[name], ranking.bound_s))
    rows["lower bound"] = ("", bound, "")
    return Score(("steps", "time", "× bound"), rows, _too_slow(seconds["yours"], seconds[best_name]))


def bucket_score(mine: Any, local: ddp.LocalStep, cost: Cost) -> Score:
    """Return the predicted step with a bucket cap in MiB, or with buckets as lists of parameters' indices in `local`.

    It is compared with DDP's default and the recommended cap, and may take 1 % longer than the latter.
    """
    recommendation = ddp.recommend(local, cost)
    yours = {"buckets": mine}
    if not isinstance(mine, list | tuple):
        yours = {"bucket_cap_mb": number("the cap in MiB", amount(mine, "MiB"), 0)}
    steps = {
        "yours": ddp.simulate(local, cost, **yours),
        "DDP's default": ddp.simulate(local, cost),
        "recommended": ddp.simulate(local, cost, bucket_cap_mb=recommendation.bucket_cap_mb),
    }
    seconds = {name: step.makespan_s for name, step in steps.items()}
    waits_s = [step.select(kind="wait").busy_s for step in steps.values()]
    words = times_in_one_unit(*seconds.values(), *waits_s)
    step_words = words[: len(steps)]
    wait_words = words[len(steps) :]
    rows = {}
    for (name, step), duration, wait in zip(steps.items(), step_words, wait_words, strict=True):
        rows[name] = (str(len(step.select(lane="allreduce"))), duration, wait)
    return Score(("buckets", "step", "waits"), rows, _too_slow(seconds["yours"], seconds["recommended"], 1.01))


def stage_score(mine: Mapping[str, int], pipeline: Pipeline, at_least_per_s: float) -> Score:
    """Return the throughput of a pipeline with other numbers of workers, and the workers spent on it.

    `mine` has the number of workers by the stage's name; stages that it leaves out are unchanged. It solves the
    exercise if it delivers `at_least_per_s` with the smallest possible number of workers.
    """
    if not isinstance(mine, Mapping):
        raise ValueError(f"numbers of workers by stage were expected, such as {{'decode': 3}}, got {mine!r}")
    names = [stage.name for stage in pipeline.stages]
    for name in mine:
        if name not in names:
            raise ValueError(f"stages are {', '.join(names)}, got {name!r}")
    yours = pipeline
    enough = pipeline
    for stage in pipeline.stages:
        busy_workers = at_least_per_s * stage.mean_s  # on average
        needed = max(1, math.ceil(busy_workers - _ROUNDING))  # one even for a stage that takes no time
        yours = yours.changed(stage.name, num_workers=mine.get(stage.name, stage.num_workers))
        enough = enough.changed(stage.name, num_workers=needed)
    rows = {}
    num_workers = {}
    for name, compared in {"as it was": pipeline, "yours": yours, "enough": enough}.items():
        num_workers[name] = sum(stage.num_workers for stage in compared.stages)
        rows[name] = (str(num_workers[name]), f"{three_digits(compared.bound_per_s)}/s", compared.bottleneck)
    wrong = None
    if yours.bound_per_s < at_least_per_s * (1 - _ROUNDING):
        delivered = three_digits(yours.bound_per_s)
        needed_rate = three_digits(at_least_per_s)
        if delivered == needed_rate:  # they differ in later digits
            delivered = f"{yours.bound_per_s:.10g}"
            needed_rate = f"{at_least_per_s:.10g}"
        wrong = f"{yours.bottleneck} delivers {delivered}/s, and {needed_rate}/s are needed"
    elif num_workers["yours"] > num_workers["enough"]:
        wrong = f"you spend {num_workers['yours']} workers, and {num_workers['enough']} are enough"
    return Score(("workers", "throughput", "bottleneck"), rows, wrong)


def wrapping_score(mine: Sequence[str], step: fsdp.ModuleStep, most_wait_s: float, most_bytes: float) -> Score:
    """Return the waits and the peak memory of a step under `fully_shard` with these modules wrapped, on 64 GPUs.

    All-gathers are of bfloat16 and reduce-scatters of float32, over links of 20 µs and 50 GB/s per GPU. `mine` is
    compared with other policies, and solves the exercise if it neither waits longer nor needs more memory than it may.
    """
    costs = fsdp.FSDPCosts.of_link(Link(20e-6, 50e9), num_ranks=64)
    policies = {
        "yours": [of_type("a name", name, str) for name in several("the answer", mine, "names")],
        "nothing wrapped": [],
        "each layer": ["embed", "blocks.*.*", "head"],
    }
    steps = {}
    for name, wrap in policies.items():
        steps[name] = fsdp.predict(step, costs, num_ranks=64, wrap=wrap, param_dtype="bfloat16", reduce_dtype="float32")
    rows = {}
    for name, predicted in steps.items():
        peak = decimal_words(predicted.memory.peak_bytes)
        rows[name] = (str(len(predicted.collectives)), f"{predicted.wait_s * 1e3:.0f} ms", peak)
    yours = steps["yours"]
    wrong = None
    if yours.wait_s > most_wait_s:
        wrong = f"a GPU waits {yours.wait_s * 1e3:.0f} ms per step, and {most_wait_s * 1e3:.0f} ms are possible"
    elif yours.memory.peak_bytes > most_bytes:
        wrong = f"the peak is {decimal_words(yours.memory.peak_bytes)}, and {decimal_words(most_bytes)} are allowed"
    return Score(("collectives", "waits", "peak"), rows, wrong)


def share_score(mine: Sequence[Sequence[int]], sizes: Sequence[int], num_ranks: int) -> Score:
    """Return how evenly things of these sizes are distributed; `mine` has the indices into `sizes` for each rank.

    It is compared with assigning them in turn, and must be as good as assigning the largest first.
    """
    shares = []
    for share in several("the answer", mine, "lists"):
        shares.append([whole("a place", index, 0, len(sizes) - 1) for index in several("a share", share)])
    assigned = sorted(chain.from_iterable(shares))
    if len(shares) != num_ranks or assigned != list(range(len(sizes))):
        raise ValueError(f"{num_ranks} lists that have each of 0 to {len(sizes) - 1} once were expected, got {mine!r}")
    compared: dict[str, Sequence[Sequence[int]]] = {
        "yours": shares,
        "in turn": [range(rank, len(sizes), num_ranks) for rank in range(num_ranks)],
        "largest first": partition(sizes, num_ranks),
    }
    even_share = sum(sizes) / num_ranks
    fullest = {}
    rows = {}
    for name, indices_of_ranks in compared.items():
        fullest[name] = max(sum(sizes[index] for index in indices) for indices in indices_of_ranks)
        rows[name] = (f"{fullest[name]:,}", _multiple(fullest[name], even_share))
    goal = fullest["largest first"]
    wrong = None
    if fullest["yours"] > goal:
        wrong = f"the fullest rank has {fullest['yours']:,}, and {goal:,} are possible"
    return Score(("fullest rank", "× even share"), rows, wrong)


def pipeline_score(
    mine: PipelineSchedule | str,
    num_ranks: int,
    num_microbatches: int,
    most_bubble: float = 1.0,
    most_kept: int | None = None,
) -> Score:
    """Return the bubble of a pipeline-parallel schedule and the activations it keeps, next to GPipe's and 1F1B's.

    A backward takes twice as long as a forward. `most_bubble` is a share of the step, `most_kept` the activations that
    the fullest rank may keep; by default neither is limited.
    """
    if isinstance(mine, str):
        schedule = PipelineSchedule.from_text(mine)
    else:
        schedule = of_type("a schedule", mine, PipelineSchedule)
    verify_pipeline(schedule)
    if (schedule.num_ranks, schedule.num_microbatches) != (num_ranks, num_microbatches):
        got = f"{schedule.num_ranks} and {schedule.num_microbatches}"
        raise ValueError(f"the schedule must have {num_ranks} ranks and {num_microbatches} microbatches, got {got}")
    compared = {
        "yours": schedule,
        "GPipe": build_pipeline("gpipe", num_ranks, num_microbatches),
        "1F1B": build_pipeline("one_f_one_b", num_ranks, num_microbatches),
    }
    bubbles = {}
    activations = {}
    rows = {}
    for name, compared_schedule in compared.items():
        bubbles[name] = float(simulated_bubble(compared_schedule))
        activations[name] = max(compared_schedule.activations_in_flight())
        rows[name] = (f"{bubbles[name]:.1%}", str(activations[name]))
    wrong = None
    if bubbles["yours"] > most_bubble + _ROUNDING:
        goal = f"the goal is at most {percent_words(most_bubble, 1)}"
        wrong = f"the bubble is {percent_words(bubbles['yours'], 1)} of the step; {goal}"
    elif most_kept is not None and activations["yours"] > most_kept:
        wrong = f"a rank keeps {activations['yours']} activations; the goal is at most {most_kept}"
    return Score(("bubble", "activations kept"), rows, wrong)


def step_score(mine: Callable[[Any, Any, Any], object], num_micro: int) -> Score:
    """Return how often a step of `num_micro` micro-batches synchronises gradients on real ranks, and if it is right.

    ``mine(ddp, inputs, targets)`` runs forward and backward on the 4 samples of one of two ranks, with a mean squared
    error. This needs torch, and takes a second.
    """
    import torch

    from ...ranks import RankError
    from ...train.gradients import Work, audit_step

    function("the answer", mine, "of ddp, inputs and targets")
    mse = torch.nn.functional.mse_loss
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, 3, dtype=torch.float64, generator=generator)
    targets = torch.randn(8, 1, dtype=torch.float64, generator=generator)

    def without_no_sync(ddp: Any, inputs: Any, targets: Any) -> None:
        for part, part_targets in zip(inputs.chunk(num_micro), targets.chunk(num_micro), strict=True):
            (mse(ddp(part), part_targets) / num_micro).backward()  # type: ignore[no-untyped-call]

    def checked(ddp: Any, inputs: Any, targets: Any) -> None:
        """Run the reader's step, and check the sizes of the micro-batches that it passes to the module."""
        sizes: list[int] = []
        ddp.module.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
        mine(ddp, inputs, targets)
        if sizes != [len(inputs) / num_micro] * num_micro:
            raise ValueError(f"{num_micro} equal micro-batches were expected, got {sizes} samples")

    work = Work(torch.nn.Linear(3, 1, dtype=torch.float64), inputs, targets, mse)
    rows = {}
    audits = {}
    for name, step in {"yours": checked, "without no_sync": without_no_sync}.items():
        try:
            audits[name] = audit_step(work, 2, step)
        except RankError as error:
            last_line = str(error).strip().splitlines()[-1]  # after the traceback of the rank, its error
            raise ValueError(last_line) from error
        gradients = "wrong" if audits[name].findings else "right"
        rows[name] = (f"{audits[name].num_allreduces:g} times", gradients)
    wrong = "; ".join(finding.message for finding in audits["yours"].findings)
    if not wrong and audits["yours"].num_allreduces > 1:
        wrong = f"gradients are synchronised {audits['yours'].num_allreduces:g} times; the goal is at most 1"
    return Score(("synchronised", "gradients"), rows, wrong or None)


def _multiple(value: float, unit: float) -> str:
    return f"{value / unit:.2f}" if unit else ""


def _too_slow(seconds: float, goal_s: float, at_most: float = 1.0) -> str | None:
    """Return what is wrong if a time is longer than `at_most` times the goal, or else None."""
    if seconds <= goal_s * at_most * _EQUAL:
        return None
    goal = f"at most {at_most:g} times" if at_most > 1 else "the same time"
    return f"it takes {seconds / goal_s:.2f} times as long as the best; the goal is {goal}"


def culprit_score(mine: Callable[[Any], Any]) -> Score:
    """Return how many of 30 made jobs ``mine(own_s)`` names right: (rank, phase), or None for a healthy one.

    `own_s` has the seconds of each rank's own work, steps by 4 ranks by 5 phases. In 24 jobs a phase of one rank takes
    60 ms longer, in each step or in every fourth.
    """
    function("the answer", mine, "of own_s")
    num_right = 0
    num_accused = 0
    num_right_by_longest = 0
    for own_s, culprit in _made_jobs():
        answer = mine(own_s.copy())  # it may change its argument
        if answer is not None:
            # Phases are 0 to 4. There is no rank 4, so an answer with it is wrong, but not invalid.
            answer = tuple(whole("a rank and a phase", part, 0, 4) for part in several("what mine returns", answer))
        if answer == culprit:
            num_right += 1
        if culprit is None and answer is not None:
            num_accused += 1
        if culprit == (_rank_of_longest_backward(own_s), _BACKWARD):
            num_right_by_longest += 1
    rows = {
        "yours": (f"{num_right} of {_NUM_JOBS}", f"{num_accused} of {_NUM_HEALTHY}"),
        # It always blames a rank, also in each healthy job.
        "longest backward, waiting included": (
            f"{num_right_by_longest} of {_NUM_JOBS}",
            f"{_NUM_HEALTHY} of {_NUM_HEALTHY}",
        ),
    }
    wrong = None
    if num_right < _NUM_JOBS:
        wrong = f"{count_of(_NUM_JOBS - num_right, 'job')} of {_NUM_JOBS} named wrongly"
    return Score(("named right", "healthy jobs accused"), rows, wrong)


_BACKWARD = 2  # its index among the phases: loader, forward, backward, optimizer, host
_USUAL_S = (0.004, 0.012, 0.018, 0.004, 0.002)  # of each phase
_NUM_JOBS = 30
_NUM_HEALTHY = 6  # of them have no culprit


def _made_jobs() -> Iterator[tuple[NDArray[np.float64], tuple[int, int] | None]]:
    """Yield jobs: seconds of shape (12 steps, 4 ranks, 5 phases), and the late rank and phase, if there is one."""
    random = np.random.default_rng(0)
    for job in range(_NUM_JOBS):
        own_s = np.array(_USUAL_S) * random.uniform(0.9, 1.1, (12, 4, 5))
        culprit = None
        is_healthy = job % (_NUM_JOBS // _NUM_HEALTHY) == 0
        if not is_healthy:
            rank = int(random.integers(4))
            phase = int(random.integers(5))
            step_interval = random.choice([1, 4])
            own_s[::step_interval, rank, phase] += 0.06
            culprit = (rank, phase)
        yield own_s, culprit


def _rank_of_longest_backward(own_s: NDArray[np.float64]) -> int:
    """The rank with the longest mean backward, if each rank waits in its backward for the slowest rank of the step."""
    total_s = own_s.sum(axis=2)
    waiting_s = total_s.max(axis=1, keepdims=True) - total_s
    return int((own_s[:, :, _BACKWARD] + waiting_s).mean(axis=0).argmax())
