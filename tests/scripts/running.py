"""How the tests run a script of the notebooks, or a copy of it in which something is changed."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

from rankscope.ranks import launch

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "scripts"


def text_of(name: str, *changes: tuple[str, str]) -> str:
    """Return the text of a script with the first of each pair, which must occur once, replaced by the second."""
    text = (SCRIPTS / name).read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {name}"
        text = text.replace(old, new)
    return text


def lines_of(text: str, *arguments: str, num_ranks: int = 1) -> list[str]:
    """Return the lines that rank 0 prints when ranks run the text as a script; RankError if it raises."""
    lines: list[str] = launch(_run, num_ranks, (text, arguments), timeout_s=120)[0]
    return lines


def _run(text: str, arguments: tuple[str, ...]) -> list[str]:
    sys.argv = ["script.py", *arguments]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue().splitlines()
