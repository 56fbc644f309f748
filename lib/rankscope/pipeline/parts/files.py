"""Part files: a data set cut into files of rows. They are written, and read as a whole."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ...common.checks import whole
from ...common.files import write_whole
from ...common.words import error_words, one_line

Part: TypeAlias = dict[str, Any]  # the name of each array, and its rows
Load: TypeAlias = Callable[[str], Mapping[str, Any]]

_NUMBERS = "biufc"  # the kinds of numpy's types that torch has, too


class PartError(RuntimeError):
    """A part file could not be loaded. `__cause__` is the error that `load` raised."""


def write_parts(folder: str | os.PathLike[str], rows_per_part: int, /, **arrays: ArrayLike) -> list[Path]:
    """Cut arrays into files of `rows_per_part` rows, part-00000.npz, part-00001.npz, … and return their paths.

    The last part may have fewer rows, and arrays without rows make no file. Each file is written atomically. Raises
    ValueError if there are no arrays, they differ in rows or are no numbers, or the folder already contains parts (a
    reader that lists it would mix the two); OSError if the folder cannot be written to.
    """
    rows_per_part = whole("rows_per_part", rows_per_part, 1)
    part = checked_part(arrays)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.glob("part-*.npz")):
        raise ValueError(f"folder must hold no parts yet, got {os.fspath(folder)!r}")
    paths = []
    for number, start in enumerate(range(0, num_rows(part), rows_per_part)):
        packed = io.BytesIO()
        np.savez(packed, **{name: rows[start : start + rows_per_part] for name, rows in part.items()})
        paths.append(write_whole(target / f"part-{number:05d}.npz", packed.getvalue()))
    return paths


def load_part(path: str | os.PathLike[str]) -> Part:
    """Return the arrays of a part file by their names; pickles are never read.

    Raises ValueError, TypeError or zipfile.BadZipFile for any other file, OSError if it cannot be opened.
    """
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def part_error(file: str, cause: BaseException) -> PartError:
    return PartError(one_line(f"part file {file} could not be loaded: {error_words(cause)}"))


def checked_part(part: Any) -> Part:
    """Return a part with its arrays ready for torch: contiguous and writable. Raises ValueError for anything else."""
    if not isinstance(part, Mapping) or not part:
        raise ValueError(f"a part must be a dict of arrays, got {part!r}")
    arrays: Part = {}
    for name, values in part.items():
        array = np.require(values, requirements=["C", "W"])
        if array.dtype.kind not in _NUMBERS or not array.ndim or 0 in array.shape[1:]:
            raise ValueError(f"{name!r} must be an array of numbers with values in its rows, got {values!r}")
        arrays[name] = array
    if len(set(map(len, arrays.values()))) > 1:
        raise ValueError(f"arrays must have the same number of rows, got {[len(array) for array in arrays.values()]}")
    return arrays


def num_rows(part: Part) -> int:
    """Return the number of rows of a part, which is that of each of its arrays."""
    return len(next(iter(part.values())))
