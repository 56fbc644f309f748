"""What the package refuses: each call raises a ValueError that names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from rankscope.pipeline.dataloader_model import Cores, Handover
from torch.utils.data import DataLoader

from rankscope.pipeline import (
    Pipeline,
    Stage,
    StoredImages,
    advise,
    closest,
    record_dataloader,
    run,
    simulate,
    simulate_dataloader,
)
from rankscope.pipeline.advice import LoaderProfile, LoaderSettings, simulate_profile
from rankscope.pipeline.service import draw
from rankscope.sampling import Assignment, assign
from rankscope.timeline import Timeline

READ, TRAIN = Stage("read", 1.0), Stage("train", 1.0)
FEW, THREE, UNKNOWN = Stage("read", [1.0] * 4), Stage("train", 1.0, num_workers=3), Stage("read", fn=abs)
ROAD = Pipeline([READ, TRAIN])
PROFILE = LoaderProfile(LoaderSettings(1), 3, 2, False, *[np.ones(3)] * 9)
IMAGES = np.zeros((3, 8, 8))


def loader(**changes: Any) -> Timeline:
    return simulate_dataloader(**{"fetch_s": 1.0, "step_s": 1.0, "num_batches": 4, "num_workers": 2, **changes})


REFUSED = [
    ("name", lambda: Stage("", 1.0)),
    ("'blocked'", lambda: Stage("blocked", 1.0)),
    ("'read'", lambda: Stage("read")),
    ("service_s", lambda: Stage("read", [])),
    ("item 1", lambda: Stage("read", [0.1, -1.0])),
    ("service_s", lambda: Stage("read", "fast")),
    ("num_workers", lambda: Stage("read", 1.0, num_workers=1.5)),
    ("4 items", lambda: draw("it", [0.1, 0.2, 0.3], 4)),
    ("item 0", lambda: draw("it", lambda item: -1, 3)),
    ("item 0", lambda: Stage("a", lambda item: -1).mean_s),
    ("stages", lambda: Pipeline(READ)),
    ("'read'", lambda: Pipeline([READ, READ])),
    ("'train 0'", lambda: Pipeline([THREE, Stage("train 0", 2.0)])),
    ("service_s", lambda: Pipeline([UNKNOWN]).bottleneck),
    ("3 spans", lambda: ROAD.measured(simulate(ROAD, 4).take([1, 2, 3]))),
    ("pipeline", lambda: simulate(READ, 3)),
    ("items", lambda: simulate(ROAD, [1, 2])),
    ("seed", lambda: simulate(ROAD, 3, "a")),
    ("num_ranks", lambda: simulate(ROAD, 3, 0, 0)),
    ("lock-step", lambda: simulate(Pipeline([THREE]), assign(9, 2))),
    ("num_ranks", lambda: simulate(ROAD, assign(9, 2), 0, 3)),
    ("rank 1", lambda: simulate(ROAD, Assignment(5, [[1], [-3]]))),
    ("service_s", lambda: simulate(Pipeline([FEW]), assign(9, 2))),
    ("length", lambda: run(ROAD, count())),
    ("items", lambda: run(Pipeline([UNKNOWN]), 3)),
    ("lock-step", lambda: run(Pipeline([THREE]), assign(9, 2))),
    ("timeout_s", lambda: run(ROAD, [], timeout_s=0)),
    ("num_batches", lambda: loader(num_batches=0)),
    ("num_workers", lambda: loader(num_workers=-1)),
    ("prefetch_factor", lambda: loader(prefetch_factor=0)),
    ("fetch_s", lambda: loader(fetch_s=[1.0])),
    ("pin_s", lambda: Handover(pin_s=[1.0, math.nan])),
    ("num_cores", lambda: Cores("2")),
    ("loader", lambda: record_dataloader([1, 2])),
    ("no batch", lambda: record_dataloader(DataLoader([1])).profile()),
    ("advise", lambda: advise("loader")),
    ("num_workers", lambda: advise(PROFILE, num_workers=4)),
    ("prefetch_factors", lambda: advise(PROFILE, prefetch_factors=[0])),
    ("column", lambda: replace(PROFILE, step_s=[1.0])),
    ("wait_s", lambda: replace(PROFILE, wait_s=[-1.0] * 3)),
    ("pin_memory", lambda: simulate_profile(PROFILE, LoaderSettings(1, pin_memory=True))),
    ("within", lambda: closest(float, abs, within=-1)),
    ("tries", lambda: closest(float, abs, within=1, tries=0)),
    ("label", lambda: StoredImages(IMAGES, [1, 2])),
    ("size_px", lambda: StoredImages(IMAGES, [1, 2, 3], 31)),
]


@pytest.mark.parametrize(("word", "call"), REFUSED)
def test_refused(word: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        call()
    assert word in str(error.value)


def test_a_stage_that_does_not_exist_is_named() -> None:
    with pytest.raises(KeyError, match="decode"):
        ROAD.changed("decode", num_workers=2)


def test_the_closest_of_all_is_kept_where_none_is_close_enough() -> None:
    values = [math.nan, 3.0, -2.0, 4.0, 2.0, 0.5]
    measured = iter(values)
    assert closest(lambda: next(measured), lambda value: value, within=1.0, tries=5) == -2.0
    assert next(measured) == 0.5, "five tries are five calls"
    measured = iter([3.0, math.nan])
    assert closest(lambda: next(measured), lambda value: value, within=1.0, tries=2) == 3.0, "a NaN replaced a result"
    measured = iter([3.0, -1.0, 0.0])
    assert closest(lambda: next(measured), lambda value: value, within=1.0) == -1.0, "off by at most 1 is close enough"
    calls = count()
    closest(lambda: next(calls), lambda value: math.inf, within=1.0)
    assert next(calls) == 20
