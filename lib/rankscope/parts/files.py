"""Part files: a data set cut into files of rows. They are written, read as a whole, and read with a delay."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import check_field, function, while_processing, whole
from ..common.files import read_bytes, write_whole
from ..common.words import one_line
from ..pipeline.service import Distribution, Service, check, check_times, draw

Part: TypeAlias = dict[str, Any]  # the name of each array, and its rows: numpy's or torch's
Load: TypeAlias = Callable[[str], Mapping[str, Any]]

# The types that both numpy and torch have.
_TYPES = {
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
}
_RESERVED_NAMES = {"file", "allow_pickle"}  # arguments of numpy.savez
_MOST_PART_NUMBER = 999_999  # of a part whose delay is drawn, because the delays of all parts before it are, too

# numpy parses an array's header with `ast`, which sometimes fails in Python 3.11 if two threads use it at once. A fork
# waits for the reader, because the lock of a thread that does not exist in the forked process is never released there.
_ONE_READER = threading.Lock()
os.register_at_fork(before=_ONE_READER.acquire, after_in_parent=_ONE_READER.release, after_in_child=_ONE_READER.release)


class PartError(RuntimeError):
    """A part file could not be loaded. `__cause__` is the error that `load` raised."""


def write_parts(
    folder: str | os.PathLike[str], rows_per_part: int | Sequence[int] | NDArray[np.int64], /, **arrays: ArrayLike
) -> list[Path]:
    """Cut arrays of the same number of rows into part-00000.npz, part-00001.npz, … and return their paths.

    `rows_per_part` is the number of rows of each part (the last part may have fewer, and arrays without rows make no
    file), or a list with one number per part. Each file is written atomically. Raises ValueError if there are no
    arrays, they differ in rows, have masked values or a type that torch does not have, the list does not add up to the
    number of rows, or the folder already contains parts (a reader that lists it would mix the two); OSError if the
    folder cannot be written to.
    """
    # asanyarray keeps the mask of an array, so that `check_part` refuses masked values; asarray would drop it.
    with while_processing("what is written"):
        part = check_part({name: np.asanyarray(array) for name, array in arrays.items()})
    reserved = sorted(_RESERVED_NAMES & part.keys())
    if reserved:
        raise ValueError(f"an array's name must differ from numpy.savez's own arguments, got {reserved[0]!r}")
    num_written = num_rows(part)
    # An array without dimensions is a single number.
    if isinstance(rows_per_part, Sequence) or (isinstance(rows_per_part, np.ndarray) and rows_per_part.ndim > 0):
        sizes = [whole(f"rows_per_part[{index}]", size, 0) for index, size in enumerate(rows_per_part)]
        if sum(sizes) != num_written:
            raise ValueError(f"rows_per_part must add up to the {num_written} rows, got {sizes}, which is {sum(sizes)}")
        edges = np.cumsum([0, *sizes]).tolist()  # each part has the rows between two edges
    else:
        edges = [*range(0, num_written, whole("rows_per_part", rows_per_part, 1)), num_written]
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.glob("part-*.npz")):
        raise ValueError(f"folder must hold no parts yet, got {os.fspath(folder)!r}")
    paths = []
    for number, (start, stop) in enumerate(pairwise(edges)):
        rows_of_part = {name: rows[start:stop] for name, rows in part.items()}
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **rows_of_part)
        paths.append(write_whole(target / f"part-{number:05d}.npz", packed.getvalue()))
    return paths


def load_part(path: str | os.PathLike[str]) -> Part:
    """Return the arrays of a part file by their names; pickles are never read.

    Raises ValueError, TypeError or zipfile.BadZipFile for any other file, OSError if it cannot be opened.
    """
    packed = io.BytesIO(read_bytes(path))
    with _ONE_READER, np.load(packed, allow_pickle=False) as arrays:
        return dict(arrays)


class DelayedLoad(msgspec.Struct, frozen=True, eq=False):
    """Load a part after a delay, so that local files behave like remote storage with known times.

    `delays_s` is a number of seconds, a list with one time per part, a distribution, or a function of the part's
    number, which is the last number in the file's name. The same seed gives the same delays in every process. Raises
    ValueError if `delays_s` is none of these. A call raises ValueError if the file name has no number or, with a
    distribution, if the number is above 999 999.

    >>> DelayedLoad([0.5, 0.7]).delay_s("parts/part-00001.npz")
    0.7
    """

    delays_s: Service
    load: Load = load_part
    seed: int = 0

    def __post_init__(self) -> None:
        check_field(self, "delays_s", check)
        check_field(self, "load", function, "of a path")
        check_field(self, "seed", whole)

    def delay_s(self, path: str | os.PathLike[str]) -> float:
        """Return the delay of this file in seconds."""
        numbers = re.findall(r"\d+", Path(path).stem)
        if not numbers:
            raise ValueError(f"a delayed part must have its number in its name, got {os.fspath(path)!r}")
        part = int(numbers[-1])
        if isinstance(self.delays_s, float):
            return self.delays_s
        if isinstance(self.delays_s, Distribution):
            whole(f"the part's number in {os.fspath(path)!r}", part, 0, _MOST_PART_NUMBER)
        elif callable(self.delays_s):  # `draw` would call it for all parts before this one, too
            return float(check_times("delays_s", [self.delays_s(part)])[0])
        delays_s = draw("delays_s", self.delays_s, part + 1, self.seed)  # of this part and of all before it
        return float(delays_s[part])

    def __call__(self, path: str) -> Mapping[str, Any]:
        time.sleep(self.delay_s(path))
        return self.load(path)


def loaded(load: Load, file: str) -> Part:
    """Load a part, ready to be cut into batches. Raises PartError, naming the file, for any error of `load`."""
    try:
        part = load(file)
        with while_processing(f"what is loaded from {file}"):
            return check_part(part)
    except Exception as error:
        raise PartError(one_line(f"part file {file} could not be loaded: {type(error).__name__}: {error}")) from error


def check_part(part: Any) -> Part:
    """Return the arrays of a part, writable and contiguous.

    Raises ValueError unless it is a dict of arrays or CPU tensors with the same number of rows, of types that torch
    has, and without masked values.
    """
    if not isinstance(part, Mapping) or not part:
        raise ValueError(f"it must be a dict of one array or more, got {part!r}")
    torch = sys.modules.get("torch")  # a process with tensors has imported it
    checked_part: Part = {}
    for key, array in part.items():
        if isinstance(array, np.ndarray):
            if array.dtype.name not in _TYPES or not array.dtype.isnative:
                raise ValueError(f"{key!r} must be of one of {', '.join(sorted(_TYPES))}, got {array.dtype}")
            if np.ma.is_masked(array):  # after the type, because it fails on an array of records
                reason = "which torch does not have; fill them, as with array.filled(0)"
                raise ValueError(f"{key!r} must have no masked values, {reason}")
            plain_array = np.asarray(array)  # of no subclass, such as a matrix, whose rows are not plain
            # Contiguous, because torch takes no array with a negative stride; writable, or torch would warn.
            array = np.require(plain_array, requirements=["C", "W"])
        elif torch is None or not isinstance(array, torch.Tensor) or array.device.type != "cpu":
            raise ValueError(f"{key!r} must be a numpy array or a CPU tensor, got {array!r}")
        if array.ndim == 0:
            raise ValueError(f"{key!r} must have rows, got the single value {array!r}")
        checked_part[key] = array
    rows_of = {key: len(array) for key, array in checked_part.items()}
    if len(set(rows_of.values())) > 1:
        raise ValueError(f"arrays must be of the same number of rows, got {rows_of}")
    return checked_part


def num_rows(part: Part) -> int:
    """Return the number of rows of a part, which is that of each of its arrays."""
    return len(next(iter(part.values())))
