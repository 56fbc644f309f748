"""What real Gloo ranks printed when they hung: the recorded texts, and what is true of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

_STORED = Path(__file__).parent / "stored" / "gloo_hangs.json"


class TextCase(NamedTuple):
    """What a rank of a job does in place of its collective.

    `causes` are those that are true of it; empty if nothing in the text can show the rank. `is_detail` sets
    TORCH_DISTRIBUTED_DEBUG=DETAIL; a job is started by torchrun, with one log, or has one log per rank. `after_s` is
    the time after which a rank stops that makes collectives in a loop.
    """

    what: str
    num_ranks: int
    rank: int
    causes: tuple[str, ...]
    is_detail: bool = False
    is_torchrun: bool = False
    after_s: float = 0.0

    @property
    def truths(self) -> set[tuple[int, str]]:
        """The ranks and causes that a verdict may name."""
        truths = {(self.rank, cause) for cause in self.causes}
        if self.what == "barrier two":
            truths.add((self.num_ranks - 1, "missing"))
        if self.what == "part collective" and self.is_detail:  # neither rank of the part comes to the others' barrier
            truths |= {(1, "missing"), (3, "missing")}
        return truths

    def __str__(self) -> str:
        detail = ", DETAIL" if self.is_detail else ""
        launcher = ", torchrun" if self.is_torchrun else ""
        after = f", after {self.after_s} s" if self.after_s else ""
        return f"{self.what}, rank {self.rank} of {self.num_ranks}{detail}{launcher}{after}"


class RecordedHang(NamedTuple):
    """A case, and the text of each log by its name."""

    case: TextCase
    logs: dict[str, str]


def recorded() -> list[RecordedHang]:
    """Return the stored texts."""
    stored = json.loads(_STORED.read_text())
    return [RecordedHang(TextCase(*case[:3], tuple(case[3]), *case[4:]), logs) for case, logs in stored["hangs"]]
