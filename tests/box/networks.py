"""Whether emulated networks can be had, for the tests that need one."""

from __future__ import annotations

import pytest

from tests.tools.emulate import emulated


def why_not() -> str:
    """What is missing; nothing if a network can be made."""
    try:
        with emulated(1, 1e6, 1e-3):
            return ""
    except RuntimeError as error:
        return str(error)


_reason = why_not()
needs_network = pytest.mark.skipif(bool(_reason), reason=_reason or "there is one")
