"""Thousands of drawn logs of jobs that hang, mixed, cut and damaged: no verdict names a wrong rank."""

from __future__ import annotations

from collections import Counter

import pytest

from rankscope.diagnose import explain_hang, read_hang_text

from ..extents import SAMPLE_OR_EVERYTHING
from .drawn_logs import KINDS, DrawnLog, drawn
from .hang_checks import wrong_words

NUM_IN_SAMPLE = 600
NUM_LOGS = 12000
# Gloo's timeouts have no numbers of calls: a rank that stopped cannot be told from one that made another call.
NEVER_CLEAR = {"Gloo timeouts"}


def verdict(log: DrawnLog) -> str:
    hang = explain_hang(logs=read_hang_text(log.text))
    wrong = wrong_words(hang, log)
    assert wrong == "", f"{log.kind}: {sorted(log.truths)}\n{wrong}\n{log.text}"
    return "right" if hang.culprits else "cannot tell"


@SAMPLE_OR_EVERYTHING
def test_no_verdict_on_a_drawn_log_is_wrong(everything: bool) -> None:
    verdicts = Counter[tuple[str, str]]()
    for seed in range(NUM_LOGS if everything else NUM_IN_SAMPLE):
        log = drawn(seed)
        verdicts[log.kind, verdict(log)] += 1
    for kind in KINDS:
        is_named = verdicts[kind, "right"] > 0
        assert is_named == (kind not in NEVER_CLEAR), verdicts


def test_a_wrong_verdict_on_a_drawn_log_is_found() -> None:
    for seed in range(100):
        log = drawn(seed)
        if explain_hang(logs=read_hang_text(log.text)).culprits:
            others = frozenset(truth._replace(rank=truth.rank + 100) for truth in log.truths)
            with pytest.raises(AssertionError):
                verdict(log._replace(truths=others, in_group=frozenset()))
