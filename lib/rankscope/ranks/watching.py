"""What the caller sees of its ranks: the results, the failure that is told, where stuck ranks are, and the output."""

from __future__ import annotations

import collections
import contextlib
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from . import rank as rank_module
from .errors import RankError
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
        self._results: dict[int, Any] = {}
        self._failures: dict[int, Failure] = {}
        self._num_shown: collections.Counter[Path] = collections.Counter()  # bytes of each file of output

    def wait(self, supervisor: Supervisor, timeout_s: float, progress: bool) -> list[Any]:
        """Return the results by rank. Raises RankError, and MachineError if the supervisor fails."""
        begin_s = time.monotonic()
        failed_s = begin_s  # when the first failure was seen
        while len(self._results) < self._num_ranks:
            supervisor.listen(_LOOK_S)
            now_s = time.monotonic()
            if not self._failures:
                failed_s = now_s
            self._look()
            if self._failures:
                self._raise_if_known(now_s - failed_s)
            elif now_s - begin_s > timeout_s:
                raise self._late(supervisor, timeout_s)
            if progress:
                self.show(last=False)
        return [self._results[rank] for rank in range(self._num_ranks)]

    def _look(self) -> None:
        """Read the outcomes that are new."""
        for rank in self._running():
            file = self._folder / f"{rank}.outcome"
            if not file.exists():
                continue
            outcome = pickle.loads(file.read_bytes())
            if isinstance(outcome, Failure):
                self._failures[rank] = outcome
            else:
                self._results[rank] = outcome

    def _running(self) -> list[int]:
        return [rank for rank in range(self._num_ranks) if rank not in self._results and rank not in self._failures]

    def _raise_if_known(self, since_s: float) -> None:
        """Raise the error of the failure that is told, unless one that may have caused it can still come."""
        rank, failure = min(self._failures.items(), key=lambda item: item[1].kind)
        if since_s < (_CAUSE_OF_LOST_PEER_S if failure.kind == LOST_PEER else _CAUSE_S):
            return
        cause = None
        with contextlib.suppress(Exception):  # for example, if its class cannot be imported here
            cause = pickle.loads(failure.cause)
        raise RankError(failure.text, rank) from cause

    def _late(self, supervisor: Supervisor, timeout_s: float) -> RankError:
        """Return the error of a timeout, which says where the ranks are that have not returned."""
        late = self._running()
        supervisor.ask_for_stacks()
        deadline_s = time.monotonic() + _STACKS_S
        while time.monotonic() < deadline_s and not all(self._stack(rank) for rank in late):
            time.sleep(_LOOK_S)
        time.sleep(_LOOK_S)  # for what has begun to be written
        lines = [f"ranks {', '.join(map(str, late))} have not returned after {timeout_s:g} s (timeout_s)"]
        lines += [f"rank {rank} {described(self._stack(rank), rank_module.__file__)}" for rank in late]
        silent = [rank for rank in late if not self._stack(rank)]  # others may wait for one that does not answer
        return RankError("\n".join(lines), min(silent or late))

    def _stack(self, rank: int) -> str:
        path = self._folder / f"{rank}.stack"
        return path.read_text(errors="replace") if path.exists() else ""

    def show(self, last: bool) -> None:
        """Print what is new of the output, by rank; a line that does not end yet only if this is the last time."""
        for stream in ("stdout", "stderr"):
            text = "".join(self._new_lines(rank, stream, last) for rank in range(self._num_ranks))
            target = getattr(sys, stream)
            if text and target is not None:  # it is None if it was closed when Python started
                target.write(text)
                target.flush()

    def _new_lines(self, rank: int, stream: str, last: bool) -> str:
        path = self._folder / f"{rank}.{stream}"
        if not path.exists():
            return ""
        with open(path, "rb") as file:
            file.seek(self._num_shown[path])
            new = file.read()
        if not last:
            end_of_line = new.rfind(b"\n") + 1
            new = new[:end_of_line]
        self._num_shown[path] += len(new)
        lines = new.decode("utf-8", "replace").removesuffix("\n").split("\n")
        return "".join(f"[rank {rank}] {line}\n" for line in lines) if new else ""
