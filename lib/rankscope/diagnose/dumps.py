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

import math
import pickle
import re
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec

from ..common.checks import optional, several, whole
from ..common.files import FileError, PathLike, read_bytes, read_start
from ..common.words import count_of, one_line
from .pickles import read_pickle

MOST_RANKS = 1 << 20  # of a job
_MOST_LABELLED = 2  # tensors in the label of a call

_RANK = re.compile(r"(\d{1,9})(\.json|\.pkl|\.pickle)?$", re.ASCII)
# how a dump begins: a pickle with its opcode PROTO, and JSON with a field of the dump
_HEAD = re.compile(rb'\x80|\s*\{\s*"(version|entries|pg_config|pg_status|nccl_version|comm_lib_version)"')
# names of files whose frames are not the user's code: installed packages, torch, Python itself and C++
_LIBRARY = re.compile(r"site-packages|dist-packages|[/\\]torch[/\\]|[/\\]lib[/\\]python3|^<frozen|\.(cpp|so|hpp|h|cc)$")

_DAMAGE = (  # the errors that reading a damaged dump may raise
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    OverflowError,
    RecursionError,
    MemoryError,
    struct.error,
    pickle.UnpicklingError,
)


class Tensors(NamedTuple):
    """What a call reads or writes: of each tensor its sizes, its type and its number of elements."""

    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    num_elements: tuple[int, ...]


class Call(NamedTuple):
    """A collective that a rank has put into a group's queue, the `number`-th there; coalesced ones share a number.

    `state` is "scheduled", "started", "completed", or "ended" where the recorder does not say how it ended, as on Gloo.
    `is_peer` marks point-to-point calls. `where` is the innermost line of code outside of libraries.
    """

    group: str
    number: int
    collective: str
    inputs: Tensors
    outputs: Tensors
    state: str
    created_s: float
    timeout_s: float | None
    is_peer: bool
    where: str

    @property
    def signature(self) -> tuple[Any, ...]:
        """What must be the same on all ranks of the group: the collective, its elements and their types.

        Only one rank has something to scatter, and only one gathers; the sizes of alltoall may differ.
        """
        is_alltoall = self.collective.startswith("all_to_all")
        signature: list[Any] = [self.collective]
        if self.collective != "scatter" and not is_alltoall:
            signature.append((self.inputs.num_elements, self.inputs.types))
        if self.collective != "gather" and not is_alltoall:
            signature.append((self.outputs.num_elements, self.outputs.types))
        return tuple(signature)

    def label(self, types: bool = True) -> str:
        """Return the collective with the sizes of its first tensors, and with their types if those are asked for."""
        tensors = self.inputs if self.inputs.sizes else self.outputs  # in a scatter, only one rank has inputs
        shown = []
        for index, size in enumerate(tensors.sizes[:_MOST_LABELLED]):
            words = str(list(size))
            if types and index < len(tensors.types):  # a dump may leave out the types
                words = f"{words} {tensors.types[index]}"
            shown.append(words)
        num_others = len(tensors.sizes) - _MOST_LABELLED
        if num_others > 0:
            shown.append(f"{num_others} more")
        if not shown:  # a barrier has no tensors
            return self.collective
        return f"{self.collective} {' and '.join(shown)}"

    def __str__(self) -> str:
        return f"{self.label()} at {self.where}" if self.where else self.label()


class Dump(msgspec.Struct, frozen=True, eq=False):
    """The contents of a rank's recorder: its calls in order, and each group's name and ranks (none: not stated)."""

    rank: int
    calls: tuple[Call, ...]
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    num_ranks: int  # of the job; 0 if neither the dump nor the caller of `read_dumps` states it
    is_whole: bool  # the ring buffer still has the first call
    source: str


_Count = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]  # -1: unknown, as Python says of some lines of code
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: _Count = 0


class _DumpEntry(msgspec.Struct):
    """A call as the recorder writes it. What has a default may be missing, such as `frames` in JSON."""

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
    ranks: str | tuple[_Rank, ...] = "[]"


_Undecoded = TypeVar("_Undecoded")  # a call as bytes of JSON, or as what a pickle contains


class _File(msgspec.Struct, Generic[_Undecoded]):
    """A dump whose calls are decoded one after another, because most of their contents are not kept."""

    version: str
    entries: list[_Undecoded] = []
    pg_config: dict[str, _DumpGroup] = {}


