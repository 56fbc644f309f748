"""What loader processes and trainers of the tests run: importable by them, and quickly, so without torch or pytest."""

from __future__ import annotations

import time

from rankscope.parts.files import load_part


class Awkward(Exception):  # which does not survive a pickle
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def number(path):
    return int(path[-9:-4])


def hang_but_on(one, path):
    """One part comes; any other never does."""
    if path != one:
        time.sleep(600)
    return load_part(path)


def fail_on_two(path):
    if number(path) == 2:
        raise OSError(5, "the disk is gone")
    return load_part(path)


def fail_awkwardly(path):
    raise Awkward("this", "that")


def no_part(path):
    return [1, 2, 3]


def with_tensors(path):
    import torch

    return {name: torch.from_numpy(rows) for name, rows in load_part(path).items()}
