"""`read_dumps`: the dumps of torch's flight recorder, which has the last collectives of each rank.

On NCCL, ``TORCH_NCCL_DUMP_ON_TIMEOUT=1`` makes each rank write one when a collective times out; see the
[tutorial](https://docs.pytorch.org/tutorials/prototype/flight_recorder_tutorial.html). Gloo records too and writes
nothing: while the job hangs, let a thread of each rank write ``torch._C._distributed_c10d._dump_fr_trace()`` to a file
whose name ends in its rank, or take the JSON that the server of ``torch.distributed.debug`` shows.

What they hold (version 2.10 is that of torch 2.13):
https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FlightRecorder.hpp.
Versions 2.x are read, of torch 2.4 and later; older ones count collectives and point-to-point calls together. Gloo's
dumps do not state the ranks of a group, and never say "started" or "completed".
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...common.files import FileError, PathLike, read_bytes, read_start
from ...common.words import one_line
from ..inputs import is_trace, paths_of
from .groups import DEFAULT_GROUP, Call, Group, Progress

_RANK = re.compile(r"(\d{1,9})(\.json|\.pkl|\.pickle)?$", re.ASCII)
# how a dump begins: a pickle with its opcode PROTO, and JSON with a field of the dump
_HEAD = re.compile(rb'\x80|\s*\{\s*"(version|entries|pg_config|pg_status|comm_lib_version)"')
# names of files whose frames are not the user's code: installed packages, torch, Python itself and C++
_LIBRARY = re.compile(r"site-packages|dist-packages|[/\\]torch[/\\]|[/\\]lib[/\\]python3|^<frozen|\.(cpp|so|hpp|h|cc)$")


class GroupKey(NamedTuple):
    """What dumps state of a group; ranks with the same key are in one group."""

    name: str
    description: str
    ranks: tuple[int, ...] = ()  # none if they are not stated


class Dump(msgspec.Struct, frozen=True, eq=False):
    """What the recorder of a rank had: how far the rank came in each group.

    `problem` says why a file could not be read; then it states nothing. `note` is a sentence for the answer.
    """

    rank: int
    source: str
    progress: Mapping[GroupKey, Progress] = {}
    problem: str = ""
    note: str = ""

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the job, 0 if it is not stated."""
        return max((len(key.ranks) for key in self.progress if key.description == DEFAULT_GROUP), default=0)


def is_dump(path: PathLike) -> bool:
    """Whether a file begins as a flight-recorder dump does, or cannot be read and has a name of only dumps."""
    try:
        return _HEAD.match(read_start(path, 64)) is not None
    except OSError:
        return not is_trace(Path(path)) and _RANK.search(Path(path).name) is not None


def read_dumps(folder_or_files: PathLike | Iterable[PathLike]) -> tuple[Dump, ...]:
    """Read the flight-recorder dumps of a job, as pickles or JSON, and return them by rank.

    Pass files, or a folder. In a folder, files are read if their names end in a number, or in a number and .json or
    .pkl. This number is the rank. Pickles are not executed: only containers, texts and numbers are decoded. A damaged
    file among good ones counts as no dump, and is named in the answer. Dumps of Gloo do not state the number of ranks,
    so that a missing dump of the last one goes unnoticed.

    Raises FileError if no file can be read; ValueError if there are no dumps, two dumps of one rank, or dumps of jobs
    of different sizes.
    """
    dumps: dict[int, Dump] = {}
    for path in paths_of(folder_or_files, lambda path: _RANK.search(path.name) is not None):
        dump = _read(path)
        if dump.rank in dumps:
            raise ValueError(f"{dump.source} and {dumps[dump.rank].source} are both of rank {dump.rank}")
        dumps[dump.rank] = dump
    if not dumps:
        raise ValueError("found no dumps, which are files whose names end in the number of a rank")
    if all(dump.problem for dump in dumps.values()):
        dump = next(iter(dumps.values()))
        raise FileError(dump.source, f"not a readable flight-recorder dump: {dump.problem}")
    sizes = {dump.num_ranks for dump in dumps.values() if dump.num_ranks}
    if len(sizes) > 1:
        raise ValueError(f"the dumps must be of one job: they are of jobs of {sorted(sizes)} ranks")
    return tuple(dumps[rank] for rank in sorted(dumps))


