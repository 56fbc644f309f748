"""Each exercise takes its solution, refuses a wrong answer, and waits for a missing one."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rankscope.exercises import EXERCISES, WrongAnswer, check

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WRONG = {
    "00.1": [100, 96, "104", None],
    "00.2": [128, 60, 64, "120", None],
    "00.3": [10, 15, 50, 0, "25", None],
    "01.1": [2, 599, 1797, 0, "three", 1.5, None],
    "01.2": [0, 14, 62, 504, "54", None],
    "01.3": [3, 4, 6, 7.0, True, None],
    "02.1": [[], [0, 1], [21], [20, 21, 22], 20, None, ["20"]],
    "02.2": [10, 12, 0, "11", None],
    "02.3": [[], [1, 2, 3], 3, None],
    "03.1": [4, 6, 0, "5", None],
    "03.2": [15, 10, "11", None],
    "03.3": [0, 10, 15, None],
    "04.1": [3, 9, 10, "12", None],
    "04.2": [0.4, 60, "0.6", None],
    "04.3": [1, 3, 0, 2.0, None],
    "05.1": [[3, 30, 300, 3000], [4000, 400, 40, 4], 4, "4", None],
    "05.2": [9, 11, 999, "10", None],
    "05.3": ["", "0: 0>1:0+", "0: 0>1:0+ 1>0:0=", "1: 0>1:0+ 1>0:0+", "0: 0>1:0+\n1: 1>0:0=", 3, None],
    "06.1": [5, 12, "10", None],
    "06.2": [20, 22, 1, 21.0, "21", None],
    "06.3": [1.75, 3, "1.71", None],
    "07.1": [3, 6, 5, "4", None],
    "07.2": [0.4, 1.0, 0.2, "0.8", None],
    "07.3": [3.36, 5.47, 6.29, "5.87", None],
    "08.1": [8.0, 7.31, 15.75, 63, "7.88", None],
    "08.2": [12, 16, 4, "13", None],
    "08.3": [1, 0.4, 1.67, 60, "0.6", None],
    "09.1": [3, 5, "4", True, None],
    "09.2": [4, 6, 8, 60, 7.5, 0, "7", None],
    "09.3": [1, 1.5, 3, 0.5, "2", None],
    "10.1": [8, 5, 6, "7", None],
    "10.2": [16, 15, 4, 7.5, True, "8", None],
    "10.3": [3.5, 6, 8, 0, True, "4", None],
    "11.1": [11, 13, 0, 12.0, True, "12", None],
    "11.2": [0.5, 1.6, 0.25, "0.6", None],
    "11.3": [2000, 48_000, 0, "8000", None],
    "12.1": [15, 8, 0, "13", None],
    "12.2": [1, 3, 0.25, "4", None],
    "12.3": [1, 9, 11, "10", True, None],
    "13.1": [16, 8, 15, "8.53", None],
    "13.2": [62, 64, 56, 0, 63.0, True, "63", None],
    "13.3": [
        "",
        "mine ranks=2 microbatches=1 chunks=1\n0: 0F0 0B0\n1: 1F0 1B0",
        3,
        None,
        "mine ranks=2 microbatches=3 chunks=1\n0: 0F0 0F1 0B0 0F2 0B1 0B2\n1: 1F0 1B0 1F1 1B1 1F2 1B2",
    ],
    "14.1": [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 3], [3, 4, 5, 6]], [range(7)], 7, "01", None],
    "14.2": [
        "",
        "broadcast mine ranks=4 chunks=1\n0: 0>1:0=",
        "broadcast mine ranks=4 chunks=1\n0: 0>1:0=\n1: 0>2:0=\n2: 0>3:0=",
        "broadcast mine ranks=4 chunks=1 ports=2\n0: 0>1:0= 0>2:0=\n1: 0>3:0=",
        3,
        None,
    ],
    "14.3": [840, 1960, "1680", None],
    "15.1": [224, 196, 430, "391", None],
    "15.2": [1.5, 1.25, 2, "1.2", None],
    "15.3": [[5], [], [2, 3, 4, 6, 9, 12, 16, 17], [1, 5], [18], [5.5], 5, "5", None],
    "16.1": [1, 0.625, 2, 3.5, "2.75", None],
    "16.2": [1, 4, 16, 20, -19.5, "19.5", None],
    "16.3": [0, 23, 40, 50, 68, "46", None],
    "17.1": [6.6, 15.6, 25.2, "24.6", None],
    "17.2": [1, 4, 2_097_152, "2", None],
    "17.3": [[4.2, 0.73], [9, 0], [4.4], [4.4, "0.9"], 4.4, "4.4", None],
}
ODD = {
    "huge": 10**400,
    "nan": math.nan,
    "inf": math.inf,
    "less": -1,
    "true": True,
    "nested": [[1]],
    "bytes": b"1",
    "object": object(),
}


@cache
def sources() -> dict[str, str]:
    return {
        path.stem: "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    }


@cache
def solutions() -> dict[str, str]:
    """The answers that the notebooks give away, as source."""
    folded = "\n".join(re.findall(r"<details>.*?</details>", "\n".join(sources().values()), re.S))
    return dict(re.findall(r'check\("([\d.]+)", (.+?)\)(?:`|$)', folded, re.M))


@pytest.mark.parametrize("name", EXERCISES)
def test_the_folded_solution_is_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rankscope.sampling import DistributedRandomSampler

    sampler = DistributedRandomSampler(20, num_replicas=2, rank=1)
    sampler.next(7)
    check(name, eval(solutions()[name], {"sampler": sampler}))
    assert capsys.readouterr().out == f"{name}: right\n"


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name in EXERCISES for answer in WRONG[name]])
def test_a_wrong_answer_is_refused(name: str, answer: object) -> None:
    with pytest.raises(WrongAnswer, match=f"^{re.escape(name)}: "):
        check(name, answer)


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_so_is_one_that_nothing_can_be_worked_out_from(name: str, answer: object) -> None:
    with pytest.raises(WrongAnswer, match=f"^{re.escape(name)}: "):
        check(name, answer)


def test_answers_may_come_from_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    for name, answer in {"01.1": np.int64(3), "01.2": np.int64(54), "02.1": np.array([20, 21])}.items():
        check(name, answer)
    assert capsys.readouterr().out.count("right") == 3


def test_every_exercise_is_asked_in_its_notebook() -> None:
    for name in EXERCISES:
        (notebook,) = [text for stem, text in sources().items() if stem.startswith(name[:3].replace(".", "_"))]
        assert f'check("{name}", ...)' in notebook


def test_a_missing_answer_waits_and_an_unknown_exercise_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    check("01.1")
    assert capsys.readouterr().out == "01.1: not answered yet\n"
    for unknown in ("99.1", ["01.1"]):
        with pytest.raises(ValueError, match=rf"exercise must be one of '00\.1', .*, got {re.escape(repr(unknown))}"):
            check(unknown, 3)  # type: ignore[arg-type]
