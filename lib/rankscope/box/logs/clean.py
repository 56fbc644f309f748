"""Clean the lines of a pasted log once, before any reader sees them: terminal codes, quotes, blanks, tags and dates."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_CODE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\u200b-\u200f\u2060\ufeff]")
_BLANK = re.compile(r"[\t|\u00a0\u2000-\u200a\u202f\u3000]")  # and the lines of a table of Markdown
# Quotes of an e-mail or of an issue, and what srun --label puts before a line.
_BEFORE = re.compile(r"^\s*(?:>\s?)*(?:\s*\[?(?:rank ?)?\d+\]?:(?!\S))?")
_TAG = re.compile(r"\[\d+,\d+\]<std\w+>:?|\[\d+,\d+\](?=:? )")  # of mpirun --tag-output, also within a row
_DATE = re.compile(r"(?<!\S)\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*")  # of log collectors and of nccl-tests -S
# NCCL's own line, alone or behind part of a row, whose last digits are not the host's: host:process:thread [device]
_INFO = re.compile(r"(?<![\w.-])[\d_.-]*?([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] (?:\S+ )?NCCL .*")
_RANK_TAG = re.compile(r"\[\d+\]")  # may be glued to a cell
_CELL = re.compile(r"[+-]?\d[\d.]*(?:[eE][+-]?\d+)?|N/A")


def clean_lines(text: str) -> list[str]:
    """Return as many lines as the text has, so that line numbers stay right."""
    return [_cleaned(line) for line in html.unescape(text).split("\n")]


def _cleaned(line: str) -> str:
    plain = _BLANK.sub(" ", _CODE.sub("", line))
    return _DATE.sub(" ", _TAG.sub(" ", _BEFORE.sub(" ", plain))).rstrip()


def without_info(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Return what a program printed, with the numbers of lines: without NCCL's own lines, and with cut rows whole."""
    printed: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if "NCCL " in line:
            line = _before_info(line)
        line = _RANK_TAG.sub(" ", line)
        if not line.strip():
            continue
        is_continued = printed and all(map(_CELL.fullmatch, line.split()))
        if is_continued:
            first_number, beginning = printed.pop()
            printed.append((first_number, f"{beginning} {line}"))
        else:
            printed.append((number, line))
    return printed


def _before_info(line: str) -> str:
    """Return what stands before NCCL's own words, if that is more than a prefix of them."""
    info = _INFO.search(line)
    if info is None:
        return line
    if not line[: info.start()].strip():
        return ""
    return line[: info.start(1)]