class _Plain(pickle.Unpickler):
    """Refuses every class and function, so that nothing in the file can be called."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it asks for {module}.{name}, which no dump has; nothing was executed")


def _read(path: Path) -> Dump:
    rank_in_name = _RANK.search(path.name)
    if not rank_in_name:
        raise FileError(path, "not a readable flight-recorder dump: its name must end in the number of its rank")
    rank = int(rank_in_name[1])
    try:
        raw = read_bytes(path)
        contents = _Plain(io.BytesIO(raw)).load() if raw.startswith(pickle.PROTO) else json.loads(raw)
        if "traceEvents" in contents:
            raise ValueError("it is a trace: rankscope.diagnose.read_traces reads it")
        if not str(contents.get("version")).startswith("2."):
            raise ValueError(f"version must be 2.x, of torch 2.4 or later, got {contents.get('version')!r}")
        note = ""
        if not contents.get("entries"):
            note = f"{path.name} has no entries: the recorder was off or empty, so only its status counts."
        return Dump(rank, path.name, _progress_of_groups(contents), note=note)
    except Exception as error:  # a damaged file can fail in many ways
        is_clear = type(error) is ValueError or isinstance(error, OSError)
        reason = str(error) if is_clear else "damaged or cut short"
        return Dump(rank, path.name, problem=one_line(reason))


def _progress_of_groups(contents: Mapping[str, Any]) -> dict[GroupKey, Progress]:
    """Return how far a rank came in each of its groups; those of which nothing is known are left out."""
    keys: dict[str, GroupKey] = {}
    for config in contents.get("pg_config", {}).values():
        ranks = config["ranks"]
        members = json.loads(ranks) if isinstance(ranks, str) else ranks
        keys[config["name"]] = GroupKey(config["name"], str(config["desc"]), tuple(sorted(members)))
    keys.pop("", None)  # Gloo's default group has neither a name nor ranks here
    entries = sorted(contents.get("entries", []), key=lambda entry: entry["record_id"])
    entries_of = defaultdict[str, list[Any]](list)
    for entry in entries:
        name, description = entry["process_group"]
        keys.setdefault(name, GroupKey(name, str(description)))
        if not entry.get("is_p2p") and _collective(entry) not in ("send", "recv"):
            entries_of[name].append(entry)
    status = contents.get("pg_status", {})
    is_whole = bool(entries) and entries[0]["record_id"] == 0  # else the ring buffer has lost the first calls
    progress = {}
    for name, key in keys.items():
        if entries_of[name]:
            progress[key] = _progress(entries_of[name])
        elif name in status or is_whole:
            enqueued = status.get(name, {}).get("last_enqueued_collective", 0)
            progress[key] = Progress(None, max(enqueued, 0), {})
    return progress


def _progress(entries: list[Any]) -> Progress:
    """Return how far a rank came, from its calls of one group in order; of those that share a number, the first."""
    calls: dict[int, Call] = {}
    unended = []
    for entry in entries:
        calls.setdefault(entry["collective_seq_id"], _call(entry))
        # Gloo leaves the state as it was
        has_ended = entry["state"] == "completed" or (entry["profiling_name"].startswith("gloo:") and entry["retired"])
        if not has_ended:
            unended.append(entry["collective_seq_id"])
    return Progress(min(unended, default=None), max(calls), calls)


def _collective(entry: Mapping[str, Any]) -> str:
    """Return the collective of a name such as "nccl:all_reduce" or "nccl:send 0->1"."""
    return str(entry["profiling_name"]).rpartition(":")[2].split(" ")[0]


def _call(entry: Mapping[str, Any]) -> Call:
    """Return a call with what must be the same on all ranks: the numbers of elements, and the types.

    Only one rank has something to scatter, and only one gathers; the sizes of alltoall may differ.
    """
    collective = _collective(entry)
    numbers = []
    types = []
    for side in () if collective.startswith(("scatter", "gather", "all_to_all")) else ("input", "output"):
        numbers.append("+".join(str(math.prod(size)) for size in entry.get(f"{side}_sizes", [])))
        types += entry.get(f"{side}_dtypes", [])
    own_frames = [frame for frame in entry.get("frames", []) if not _LIBRARY.search(frame["filename"])]
    where = [f"{Path(frame['filename']).name}:{frame['line']} in {frame['name']}" for frame in own_frames[:1]]
    timeout_ms = entry.get("timeout_ms")
    return Call(
        collective=collective,
        size=" to ".join(dict.fromkeys(filter(None, numbers))),
        dtype=" and ".join(dict.fromkeys(types)),
        created_s=entry["time_created_ns"] / 1e9,
        timeout_s=math.inf if timeout_ms is None else timeout_ms / 1e3,
        where="".join(where),
    )


def groups_of(dumps: Iterable[Dump]) -> tuple[Group, ...]:
    """Return the groups of all dumps, those of one name apart if their ranks differ."""
    progress = defaultdict[GroupKey, dict[int, Progress]](dict)
    num_ranks = 0
    for dump in dumps:
        num_ranks = max(num_ranks, dump.num_ranks, dump.rank + 1)
        for key, one in dump.progress.items():
            progress[key][dump.rank] = one
    groups = []
    for key, of_ranks in progress.items():
        is_default = key.description == DEFAULT_GROUP
        ranks = key.ranks or (range(num_ranks) if is_default else of_ranks)
        is_unique = [other.description for other in progress].count(key.description) == 1
        name = one_line(key.description if is_unique else f"{key.description} ({key.name})")
        groups.append(Group(name, tuple(ranks), of_ranks))
    return tuple(groups)
