"""nbval compares no SVG, as it compares no PNG: what a figure shows is tested in tests/figures."""

from __future__ import annotations

from typing import Any


def pytest_collectstart(collector: Any) -> None:
    if kinds := getattr(collector, "skip_compare", None):  # a notebook
        collector.skip_compare = (*kinds, "image/svg+xml")
