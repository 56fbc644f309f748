"""Each exercise takes its solution, refuses a wrong answer, and waits for a missing one."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from rankscope.cluster import Cluster, Link
from rankscope.collectives import ScheduleError, build
from rankscope.course import transformer
from rankscope.course.exercises import EXERCISES, WrongAnswer, check, score
from rankscope.course.exercises.kinds import READINGS, SCORES
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


def in_steps(order: Any) -> Any:
    """512 texts as batches of 8 for each of four ranks: neighbours are in one batch."""
    return order.reshape(-1, 4, 8).transpose(1, 0, 2)


def dealt(order: Any) -> Any:
    """The same, but neighbours go to different ranks."""
    return order.reshape(-1, 8, 4).transpose(2, 0, 1)


WRONG = {
    "00.1": [100, 96, "many", None],
    "00.2": [10, 15, 50, 0, "many", None],
    "00.3": ["25 MiB", "4 MiB", [[7, 6, 5, 4, 3, 2, 1, 0]], [[7, 6], [5]], [], "many", None],
    "01.1": [0, 14, 62, 504, "many", None],
    "01.2": [
        lambda size, num_ranks, rank, epoch: assign(size, num_ranks, epoch=epoch).ranks[rank],  # pads
        lambda size, num_ranks, rank, epoch: range(rank, size, num_ranks),  # in the same order each time
        lambda size, num_ranks, rank, epoch: np.random.default_rng([epoch, rank]).permutation(size)[rank::num_ranks],
        lambda size, num_ranks, rank, epoch: np.random.default_rng(epoch).permutation(size) if rank == 0 else [],
        range(7),
        "many",
        None,
    ],
    "a1.1": [[], [0, 1], [21], [20, 21, 22], 20, None, ["20"]],
    "a1.2": [10, 12, 0, "many", None],
    "a1.3": [
        lambda size, num_ranks, rank, epoch: assign(size, num_ranks, epoch=0, drop_last=True).ranks[rank],
        lambda size, num_ranks, rank, epoch: assign(size, num_ranks, epoch=epoch).ranks[rank],
        lambda size, num_ranks, rank, epoch: [],
        3,
        None,
    ],
    "02.1": [0, 10, 15, None],
    "02.2": [{}, {"decode": 5, "augment": 3}, {"read": 2, "decode": 6, "augment": 3}, {"train": 2}, 5, "many", None],
    "a2.1": [[[0, 3, 6], [1, 4, 7], [2, 5, 8]], [[0], [1], [2]], [list(range(9)), [], []], 3, "many", None],
    "a2.2": [0.4, 60, "many", None],
    "a2.3": [1, 3, 0, 2.5, None],
    "04.1": [9, 11, 999, "many", None],
    "04.2": [20, 22, 1, 21.5, "many", None],
    "04.3": [
        "",
        "allreduce yours ranks=4 chunks=1\n0: 1>0:0+ 3>2:0+\n1: 2>0:0+\n2: 0>2:0=\n3: 0>1:0= 2>3:0=",
        "allreduce yours ranks=4 chunks=1\n0: 0>1:0+ 1>0:0+ 2>3:0+ 3>2:0+",
        "allreduce yours ranks=2 chunks=1\n0: 0>1:0+ 1>0:0+",
        3,
        None,
    ],
    "03.1": [12, 16, 4, "many", None],
    "03.2": [{}, {"load": 2}, {"load": 2, "prepare": 6}, {"prepare": 5}, {"decode": 2}, 5, "many", None],
    "07.1": [3, 5, "many", True, None],
    "07.2": [[8] * 8, [6] * 10 + [4], [64], [1] * 64, [6] * 10, [4.5] + [6] * 10, [], 6, "many", None],
    "07.3": [1, 1.5, 3, 0.5, "many", None],
    "08.1": [11, 13, 0, 12.5, True, "many", None],
    "08.2": [2000, 48_000, 0, "many", None],
    "08.3": [[], ["blocks.*"], ["blocks.*", "head"], ["embed", "blocks.*.*", "head"], ["heads"], "many", [1], None],
    "a3.1": [15, 8, 0, "many", None],
    "a3.2": [1, 9, 11, "many", True, None],
    "a3.3": [[[0, 3, 6], [1, 4, 7], [2, 5]], [[0, 4], [1, 3, 7], [2, 5]], 3, "many", None],
    "a4.1": [16, 8, 15, "many", None],
    "a4.2": [4, 2, 7, 0, "many", None],
    "a4.3": ["", "r0 w0 r1 w1 r0 w0 r1 w1 r0 w0 r1 w1", "w0 r0 r1 w1 r1 w1 w0 r1 r0 w0 r0 w1", "r0 w0", 2, None],
    "a6.1": [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 3], [3, 4, 5, 6]], [range(7)], 7, "many", None],
    "a6.2": [
        "",
        "broadcast mine ranks=4 chunks=1\n0: 0>1:0=",
        "broadcast mine ranks=4 chunks=1\n0: 0>1:0=\n1: 0>2:0=\n2: 0>3:0=",
        "broadcast mine ranks=4 chunks=1 ports=2\n0: 0>1:0= 0>2:0=\n1: 0>3:0=",
        3,
        None,
    ],
    "a6.3": [840, 1960, "many", None],
    "a7.1": [0, 1, 640, 3.5, "many", None],
    "a7.2": [
        lambda lengths, num_ranks, batch_size, epoch: in_steps(np.random.default_rng(epoch).permutation(512)),
        lambda lengths, num_ranks, batch_size, epoch: in_steps(np.argsort(lengths, kind="stable")),  # unequal
        lambda lengths, num_ranks, batch_size, epoch: dealt(np.argsort(lengths, kind="stable")),  # the same each time
        lambda lengths, num_ranks, batch_size, epoch: dealt(np.argsort(lengths))[:3],
        lambda lengths, num_ranks, batch_size, epoch: [[[0] * 8] * 16] * 4,
        lambda lengths, num_ranks, batch_size, epoch: [[[0, 1]]] * 4,
        range(7),
        "many",
        None,
    ],
    "05.1": [224, 196, 430, "many", None],
    "05.2": [3, 6, 5, "many", None],
    "05.3": [[5], [], [2, 3, 4, 6, 9, 12, 16, 17], [1, 5], [18], [5.5], 5, "many", None],
    "a5.1": [1, 0.625, 2, 3.5, "many", None],
    "a5.2": [1, 4, 16, 20, -19.5, "many", None],
    "a5.3": [0, 23, 40, 50, 68, "many", None],
    "06.1": [6.6, 15.6, 25.2, "many", None],
    "06.2": [1, 4, 2_097_152, "many", None],
    "06.3": [[4.2, 0.73], [9, 0], [4.4], [4.4, "many"], 4.4, "4.4", None],
    "09.1": [62, 64, 56, 0, 63.5, True, "many", None],
    "09.2": [3, 5, 6, 63, 0, "many", None],
    "09.3": [
        "",
        "mine ranks=2 microbatches=1 chunks=1\n0: 0F0 0B0\n1: 1F0 1B0",
        3,
        None,
        pipeline_parallel.build("gpipe", 3, 4).to_text(),
        pipeline_parallel.build("gpipe", 3, 1).to_text(),
    ],
    "10.1": [1008, 40, 21, 0, 24, "few", True, None],
    "10.2": [0.25, 1, 100, 2, "many", None],
    "10.3": [3, None, print, lambda ddp, inputs, targets: nn.functional.mse_loss(ddp(inputs), targets).backward()],
    "11.1": [0, 2, 3, 4, "many", None],
    "11.2": [64, 68, 60.5, 0, "many", None],
    "11.3": [3, None, lambda own_s: None, lambda own_s: (0, 2)],
}
ODD = (10**400, math.nan, math.inf, -1, True, [[1]], b"1", object())


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


def as_tuples(answer: Any) -> Any:
    """The same answer with tuples for its lists, at any depth."""
    if isinstance(answer, list):
        return tuple(as_tuples(item) for item in answer)
    return answer


@pytest.mark.parametrize("name", EXERCISES)
def test_a_right_answer_may_have_tuples_for_lists(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def check_tuples(name: str, answer: Any) -> None:
        check(name, as_tuples(answer))

    exec(solutions()[name], {"__name__": "__main__", "np": np, "nn": nn, "check": check_tuples})
    assert capsys.readouterr().out.endswith(f"{name}: right\n")


@pytest.mark.parametrize("name", EXERCISES)
def test_a_wrong_answer_is_refused_and_so_is_one_of_which_nothing_can_be_computed(name: str) -> None:
    for answer in [*WRONG[name], *ODD]:
        print(f"answer: {answer!r}")  # which pytest shows if it is not refused
        with pytest.raises(WrongAnswer, match=f"^{re.escape(name)}: "):
            check(name, answer)


def test_answers_may_come_from_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    for name, answer in {"00.1": np.int64(104), "01.1": np.int64(54), "a1.1": np.array([20, 21])}.items():
        check(name, answer)
    assert capsys.readouterr().out.count("right") == 3


def test_every_exercise_is_asked_in_its_notebook() -> None:
    for name in EXERCISES:
        (notebook,) = [text for stem, text in notebook_texts().items() if stem.startswith(name[:3].replace(".", "_"))]
        assert f'check("{name}", ...)' in notebook


def test_a_missing_answer_waits_and_an_unknown_exercise_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    check("01.1")
    assert capsys.readouterr().out == "01.1: not answered yet\n"
    for unknown in ("99.1", ["01.1"]):
        with pytest.raises(ValueError, match=rf"exercise must be one of '00\.1', .*, got {re.escape(repr(unknown))}"):
            check(unknown, 3)  # type: ignore[arg-type]


# ---- numbers with units, what wrong ones would mean, and what a notebook shows


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("00.1", "104"),
        ("00.1", 104.0),
        ("00.2", "25 ms"),
        ("00.2", "0.025s"),
        ("01.1", "54"),
        ("a1.2", "11 ranks"),
        ("a2.2", "60 %"),
        ("04.2", 21.0),
        ("05.1", "391 GB/s"),
        ("05.1", "391000 MB/s"),
        ("08.2", "8 kB"),
        ("a6.3", "1.68 ms"),
        ("a5.3", "0.046 s"),
        ("06.1", "24.6 us"),
        ("06.3", ["4.4 µs", 0.9]),
    ],
)
def test_numbers_may_have_units(name: str, answer: object, capsys: pytest.CaptureFixture[str]) -> None:
    check(name, answer)
    assert capsys.readouterr().out.endswith(f"{name}: right\n")


@pytest.mark.parametrize(
    ("name", "answer", "says"),
    [
        ("00.2", "25 MiB", "the answer must be a number in ms, such as '3' or '3 ms', got '25 MiB'"),
        ("00.2", "twenty", "the answer must be a number in ms, such as '3' or '3 ms', got 'twenty'"),
        ("00.2", "", "the answer must be a number in ms, such as '3' or '3 ms', got ''"),
        ("00.2", "1e999", "the answer must be a number in ms, such as '3' or '3 ms', got '1e999'"),
        ("00.2", math.nan, "the answer in ms must be a finite number, got nan"),
        ("a2.2", "0.6 s", "the answer must be a number, such as '0.5' or '50 %', got '0.6 s'"),
        ("a1.2", 1001, "the answer must be a whole number of ranks from 1 to 1,000, got 1001"),
        ("a1.2", 10, "with 10 ranks every index is below 5"),
        ("a2.3", 6, "6 is enough, but a smaller number is enough, too"),
        ("07.3", 0.5, "the factor must be a finite number of at least 1 and of at most 100, got 0.5"),
        ("00.2", "\x1b[31m" + "9" * 5000, r"got '\x1b["),
    ],
)
def test_a_wrong_answer_says_what_is_wrong(name: str, answer: object, says: str) -> None:
    with pytest.raises(WrongAnswer) as caught:
        check(name, answer)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", READINGS)
def test_a_wrong_number_says_what_it_would_mean(name: str) -> None:
    for value, meaning in READINGS[name].items():
        with pytest.raises(WrongAnswer) as caught:
            check(name, value)
        assert str(caught.value) == f"{name}: {value} would be right if {meaning}"


def test_a_notebook_shows_only_the_message() -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shown: list[str] = []
    shell._showtraceback = lambda kind, value, lines: shown.extend(lines)
    shell.run_cell('from rankscope.course.exercises import check\ncheck("00.1", 100)')
    assert shown == ["00.1: 100 would be right if ranks could read different numbers of samples"]


# ---- what a reader builds


def rows(score: object) -> dict[str, str]:
    return {line.split()[0]: line for line in str(score).splitlines()}


def test_something_built_is_scored_before_it_is_good_enough(capsys: pytest.CaptureFixture[str]) -> None:
    chain = "broadcast mine ranks=4 chunks=1\n0: 0>1:0=\n1: 1>2:0=\n2: 2>3:0="
    result = score("a6.2", chain)
    assert list(rows(result)) == ["steps", "yours", "binomial", "lower"]
    assert repr(result) == str(result)
    with pytest.raises(
        WrongAnswer, match=r"^a6\.2: it takes 1\.50 times as long as the best; the goal is the same time$"
    ):
        check("a6.2", chain)
    assert capsys.readouterr().out == f"{result}\n"


def test_only_what_is_built_has_a_score() -> None:
    with pytest.raises(ValueError, match=r"exercise that builds something must be one of '.*', got '00\.1'"):
        score("00.1", 104)
    for name in SCORES:
        with pytest.raises(WrongAnswer, match=f"^{re.escape(name)}: "):
            score(name, object())


def test_a_sampler_is_scored_by_its_audit() -> None:
    def stride(size: int, num_ranks: int, rank: int, epoch: int) -> range:
        return range(rank, size, num_ranks)

    result = sampler_score(stride, 10, 4, allow=["unbalanced"])
    assert rows(result)["yours"].split() == ["yours", "0", "0", "1", "1"]
    assert rows(result)["DistributedSampler"].split()[1:] == ["4", "0", "0", "0"]
    assert rows(result)["with"].split()[2:] == ["0", "4", "0", "0"]
    assert result.wrong is not None
    assert "read in the same order on every rank" in result.wrong
    assert sampler_score(stride, 10, 4, allow=["unbalanced", "repeated_order"]).wrong is None
    with pytest.raises(ValueError, match="the answer must be a function of size, num_ranks, rank and epoch, got 3"):
        sampler_score(3, 10, 4)  # type: ignore[arg-type]


def test_a_schedule_is_scored_once_it_is_verified() -> None:
    cluster = Cluster.uniform(4, Link(1e-6, 1e9))
    tree = build("allreduce", "binomial_tree", 4)
    result = schedule_score(tree, "allreduce", cluster, 1000)
    assert [row.split()[0] for row in str(result).splitlines()[1:]] == ["yours", "recursive_doubling", "ring", "lower"]
    assert result.wrong is not None
    assert schedule_score(build("allreduce", "ring", 4), "allreduce", cluster, 1e9).wrong is None
    with pytest.raises(ScheduleError):
        schedule_score("allreduce mine ranks=4 chunks=1\n0: 0>1:0+", "allreduce", cluster, 1000)
    with pytest.raises(
        ValueError,
        match="must begin with 'allreduce yours ranks=4 chunks=3 root=0 ports=1', got 'allreduce ring ranks=3",
    ):
        schedule_score(build("allreduce", "ring", 3), "allreduce", cluster, 1000)
    unlimited = Cluster.uniform(4, Link(1e-6, 1e9), ports=None)  # no schedule has a header for it
    with pytest.raises(ValueError, match=r"cluster\.ports must be a whole number of at least 1, got None"):
        schedule_score(build("allreduce", "ring", 4), "allreduce", unlimited, 1000)


def test_a_schedule_cannot_score_with_chunks_that_are_empty() -> None:
    """All bytes in the root's own chunk would make every message of a scatter free."""
    text = "scatter mine ranks=4 chunks=4 weights=1,0,0,0\n0: 0>1:1=\n1: 0>2:2=\n2: 0>3:3="
    with pytest.raises(ValueError, match=r"the schedule must have equal chunks, got weights \(1, 0, 0, 0\)"):
        schedule_score(text, "scatter", Cluster.uniform(4, Link(1e-6, 1e9)), 1000)


