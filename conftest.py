"""Which files pytest looks into, in which order it takes them, and what nbval leaves alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SECONDS = "rankscope/seconds"  # in pytest's cache: how long each file took, by the expression of `-m`
SLOW_S = 3.0  # what a slow test or a cell of a notebook is taken to last in a file that has not run here yet


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


def pytest_collectstart(collector: Any) -> None:
    """nbval compares no SVG, as it compares no PNG: what a figure shows is tested in tests/figures."""
    if kinds := getattr(collector, "skip_compare", None):  # a notebook
        collector.skip_compare = (*kinds, "image/svg+xml")
