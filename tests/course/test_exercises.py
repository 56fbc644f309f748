"""Each exercise takes its solution, refuses a wrong answer, and waits for a missing one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ScheduleError, build
from rankscope.course import transformer
from rankscope.course.exercises import EXERCISES, WrongAnswer, check
from rankscope.course.exercises.scores import (
    bucket_score,
    pipeline_score,
    sampler_score,
    schedule_score,
    share_score,
    stage_score,
    step_score,
    wrapping_score,
)
from rankscope.pipeline import Pipeline, Stage
from rankscope.sampling import assign
from rankscope.train import ddp, pipeline_parallel
from tests.tools.execute_notebooks import every_notebook

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


WRONG = {
    "00.1": [100, 96],
    "00.2": [10, 15, 50, 0],
    "00.3": ["25 MiB", "4 MiB", [[7, 6, 5, 4, 3, 2, 1, 0]], [[7, 6], [5]], []],
    "01.1": [0, 14, 62, 504],
    "01.2": [
        lambda size, num_ranks, rank, epoch: assign(size, num_ranks, epoch=epoch).ranks[rank],  # pads
        lambda size, num_ranks, rank, epoch: range(rank, size, num_ranks),  # in the same order each time
        lambda size, num_ranks, rank, epoch: np.random.default_rng([epoch, rank]).permutation(size)[rank::num_ranks],
        lambda size, num_ranks, rank, epoch: np.random.default_rng(epoch).permutation(size) if rank == 0 else [],
    ],
    "a1.1": [[], [0, 1], [21], [20, 21, 22], 20, None, ["20"]],
    "a1.2": [10, 12, 0],
    "a1.3": [
        lambda size, num_ranks, rank, epoch: assign(size, num_ranks, epoch=0, drop_last=True).ranks[rank],
        lambda size, num_ranks, rank, epoch: assign(size, num_ranks, epoch=epoch).ranks[rank],
        lambda size, num_ranks, rank, epoch: [],
    ],
    "02.1": [0, 10, 15],
    "02.2": [{}, {"decode": 5, "augment": 3}, {"read": 2, "decode": 6, "augment": 3}, {"train": 2}, 5],
    "a2.1": [[[0, 3, 6], [1, 4, 7], [2, 5, 8]], [[0], [1], [2]], [list(range(9)), [], []], 3],
    "a2.2": [0.4, 60],
    "a2.3": [1, 3, 0, 2.5],
    "04.1": [9, 11, 999],
    "04.2": [20, 22, 1, 21.5],
    "04.3": [
        "",
        "allreduce yours ranks=4 chunks=1\n0: 1>0:0+ 3>2:0+\n1: 2>0:0+\n2: 0>2:0=\n3: 0>1:0= 2>3:0=",
        "allreduce yours ranks=4 chunks=1\n0: 0>1:0+ 1>0:0+ 2>3:0+ 3>2:0+",
        "allreduce yours ranks=2 chunks=1\n0: 0>1:0+ 1>0:0+",
    ],
    "03.1": [12, 16, 4],
    "03.2": [{}, {"load": 2}, {"load": 2, "prepare": 6}, {"prepare": 5}, {"decode": 2}, 5],
    "07.1": [3, 5],
    "07.2": [[8] * 8, [6] * 10 + [4], [64], [1] * 64, [6] * 10, [4.5] + [6] * 10, [], 6],
    "07.3": [1, 1.5, 3, 0.5],
    "08.1": [11, 13, 0, 12.5],
    "08.2": [2000, 48_000, 0],
    "08.3": [[], ["blocks.*"], ["blocks.*", "head"], ["embed", "blocks.*.*", "head"], ["heads"], "many", [1]],
    "a4.1": [16, 8, 15],
    "a4.2": [4, 2, 7, 0],
    "a4.3": ["", "r0 w0 r1 w1 r0 w0 r1 w1 r0 w0 r1 w1", "w0 r0 r1 w1 r1 w1 w0 r1 r0 w0 r0 w1", "r0 w0", 2],
    "05.1": [224, 196, 430],
    "05.2": [3, 6, 5],
    "05.3": [[5], [], [2, 3, 4, 6, 9, 12, 16, 17], [1, 5], [18], [5.5], 5],
    "06.1": [6.6, 15.6, 25.2],
    "06.2": [1, 4, 2_097_152],
    "06.3": [[4.2, 0.73], [9, 0], [4.4], [4.4, "many"], 4.4, "4.4"],
    "09.1": [62, 64, 56, 0, 63.5],
    "09.2": [3, 5, 6, 63, 0],
    "09.3": [
        "",
        "mine ranks=2 microbatches=1 chunks=1\n0: 0F0 0B0\n1: 1F0 1B0",
        pipeline_parallel.build("gpipe", 3, 4).to_text(),
        pipeline_parallel.build("gpipe", 3, 1).to_text(),
    ],
    "10.1": [1008, 40, 21, 0, 24],
    "10.2": [0.25, 1, 100, 2],
    "10.3": [print, lambda ddp, inputs, targets: nn.functional.mse_loss(ddp(inputs), targets).backward()],
    "11.1": [0, 2, 3, 4],
    "11.2": [64, 68, 60.5, 0],
    "11.3": [lambda own_s: None, lambda own_s: (0, 2)],
}
ODD = (10**400, math.nan, -1, True, [[1]], "many", None, object())


@cache
def notebook_texts() -> dict[str, str]:
    return {
        path.stem: "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        for path in every_notebook()
    }


_CALL = r'check\("([\w.]+)", (.+?)\)(?:`|$)'


@cache
def solutions() -> dict[str, str]:
    """The solutions in the notebooks, as source: a call of check, with the lines before it in its block."""
    text = "\n".join(notebook_texts().values())
    folded = "\n".join(re.findall(r"<details>.*?</details>", text, re.S))
    sources = {name: f'check("{name}", {answer})' for name, answer in re.findall(_CALL, folded, re.M)}
    for block in re.findall(r"```python\n(.*?)```", folded, re.S):
        for name, _ in re.findall(_CALL, block, re.M):
            sources[name] = block
    return sources


@pytest.mark.parametrize("name", EXERCISES)
def test_the_folded_solution_is_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(solutions()[name], {"__name__": "__main__", "np": np, "nn": nn, "check": check})
    assert capsys.readouterr().out.endswith(f"{name}: right\n")


@pytest.mark.parametrize("name", EXERCISES)
def test_a_wrong_answer_is_refused_and_so_is_one_of_which_nothing_can_be_computed(name: str) -> None:
    for answer in [*WRONG[name], *ODD]:
        print(f"answer: {answer!r}")  # which pytest shows if it is not refused
        with pytest.raises(WrongAnswer, match=f"^{re.escape(name)}: "):
            check(name, answer)


def test_every_exercise_is_asked_in_its_notebook() -> None:
    for name in EXERCISES:
        (notebook,) = [text for stem, text in notebook_texts().items() if stem.startswith(name[:3].replace(".", "_"))]
        assert f'check("{name}", ...)' in notebook


# ---- what a reader builds


def rows(score: object) -> dict[str, str]:
    return {line.split()[0]: line for line in str(score).splitlines()}


def test_a_sampler_is_scored_by_its_audit() -> None:
    def stride(size: int, num_ranks: int, rank: int, epoch: int) -> range:
        return range(rank, size, num_ranks)

    result = sampler_score(stride, 10, 4, allow=["unbalanced"])
    assert rows(result)["yours"].split() == ["yours", "0", "0", "1", "1"]
    assert rows(result)["DistributedSampler"].split()[1:] == ["4", "0", "0", "0"]
    assert rows(result)["with"].split()[2:] == ["0", "4", "0", "0"]
    assert result.wrong is not None
    assert sampler_score(stride, 10, 4, allow=["unbalanced", "repeated_order"]).wrong is None


def test_a_schedule_is_scored_once_it_is_verified() -> None:
    cluster = Cluster.uniform(4, Link(1e-6, 1e9))
    result = schedule_score(build("allreduce", "binomial_tree", 4), "allreduce", cluster, 1000)
    assert [row.split()[0] for row in str(result).splitlines()[1:]] == ["yours", "recursive_doubling", "ring", "lower"]
    assert result.wrong is not None
    assert schedule_score(build("allreduce", "ring", 4), "allreduce", cluster, 1e9).wrong is None
    with pytest.raises(ScheduleError):
        schedule_score("allreduce mine ranks=4 chunks=1\n0: 0>1:0+", "allreduce", cluster, 1000)
    with pytest.raises(ValueError, match="ranks=3"):
        schedule_score(build("allreduce", "ring", 3), "allreduce", cluster, 1000)
    free = "scatter mine ranks=4 chunks=4 weights=1,0,0,0\n0: 0>1:1=\n1: 0>2:2=\n2: 0>3:3="
    with pytest.raises(ValueError, match="weights"):  # all bytes are in the root's own chunk
        schedule_score(free, "scatter", cluster, 1000)


def test_buckets_are_scored_by_the_predicted_step() -> None:
    local = ddp.LocalStep.modelled([1 << 20] * 64, backward_s=0.064)
    cost = ddp.cost(Link(50e-6, 2e9), num_ranks=8)
    eights = [list(range(place, place - 8, -1)) for place in range(63, 0, -8)]
    for answer in (8, "8 MiB", eights):
        result = bucket_score(answer, local, cost)
        assert rows(result)["yours"].split()[1:] == rows(result)["recommended"].split()[1:]
        assert result.wrong is None
    assert bucket_score([list(range(place, place + 8)) for place in range(0, 64, 8)], local, cost).wrong


def test_workers_of_stages_are_scored_by_throughput_and_thrift() -> None:
    pipeline = Pipeline([Stage("read", 0.010), Stage("decode", 0.030, num_workers=2), Stage("train", 0.012)])
    assert stage_score({"decode": 3}, pipeline, 80).wrong is None
    assert "66.7/s" in str(stage_score({"decode": 2}, pipeline, 80).wrong)
    assert "6 workers" in str(stage_score({"decode": 4}, pipeline, 80).wrong)
    assert rows(stage_score({"decode": 3}, pipeline, 80))["yours"].split() == ["yours", "5", "83.3/s", "train"]


def test_shares_are_scored_by_the_fullest_rank() -> None:
    result = share_score([[0, 1], [2, 3]], [5, 30, 20, 10], 2)
    assert rows(result)["yours"].split() == ["yours", "35", "1.08"]
    assert result.wrong is None
    assert "60" in str(share_score([[0], [1, 2, 3]], [5, 30, 20, 10], 2).wrong)


def test_wrapping_policies_are_scored_by_waits_and_memory() -> None:
    step = transformer(8192)
    policy = ["embed", "blocks.*", "head"]
    assert wrapping_score(policy, step, 0.070, 21e9).wrong is None
    assert "69 ms" in str(wrapping_score(policy, step, 0.060, 21e9).wrong)
    assert "20.7 GB" in str(wrapping_score(policy, step, 0.070, 20e9).wrong)
    assert rows(wrapping_score([], step, 1, 1e12))["yours"].split()[:2] == ["yours", "3"]


def test_recomputing_adds_a_forward_of_the_blocks_and_keeps_their_inputs() -> None:
    whole_step = transformer(1024, num_blocks=4)
    less = transformer(1024, num_blocks=4, recompute=True)
    blocks_s = 4 * 2 * 12 * 4096**2 * 1024 / 400e12
    assert less.backward_s - whole_step.backward_s == pytest.approx(blocks_s)
    assert less.forward_s == pytest.approx(whole_step.forward_s)


def test_tensor_parallel_ranks_have_fewer_parameters_and_wait_for_four_allreduces_per_block() -> None:
    alone = transformer(1024, num_blocks=3)
    link = Link(alpha_s=1e-5, bytes_per_s=1e11)
    split = transformer(1024, num_blocks=3, tensor_ranks=4, tensor_link=link)
    elements = [sum(parameter.num_elements for parameter in step.parameters) for step in (alone, split)]
    assert elements[0] == 4 * elements[1]
    allreduce_s = 2 * 3 * (1e-5 + 2 * 4 * 1024 * 4096 / 4 / 1e11)  # 2(N-1) steps of α + S/(N·B)
    assert split.computing_s - alone.computing_s == pytest.approx((4 * 3 + 2) * allreduce_s)
    recomputed = transformer(1024, num_blocks=3, tensor_ranks=4, tensor_link=link, recompute=True)
    again_s = transformer(1024, num_blocks=3, recompute=True).computing_s - alone.computing_s
    assert recomputed.computing_s - split.computing_s == pytest.approx(again_s + 2 * 3 * allreduce_s)


def test_pipeline_schedules_are_scored_by_bubble_and_memory() -> None:
    text = pipeline_parallel.build("one_f_one_b", 4, 8).to_text()
    result = pipeline_score(text, 4, 8, most_bubble=3 / 11, most_kept=4)
    assert result.wrong is None
    assert rows(result)["yours"].split()[1:] == rows(result)["1F1B"].split()[1:] == ["27.3%", "4"]
    assert "4 activations" in str(pipeline_score(text, 4, 8, most_kept=3).wrong)
    assert "27.3 %" in str(pipeline_score(text, 4, 8, most_bubble=0.25).wrong)


@pytest.mark.slow
def test_steps_are_scored_on_real_ranks() -> None:
    mse = nn.functional.mse_loss

    def both_synchronised(ddp: Any, inputs: Any, targets: Any) -> None:
        for part in range(2):
            (mse(ddp(inputs[part::2]), targets[part::2]) / 2).backward()

    def not_divided(ddp: Any, inputs: Any, targets: Any) -> None:
        with ddp.no_sync():
            mse(ddp(inputs[::2]), targets[::2]).backward()
        mse(ddp(inputs[1::2]), targets[1::2]).backward()

    def unequal(ddp: Any, inputs: Any, targets: Any) -> None:
        with ddp.no_sync():
            mse(ddp(inputs[:2]), targets[:2]).backward()
        mse(ddp(inputs[2:3]), targets[2:3]).backward()

    result = step_score(both_synchronised, 2)
    assert rows(result)["yours"].split() == ["yours", "2", "times", "right"]
    assert "2 times" in str(result.wrong)
    assert "2 times those of one process" in str(step_score(not_divided, 2).wrong)
    with pytest.raises(ValueError, match=r"\[2, 1\] samples"):
        step_score(unequal, 2)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: sampler_score(3, 10, 4), "function"),  # type: ignore[arg-type]
        (lambda: stage_score({"encode": 3}, Pipeline([Stage("decode", 1)]), 1), "decode"),
        (lambda: share_score([[0, 1], [2, 2]], [5, 30, 20], 2), "once"),
        (lambda: pipeline_score(pipeline_parallel.build("gpipe", 4, 8), 4, 9), "4 and 8"),
        (lambda: transformer(0), "num_tokens"),
        (lambda: transformer(1024, tensor_ranks=2), "tensor_link"),
        (lambda: transformer(1024, tensor_ranks=3, tensor_link=Link(1e-5, 1e11)), "power of two"),
    ],
)
def test_refusals(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()
