"""How nbval compares the notebooks: it waits for slow machines, and leaves pictures to tests/figures."""

from __future__ import annotations

from typing import Any

OUTPUT_S = 100  # until an output of a finished cell arrives; the 5 s of nbval are too short on a busy machine


def pytest_itemcollected(item: Any) -> None:
    if hasattr(item, "output_timeout"):  # a cell
        item.output_timeout = OUTPUT_S


def pytest_collectstart(collector: Any) -> None:
    if kinds := getattr(collector, "skip_compare", None):  # a notebook; its PNGs are skipped by nbval itself
        collector.skip_compare = (*kinds, "image/svg+xml")
