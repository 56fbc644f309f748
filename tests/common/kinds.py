"""What is known of a kind of value that is kept in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """How one kind of value is written and read; `signed` where its file has a checksum.

    `stored` is a file that rankscope 0.1.0 wrote.
    """

    stored: Path
    load: Callable[[Path], Any]
    save: Callable[[Any, Path], object]
    signed: bool = True
