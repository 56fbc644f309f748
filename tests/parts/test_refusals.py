"""What the package refuses: each call raises an error that names the argument, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.parts.datasets import AsyncPartDataset, SyncPartDataset, in_step
from rankscope.parts.files import DelayedLoad, PartError, write_parts
from rankscope.parts.simulate import idle_share, simulate

from . import loads as part_loads

WRITE: list[tuple[str, object, dict[str, object]]] = [
    ("rows_per_part", 1.5, {"x": [1, 2]}),
    ("rows_per_part[1]", [3, -1], {"x": [1, 2]}),
    ("dict", 1, {}),
    ("rows", 1, {"x": [1, 2], "y": [1]}),
    ("object", 1, {"x": [object()]}),
    ("masked", 1, {"x": np.ma.array([1, 2], mask=[True, False])}),
    ("'file'", 1, {"file": [1, 2]}),
]


@pytest.mark.parametrize(("word", "rows_per_part", "arrays"), WRITE)
def test_refused_before_anything_is_written(
    tmp_path: Path, word: str, rows_per_part: object, arrays: dict[str, object]
) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        write_parts(tmp_path / "parts", rows_per_part, **arrays)  # type: ignore[arg-type]
    assert word in str(error.value)
    assert not (tmp_path / "parts").exists()


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("delays_s", lambda: DelayedLoad(-1)),
    ("'part.npz'", lambda: DelayedLoad(0.1).delay_s("part.npz")),
    ("delays_s", lambda: DelayedLoad([0.1]).delay_s("part-00002.npz")),
    ("epoch", lambda: SyncPartDataset(["a"], 1).set_epoch(0.5)),
    ("group", lambda: next(in_step([1]))),
    ("num_loaders", lambda: AsyncPartDataset([], 4, num_loaders=0)),
    ("timeout_s", lambda: AsyncPartDataset([], 4, timeout_s=0)),
    ("queue_size", lambda: simulate([[1.0]], 1, 1.0, queue_size=0)),
    ("load_s[1]", lambda: simulate([[1.0], [1.0, -2.0]], 1, 1.0)),
    ("steps_per_part[0][0]", lambda: simulate([[1.0]], [[-1]], 1.0)),
    ("same parts", lambda: simulate([[1.0]], [[1, 1]], 1.0)),
    ("one trainer", lambda: simulate([], 1, 1.0)),
    ("step_s", lambda: simulate([[1.0]], 3, [0.1, 0.1])),
    ("timeline", lambda: idle_share(None)),
]
for kind in (SyncPartDataset, AsyncPartDataset):
    REFUSED += [
        ("batch_size", lambda kind=kind: kind(["a"], 0)),
        ("trainer_id", lambda kind=kind: kind(["a"], 4, 2, 2)),
        ("seed", lambda kind=kind: kind([], 4, seed="x")),
        ("files", lambda kind=kind: kind(Path("one.npz"), 4)),
    ]


@pytest.mark.parametrize(("word", "call"), REFUSED)
def test_refused(word: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        call()
    assert word in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SyncPartDataset, AsyncPartDataset])
def test_what_is_no_part_is_refused(tmp_path: Path, kind: Callable[..., object]) -> None:
    files = write_parts(tmp_path, 2, x=np.arange(4))
    with pytest.raises(PartError, match="dict") as error:
        list(kind(files, 3, load=part_loads.no_part))  # type: ignore[call-overload]
    assert isinstance(error.value.__cause__, ValueError)
