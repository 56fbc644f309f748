"""Exercises in the notebooks: each cell takes its folded solution's answer, and refuses a wrong one."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from tests.tools.execute_notebooks import NOTEBOOKS, every_notebook

# For each exercise with one answer: notebook, the variable that the reader sets, the right answer, and a wrong one.
ANSWERS = [
    ("00_one_step", "num_reads", 104, 100),
    ("00_one_step", "wait_ms", 25, 50),
    ("01_who_reads_what", "num_repeats", 54, 0),
    ("02_how_a_batch_arrives", "delay_s", 5, 15),
    ("03_onto_the_gpu", "last_chunk_s", 13, 16),
    ("04_collectives", "num_steps", 10, 9),
    ("04_collectives", "fewest_ranks", 21, 20),
    ("05_your_box", "busbw_gb_per_s", 391, 224),
    ("06_what_nccl_chooses", "latency_us", 24.6, 15.6),
    ("06_what_nccl_chooses", "first_mib", 2, 4),
    ("07_ddp", "num_buckets", 4, 5),
    ("08_zero_and_fsdp", "fewest_ranks", 12, 11),
    ("08_zero_and_fsdp", "padding_bytes", 8000, 2000),
    ("09_pipelines", "fewest", 63, 62),
    ("09_pipelines", "num_chunks", 4, 5),
    ("10_silent_bugs", "num_twice", 8, 40),
    ("10_silent_bugs", "factor", 4, 0.25),
    ("11_slow_or_stuck", "late_rank", 1, 0),
    ("11_slow_or_stuck", "shorter_by_ms", 61, 64),
    ("a1_libtorch_samplers", "never_seen", [20, 21], [21]),
    ("a1_libtorch_samplers", "fewest_ranks", 11, 10),
    ("a2_part_files", "share", 0.6, 0.4),
    ("a2_part_files", "fewest_loaders", 2, 1),
    ("a4_predicting_allreduces", "num_latencies", 4, 3),
]
# For each exercise that builds something: what replaces the draft, and what the cell then prints.
BUILT = [
    ("00_one_step", "mine = ", "mine = [[7], [6, 5], [4, 3], [2, 1], [0]]", r"yours +5 buckets, step 9[0-3]\."),
    ("02_how_a_batch_arrives", "mine = ", 'mine = {"read": 2, "decode": 5, "augment": 3}', "13 workers deliver 100.0"),
    ("03_onto_the_gpu", "mine = ", 'mine = {"load": 2, "prepare": 5}', "9 workers deliver 90.9"),
    ("05_your_box", "mine = ", "mine = [5, 7, 8, 10, 11, 13, 14, 15]", "131 of 131"),
    ("06_what_nccl_chooses", "launch_us, hop_us = ", "launch_us, hop_us = 4.4, 0.9", r"median error [34]\.\d%"),
    ("07_ddp", "mine = ", "mine = [4] + [6] * 10", "11 buckets leave 6.0 ms exposed"),
    ("a2_part_files", "mine = ", "mine = [[0, 3], [1, 2], [4, 5, 6, 7, 8]]", "has 150 rows"),
    ("a3_sharing_tensors", "mine = ", 'mine = "r0 r1 w1 r1 w1 w0 r1 r0 w0 r0 w0 w1"', "ends at 2"),
]
PREPARATION = {  # what the cells of exercises use of earlier cells, besides the imports
    "05_your_box": ["rates = np.full"],
    "07_ddp": ["MIB = 2**20", "layers = LocalStep"],
    "10_silent_bugs": ["linear, mse = "],
}


@cache
def sources(notebook: str) -> tuple[str, ...]:
    path = next(path for path in every_notebook() if path.stem == notebook)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return tuple("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@cache
def _prepared(notebook: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    imports = max(sources(notebook), key=lambda source: source.count("import "))
    exec(imports, names)
    for beginning in PREPARATION.get(notebook, ()):
        exec(next(source for source in sources(notebook) if beginning in source), names)
    return names


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    monkeypatch.chdir(NOTEBOOKS)
    return lambda notebook: dict(_prepared(notebook))


@pytest.mark.parametrize(("notebook", "variable", "right", "wrong"), ANSWERS)
def test_an_assertion_takes_the_right_answer_only(
    prepared: Any, notebook: str, variable: str, right: Any, wrong: Any
) -> None:
    names = prepared(notebook)
    draft = f"{variable} = ...\n"
    number = next(number for number, source in enumerate(sources(notebook)) if source.startswith(draft))
    if variable == "shorter_by_ms":
        exec(sources(notebook)[number - 1], names)  # its own times are those of the exercise before
    cell = sources(notebook)[number].removeprefix(draft)
    exec(cell, {**names, variable: ...})
    exec(cell, {**names, variable: right})
    with pytest.raises(AssertionError):
        exec(cell, {**names, variable: wrong})


@pytest.mark.parametrize(("notebook", "begin", "solution", "printed"), BUILT)
def test_a_built_solution_reaches_its_goal(
    prepared: Any, capsys: pytest.CaptureFixture[str], notebook: str, begin: str, solution: str, printed: str
) -> None:
    cell = next(source for source in reversed(sources(notebook)) if source.startswith(begin))
    draft = cell.partition("\n")[0]
    names = prepared(notebook)
    exec(cell, names)
    assert not re.search(printed, capsys.readouterr().out)  # the draft is not good enough yet
    exec(cell.replace(draft, solution), names)
    assert re.search(printed, capsys.readouterr().out)


def test_scores_of_solutions(prepared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prepared("04_collectives")
    import helpers
    import numpy as np

    from rankscope.cluster import Cluster, Link

    helpers.sampler_score(
        lambda size, n, rank, epoch: np.random.default_rng(epoch).permutation(size)[rank::n], 22, 4, 3
    )
    assert re.search(r"yours +0 +0 +1 +0\n", capsys.readouterr().out)
    pairs = "allreduce yours ranks=4 chunks=1\n0: 0>1:0+ 1>0:0+ 2>3:0+ 3>2:0+\n1: 0>2:0+ 2>0:0+ 1>3:0+ 3>1:0+"
    helpers.schedule_score(pairs, Cluster.uniform(4, Link(10e-6, 10e9)), 1024)
    assert re.search(r"yours +2 +20\.2 µs +1\.01\n", capsys.readouterr().out)

    def above_the_median(own_s: Any) -> Any:
        mean_s = own_s.mean(axis=0)
        extra_s = mean_s - np.median(mean_s, axis=0)
        rank, phase = np.unravel_index(extra_s.argmax(), extra_s.shape)
        return (rank, phase) if extra_s.max() > 0.2 * mean_s.sum(axis=1).mean() else None

    helpers.culprit_score(above_the_median)
    assert re.search(r"yours +30 of 30 +0 of 6\n", capsys.readouterr().out)
