"""Clean the lines of a pasted log once, before any reader sees them: terminal codes, quotes, blanks, tags and dates."""

from __future__ import annotations

import html
import re

_CODE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\u200b-\u200f\u2060\ufeff]")
_BLANK = re.compile(r"[\t|\u00a0\u2000-\u200a\u202f\u3000]")  # and the lines of a table of Markdown
# Quotes of an e-mail or of an issue, and what srun --label puts before a line.
_BEFORE = re.compile(r"^\s*(?:>\s?)*(?:\s*\[?(?:rank ?)?\d+\]?:(?!\S))?")
# A tag of mpirun --tag-output, a rank's number, which may be glued to a cell, and a date of a log collector.
_TAG = re.compile(r"\[\d+,\d+\](?:<std\w+>:?|(?=:? ):?)|\[\d+\]|(?<!\S)\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S*")


def clean_lines(text: str) -> list[str]:
    """Return as many lines as the text has, so that line numbers stay right."""
    return [_cleaned(line) for line in html.unescape(text).split("\n")]


def _cleaned(line: str) -> str:
    plain = _BLANK.sub(" ", _CODE.sub("", line))
    return _TAG.sub(" ", _BEFORE.sub(" ", plain)).rstrip()