def test_buckets_are_scored_by_the_predicted_step() -> None:
    local = ddp.LocalStep.modelled([1 << 20] * 64, backward_s=0.064)
    cost = ddp.cost(Link(50e-6, 2e9), num_ranks=8)
    eights = [list(range(place, place - 8, -1)) for place in range(63, 0, -8)]
    for answer in (8, "8 MiB", "8192 KiB", eights):
        result = bucket_score(answer, local, cost)
        assert rows(result)["yours"].split()[1:] == rows(result)["recommended"].split()[1:]
        assert result.wrong is None
    backwards = [list(range(place, place + 8)) for place in range(0, 64, 8)]
    assert "times as long as the best; the goal is at most 1.01 times" in str(
        bucket_score(backwards, local, cost).wrong
    )
    for wrong in ([[0, 1]], "8 s", -1, None):
        with pytest.raises(ValueError, match="must"):
            bucket_score(wrong, local, cost)


def test_workers_of_stages_are_scored_by_throughput_and_thrift() -> None:
    pipeline = Pipeline([Stage("read", 0.010), Stage("decode", 0.030, num_workers=2), Stage("train", 0.012)])
    assert stage_score({"decode": 3}, pipeline, 80).wrong is None
    assert stage_score({"decode": 2}, pipeline, 80).wrong == "decode delivers 66.7/s, and 80/s are needed"
    assert stage_score({"decode": 4}, pipeline, 80).wrong == "you spend 6 workers, and 5 are enough"
    nearly = Pipeline([Stage("decode", 0.010004), Stage("step", 0.001)])
    assert stage_score({}, nearly, 100).wrong == "decode delivers 99.96001599/s, and 100/s are needed"
    assert rows(stage_score({"decode": 3}, pipeline, 80))["yours"].split() == ["yours", "5", "83.3/s", "train"]
    for wrong in ({"encode": 3}, {"decode": 0}, 3):
        with pytest.raises(ValueError, match=r"decode|whole number"):
            stage_score(wrong, pipeline, 80)  # type: ignore[arg-type]


