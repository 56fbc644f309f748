"""The judge of cases finds what is wrong, and the pool what does not end or ends its process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from . import pool
from .pool import Case, Wrong


def fail(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "another error": (fail(KeyError("method")), "KeyError from elsewhere: method"),
    "two lines": (fail(ValueError("one\ntwo")), "more than one printable line"),
    "nothing": (fail(ValueError("")), "says nothing"),
    "a page": (fail(ValueError("x" * 9000)), "says 9000 characters"),
    "no sentence": (fail(ValueError("bad: MemoryError")), "MemoryError"),
    "letters": (lambda: b"\xff".decode(), "UnicodeDecodeError"),
    "time": (lambda: any(time.process_time() < 0 for _ in range(10**6)), "s of a processor"),
    "memory": (lambda: np.ones(1 << 24), "MiB"),
    "its own": (fail(Wrong("lost")), "lost"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_judge_of_a_case(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CASE_S", 0.05 if name == "time" else 100.0)
    monkeypatch.setattr(pool, "MOST_BYTES", 1 << 26)
    assert WRONG[name][1] in pool.judged(Case(name, WRONG[name][0]))[0]
    assert pool.judged(Case("fine", fail(ValueError("size must be a number, got 'x'"))))[0] == ""


def prepare(folder: Path) -> Callable[[Random, Path], Case]:
    cases = {
        "waits": lambda: time.sleep(60),
        "dies": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "leaves": lambda: Path("x.tmp").touch(),
        "is fine": str,
        "maps": lambda: np.empty(1 << 40, np.uint8),
    }
    return lambda chance, work: (lambda name: Case(name, cases[name]))(chance.choice(list(cases)))


@pytest.mark.slow
def test_a_case_that_waits_dies_or_leaves_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STILL_S", 2.0)
    found = {one.name: one.wrong for one in pool.run(__name__, 35, range(5))}
    assert "hangs: no work for 2 s" in found["waits"]
    assert "killed its process (-11)" in found["dies"]
    assert "left ['x.tmp']" in found["leaves"]
    assert "Unable to allocate" in found["maps"]
    assert found["is fine"] == ""
