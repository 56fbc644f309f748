"""`launch`: ranks as processes of their own, from a notebook cell or a script, in a fraction of a second.

The first launch starts a server, in some seconds. It stays, ends with this process, and forks the ranks of all later
launches, which may come from several threads at once. Each rank has the caller's environment, working directory and
``sys.path``, and its share of the cores (``torch.set_num_threads``). It is killed once all have returned: exit handlers
do not run.

In a script that ``torchrun`` (or another launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) runs on one
or more machines, its processes are the ranks: each calls `launch` with the same arguments, `num_ranks` as many or None,
and gets all results. Nothing is forked, what ranks print goes where torchrun lets it, and `timeout_s` is the group's. A
rank that fails raises RankError in its own process, and the others at their next collective. "mpi" goes by ``mpirun``,
in the same manner, where torch was built with it.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..values.checks import number, one_of, truth, whole
from . import joined, parcels
from .errors import MOST_RANKS
from .forker import open_line
from .output import Output
from .rank import Setting
from .watching import Watch

Result = TypeVar("Result")
_BACKENDS = ("gloo", "nccl", "mpi")


def launch(
    fn: Callable[..., Result],
    num_ranks: int | None,
    args: Sequence[Any] = (),
    backend: str = "gloo",
    timeout_s: float = 60.0,
    progress: bool = False,
) -> list[Result]:
    """Call ``fn(*args)`` in `num_ranks` processes that have a default process group, and return the results by rank.

    The ranks run on this machine and talk over loopback (with "nccl" rank r has GPU r), or are those of torchrun. `fn`
    may be a lambda, or live in a notebook or a script, which needs no ``__main__`` guard; what is passed is pickled.
    Spans come on one time axis: pass a `Recorder`, and record with ``recorder.for_rank(dist.get_rank())``.

    What ranks print follows at the end, rank by rank, as ``[rank 2] …``; with `progress`, line by line as they run,
    with a word on stderr every two seconds on how many have returned.

    RankError, with its rank's number and traceback, is raised when a rank raises or its process ends; and `timeout_s`
    after the start, with where those stand that have not returned. All ranks have ended by then. ValueError for bad
    input, what cannot be pickled, more NCCL ranks than GPUs; RuntimeError where the server cannot run.

    >>> def total(base):
    ...     import torch
    ...     tensor = torch.tensor([base + torch.distributed.get_rank()])
    ...     torch.distributed.all_reduce(tensor)
    ...     return tensor.item()
    >>> launch(total, 4, args=(10,))
    [46, 46, 46, 46]
    """
    _check(fn, args, backend, progress)
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    if joined.is_joined(backend):
        return joined.run(fn, num_ranks, tuple(args), backend, timeout_s)
    setting = Setting(whole("num_ranks", num_ranks, 1, MOST_RANKS), backend, timeout_s, **_surroundings())
    return _forked(fn, tuple(args), setting, progress)


def launch_in(
    networks: Sequence[tuple[str, str]],
    fn: Callable[..., Result],
    args: Sequence[Any] = (),
    timeout_s: float = 60.0,
    progress: bool = False,
) -> list[Result]:
    """As `launch` on Gloo, with rank r in the network namespace, and on the interface, that are ``networks[r]``."""
    _check(fn, args, "gloo", progress)
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    num_ranks = whole("num_ranks", len(networks), 1, MOST_RANKS)
    setting = Setting(num_ranks, "gloo", timeout_s, **_surroundings(), networks=tuple(networks))
    return _forked(fn, tuple(args), setting, progress)


def _check(fn: Any, args: Any, backend: Any, progress: Any) -> None:
    if not callable(fn):
        raise ValueError(f"fn must be a function, got {fn!r}")
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise ValueError(f"args must be a tuple of what fn is called with, got {args!r}")
    one_of("backend", backend, _BACKENDS)
    truth("progress", progress)


def _forked(fn: Callable[..., Any], args: tuple[Any, ...], setting: Setting, progress: bool) -> list[Any]:
    if not hasattr(os, "fork"):
        raise RuntimeError(f"launch forks its ranks, which {sys.platform} cannot do")
    forker, line = open_line()
    with line, tempfile.TemporaryDirectory(dir=forker.folder, ignore_cleanup_errors=True) as place:
        folder = Path(place)
        _pack(folder, fn, args, setting)
        output = Output(folder, setting.num_ranks)
        with _shown(output), contextlib.closing(Watch(forker, line, folder)) as watch:
            watch.start(setting.num_ranks)
            watch.wait(setting.timeout_s, output if progress else None)
            return [watch.result(rank) for rank in range(setting.num_ranks)]


def _surroundings() -> dict[str, Any]:
    sources = {name: entry for name, entry in list(linecache.cache.items()) if len(entry) == 4 and entry[1] is None}
    path = [os.fspath(place) or os.getcwd() for place in sys.path]
    argv = list(getattr(sys, "argv", []))
    return {"environment": dict(os.environ), "folder": os.getcwd(), "path": path, "argv": argv, "sources": sources}


def _pack(folder: Path, fn: Callable[..., Any], args: tuple[Any, ...], setting: Setting) -> None:
    with open(folder / "setting", "wb") as file:
        pickle.dump(setting, file)
    try:
        parcels.write(folder / "work", (fn, args))
    except Exception as error:
        raise parcels.not_sent(fn, args, error) from error


@contextlib.contextmanager
def _shown(output: Output) -> Iterator[None]:
    """Whatever happens, what the ranks have printed is shown."""
    try:
        yield
    finally:
        output.show()
