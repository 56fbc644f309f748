"""Scores of things that a reader builds: each function here makes the `Score` of one kind of thing.

`at_most` and the like say what an exercise asks for; what does not work at all raises ValueError, as it does where it
is made. Nothing is timed: the library's models give all times, so that a score is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...cluster import Cluster
from ...collectives import ALGORITHMS, Schedule, best, build, simulate, verify
from ...common.checks import count_of, function, number, of_type, several, whole
from ...common.units import three_digits, times_in_one_unit
from ...pipeline import Pipeline
from ...sampling import Assignment, assign, audit
from ...train import ddp
from ...train.ddp.cost import Cost
from ...train.pipeline_parallel import PipelineSchedule, simulated_bubble
from ...train.pipeline_parallel import build as build_pipeline
from ...train.pipeline_parallel import verify as verify_pipeline
from ...train.zero import partition
from .kinds import Score, amount

_EQUAL = 1.005  # times as long is as long


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

    runs = {
        "yours": audit(map(collected, epochs)),
        "DistributedSampler": audit(assign(size, num_ranks, epoch=epoch) for epoch in epochs),
        "with drop_last": audit(assign(size, num_ranks, epoch=epoch, drop_last=True) for epoch in epochs),
    }
    rows = {}
    for name, one in runs.items():
        uneven = max(epoch.longest - epoch.shortest for epoch in one.epochs)
        rows[name] = str(one.duplicates), str(one.dropped), str(uneven), str(len(one.repeated_orders))
    wrong = "; ".join(finding.message for finding in runs["yours"].findings if finding.kind not in set(allow))
    return Score(("read twice", "left out", "uneven by", "repeated orders"), rows, wrong or None)


def schedule_score(mine: Schedule | str, collective: str, cluster: Cluster, num_bytes: float) -> Score:
    """Return the time of a schedule, once it is verified, next to a ring's, the best algorithm's and the lower bound.

    `mine` is a Schedule or its text. It solves the exercise if it takes as long as the best.
    """
    schedule = Schedule.from_text(mine) if isinstance(mine, str) else of_type("a schedule", mine, Schedule)
    made = schedule.collective, schedule.num_ranks, schedule.root, schedule.ports
    if made != (collective, cluster.num_ranks, 0, cluster.ports):
        wanted = f"{collective} yours ranks={cluster.num_ranks} chunks={schedule.num_chunks}"
        raise ValueError(f"the schedule must begin with {wanted!r}, got {schedule.to_text().splitlines()[0]!r}")
    verify(schedule)
    ranked = best(num_bytes, cluster, collective)
    first = ranked.candidates[0]
    name = f"{first.algorithm} (best)"
    compared = {"yours": schedule, name: build(collective, first.algorithm, cluster.num_ranks, **first.options)}
    if first.algorithm != "ring" and "ring" in ALGORITHMS[collective]:
        compared["ring"] = build(collective, "ring", cluster.num_ranks)
    took_s = {row: simulate(one, num_bytes, cluster, detail="ranks").makespan_s for row, one in compared.items()}
    *times, bound = times_in_one_unit(*took_s.values(), ranked.bound_s)
    rows = {}
    for (row, one), time in zip(compared.items(), times, strict=True):
        rows[row] = str(one.num_steps), time, _times(took_s[row], ranked.bound_s)
    rows["lower bound"] = "", bound, ""
    return Score(("steps", "time", "× bound"), rows, _too_much(took_s["yours"], took_s[name]))


def bucket_score(mine: Any, local: ddp.LocalStep, cost: Cost) -> Score:
    """Return the predicted step with a bucket cap in MiB, or with buckets as lists of parameters' places in `local`.

    It stands next to DDP's default and the recommended cap; it may take 1 % longer than the latter.
    """
    found = ddp.recommend(local, cost)
    yours = {"buckets": mine}
    if not isinstance(mine, list | tuple):
        yours = {"bucket_cap_mb": number("the cap in MiB", amount(mine, "MiB"), 0)}
    options = {"yours": yours, "DDP's default": {}, "recommended": {"bucket_cap_mb": found.bucket_cap_mb}}
    steps = {name: ddp.simulate(local, cost, **chosen) for name, chosen in options.items()}
    took_s = {name: step.makespan_s for name, step in steps.items()}
    waits_s = [step.select(kind="wait").busy_s for step in steps.values()]
    times = times_in_one_unit(*took_s.values(), *waits_s)
    rows = {}
    for (name, step), taken, waited in zip(steps.items(), times[: len(steps)], times[len(steps) :], strict=True):
        rows[name] = str(len(step.select(lane="allreduce"))), taken, waited
    return Score(("buckets", "step", "waits"), rows, _too_much(took_s["yours"], took_s["recommended"], 1.01))


def stage_score(mine: Mapping[str, int], pipeline: Pipeline, at_least_per_s: float) -> Score:
    """Return the throughput of a pipeline with other numbers of workers, and the workers spent on it.

    `mine` has the number of workers by the stage's name; stages that it leaves out stay as they are. It solves the
    exercise if it delivers `at_least_per_s` with as few workers as that needs.
    """
    if not isinstance(mine, Mapping):
        raise ValueError(f"numbers of workers by stage were expected, such as {{'decode': 3}}, got {mine!r}")
    names = [stage.name for stage in pipeline.stages]
    if unknown := [name for name in mine if name not in names]:
        raise ValueError(f"stages are {', '.join(names)}, got {unknown[0]!r}")
    changed, enough = pipeline, pipeline
    for stage in pipeline.stages:
        needed = max(1, math.ceil(at_least_per_s * stage.mean_s - 1e-9))
        changed = changed.changed(stage.name, num_workers=mine.get(stage.name, stage.num_workers))
        enough = enough.changed(stage.name, num_workers=needed)
    rows, workers = {}, {}
    for name, one in {"as it was": pipeline, "yours": changed, "enough": enough}.items():
        workers[name] = sum(stage.num_workers for stage in one.stages)
        rows[name] = str(workers[name]), f"{three_digits(one.bound_per_s)}/s", one.bottleneck
    wrong = None
    if changed.bound_per_s < at_least_per_s * (1 - 1e-9):
        delivers = f"{changed.bottleneck} delivers {three_digits(changed.bound_per_s)}/s"
        wrong = f"{delivers}, and {three_digits(at_least_per_s)}/s are needed"
    elif workers["yours"] > workers["enough"]:
        wrong = f"you spend {workers['yours']} workers, and {workers['enough']} are enough"
    return Score(("workers", "throughput", "bottleneck"), rows, wrong)


def share_score(
    mine: Sequence[Sequence[int]], sizes: Sequence[int], num_ranks: int, at_most: float | None = None
) -> Score:
    """Return how evenly things of these sizes are dealt out; `mine` has the places in `sizes` that each rank gets.

    It stands next to dealing them out in turn and to the largest first. `at_most` is a multiple of an even share; by
    default the largest first must be reached.
    """
    shares = [
        [whole("a place", place, 0, len(sizes) - 1) for place in several("a share", one)]
        for one in several("the answer", mine, "lists")
    ]
    if len(shares) != num_ranks or sorted(place for one in shares for place in one) != list(range(len(sizes))):
        raise ValueError(f"{num_ranks} lists that have each of 0 to {len(sizes) - 1} once were expected, got {mine!r}")
    even = sum(sizes) / num_ranks
    compared: dict[str, Sequence[Sequence[int]]] = {
        "yours": shares,
        "in turn": [range(rank, len(sizes), num_ranks) for rank in range(num_ranks)],
        "largest first": partition(sizes, num_ranks),
    }
    fullest = {name: max(sum(sizes[place] for place in one) for one in each) for name, each in compared.items()}
    rows = {name: (f"{most:,}", _times(most, even)) for name, most in fullest.items()}
    goal = fullest["largest first"] if at_most is None else even * at_most
    wrong = f"the fullest rank has {fullest['yours']:,}, and {goal:,.0f} are possible"
    return Score(("fullest rank", "× even share"), rows, wrong if fullest["yours"] > goal * (1 + 1e-9) else None)


def pipeline_score(
    mine: PipelineSchedule | str,
    num_ranks: int,
    num_microbatches: int,
    most_bubble: float = 1.0,
    most_kept: int | None = None,
) -> Score:
    """Return the bubble of a pipeline-parallel schedule and the activations it keeps, next to GPipe's and 1F1B's.

    A backward takes twice as long as a forward. `most_bubble` is a share of the step, `most_kept` the activations that
    the fullest rank may keep.
    """
    schedule = (
        PipelineSchedule.from_text(mine) if isinstance(mine, str) else of_type("a schedule", mine, PipelineSchedule)
    )
    verify_pipeline(schedule)
    if (schedule.num_ranks, schedule.num_microbatches) != (num_ranks, num_microbatches):
        got = f"{schedule.num_ranks} and {schedule.num_microbatches}"
        raise ValueError(f"the schedule must have {num_ranks} ranks and {num_microbatches} microbatches, got {got}")
    compared = {
        "yours": schedule,
        "GPipe": build_pipeline("gpipe", num_ranks, num_microbatches),
        "1F1B": build_pipeline("one_f_one_b", num_ranks, num_microbatches),
    }
    bubbles = {name: float(simulated_bubble(one)) for name, one in compared.items()}
    kept = {name: max(one.activations_in_flight()) for name, one in compared.items()}
    rows = {name: (f"{bubbles[name]:.1%}", str(kept[name])) for name in compared}
    wrong = None
    if bubbles["yours"] > most_bubble + 1e-9:
        wrong = f"the bubble is {bubbles['yours']:.1%} of the step; the goal is at most {most_bubble:.1%}"
    elif most_kept is not None and kept["yours"] > most_kept:
        wrong = f"a rank keeps {kept['yours']} activations; the goal is at most {most_kept}"
    return Score(("bubble", "activations kept"), rows, wrong)


def step_score(mine: Callable[[Any, Any, Any], object], num_micro: int) -> Score:
    """Return how often a step of so many micro-batches synchronises gradients on real ranks, and whether it is right.

    ``mine(ddp, inputs, targets)`` does the forwards and backwards of a rank's 4 samples, with a mean squared error. It
    needs torch, and takes a second.
    """
    import torch

    from ...ranks import RankError
    from ...train.gradients import Work, audit_step

    function("the answer", mine, "of ddp, inputs and targets")
    mse = torch.nn.functional.mse_loss
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(8, width, dtype=torch.float64, generator=generator) for width in (3, 1))

    def in_parts(ddp: Any, inputs: Any, targets: Any) -> None:
        for one in zip(inputs.chunk(num_micro), targets.chunk(num_micro), strict=True):
            (mse(ddp(one[0]), one[1]) / num_micro).backward()  # type: ignore[no-untyped-call]

    def counted(ddp: Any, inputs: Any, targets: Any) -> None:
        seen: list[int] = []
        ddp.module.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
        mine(ddp, inputs, targets)
        if len(seen) != num_micro or max(seen) * num_micro != len(inputs):
            raise ValueError(f"{num_micro} equal micro-batches were expected, got {seen} samples")

    work = Work(torch.nn.Linear(3, 1, dtype=torch.float64), inputs, targets, mse)
    rows, audits = {}, {}
    for name, step in {"yours": counted, "without no_sync": in_parts}.items():
        try:
            audits[name] = audit_step(work, 2, step)
        except RankError as error:
            raise ValueError(str(error).strip().splitlines()[-1]) from error
        right = "right" if not audits[name].findings else "wrong"
        rows[name] = f"{audits[name].num_allreduces:g} times", right
    wrong = "; ".join(finding.message for finding in audits["yours"].findings)
    if not wrong and audits["yours"].num_allreduces > 1:
        wrong = f"gradients are synchronised {rows['yours'][0]}; the goal is at most 1"
    return Score(("synchronised", "gradients"), rows, wrong or None)


def _times(value: float, other: float) -> str:
    return f"{value / other:.2f}" if other else ""


def _too_much(seconds: float, goal_s: float, at_most: float = 1.0) -> str | None:
    if seconds <= goal_s * at_most * _EQUAL:
        return None
    goal = f"at most {at_most:g} times" if at_most > 1 else "the same time"
    return f"it takes {seconds / goal_s:.2f} times as long as the best; the goal is {goal}"


def culprit_score(mine: Callable[[Any], Any]) -> Score:
    """Return how many of 30 made jobs ``mine(own_s)`` names right: (rank, phase), or None for a healthy one.

    `own_s` are seconds of a rank's own work, steps by 4 ranks by 5 phases. In 24 jobs a phase of one rank takes 60 ms
    longer, in each step or in every fourth.
    """
    function("the answer", mine, "of own_s")
    usual_s = np.array([0.004, 0.012, 0.018, 0.004, 0.002])  # loader, forward, backward, optimizer, host
    random, right, by_longest, accused = np.random.default_rng(0), 0, 0, 0
    for place in range(30):
        own_s, culprit = usual_s * random.uniform(0.9, 1.1, (12, 4, 5)), None
        if place % 5:
            culprit = int(random.integers(4)), int(random.integers(5))
            own_s[:: random.choice([1, 4]), *culprit] += 0.06
        total_s = own_s.sum(axis=2)
        waiting_s = total_s.max(axis=1, keepdims=True) - total_s
        by_longest += culprit == (int((own_s[:, :, 2] + waiting_s).mean(axis=0).argmax()), 2)
        answer = mine(own_s.copy())
        if answer is not None:
            answer = tuple(whole("a rank and a phase", one, 0, 4) for one in several("what mine returns", answer))
        right += answer == culprit
        accused += culprit is None and answer is not None
    rows = {
        "yours": (f"{right} of 30", f"{accused} of 6"),
        "longest backward, waiting included": (f"{by_longest} of 30", "6 of 6"),  # it always blames somebody
    }
    wrong = None if right == 30 else f"{count_of(30 - right, 'job')} of 30 named wrongly"
    return Score(("named right", "healthy jobs accused"), rows, wrong)
