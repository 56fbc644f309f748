"""What tests on emulated networks need: they belong to `make oracles`, and skip where no network can be emulated."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import pytest

from tests.tools.emulate import emulated

Test = TypeVar("Test", bound=Callable[..., object])


@cache
def why_not() -> str:
    """Return what is missing; nothing if a network can be made."""
    try:
        with emulated(1, 1e6, 1e-3):
            return ""
    except RuntimeError as error:
        return str(error)


def needs_network(test: Test) -> Test:
    """Mark a test; whether a network can be made is tried when the first such test runs."""
    uses_one: Test = pytest.mark.usefixtures("_skip_without_network")(test)
    return pytest.mark.oracle(uses_one)
