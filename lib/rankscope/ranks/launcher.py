"""`launch`: ranks as processes of their own, from a notebook cell or a script, in a fraction of a second.

The first launch starts the server that forks them, in some seconds: it imports torch. Later launches, which may come
from several threads at once, find it there. Each rank has the caller's environment, working directory and
``sys.path``, and its share of the cores (``torch.set_num_threads``). It is killed once all have returned: exit handlers
do not run.

In a script that ``torchrun`` (or another launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) runs on one
or more machines, its processes are the ranks: each calls `launch` with the same arguments, `num_ranks` as many or None,
and gets all results. Nothing is forked, what ranks print goes where torchrun sends it, and `timeout_s` is the group's.
A rank that fails raises RankError in its own process, and the others at their next collective. "mpi" goes by
``mpirun``, in the same manner, where torch was built with it.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..common.checks import function, number, one_of, truth, whole
from . import joined, pickling
from .errors import MachineError, RankError
from .host import MOST_RANKS, MOST_TIMEOUT_S, how_it_ended, is_ending
from .output import Output
from .pool import Worker, WorkerPool, describe_stacks
from .rank import Failure, JoinProblem, Rank, StoredResult
from .stacks import STOPPED
from .worker import LoadProblem

Result = TypeVar("Result")
MODULES = "torch torch.distributed torch._dynamo"  # DDP imports _dynamo, for 1.5 s
_BACKENDS = ("gloo", "nccl", "mpi")
# After a rank has failed, the launch waits for what may have caused it before it raises an error:
_GRACE_S = 0.1  # for another rank that has failed at the same time
_CAUSE_S = 1.0  # for the rank that failed first, if all failed ranks have lost the connection to a peer
_GONE_S = 5.0  # for the server to report that a rank has ended, if one is ending
_LOOK_S = 0.1  # between two looks at the ranks' output with `progress`, and at failed ranks
_COUNT_S = 2.0  # between two messages of how many ranks have returned


def launch(
    fn: Callable[..., Result],
    num_ranks: int | None,
    args: Sequence[Any] = (),
    backend: str = "gloo",
    timeout_s: float = 60.0,
    progress: bool = False,
) -> list[Result]:
    """Call ``fn(*args)`` in `num_ranks` processes that have a default process group, and return the results by rank.

    The ranks run on this machine and communicate over loopback (with "nccl", rank r has GPU r), or are those of
    torchrun or mpirun. `fn` may be a lambda, or be defined in a notebook or a script, which needs no ``__main__``
    guard; arguments and results are pickled. To record all ranks on one time axis, pass a `Recorder` and record with
    ``recorder.for_rank(dist.get_rank())``.

    Output of the ranks is printed at the end, rank by rank, as ``[rank 2] …``. If `progress` is true, it is printed
    line by line as the ranks run, and every two seconds a line on stderr states how many have returned.

    Raises RankError, with the rank's number and traceback, if a rank raises or its process ends, or if ranks have not
    returned `timeout_s` after the start; the message then states where in their code these ranks are. All ranks have
    ended by then. Raises ValueError if an argument is invalid or cannot be pickled, or if there are more NCCL ranks
    than GPUs; RuntimeError if the server that starts ranks cannot run.

    >>> def total(base):
    ...     import torch
    ...     tensor = torch.tensor([base + torch.distributed.get_rank()])
    ...     torch.distributed.all_reduce(tensor)
    ...     return tensor.item()
    >>> launch(total, 4, args=(10,))
    [46, 46, 46, 46]
    """
    timeout_s = _checked(fn, args, backend, timeout_s, progress)
    if joined.is_joined(backend):
        return joined.run(fn, num_ranks, tuple(args), backend, timeout_s)
    num_ranks = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    return _forked(fn, tuple(args), num_ranks, backend, timeout_s, progress)


def launch_after(
    before: Callable[[int], object],
    num_ranks: int,
    fn: Callable[..., Result],
    args: Sequence[Any] = (),
    timeout_s: float = 60.0,
    progress: bool = False,
    guards: Mapping[int, Callable[[], str]] | None = None,
) -> list[Result]:
    """As `launch` on Gloo, but each rank calls `before` with its number before it connects to the others.

    `guards` watch things without which the ranks cannot go on. Each is a file descriptor that becomes ready when such a
    thing has ended, and a function that returns the message of the MachineError which is then raised.
    """
    timeout_s = _checked(fn, args, "gloo", timeout_s, progress)
    num_ranks = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    return _forked(fn, tuple(args), num_ranks, "gloo", timeout_s, progress, before, guards)


def _checked(fn: Any, args: Any, backend: Any, timeout_s: Any, progress: Any) -> float:
    """Check the arguments of a launch, and return `timeout_s` as a float."""
    function("fn", fn)
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise ValueError(f"args must be a tuple of what fn is called with, got {args!r}")
    one_of("backend", backend, _BACKENDS)
    truth("progress", progress)
    return number("timeout_s", timeout_s, above=0, high=MOST_TIMEOUT_S)


def _forked(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    num_ranks: int,
    backend: str,
    timeout_s: float,
    progress: bool,
    before: Callable[[int], object] | None = None,
    guards: Mapping[int, Callable[[], str]] | None = None,
) -> list[Any]:
    """Call the function in forked processes, and return the results by rank. All have ended when this returns."""
    with WorkerPool(MODULES, in_memory=False) as pool:  # on disk, because what ranks return and print may be large
        output = Output(pool.folder, num_ranks)
        try:
            work = pool.pack(Rank(fn, args, num_ranks, backend, timeout_s, pool.folder, before))
        except Exception as error:
            raise pickling.not_sent(fn, args, error) from error
        try:
            labels = [f"rank {rank}" for rank in range(num_ranks)]
            with output.descriptors() as descriptors:
                ranks = pool.start(work, labels, descriptors)
            _RunningRanks(ranks, guards or {}).wait(timeout_s, output if progress else None)
            return [_result(pool.folder, rank) for rank in range(num_ranks)]
        finally:  # also after an error: what the ranks have printed may say more about it
            pool.end()  # before the output is shown for the last time, so that no rank prints afterwards
            output.show()


def _result(folder: Path, rank: int) -> Any:
    try:
        return pickling.read(folder / f"{rank}.result")
    except Exception as error:
        problem = f"the result of rank {rank} cannot be loaded: {type(error).__name__}: {error}"
        raise RankError(problem, rank) from error


class _RunningRanks:
    """The ranks of a launch: which of them run, which have returned, which failed, and why."""

    def __init__(self, ranks: list[Worker], guards: Mapping[int, Callable[[], str]]) -> None:
        self._ranks = ranks
        self._guards = guards
        self._running = set(range(len(ranks)))  # the ranks that have not returned
        self._alive: dict[Any, int] = {worker: rank for rank, worker in enumerate(ranks)}  # whose processes run
        self._connections: dict[Any, int] = {worker.values.connection: rank for rank, worker in enumerate(ranks)}
        self._failures: dict[int, Failure] = {}  # in the order in which they came
        self._failed_s = 0.0  # when the first of them came

    def wait(self, timeout_s: float, live_output: Output | None) -> None:
        """Wait until all have returned. Raises RankError, and the other errors of `launch`.

        With `live_output`, new lines of the output are shown meanwhile, and how many ranks have returned.
        """
        begin_s = time.monotonic()
        now_s = begin_s
        deadline_s = begin_s + timeout_s
        next_count_s = begin_s + _COUNT_S
        while self._running:
            if self._failures:  # then the timeout no longer matters: an error is raised within `_GONE_S`
                if self._cause_is_known(now_s - self._failed_s):
                    self._raise()
            elif now_s >= deadline_s:
                self._give_up(timeout_s)
            if live_output or self._failures:
                self._listen(_LOOK_S)
            else:
                self._listen(deadline_s - now_s)
            now_s = time.monotonic()
            if live_output:
                live_output.show(last=False)
                if now_s > next_count_s:
                    next_count_s = now_s + _COUNT_S
                    self._print_count(now_s - begin_s)

    def _print_count(self, since_s: float) -> None:
        num_done = len(self._ranks) - len(self._running)
        print(f"launch: {num_done} of {len(self._ranks)} ranks after {since_s:.0f} s", file=sys.stderr)

    def _listen(self, within_s: float) -> None:
        """Wait for news of ranks and guards, for at most this time, and note them."""
        sources: list[Any] = [*self._connections, *self._alive, *self._guards]
        ready: list[Any] = list(wait(sources, within_s))
        for source in ready:
            if source in self._guards:
                raise MachineError(self._guards[source]())
            if source in self._connections:
                self._receive(self._connections[source])
        for source in ready:  # after all messages, because a rank's last message may say why it has ended
            if source in self._alive:
                source.listen()  # if the process has ended, this receives its exit code
                if source.code is not None:
                    self._note_end(self._alive.pop(source), source)

    def _receive(self, rank: int) -> None:
        """Receive a message of a rank. Raises ValueError if it says that the launch cannot work."""
        values = self._ranks[rank].values
        try:
            message = values.receive()
        except (EOFError, ConnectionError):  # it has ended, as the server will report
            del self._connections[values.connection]
            return
        if isinstance(message, StoredResult):
            self._running.discard(rank)
        elif isinstance(message, LoadProblem):  # any other rank first sends None, which needs no answer
            raise ValueError(f"fn and args cannot be loaded in the ranks: {message.reason}")
        elif isinstance(message, JoinProblem):
            raise ValueError(message.reason)
        elif isinstance(message, Failure):
            if not self._failures:
                self._failed_s = time.monotonic()
            self._failures[rank] = message

    def _note_end(self, rank: int, worker: Worker) -> None:
        """Raise RankError if the process of a rank has ended by itself; for a rank that failed, that is no news."""
        if rank not in self._failures:
            when = "before" if rank in self._running else "after"
            raise RankError(f"{worker} {how_it_ended(worker.code)} {when} it returned", rank)

    def _cause_is_known(self, since_s: float) -> bool:
        """Whether no other rank can have failed before those that have reported a failure, `since_s` ago at first."""
        others = [worker for rank, worker in enumerate(self._ranks) if rank not in self._failures]
        if any(is_ending(worker.pid) for worker in others):
            return since_s > _GONE_S
        if all(failure.is_lost_peer for failure in self._failures.values()):
            return since_s > _CAUSE_S
        return since_s > _GRACE_S

    def _raise(self) -> NoReturn:
        """Raise the error of the first rank that failed by itself or, if there is none, of the first failed rank."""
        failed_ranks = list(self._failures)
        own_failures = [rank for rank in failed_ranks if not self._failures[rank].is_lost_peer]
        rank = own_failures[0] if own_failures else failed_ranks[0]
        failure = self._failures[rank]
        cause = None
        if failure.error is not None:
            with suppress(Exception):  # for example, if its class cannot be imported here
                cause = pickle.loads(failure.error)
        message = f"rank {rank} failed: {failure.line}"
        if failure.text != failure.line:  # a failure without a traceback has the line for its text
            message = f"{message}\n\n{failure.text}"
        raise RankError(message, rank) from cause

    def _give_up(self, timeout_s: float) -> NoReturn:
        """Raise the error of a timeout, which says where in their code the ranks are that have not returned.

        Its `rank` is the first that is stopped (SIGSTOP), because others may wait for it; otherwise the first of all.
        """
        late = sorted(self._running)
        numbers = ", ".join(map(str, late))
        names = f"ranks {numbers} have" if len(late) > 1 else f"rank {numbers} has"
        stacks = describe_stacks([self._ranks[rank] for rank in late])
        lines = [f"{names} not returned after {timeout_s:g} s (timeout_s)"]
        lines += [f"rank {rank} {stack}" for rank, stack in zip(late, stacks, strict=True)]
        stopped = [rank for rank, stack in zip(late, stacks, strict=True) if stack == STOPPED]
        raise RankError("\n".join(lines), stopped[0] if stopped else late[0])
