"""Names in the library say what a thing is: no variable is called `found` or `one`, and no name has a banned word.

`problems(source)` finds such names. Tests at the end feed it each of them, and names in which the same words are right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "lib").rglob("*.py"))

# Names that do not say what a thing is, with an example of one that does.
VAGUE = {
    "one": "`for span in spans`, or `first` and `second` of a pair",
    "found": "`module_info`, `observed_buckets`",
    "made": "`arrival_words`, `samplers`",
    "given": "`inputs`, `initial_run`",
    "told": "`warning`, `settings`",
    "more": "`options`, `further_tests`",
    "kept": "`prepared_by_group`, `cached_plans`",
}
# Words that no name contains, with what to write instead.
BANNED = {
    "beside": "compared_with, next_to",
    "quicker": "faster",
    "quickest": "fastest",
    "road": "path",
    "floor": "minimum",
    "crew": "pool",
    "workshop": "fork_server",
    "obituary": "exit_report",
    "bury": "reap",
    "whom": "receiver, peer",
    "thereof": "the name of the part",
}
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of snake_case and of CamelCase


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Return every name that a module gives to something, with its line: variables, arguments, functions, classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, _NAMED) and node.name:
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def problems(source: str) -> list[str]:
    """Return what is wrong with the names of a module, each with its line and with what to write instead."""
    lines = []
    for line, name in sorted(bound_names(ast.parse(source))):
        vague = VAGUE.get(name.strip("_").lower())
        if vague is not None:
            lines.append(f"line {line}: `{name}` does not say what it is. Name the thing: {vague}.")
        for part in _PARTS.findall(name):
            if part.lower() in BANNED:
                lines.append(f"line {line}: `{name}` has the word “{part}”. Write instead: {BANNED[part.lower()]}.")
    return lines


def test_names_say_what_a_thing_is() -> None:
    lines = [
        f"{path.relative_to(ROOT)}, {problem}" for path in MODULES for problem in problems(path.read_text("utf-8"))
    ]
    hint = (
        "A name is a noun for the thing (`module_info`, `peer_rates`), or it can be true or false (`is_given`). "
        "A vague word is allowed as a part of a longer name, as in `one_of`."
    )
    assert not lines, "\n".join([*lines, hint])


@pytest.mark.parametrize("name", sorted(VAGUE))
def test_each_vague_name_is_found_wherever_it_is_bound(name: str) -> None:
    sources = [
        f"{name} = 1",
        f"_{name.upper()} = 1",
        f"for {name} in range(3): ...",
        f"def f({name}): ...",
        f"def f(*, {name}=1, **other): ...",
        f"def f(**{name}): ...",
        f"class A:\n    {name}: int",
        f"class {name.capitalize()}: ...",
        f"def {name}(): ...",
        f"self.{name} = 1",
        f"import a as {name}",
        f"[{name} for {name} in range(3)]",
        f"try: ...\nexcept ValueError as {name}: ...",
    ]
    for source in sources:
        (line,) = problems(source)
        assert f"does not say what it is. Name the thing: {VAGUE[name]}." in line, source


@pytest.mark.parametrize("word", sorted(BANNED))
def test_each_banned_word_is_found_in_a_name(word: str) -> None:
    for name in (word, f"_{word}_s", f"draw_{word}", word.capitalize(), f"Model{word.capitalize()}", word.upper()):
        assert problems(f"{name} = 1") == [
            f"line 1: `{name}` has the word “{_as_written(name, word)}”. Write instead: {BANNED[word]}."
        ]


def _as_written(name: str, word: str) -> str:
    start = name.lower().index(word)
    return name[start : start + len(word)]


@pytest.mark.parametrize(
    "source",
    [
        "one_of = 1",
        "is_given = True",
        "num_found = 3",
        "broadcast = 1",
        "mushroom = 1",
        "numpy.floor(found, one)",
        "print(given.made)",
        "foundation = remade = 1",
        "besides = 1",
        "'road'",
    ],
)
def test_other_names_are_right(source: str) -> None:
    assert problems(source) == []
