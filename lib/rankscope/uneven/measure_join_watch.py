"""`Watch`: what a rank is at in an epoch under torch's Join, its own steps and shadows of others', onto a Recorder."""

from __future__ import annotations

import time
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..timeline import Recorder
from .uneven import LANE
from .uneven_run import Counts


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what a rank is at. Allreduces of more than one number are of gradients: DDP's own, or shadows of them.

    They pass the dispatcher, also those that C++ begins, and are over when the backward is, or when Join asks again.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.kind, self.item, self.since_ns = "", 0, 0
        self.finished = False
        self.counts = Counts(0, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and func._schema.name == "c10d::allreduce_":
            self._allreduce(sum(tensor.numel() for tensor in args[0]))
        return func(*args, **(kwargs or {}))

    def _allreduce(self, num_elements: int) -> None:
        gradients, words = self.counts
        if num_elements == 1:
            self.counts = Counts(gradients, words + 1)
            if self.kind == "shadow":
                self.end()
                self.begin("wait", self.item + 1)
        elif self.kind not in ("allreduce", "shadow"):
            self.counts = Counts(gradients + 1, words)
            self.end()
            self.begin("shadow" if self.finished else "allreduce", self.item)

    def begin(self, kind: str, item: int) -> None:
        self.kind, self.item, self.since_ns = kind, item, time.perf_counter_ns()

    def end(self) -> None:
        """What this rank was at is over."""
        self.recorder.add(LANE, self.kind, self.item, self.since_ns, time.perf_counter_ns())
        self.kind = ""

    def finish(self) -> None:
        """No batch is left. What Join says to the end, after the last shadow, is not recorded."""
        self.finished = True
        self.begin("wait", self.item + 1)

    def give_up(self) -> None:
        """What was an allreduce has been waiting in vain."""
        if self.kind == "allreduce":
            self.kind = "wait"
            self.end()
