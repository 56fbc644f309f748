"""Neither the library nor its tests grow beyond their ceilings in code tokens, which pyproject.toml holds."""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CEILINGS: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["rankscope"]["size"]
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(text: str) -> set[int]:
    lines = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def num_tokens(text: str) -> int:
    """Return the code tokens of a module: without comments, docstrings and layout. An f-string is one token."""
    skipped = docstring_lines(text)
    count = 0
    depth = 0  # of f-strings, which Python 3.12 and later divide into several tokens
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        if token.type not in LAYOUT and token.start[0] not in skipped:
            count += depth == 0
            depth += (name == "FSTRING_START") - (name == "FSTRING_END")
    return count


def num_tokens_below(folder: Path) -> int:
    return sum(num_tokens(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))


@pytest.mark.parametrize("folder", CEILINGS)
def test_neither_the_library_nor_its_tests_grow(folder: str) -> None:
    size = num_tokens_below(ROOT / folder)
    assert size <= CEILINGS[folder], f"{folder} has {size} code tokens, and may have {CEILINGS[folder]}: remove code"


def test_what_counts() -> None:
    assert num_tokens('"""Doc."""\n\n# why\nx = f"{1 + 2}"  # note\n\ndef f():\n    """Doc."""\n    return x\n') == 10