def is_dump(path: PathLike) -> bool:
    """Whether a file begins as a flight-recorder dump does.

    Raises FileError for a folder, a FIFO, a socket or a device, and OSError for what cannot be opened.
    """
    return _HEAD.match(read_start(path, 64)) is not None


def read_dumps(folder_or_files: PathLike | Iterable[PathLike], *, num_ranks: int | None = None) -> tuple[Dump, ...]:
    """Read the flight-recorder dumps of a job, as pickles or JSON, and return them by rank.

    Pass files, or a folder. In a folder, files are read if their names end in a number, or in a number and .json or
    .pkl. This number is the rank. `num_ranks` is the job's number of ranks, for dumps that do not state it, such as
    most of Gloo's; without it, a missing dump from the last rank goes unnoticed. Pickles are not executed: only
    containers, texts and numbers are decoded, about 10,000 calls per second.

    Raises FileError, which names the file, if a file is not a dump, is damaged, contains code, or has more than 64
    MiB; ValueError if there are no dumps, two dumps of one rank, or dumps of jobs of different sizes, or if a dump
    states another number of ranks than `num_ranks`.
    """
    optional("num_ranks", num_ranks, whole, 1, MOST_RANKS)
    files = _files(folder_or_files)
    if not files:
        raise ValueError("found no dumps, which are files whose names end in the number of a rank")
    dumps: dict[int, Dump] = {}
    for path in files:
        try:
            dump = _read(path, num_ranks)
        except _DAMAGE as error:
            # the readers raise ValueErrors that say what is wrong; the other errors are Python's own
            reason = str(error) if isinstance(error, ValueError) else "damaged or cut short"
            raise FileError(path, f"not a readable flight-recorder dump: {reason}") from error
        if num_ranks is not None and dump.num_ranks != num_ranks:  # then it is what the dump states
            raise ValueError(f"num_ranks must be {dump.num_ranks}, as {dump.source} states, got {num_ranks}")
        other = dumps.setdefault(dump.rank, dump)
        if other is not dump:
            raise ValueError(f"{dump.source} and {other.source} are both of rank {dump.rank}; pass one dump per rank")
    dump_of_size = {dump.num_ranks: dump for dump in dumps.values() if dump.num_ranks}  # by the size of the job
    if len(dump_of_size) > 1:
        jobs = [f"{dump.source} is of a job of {count_of(size, 'rank')}" for size, dump in dump_of_size.items()]
        raise ValueError(f"{jobs[0]} and {jobs[1]}; pass the dumps of one job")  # two are enough to show it
    return tuple(dumps[rank] for rank in sorted(dumps))


def _files(folder_or_files: PathLike | Iterable[PathLike]) -> list[Path]:
    if not isinstance(folder_or_files, str | Path):
        return [Path(path) for path in several("folder_or_files", folder_or_files, "files")]
    path = Path(folder_or_files)
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.iterdir()) if _RANK.search(file.name) and file.is_file()]


def _read(path: Path, num_ranks: int | None) -> Dump:
    """Read a dump. `num_ranks` is the size of the job if the dump does not state it, or None if it is unknown.

    Raises what is in `_DAMAGE` for damaged bytes.
    """
    raw = read_bytes(path)
    rank_in_name = _RANK.search(path.name)
    if not rank_in_name:
        raise ValueError("its name must end in the number of its rank")
    if b'"traceEvents"' in raw:
        raise ValueError("it is a trace: rankscope.diagnose.read_traces reads it")
    starts_as_pickle = raw.startswith(pickle.PROTO)
    file, entries = _of_pickle(raw) if starts_as_pickle else _of_json(raw)
    if not file.version.startswith("2."):
        raise ValueError(f"version must be 2.x, of torch 2.4 or later, got {file.version!r}")
    maker = _CallMaker()
    groups: dict[str, tuple[str, tuple[int, ...]]] = {}  # the description and the ranks of each group, by its name
    numbered_calls: list[tuple[int, Call]] = []
    for entry in entries:
        name, desc = entry.process_group
        groups[name] = maker.text(desc), ()  # an entry does not state the ranks; `pg_config`, below, may
        numbered_calls.append((entry.record_id, maker.call(entry)))
    # The recorder writes its oldest record first, but another program may have written the file again.
    numbered_calls.sort(key=lambda numbered_call: numbered_call[0])
    calls = [call for _record_id, call in numbered_calls]
    # A rank's records are numbered from 0. If their numbers are unknown (-1), the first calls may be lost: a rank
    # counts the calls of a group itself, so one whose first call there is number 4 has made three before it.
    is_whole = not numbered_calls or numbered_calls[0][0] == 0
    size_of_default_group = 0
    for name, group in file.pg_config.items():
        ranks = maker.ranks(group.ranks)
        has_name = name != ""  # Gloo's default group has none here
        if has_name:
            groups[name] = maker.text(group.desc), ranks
        is_default_group = group.desc == "default_pg" or not has_name
        if is_default_group and size_of_default_group == 0:  # of its entries, not every one states its ranks
            size_of_default_group = len(ranks)
    size = size_of_default_group or num_ranks or 0
    num_possible_ranks = size or MOST_RANKS
    rank = whole("the rank, the number at the end of its name,", int(rank_in_name[1]), 0, num_possible_ranks - 1)
    return Dump(rank, tuple(calls), groups, size, is_whole, path.name)


