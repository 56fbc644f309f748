"""What the package refuses: each call raises a ValueError that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from rankscope.pipeline import (
    AsyncPartDataset,
    PartError,
    Pipeline,
    Stage,
    SyncPartDataset,
    advise,
    in_step,
    prefetched,
    record_dataloader,
    run,
    simulate,
    simulate_parts,
    write_parts,
)
from rankscope.pipeline.dataloader.profile import LoaderProfile, LoaderSettings

READ, TRAIN = Stage("read", 1.0), Stage("train", 1.0)
THREE, UNKNOWN = Stage("train", 1.0, num_workers=3), Stage("read", fn=abs)
ROAD = Pipeline([READ, TRAIN])
PROFILE = LoaderProfile(LoaderSettings(1), 3, 2, *[np.ones(3)] * 10)


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("'blocked'", lambda: Stage("blocked", 1.0)),
    ("'read'", lambda: Stage("read")),
    ("batch_size", lambda: Stage("read", 1.0, batch_size=0)),
    ("num_workers", lambda: Stage("read", 1.0, num_workers=1.5)),  # type: ignore[arg-type]
    ("'read'", lambda: Pipeline([READ, READ])),
    ("service_s", lambda: Pipeline([UNKNOWN]).bottleneck),
    ("'decode'", lambda: ROAD.changed("decode", num_workers=2)),
    ("lock-step", lambda: simulate(Pipeline([THREE]), 9, num_ranks=2)),
    ("4 items", lambda: simulate(Pipeline([Stage("read", [1.0] * 3)]), 4)),
    ("length", lambda: run(ROAD, count())),
    ("no batch", lambda: record_dataloader(DataLoader([1])).profile()),  # type: ignore[arg-type]
    ("num_workers", lambda: advise(PROFILE, num_workers=4)),  # type: ignore[arg-type]
    ("group", lambda: next(in_step([1]))),
    ("batch_size", lambda: AsyncPartDataset(["a"], 0)),
    ("trainer_id", lambda: SyncPartDataset(["a"], 4, 2, 2)),
    ("load_s[1]", lambda: simulate_parts([[1.0], [1.0, -2.0]], [[1], [1, 1]], 1.0)),
    ("steps_per_part", lambda: simulate_parts([[1.0]], [[-1]], 1.0)),
    ("one trainer", lambda: simulate_parts([], [], 1.0)),
    ("device", lambda: prefetched([], f"cuda:{torch.cuda.device_count()}")),
]


@pytest.mark.parametrize(("word", "call"), REFUSED)
def test_refused(word: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        call()
    assert word in str(error.value)


@pytest.mark.parametrize(
    ("word", "rows_per_part", "arrays"),
    [
        ("rows_per_part", 1.5, {"x": [1, 2]}),
        ("dict", 1, {}),
        ("rows", 1, {"x": [1, 2], "y": [1]}),
        ("object", 1, {"x": [object()]}),
    ],
)
def test_refused_before_anything_is_written(tmp_path: Path, word: str, rows_per_part: Any, arrays: Any) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        write_parts(tmp_path / "parts", rows_per_part, **arrays)
    assert word in str(error.value)
    assert not (tmp_path / "parts").exists()


OBJECTS = np.array([print], dtype=object)  # a pickle, if it were written


@pytest.mark.parametrize("part", [[1, 2, 3], {"x": np.zeros((2**40, 0))}, {"x": 3.0}, {"x": np.array(["a"])}, OBJECTS])
def test_what_is_no_part_is_refused(tmp_path: Path, part: Any) -> None:
    file = tmp_path / "part-0.npz"
    np.savez(file, x=OBJECTS, allow_pickle=True)
    options = {} if part is OBJECTS else {"load": lambda path: part}
    with pytest.raises(PartError, match="part-0") as error:
        list(SyncPartDataset([file], 3, **options))
    assert isinstance(error.value.__cause__, ValueError)
