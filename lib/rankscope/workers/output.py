"""What ranks print, brought to the caller with their number in front of each line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

_STREAMS = ("out", "err")


class Output:
    """Reads the files that the ranks print to, and prints their lines."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self._paths = {(name, rank): folder / f"{rank}.{name}" for name in _STREAMS for rank in range(num_ranks)}
        self._places = dict.fromkeys(self._paths, 0)

    def show(self, last: bool = True) -> None:
        """Print what is new, by rank, stdout before stderr; a line without an end only if it is the last time."""
        for name in _STREAMS:
            keys = [key for key in self._paths if key[0] == name]
            text = "".join(f"[rank {key[1]}] {line}\n" for key in keys for line in self._new_lines(key, last))
            stream: IO[str] | None = sys.stdout if name == "out" else sys.stderr
            if text and stream is not None:
                stream.write(text)
                stream.flush()

    def _new_lines(self, key: tuple[str, int], last: bool) -> list[str]:
        try:
            with open(self._paths[key], "rb") as file:
                file.seek(self._places[key])
                data = file.read()
        except FileNotFoundError:  # not yet begun
            return []
        if not last:
            data = data[: data.rfind(b"\n") + 1]
        self._places[key] += len(data)
        lines = data.decode("utf-8", "replace").split("\n")
        return lines if lines[-1] else lines[:-1]
