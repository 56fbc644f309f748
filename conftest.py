"""Which files pytest looks into, in which order it takes them, and how nbval runs and compares notebooks."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

MARK = re.compile(r"pytest\.mark\.(\w+)")
MARKS_OF_FILE = re.compile(r"^pytestmark = (\[[^\]]*\]|.+)$", re.MULTILINE)
# What test files import that marks tests; tests/test_targets.py holds that nothing else does.
IMPORTED_MARKS: Mapping[str, str] = {
    "needs_network": "oracle",
    "SAMPLE_OR_EVERYTHING": "oracle",
    "first_in_test": "oracle",
}

PATIENCE_S = 100  # until an output of a cell that has ended arrives; nbval's 5 s are too short on a busy machine
SECONDS = "rankscope/seconds"  # in pytest's cache: how long each file took, by the expression of `-m`
# What a slow test or a cell of a notebook is taken to last in a file that has not run here yet. With it, a first run
# ends 2 % later than with the recorded times.
SLOW_S = 1.8


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the test files in which `-m` chooses nothing: to import one may take seconds, and each process does."""
    expression = config.getoption("markexpr")
    is_named = any(Path(word).resolve() == collection_path for word in config.args)
    if not expression or is_named or not collection_path.match("test_*.py"):
        return None
    markers = [line.partition(":")[0] for line in config.getini("markers")]
    can_choose = may_choose(expression, collection_path.read_text(encoding="utf-8"), markers)
    return None if can_choose else True


def may_choose(expression: str, text: str, markers: list[str]) -> bool:
    """Whether an expression of `-m` may choose a test of a file with this text; `markers` are all that there are."""
    every_test = {mark for marks in MARKS_OF_FILE.findall(text) for mark in MARK.findall(marks)}
    some_tests = {*MARK.findall(text), *[mark for name, mark in IMPORTED_MARKS.items() if name in text]}
    choices = list[tuple[bool, ...]]()
    for mark in markers:
        if mark in every_test:
            choices.append((True,))
        elif mark in some_tests:
            choices.append((False, True))
        else:
            choices.append((False,))
    for values in product(*choices):
        marks = dict(zip(markers, values, strict=True))
        with suppress(NameError, SyntaxError, TypeError):  # another form of expression, of which pytest decides
            if not eval(expression, {"__builtins__": {}}, marks):
                continue
        return True
    return False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, and let it pass over what they consist of.

    Modules and tests are hundreds of thousands of objects that stay until the end. As they arrive, the collector would
    look through all of them dozens of times, which takes 40 % of the time that each process needs to collect the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    """Look for examples only in modules that have some: doctest imports each one, and resolves its lazy names."""
    collectors = yield
    if file_path.suffix == ".py" and ">>> " not in file_path.read_text(encoding="utf-8"):
        return [collector for collector in collectors if type(collector).__name__ != "DoctestModule"]
    return collectors


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Put the files that take longest first: the last processes to finish then have only short files to do."""
    seconds = expected_seconds(items, recorded_seconds(config))
    items.sort(key=lambda item: -seconds[file_of(item.nodeid)])


def pytest_collection_finish() -> None:
    """Let torch compute on one thread: several processes share the cores, and threads burn CPU while they wait.

    The tensors of tests are small. On two busy cores, two threads used fifteen times as much CPU as one.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def recorded_seconds(config: pytest.Config) -> dict[str, float]:
    """Return how long each file took when these markers last chose the tests."""
    cache = getattr(config, "cache", None)  # which -p no:cacheprovider leaves out
    if cache is None:
        return {}
    seconds: dict[str, float] = cache.get(SECONDS, {}).get(config.getoption("markexpr"), {})
    return seconds


def expected_seconds(items: list[Any], recorded: dict[str, float]) -> dict[str, float]:
    """Return how long each file took the last time, or a guess from its slow tests and its notebook cells."""
    seconds = Counter[str]()
    for item in items:
        file = file_of(item.nodeid)
        if file in recorded:
            seconds[file] = recorded[file]
        elif file.endswith(".ipynb") or item.get_closest_marker("slow"):
            seconds[file] += SLOW_S
        else:
            seconds[file] += 0.0
    return seconds


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Durations:
    """Adds up how long the tests of each file take, and keeps that for the order of the next run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        cache = self.config.cache
        if cache is None:
            return
        of_these_markers = recorded_seconds(self.config)
        for file, seconds in self.seconds.items():
            of_these_markers[file] = round(seconds, 2)
        by_markers = cache.get(SECONDS, {})
        by_markers[self.config.getoption("markexpr")] = of_these_markers
        cache.set(SECONDS, by_markers)


def pytest_configure(config: pytest.Config) -> None:
    is_xdist_worker = hasattr(config, "workerinput")
    has_cache = getattr(config, "cache", None) is not None
    selects_single_tests = config.getoption("keyword") or any("::" in word for word in config.args)
    if has_cache and not is_xdist_worker and not selects_single_tests:
        config.pluginmanager.register(Durations(config))
    if config.getoption("nbval", False):
        from nbval import kernel

        kernel.start_new_kernel = starting_twice(kernel.start_new_kernel)


# ---- nbval


def starting_twice(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts a kernel, and another one if the first does not answer in time.

    If a machine is suspended, the time is over when it goes on. The file that `stderr` is would stay open until the
    garbage collector finds it, in any later test, which the warning about it would then fail. As in the tests, torch
    computes on one thread.
    """

    def start_twice(*args: Any, **options: Any) -> Any:
        options["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
        with closing(options["stderr"]):  # the kernel has its own by now
            try:
                return start(*args, **options)
            except RuntimeError:
                return start(*args, **options)

    return start_twice


def pytest_itemcollected(item: Any) -> None:
    if hasattr(item, "output_timeout"):  # a cell of a notebook
        item.output_timeout = PATIENCE_S


def pytest_collectstart(collector: Any) -> None:
    """nbval compares no SVG, as it compares no PNG: what a figure shows is tested in tests/figures."""
    if kinds := getattr(collector, "skip_compare", None):  # a notebook
        collector.skip_compare = (*kinds, "image/svg+xml")
