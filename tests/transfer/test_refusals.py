"""What the package refuses: each call raises a ValueError that names the argument."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rankscope import transfer
from rankscope.timeline import Span, Timeline
from rankscope.transfer import overlap_share, prefetched

COPY, STEP = Span(0, "copy", "copy", 0, 0.0, 1.0), Span(0, "compute", "compute", 0, 0.0, 1.0)

REFUSED = [
    ("num_batches", lambda: transfer.simulate(-1, 1.0, 1.0, 1.0)),
    ("load_s", lambda: transfer.simulate(3, -1.0, 1, 1)),
    ("copy_s", lambda: transfer.simulate(3, 1, "2", 1)),
    ("step_s", lambda: transfer.simulate(3, 1, 1, np.nan)),
    ("pin_s", lambda: transfer.simulate(3, 1, 1, 1, pin_s=-1)),
    ("num_workers", lambda: transfer.simulate(3, 1, 1, 1, num_workers=0)),
    ("prefetched", lambda: transfer.simulate(3, 1, 1, 1, prefetched=1)),
    ("'compute'", lambda: overlap_share(Timeline.of([COPY]))),
    ("'copy'", lambda: overlap_share(Timeline.of([STEP]))),
    ("'copy'", lambda: overlap_share(Timeline.of([COPY, STEP._replace(stop_s=0.0)]))),
    ("one rank", lambda: overlap_share(Timeline.of([COPY, STEP, STEP._replace(rank=1)]))),
    ("loader", lambda: prefetched(3, "cpu")),
    ("device", lambda: prefetched([], "tpu!")),
    ("device", lambda: prefetched([], f"cuda:{torch.cuda.device_count()}")),
    ("num_ahead", lambda: prefetched([], "cpu", num_ahead=0)),
    ("recorder", lambda: prefetched([], "cpu", recorder=Timeline.of([]))),
]


@pytest.mark.parametrize(("word", "call"), REFUSED)
def test_refused(word: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the word is compared below
        call()
    assert word in str(error.value)