def test_shares_are_scored_by_the_fullest_rank() -> None:
    result = share_score([[0, 1], [2, 3]], [5, 30, 20, 10], 2)
    assert rows(result)["yours"].split() == ["yours", "35", "1.08"]
    assert result.wrong is None
    assert share_score([[0], [1, 2, 3]], [5, 30, 20, 10], 2).wrong == "the fullest rank has 60, and 35 are possible"
    for wrong in ([[0, 1], [2]], [[0, 1], [2, 2]], [[0, 1, 2, 3]], [[0, 1], [2, 4]], 3, [1, 2]):
        with pytest.raises(ValueError, match=r"expected|must be"):
            share_score(wrong, [5, 30, 20, 10], 2)  # type: ignore[arg-type]


def test_wrapping_policies_are_scored_by_waits_and_memory() -> None:
    step = transformer(8192)
    policy = ["embed", "blocks.*", "head"]
    assert wrapping_score(policy, step, 0.070, 21e9).wrong is None
    assert wrapping_score(policy, step, 0.060, 21e9).wrong == "a GPU waits 69 ms per step, and 60 ms are possible"
    assert wrapping_score(policy, step, 0.070, 20e9).wrong == "the peak is 20.7 GB, and 20 GB are allowed"
    assert rows(wrapping_score([], step, 1, 1e12))["yours"].split()[:2] == ["yours", "3"]


