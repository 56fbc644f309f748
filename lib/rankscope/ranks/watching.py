"""What the caller sees of its ranks: the results, the failure that is told, where stuck ranks are, and the output."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from . import rank as rank_module
from .errors import RankError, unpickled
from .rank import LOST_PEER, Failure
from .server import Supervisor
from .stacks import described

_LOOK_S = 0.01  # between two looks for outcomes
_STACKS_S = 1.0  # for ranks to write their stacks
# After the first failure, for one that may have caused it:
_CAUSE_S = 0.1
_CAUSE_OF_LOST_PEER_S = 1.0


class Ranks:
    """The ranks of a launch, as the files in its folder show them."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self._folder = folder
        self._num_ranks = num_ranks
        self._outcomes: dict[int, Any] = {}  # results, and failures

    def wait(self, supervisor: Supervisor, timeout_s: float) -> list[Any]:
        """Return the results by rank. Raises RankError, and MachineError if the supervisor fails."""
        deadline_s = time.monotonic() + timeout_s
        while self._running():
            supervisor.listen(_LOOK_S)
            is_late = time.monotonic() > deadline_s
            if self._look():
                raise self._failure()
            if is_late and self._running():
                raise self._late(supervisor, timeout_s)
        return [self._outcomes[rank] for rank in range(self._num_ranks)]

    def _running(self) -> list[int]:
        return [rank for rank in range(self._num_ranks) if rank not in self._outcomes]

    def _look(self) -> dict[int, Failure]:
        """Read the outcomes that are new, and return the failures."""
        for rank in self._running():
            file = self._folder / f"{rank}.outcome"
            if file.exists():
                self._outcomes[rank] = unpickled(file.read_bytes(), rank)
        return {rank: outcome for rank, outcome in self._outcomes.items() if isinstance(outcome, Failure)}

    def _failure(self) -> RankError:
        """Return the error of the failure that is told, after a time in which one that caused it can still come."""
        for cause_s in (_CAUSE_S, _CAUSE_OF_LOST_PEER_S):
            time.sleep(cause_s)
            rank, failure = min(self._look().items(), key=lambda item: item[1].kind)
            if failure.kind != LOST_PEER:
                break
        return RankError(failure.text, rank)

    def _late(self, supervisor: Supervisor, timeout_s: float) -> RankError:
        """Return the error of a timeout, which says where the ranks are that have not returned."""
        late = self._running()
        supervisor.ask_for_stacks()
        time.sleep(_STACKS_S)
        lines = [f"ranks {', '.join(map(str, late))} have not returned after {timeout_s:g} s (timeout_s)"]
        lines += [f"rank {rank} {described(self._stack(rank), rank_module.__file__)}" for rank in late]
        silent = [rank for rank in late if not self._stack(rank)]  # others may wait for one that does not answer
        suspects = silent or late
        return RankError("\n".join(lines), suspects[0] if len(suspects) == 1 else None)

    def _stack(self, rank: int) -> str:
        path = self._folder / f"{rank}.stack"
        return path.read_text(errors="replace") if path.exists() else ""

    def show(self) -> None:
        """Print the output, by rank."""
        for stream in ("stdout", "stderr"):
            text = "".join(self._lines(rank, stream) for rank in range(self._num_ranks))
            if text:
                print(text, end="", file=getattr(sys, stream), flush=True)

    def _lines(self, rank: int, stream: str) -> str:
        path = self._folder / f"{rank}.{stream}"
        output = path.read_bytes() if path.exists() else b""
        lines = output.decode("utf-8", "replace").removesuffix("\n").split("\n")
        return "".join(f"[rank {rank}] {line}\n" for line in lines) if output else ""
