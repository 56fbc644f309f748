"""`launch`: a function on N ranks, each a process of its own, from a notebook cell, a script or a thread.

The first launch takes some seconds, in which a server starts and imports torch; it forks the ranks of this launch and
of later ones, which may come from several threads at once. Each rank has the caller's environment, working directory
and ``sys.path``, and its share of the cores (``torch.set_num_threads``). It is killed once all have returned: exit
handlers do not run.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..common.checks import function, number, one_of, several, whole
from ..common.extras import naming_extra
from ..common.words import error_words
from . import joined
from .errors import MachineError
from .host import MOST_RANKS
from .rank import Request
from .server import Supervisor, search_path
from .watching import Ranks

Result = TypeVar("Result")


@naming_extra()
def launch(
    fn: Callable[..., Result],
    num_ranks: int | None,
    args: Sequence[Any] = (),
    backend: str = "gloo",
    timeout_s: float = 60.0,
) -> list[Result]:
    """Call ``fn(*args)`` in `num_ranks` processes that have a default process group, and return the results by rank.

    The ranks run on this machine and communicate over loopback (with "nccl", rank r has GPU r), or are those of
    torchrun or mpirun, see `joined`. `fn` may be a lambda, or be defined in a notebook or a script, which needs no
    ``__main__`` guard; arguments and results are pickled. To record all ranks on one time axis, pass a `Recorder` and
    record with ``recorder.for_rank(dist.get_rank())``.

    Output of the ranks is printed at the end, rank by rank, as ``[rank 2] …``.

    Raises RankError, with the rank's number and traceback, if a rank raises, its process ends, or its result cannot be
    unpickled here; also if ranks have not returned `timeout_s` after the start: the message then states where in their
    code these ranks are. All ranks have ended by then. Raises ValueError if an argument is invalid or cannot be
    pickled, or if there are more NCCL ranks than GPUs; RuntimeError if ranks cannot be started.

    >>> def total(base):
    ...     import torch
    ...     tensor = torch.tensor([base + torch.distributed.get_rank()])
    ...     torch.distributed.all_reduce(tensor)
    ...     return tensor.item()
    >>> launch(total, 4, args=(10,))
    [46, 46, 46, 46]
    """
    function("fn", fn)
    args = several("args", args, "what fn is called with")
    one_of("backend", backend, ("gloo", "nccl"))
    timeout_s = number("timeout_s", timeout_s, above=0, high=10**6)
    if joined.place():
        return joined.run(fn, num_ranks, args, backend, timeout_s)
    num_ranks = whole("num_ranks", num_ranks, 1, MOST_RANKS)
    if backend == "nccl":
        import torch

        num_gpus = torch.cuda.device_count()
        if num_gpus < num_ranks:
            raise ValueError(f"num_ranks must be at most {num_gpus}, a GPU for each rank of NCCL, got {num_ranks}")
    import cloudpickle

    try:
        call = cloudpickle.dumps((fn, args))
    except Exception as error:
        raise ValueError(f"fn={fn!r} or args cannot be sent to another process: {error_words(error)}") from error
    sources = {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
    with contextlib.ExitStack() as stack:  # the last to enter is the first to leave
        try:
            request = Request(
                call, num_ranks, backend, timeout_s, dict(os.environ), os.getcwd(), search_path(), sys.argv, sources
            )
            temporary = tempfile.TemporaryDirectory(prefix="rankscope-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            (folder / "request").write_bytes(pickle.dumps(request))
            supervisor = stack.enter_context(contextlib.closing(Supervisor(folder, num_ranks)))
        except OSError as error:  # for example, of a process that may open no more files
            raise MachineError(f"ranks cannot be started: {error}") from error
        ranks = Ranks(folder, num_ranks)
        stack.callback(ranks.show)  # also after an error: what ranks have printed may say more about it
        supervisor.wait_for_start()
        return ranks.wait(supervisor, timeout_s)