def test_recomputing_adds_a_forward_of_the_blocks_and_keeps_their_inputs() -> None:
    whole_step = transformer(1024, num_blocks=4)
    less = transformer(1024, num_blocks=4, recompute=True)
    blocks_s = 4 * 2 * 12 * 4096**2 * 1024 / 400e12
    assert less.backward_s - whole_step.backward_s == pytest.approx(blocks_s)
    assert less.forward_s == pytest.approx(whole_step.forward_s)
    with pytest.raises(ValueError, match="num_tokens must be a whole number from 1 to 16777216, got 0"):
        transformer(0)


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


def test_tensor_parallelism_needs_a_link_and_ranks_that_divide_the_layers() -> None:
    with pytest.raises(ValueError, match="tensor_link must be a Link, got None"):
        transformer(1024, tensor_ranks=2)
    with pytest.raises(ValueError, match="tensor_ranks must be a power of two, so that it divides the layers, got 3"):
        transformer(1024, tensor_ranks=3, tensor_link=Link(1e-5, 1e11))


def test_pipeline_schedules_are_scored_by_bubble_and_memory() -> None:
    text = pipeline_parallel.build("one_f_one_b", 4, 8).to_text()
    result = pipeline_score(text, 4, 8, most_bubble=3 / 11, most_kept=4)
    assert result.wrong is None
    assert rows(result)["yours"].split()[1:] == rows(result)["1F1B"].split()[1:] == ["27.3%", "4"]
    assert pipeline_score(text, 4, 8, most_kept=3).wrong == "a rank keeps 4 activations; the goal is at most 3"
    assert "the goal is at most 25.0 %" in str(pipeline_score(text, 4, 8, most_bubble=0.25).wrong)
    with pytest.raises(ValueError, match="must have 4 ranks and 9 microbatches, got 4 and 8"):
        pipeline_score(text, 4, 9)


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

    result = step_score(both_synchronised, 2)
    assert rows(result)["yours"].split() == ["yours", "2", "times", "right"]
    assert result.wrong == "gradients are synchronised 2 times; the goal is at most 1"
    assert "Gradients are 2 times those of one process" in str(step_score(not_divided, 2).wrong)

    def unequal(ddp: Any, inputs: Any, targets: Any) -> None:
        with ddp.no_sync():
            mse(ddp(inputs[:2]), targets[:2]).backward()
        mse(ddp(inputs[2:3]), targets[2:3]).backward()

    with pytest.raises(ValueError, match=r"2 equal micro-batches were expected, got \[\] samples"):
        step_score(print, 2)
    with pytest.raises(ValueError, match=r"2 equal micro-batches were expected, got \[2, 1\] samples"):
        step_score(unequal, 2)
    with pytest.raises(ValueError, match="the answer must be a function of ddp, inputs and targets, got 3"):
        step_score(3, 2)  # type: ignore[arg-type]
