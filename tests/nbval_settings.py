"""How nbval compares the notebooks: it waits for slow machines, and leaves pictures to tests/figures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

OUTPUT_S = 100  # until an output of a finished cell arrives; the 5 s of nbval are too short on a busy machine


def pytest_itemcollected(item: Any) -> None:
    if hasattr(item, "output_timeout"):  # a cell
        item.output_timeout = OUTPUT_S


def pytest_collectstart(collector: Any) -> None:
    if kinds := getattr(collector, "skip_compare", None):  # a notebook; its PNGs are skipped by nbval itself
        collector.skip_compare = (*kinds, "image/svg+xml")


def pytest_configure(config: Any) -> None:
    if config.getoption("nbval", False):
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
