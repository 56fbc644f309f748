"""What ranks print: each prints to files of its own, from which the caller shows it with the number of the rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO


class _Stream:
    """Stdout or stderr of one rank."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self._rank = rank
        self._num_read = 0

    def new_text(self, last: bool) -> str:
        """Return the lines that are new, each with the rank before it.

        A line that does not end yet is left for the next call, unless this is the `last` one.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self._num_read)
                data = file.read()
        except FileNotFoundError:  # the launch was interrupted before it made the file
            return ""
        if not last:
            end_of_line = data.rfind(b"\n") + 1
            data = data[:end_of_line]
        self._num_read += len(data)
        lines = data.decode("utf-8", "replace").split("\n")
        if not lines[-1]:  # nothing follows the last end of a line
            lines.pop()
        return "".join(f"[rank {self._rank}] {line}\n" for line in lines)


class Output:
    """The output of all ranks, in files of a folder."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self._out = [_Stream(folder / f"{rank}.out", rank) for rank in range(num_ranks)]
        self._err = [_Stream(folder / f"{rank}.err", rank) for rank in range(num_ranks)]

    @contextmanager
    def descriptors(self) -> Iterator[list[tuple[int, int]]]:
        """Open the files; the value is each rank's descriptors for stdout and stderr."""
        with ExitStack() as stack:
            pairs = []
            for out, err in zip(self._out, self._err, strict=True):
                # Append, so that a rank overwrites nothing of a program that it starts and that opens /dev/stdout anew.
                out_file = stack.enter_context(open(out.path, "ab"))
                err_file = stack.enter_context(open(err.path, "ab"))
                pairs.append((out_file.fileno(), err_file.fileno()))
            yield pairs

    def show(self, last: bool = True) -> None:
        """Print what is new, by rank, stdout before stderr."""
        _print(self._out, sys.stdout, last)
        _print(self._err, sys.stderr, last)


def _print(streams: list[_Stream], target: TextIO | None, last: bool) -> None:
    text = "".join(stream.new_text(last) for stream in streams)
    if text and target is not None:
        target.write(text)
        target.flush()
