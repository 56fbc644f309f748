"""The random generators that all of a process shares."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np


@contextmanager
def shared_left_alone() -> Iterator[None]:
    """Put the generators of Python, NumPy and, if it is there, torch back at the block's end."""
    with ExitStack() as at_end:
        at_end.callback(random.setstate, random.getstate())
        at_end.callback(np.random.set_state, np.random.get_state())
        with suppress(ModuleNotFoundError):  # a page in a browser has no torch
            import torch

            at_end.enter_context(torch.random.fork_rng(devices=[]))  # no devices: samplers draw on the CPU
        yield
