"""How nbval compares the notebooks: in this environment, with patience, and without pictures (see tests/figures)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

START_S = 200  # for a kernel to start, on a busy machine
OUTPUT_S = 100  # until an output of a finished cell arrives; the 5 s of nbval are too short on a busy machine


def pytest_itemcollected(item: Any) -> None:
    if hasattr(item, "output_timeout"):  # a cell
        item.output_timeout = OUTPUT_S


def pytest_collectstart(collector: Any) -> None:
    if kinds := getattr(collector, "skip_compare", None):  # a notebook; its PNGs are skipped by nbval itself
        collector.skip_compare = (*kinds, "image/svg+xml")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: Any) -> None:
    options = config.option
    if not getattr(options, "nbval", False):
        return
    options.nbval_current_env = options.nbval_kernel_name is None  # a kernel in the user's home may be another Python
    options.nbval_kernel_startup_timeout = max(START_S, options.nbval_kernel_startup_timeout)
    if getattr(options, "dist", "no") == "load":  # what -n4 means: it would give one notebook's cells to four workers
        options.dist = "loadfile"
    from nbval import kernel

    kernel.start_new_kernel = starting_twice(kernel.start_new_kernel)


def starting_twice(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that starts a kernel, and another one if the first does not come up.

    Of several kernels that start at once, two may choose the same port. The file that `stderr` is would stay open until
    the garbage collector finds it, in any later test, which the warning about it would then fail.
    """

    def start_twice(*args: Any, **options: Any) -> Any:
        with closing(options["stderr"]):  # the kernel has its own by now
            try:
                return start(*args, **options)
            except RuntimeError:
                return start(*args, **options)

    return start_twice