def _of_json(raw: bytes) -> tuple[_File[Any], Iterable[_DumpEntry]]:
    """Return a dump, and its entries, each of which is decoded when it is asked for."""
    file = msgspec.json.decode(raw, type=_File[msgspec.Raw])
    decoder = msgspec.json.Decoder(_DumpEntry)
    return file, (decoder.decode(entry) for entry in file.entries)


def _of_pickle(raw: bytes) -> tuple[_File[Any], Iterable[_DumpEntry]]:
    """The same as `_of_json`."""
    file = msgspec.convert(read_pickle(raw), _File[Any])
    return file, (msgspec.convert(entry, _DumpEntry) for entry in file.entries)


class _CallMaker:
    """Turns the entries of a dump into calls. What entries have in common is computed once."""

    def __init__(self) -> None:
        self.text = cache(one_line)
        self.ranks = cache(_ranks)
        self._operation = cache(_operation)
        self._tensors = cache(_tensors)
        self._is_library = cache(lambda filename: _LIBRARY.search(filename) is not None)
        self._place = cache(lambda filename, line, name: one_line(f"{Path(filename).name}:{line} in {name}"))

    def call(self, entry: _DumpEntry) -> Call:
        operation = self._operation(entry.profiling_name)
        # Gloo's recorder retires a call that has ended, and leaves its state as it was
        has_ended = entry.retired and entry.state == "scheduled" and operation.backend == "gloo"
        return Call(
            group=entry.process_group[0],
            number=entry.collective_seq_id,
            collective=operation.collective,
            inputs=self._tensors(entry.input_sizes, entry.input_dtypes),
            outputs=self._tensors(entry.output_sizes, entry.output_dtypes),
            state="ended" if has_ended else self.text(entry.state),
            created_s=entry.time_created_ns / 1e9,
            timeout_s=None if entry.timeout_ms is None else entry.timeout_ms / 1e3,
            is_peer=entry.is_p2p or operation.is_peer,
            where=self._where(entry.frames),
        )

    def _where(self, frames: tuple[_Frame, ...]) -> str:
        for frame in frames:
            if not self._is_library(frame.filename):
                return self._place(frame.filename, frame.line, frame.name)
        return ""


class _RecordedOperation(NamedTuple):
    backend: str
    collective: str
    is_peer: bool  # a point-to-point call


def _operation(profiling_name: str) -> _RecordedOperation:
    """Return the parts of a name such as "nccl:all_reduce" or "nccl:send 0->1"."""
    backend, _colon, name = profiling_name.partition(":")
    collective = name or backend  # a name without a colon has no backend
    is_peer = name.split(" ")[0] in ("send", "recv")
    return _RecordedOperation(backend, one_line(collective), is_peer)


def _tensors(sizes: tuple[tuple[int, ...], ...], types: tuple[str, ...]) -> Tensors:
    return Tensors(sizes, types, tuple(map(math.prod, sizes)))


def _ranks(ranks: str | tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks of a group in order; a dump may state them as a text of JSON."""
    if isinstance(ranks, str):
        ranks = msgspec.json.decode(ranks, type=tuple[_Rank, ...])
    return tuple(sorted(set(ranks)))
