"""Hooks of autodoc: docstrings here are plain text with `names`, ``code`` and examples, and are shown as they are."""

from __future__ import annotations

import re
from typing import Any

# What reStructuredText would take for markup, though nobody meant it: *args, a |x|, a trailing_ name.
_MARKUP = re.compile(r"``.+?``|`[^`]+`|(?P<mark>[*|\\]|(?<=\w)_(?!\w))")


def as_rst(_app: Any, _kind: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Escape what a line of text has that only looks like markup; examples and `names` stay."""
    in_example = False
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if not in_example:
            lines[number] = _MARKUP.sub(lambda match: "\\" + match[0] if match["mark"] else match[0], line)


def with_plain_names(
    _app: Any, _kind: str, _name: str, _object: Any, _options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Write an alias in a signature as its name, which Sphinx 9.0 does not inside of other types.

    >>> with_plain_names(*[None] * 5, "(path: TypeAliasForwardRef('PathLike') | None)", None)
    ('(path: PathLike | None)', None)
    """
    return _plain_names(signature), _plain_names(returned)


def _plain_names(words: str | None) -> str | None:
    return re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", words) if words else words


def is_left_out(_app: Any, _kind: str, name: str, member: Any, skip: bool, _options: Any) -> bool | None:
    """Leave out what is private and what the signature has already: the fields of a dataclass or a NamedTuple."""
    if name.startswith("_"):
        return True
    is_method = callable(member) or isinstance(member, property | classmethod | staticmethod)
    return None if is_method or hasattr(member, "func") else True
