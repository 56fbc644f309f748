"""What pipelines, their runs and their models refuse: one sentence that names the value and what it may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from rankscope.pipeline import (
    Lognormal,
    Pipeline,
    Stage,
    StoredImages,
    advise,
    closest,
    run,
    simulate,
    simulate_dataloader,
)
from rankscope.pipeline.advice import LoaderProfile, LoaderSettings, simulate_profile
from rankscope.pipeline.dataloader_model import Cores, Handover
from rankscope.pipeline.service import draw
from rankscope.sampling import Assignment, assign
from rankscope.timeline import Timeline

READ, TRAIN = Stage("read", 1.0), Stage("train", 1.0)
FEW, THREE, UNKNOWN = Stage("read", [1.0] * 4), Stage("train", 1.0, num_workers=3), Stage("read", fn=abs)
TWO = Stage("train", 1.0, num_workers=2)
ROAD = Pipeline([READ, TRAIN])
KINDS = "must be seconds, a list of them, a distribution or a function, got"
PROFILE = LoaderProfile(LoaderSettings(1), 3, 2, False, *[np.ones(3)] * 9)
IMAGES = np.zeros((3, 8, 8))
SEED = f"seed must be a whole number from {-(1 << 63)} to {(1 << 64) - 1}"


def loader(**changes: Any) -> Timeline:
    return simulate_dataloader(**{"fetch_s": 1.0, "step_s": 1.0, "num_batches": 4, "num_workers": 2, **changes})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # stages and their times
        (lambda: Stage("", 1.0), "a stage's name must be a word, and none of"),
        (lambda: Stage("blocked", 1.0), "none of blocked, barrier, wait; got 'blocked'"),
        (lambda: Stage("read"), "stage 'read' must have a service_s, a fn or both"),
        (lambda: Stage("read", fn=3), "fn must be a function, got 3"),
        (lambda: Stage("read", 10**400), "service_s must be a finite number of at least 0, got 1000"),
        (lambda: Stage("read", []), "service_s must have at least one time, got none"),
        (lambda: Stage("read", [0.1, -1.0]), "service_s must be finite seconds of at least 0, got -1.0 for item 1"),
        (lambda: Stage("read", [[0.1]]), "service_s must be a list of seconds, got an array of shape (1, 1)"),
        *[(partial(Stage, "read", wrong), f"service_s {KINDS}") for wrong in ("fast", True, [10**400], Lognormal)],
        (lambda: Stage("read", 1.0, num_workers=1.5), "num_workers must be a whole number from 1 to 4096, got 1.5"),
        (lambda: Stage("read", 1.0, capacity=10**30), "capacity must be a whole number from 1 to 1000000, got 1000"),
        (lambda: draw("it", [0.1, 0.2, 0.3], 4), "it must have a time for each of 4 items, got 3"),
        (lambda: draw("it", lambda item: -1, 3), "it must be finite seconds of at least 0, got -1.0 for item 0"),
        # pipelines
        (lambda: Pipeline([]), "number of stages must be a whole number from 1 to 128, got 0"),
        (lambda: Pipeline([None]), "stages must be a Stage, got None"),
        (lambda: Pipeline(READ), "stages must be a list, got Stage(name='read'"),
        (lambda: Pipeline([READ, READ]), "stages must differ in name, got 'read' twice"),
        (lambda: Pipeline([THREE, Stage("train 0", 2.0)]), "stages must differ in lane, got 'train 0' twice"),
        (lambda: Pipeline([UNKNOWN]).bottleneck, "stage 'read' has no service_s: run it, and ask Pipeline.measured"),
        (lambda: ROAD.measured(3), "timeline must be a Timeline, got 3"),
        (lambda: ROAD.measured(simulate(ROAD, 4)[1:]), "one span of 'read' for each item from 0, got 3 spans"),
        # simulate and run
        (lambda: simulate(READ, 3), "pipeline must be a Pipeline, got Stage"),
        (lambda: simulate(ROAD, [1, 2]), "items must be a whole number from 0 to 33554432, got [1, 2]"),
        (lambda: simulate(ROAD, 3, "a"), f"{SEED}, got 'a'"),
        (
            lambda: simulate(ROAD, 257, 0, 65_536),
            "items of all ranks times stages must be a whole number from 0 to 335",
        ),
        (lambda: simulate(ROAD, 3, 0, 0), "num_ranks must be a whole number from 1 to 65536, got 0"),
        (lambda: simulate(Pipeline([THREE]), assign(9, 2)), "in lock-step the last stage must have 1 worker, got 3"),
        (lambda: simulate(Pipeline([TWO]), assign(9, 2)), "in lock-step the last stage must have 1 worker, got 2"),
        (lambda: simulate(ROAD, assign(9, 2), 0, 3), "num_ranks must be left out or the assignment's own, 2, got 3"),
        (lambda: simulate(ROAD, Assignment(5, [[1], [-3]])), "each index of rank 1 must be a whole number of at le"),
        (lambda: simulate(Pipeline([FEW]), assign(9, 2)), "service_s of stage 'read' must have a time for each of"),
        (lambda: run(READ, []), "pipeline must be a Pipeline, got Stage"),
        (lambda: run(ROAD, count()), "items must have a length where a stage sleeps, as 'read' does"),
        (lambda: run(Pipeline([UNKNOWN]), 3), "items must be something that can be iterated over, got 3"),
        (lambda: run(Pipeline([THREE]), assign(9, 2)), "in lock-step the last stage must have 1 worker, got 3"),
        (lambda: run(ROAD, [], seed=1.5), f"{SEED}, got 1.5"),
        (lambda: run(ROAD, [], recorder=3), "recorder must be a Recorder, got 3"),
        (lambda: run(ROAD, [], timeout_s=0), "timeout_s must be a finite number above 0"),
        # the model of a DataLoader, and advice
        (lambda: loader(num_batches=0), "num_batches must be a whole number from 1 to 8388608, got 0"),
        (lambda: loader(num_batches=10**9), "num_batches must be a whole number from 1 to 8388608, got 1000000000"),
        (lambda: loader(num_workers=-1), "num_workers must be a whole number from 0 to 4096, got -1"),
        (lambda: loader(prefetch_factor=0), "prefetch_factor must be a whole number of at least 1, got 0"),
        (lambda: loader(in_order="no"), "in_order must be True or False, got 'no'"),
        (lambda: loader(seed="x"), f"{SEED}, got 'x'"),
        (lambda: loader(fetch_s=[1.0]), "fetch_s must have a time for each of 4 items, got 1"),
        (lambda: loader(handover=0.1), "handover must be a Handover, got 0.1"),
        (lambda: loader(cores=2), "cores must be a Cores, got 2"),
        (lambda: Handover(pin_s=[1.0, math.nan]), "pin_s must be finite seconds of at least 0, got nan for item 1"),
        (lambda: Cores("2"), "num_cores must be a number above 0, got '2'"),
        (lambda: advise("loader"), "advise takes a recorded loader or its profile, got a str"),
        (lambda: advise(PROFILE, num_workers=4), "num_workers must be a list, got 4"),
        (lambda: advise(PROFILE, prefetch_factors=[0]), "prefetch_factors must be a whole number of at least 1, got 0"),
        (lambda: advise(PROFILE, num_batches=0), "num_batches must be a whole number from 1 to 8388608, got 0"),
        (lambda: advise(PROFILE, num_batches=10**9), "num_batches must be a whole number from 1 to 8388608, got 10000"),
        (lambda: evolve(PROFILE, step_s=[1.0]), "at least one batch and a time of each in every column"),
        (lambda: evolve(PROFILE, wait_s=[-1.0] * 3), "wait_s must be finite seconds of at least 0, got -1.0"),
        (lambda: LoaderSettings(-2), "num_workers must be a whole number of at least 0, got -2"),
        (lambda: simulate_profile(PROFILE, LoaderSettings(1, pin_memory=True)), "pin_memory must be as recorded"),
        # the rest
        (lambda: closest(None, abs, within=0.1), "measure must be a function, got None"),
        (lambda: closest(float, 3, within=0.1), "off must be a function, got 3"),
        (lambda: closest(float, abs, within=-1), "within must be a finite number of at least 0, got -1"),
        (lambda: closest(float, abs, within=1, tries=0), "tries must be a whole number of at least 1, got 0"),
        (lambda: StoredImages(IMAGES, [1, 2]), "with a label each, got arrays of (3, 8, 8) and (2,)"),
        (lambda: StoredImages(IMAGES, [1, 2, 3], 31), "size_px must be a whole number of at least 32, got 31"),
        (lambda: StoredImages(IMAGES, [1, 2, 3], 64, "1"), "latency_s must be a finite number of at least 0, got '1'"),
    ],
)
def test_it_is_refused_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_stage_that_does_not_exist_is_named() -> None:
    with pytest.raises(KeyError, match="stages are read, train; got 'decode'"):
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
