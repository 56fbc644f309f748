"""Phrases that CONTRIBUTING's style page bans stand nowhere: not in the README, notebooks, help, errors or docstrings.

`banned(text)` finds them. Tests at the end feed it each one, and sentences in which the same words are right.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for folder in ("lib", "site") for path in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))

_EACH = "rank|step|batch|node|GPU|second|host|worker|micro-batch|trainer|epoch|message"
_COUNTED = (
    r"\d+|one|two|three|four|eight|batch(?:es)?|samples?|bytes|GPUs|cards?|messages?|ranks?|workers|items|images?"
    r"|steps|ms|µs"
)
BANNED = {
    "per": rf"\b(?:{_COUNTED}) an? (?:{_EACH})\b(?! (?:may|can|must|has|sends|holds|does)\b)",
    "next to, compared with": r"\bbeside\b",
    "separate, distinguish": r"\b(?:told|tell|telling) apart\b",
    "textbooks": r"\b(?:as|in|what|many|most|some|common) texts (?:say|have|give)\b",
    "path": r"\broads?\b",
    "leave out, or link": r"\bas (?:often )?said\b",
    "does no harm": r"\bis no mistake\b",
    "except": r"\b[Bb]ut for\b",
    "leave out": r"\bso it was\b",
    "after that it is skipped": r"\blater ones none\b",
    "what happens to X on Y": r"\bwhat (?:your|the|a) \w+ makes of\b",
    "fast, faster, fastest": r"\bquick(?:er|est)?\b(?! sort)",
    "who": r"\bwhom\b",
    "of it": r"\bthereof\b",
    "must, or will": r"\b(?:is|are) to be\b",
    "at least": r"\bno less than\b",
}


def banned(text: str) -> Iterator[tuple[str, str]]:
    """Yield each banned phrase of a text, and what to write instead."""
    text = re.sub(r"`[^`\n]*`|<[^>]*>|\]\([^)]*\)", " ", text)  # code, tags, addresses
    text = re.sub(r"\s+", " ", text)
    for instead, pattern in BANNED.items():
        for match in re.finditer(pattern, text):
            yield match[0], instead


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what people read in a file, with the number of its line: all of a page, strings and comments of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield (
            1,
            re.sub(
                r"^```.*?^```", "", re.sub(r"<!-- style -->.*?<!-- end -->", "", text, flags=re.S), flags=re.S | re.M
            ),
        )
    elif path.suffix == ".ipynb":
        for number, cell in enumerate(json.loads(text)["cells"]):
            source = "".join(cell["source"])
            is_text = cell["cell_type"] == "markdown"
            parts = [(0, source)] if is_text else strings_of(re.sub(r"^[%!].*$", "", source, flags=re.M))
            yield from ((number, part) for _, part in parts)
    else:
        yield from strings_of(text)


def strings_of(source: str) -> Iterator[tuple[int, str]]:
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(source + "\n").readline):
        if token.type in kinds:
            yield token.start[0], token.string


@pytest.mark.parametrize("paths", [PAGES, NOTEBOOKS, SOURCES], ids=["pages", "notebooks", "sources"])
def test_plain_english(paths: list[Path]) -> None:
    problems = []
    for path in paths:
        place = "cell " if path.suffix == ".ipynb" else "line "
        for number, text in prose(path):
            for words, instead in banned(text):
                problems.append(f"{path.relative_to(ROOT)}, {place}{number}: “{words}”. Write instead: {instead}.")
    hint = "CONTRIBUTING.md has examples under “English”. Code in `backticks` may have any words."
    assert not problems, "\n".join([*problems, hint])


@pytest.mark.parametrize(
    "text",
    [
        "two batches a rank",
        "It costs 3 ms a step.",
        "B beside A",
        "the two are told apart",
        "as texts have it",
        "many texts say",
        "the road of a batch",
        "as often said",
        "which is no mistake",
        "all but for one",
        "so it was measured",
        "later ones none",
        "what your machine makes of it",
        "the quickest",
        "from whom",
        "a part thereof",
        "what is to be done",
        "what is to be\ndone",
        "no less than 3",
    ],
)
def test_a_banned_phrase_is_found(text: str) -> None:
    problems = list(banned(text))
    assert len(problems) == 1, (
        f"`banned` must find one phrase in {text!r}, and finds {problems}: mend its pattern in BANNED, above."
    )


@pytest.mark.parametrize(
    "text",
    [
        "two batches per rank",
        "how many messages a rank may send",
        "besides gradients",
        "one rank and a step",
        "`beside`",
        "[a](road.md)",
        "he told me",
        "texts",
        "a quickly made one",
    ],
)
def test_allowed_words_are_not_found(text: str) -> None:
    problems = list(banned(text))
    assert not problems, (
        f"{text!r} is good English, and `banned` finds {problems}: narrow the pattern in BANNED, above."
    )


def test_strings_comments_and_cells_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('road = 1  # whom\nprint("quickest", road)\n')
    assert [word for _, text in prose(tmp_path / "a.py") for word, _ in banned(text)] == ["whom", "quickest"]
    (tmp_path / "b.md").write_text("thereof\n```sh\nroad\n```\n<!-- style -->beside<!-- end -->\n")
    assert [word for _, text in prose(tmp_path / "b.md") for word, _ in banned(text)] == ["thereof"]
    cells = [
        {"cell_type": "markdown", "source": ["the road\n", "home"]},
        {"cell_type": "code", "source": ["%time road\n", 'print("beside")']},
    ]
    (tmp_path / "c.ipynb").write_text(json.dumps({"cells": cells}))
    assert [(n, word) for n, text in prose(tmp_path / "c.ipynb") for word, _ in banned(text)] == [
        (0, "road"),
        (1, "beside"),
    ]
