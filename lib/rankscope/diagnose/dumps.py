"""Flight-recorder dumps: the collectives that each rank has called, as torch writes them when a job hangs.

How to get them. On NCCL, start the job with ``TORCH_NCCL_DUMP_ON_TIMEOUT=1`` and ``TORCH_FR_BUFFER_SIZE=2000``
(``TORCH_NCCL_TRACE_BUFFER_SIZE`` in older versions). At a timeout each rank writes a pickle to the path in
``TORCH_NCCL_DEBUG_INFO_TEMP_FILE`` followed by its number
(https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html). Gloo records too and writes nothing: while
the job hangs, let a thread of each rank write ``torch._C._distributed_c10d._dump_fr_trace()`` to a file whose name ends
in its rank, or take the JSON that the server of ``torch.distributed.debug`` shows.

What they hold (version 2.10 is that of torch 2.13):
https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FlightRecorder.hpp.
Versions 2.x are read, of torch 2.4 and later; older ones count collectives and point-to-point calls together. Gloo's
dumps do not state the ranks of a group, leave point-to-point calls out, and never say "started" or "completed".
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec

from ..common.checks import count_of, one_line, several, whole
from ..common.frozen import frozen, optional
from ..common.storage import PathLike, StorageError, read_bytes

_RANK = re.compile(r"(\d{1,9})(\.json|\.pkl|\.pickle)?$", re.ASCII)
_HEAD = re.compile(rb'\x80|\s*\{\s*"(version|entries|pg_config|pg_status|nccl_version|comm_lib_version)"')
_LIBRARY = re.compile(r"site-packages|dist-packages|[/\\]torch[/\\]|[/\\]lib[/\\]python3|^<frozen|\.(cpp|so|hpp|h|cc)$")

_DAMAGE = (
    *(ValueError, TypeError, LookupError, AttributeError, EOFError, OverflowError, RecursionError, MemoryError),
    *(struct.error, pickle.UnpicklingError),
)

Sizes = tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """A collective that a rank has put into a group's queue, the `number`-th there; coalesced ones share a number.

    `state` is "scheduled", "started", "completed", or "ended" where the recorder does not say how it ended, as on Gloo.
    `is_peer` marks point-to-point calls. `where` is the innermost line of code outside of libraries.
    """

    group: str
    number: int
    collective: str
    inputs: tuple[Sizes, tuple[str, ...]]
    outputs: tuple[Sizes, tuple[str, ...]]
    state: str
    created_s: float
    timeout_s: float | None
    is_peer: bool
    where: str

    @property
    def what(self) -> tuple[Any, ...]:
        """What must be the same on all ranks of the group: the collective, its elements and their types.

        Only one rank has something to scatter, and only one gathers; the sizes of alltoall may differ.
        """
        free = {"scatter": (False, True), "gather": (True, False)}.get(self.collective, (True, True))
        free = (False, False) if self.collective.startswith("all_to_all") else free
        both = ((tuple(map(math.prod, sizes)), types) for sizes, types in (self.inputs, self.outputs))
        return self.collective, *(one for one, counts in zip(both, free, strict=True) if counts)

    def label(self, types: bool = True) -> str:
        sizes, names = self.inputs if self.inputs[0] else self.outputs
        shown = [" ".join([str(list(size)), *names[at : at + 1] * types]) for at, size in enumerate(sizes[:2])]
        more = [f"{len(sizes) - 2} more"] * (len(sizes) > 2)
        return " ".join([self.collective, " and ".join([*shown, *more])]).rstrip()

    def __str__(self) -> str:
        return f"{self.label()} at {self.where}" if self.where else self.label()


@frozen(eq=False)
class Dump:
    """What the recorder of a rank held: its calls in order, and of each group its name and ranks (none: not stated)."""

    rank: int
    calls: tuple[Call, ...]
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    num_ranks: int
    is_whole: bool  # the ring buffer still has the first call
    source: str


_Count = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: _Count = 0


class _DumpEntry(msgspec.Struct):
    record_id: _Count
    process_group: tuple[str, str]
    collective_seq_id: _Count
    profiling_name: str
    state: str
    time_created_ns: _Count
    input_sizes: tuple[tuple[_Count, ...], ...] = ()
    output_sizes: tuple[tuple[_Count, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    retired: bool = False
    is_p2p: bool = False
    timeout_ms: _Count | None = None
    frames: tuple[_Frame, ...] = ()


class _DumpGroup(msgspec.Struct):
    desc: str = ""
    ranks: str | tuple[_Count, ...] = "[]"


class _File(msgspec.Struct):
    version: str
    entries: list[_DumpEntry] = []
    pg_config: dict[str, _DumpGroup] = {}


def is_dump(path: Path) -> bool:
    """Whether a file begins as a flight-recorder dump does."""
    with open(path, "rb") as file:
        return _HEAD.match(file.read(64)) is not None


def read_dumps(folder_or_files: PathLike | Iterable[PathLike], *, num_ranks: int | None = None) -> tuple[Dump, ...]:
    """Return the flight-recorder dumps of a job, pickles or JSON, by rank.

    Give the files, or a folder, of which those are read whose names end in a number, or in a number and .json or .pkl.
    That number is the rank. `num_ranks` is the job's number of ranks, for dumps that do not state it, as most of Gloo:
    without it nobody misses a last rank that left no dump. No pickle is executed: only containers, texts and numbers
    are decoded, 10,000 calls per second or so.

    Raises StorageError, which names the file, for one that is no dump, is damaged, holds code, or has more than 64 MiB;
    ValueError for no dumps, two of one rank, and dumps of jobs of different sizes.
    """
    optional("num_ranks", num_ranks, whole, 1)
    if isinstance(folder_or_files, str | Path):
        given = Path(folder_or_files)
        inside = sorted(given.iterdir()) if given.is_dir() else []
        files = [path for path in inside if _RANK.search(path.name) and path.is_file()] if given.is_dir() else [given]
    else:
        files = [Path(path) for path in several("folder_or_files", folder_or_files, "files")]
    if not files:
        raise ValueError("there must be dumps, files whose names end in the number of a rank, and there is none")
    dumps: dict[int, Dump] = {}
    for path in files:
        try:
            dump = _read(path, num_ranks)
        except _DAMAGE as error:
            said = error if isinstance(error, ValueError) else "damaged or cut short"
            raise StorageError(path, f"not a readable flight-recorder dump: {said}") from error
        other = dumps.setdefault(dump.rank, dump)
        if other is not dump:
            raise ValueError(f"{dump.source} and {other.source} are both of rank {dump.rank}: give one dump per rank")
    sizes = {dump.num_ranks: dump for dump in dumps.values() if dump.num_ranks}
    if len(sizes) > 1:
        jobs = [f"{dump.source} is of a job of {count_of(size, 'rank')}" for size, dump in sizes.items()]
        raise ValueError(f"{jobs[0]} and {jobs[1]}: give the dumps of one job")
    return tuple(dumps[rank] for rank in sorted(dumps))


def _read(path: Path, num_ranks: int | None) -> Dump:
    raw = read_bytes(path)
    if not (numbered := _RANK.search(path.name)):
        raise ValueError("its name must end in the number of its rank")
    if b'"traceEvents"' in raw:
        raise ValueError("it is a trace: rankscope.diagnose.read_traces reads it")
    is_pickle = raw[0] == 0x80
    file = msgspec.convert(_Plain(io.BytesIO(raw)).load(), _File) if is_pickle else msgspec.json.decode(raw, type=_File)
    if not file.version.startswith("2."):
        raise ValueError(f"version must be 2.x, of torch 2.4 or later, got {file.version!r}")
    groups: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, desc in (entry.process_group for entry in file.entries):
        groups[name] = one_line(desc), ()
    size = num_ranks or 0
    for name, group in file.pg_config.items():
        ranks = msgspec.json.decode(group.ranks, type=list[_Count]) if isinstance(group.ranks, str) else group.ranks
        if name:
            groups[name] = one_line(group.desc), tuple(sorted(set(ranks)))
        if ranks and (group.desc == "default_pg" or not name):  # Gloo's default group has no name here
            size = size or len(ranks)
    rank = whole("the rank, the number at the end of its name,", int(numbered[1]), 0, size - 1 if size else None)
    entries = sorted(file.entries, key=lambda entry: entry.record_id)
    same: dict[Any, Any] = {}  # what calls have in common is kept once
    return Dump(
        rank,
        tuple(_call(entry, same) for entry in entries),
        groups,
        size,
        not entries or entries[0].record_id <= 0,
        path.name,
    )


def _call(entry: _DumpEntry, same: dict[Any, Any]) -> Call:
    backend, _, name = entry.profiling_name.partition(":")
    ended = entry.retired and entry.state == "scheduled" and backend == "gloo"
    own = next((one for one in entry.frames if not _LIBRARY.search(one.filename)), None)
    where = one_line(f"{Path(own.filename).name}:{own.line} in {own.name}") if own else ""
    inputs, outputs = (entry.input_sizes, entry.input_dtypes), (entry.output_sizes, entry.output_dtypes)
    return Call(
        group=entry.process_group[0],
        number=entry.collective_seq_id,
        collective=one_line(name or backend),
        inputs=same.setdefault(inputs, inputs),
        outputs=same.setdefault(outputs, outputs),
        state="ended" if ended else one_line(entry.state),
        created_s=entry.time_created_ns / 1e9,
        timeout_s=None if entry.timeout_ms is None else entry.timeout_ms / 1e3,
        is_peer=entry.is_p2p or name.split(" ")[0] in ("send", "recv"),
        where=same.setdefault(where, where),
    )


_OPCODES = """
    PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE
    EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
    GLOBAL STACK_GLOBAL
"""  # all that a dump has, and those by which a class is asked for


class _Plain(pickle._Unpickler):
    """Reads containers, texts and numbers, and calls nothing: whatever class or function a pickle asks for is refused.

    It is the unpickler in Python, as the one in C takes as much memory as a damaged file asks for. Tuples become lists,
    which cannot be keys: Python crashes where it hashes deeply nested tuples.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPCODES.split())
    }

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it asks for {module}.{name}, which no dump has; nothing was executed")

    def _list_of_two(self: Any) -> None:
        self.stack[-2:] = [self.stack[-2:]]

    dispatch[pickle.TUPLE2[0]] = _list_of_two
