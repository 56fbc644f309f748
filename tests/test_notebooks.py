"""What every notebook keeps to, so that it reads well where nothing runs, and its strict comparison compares something.

`problems(nb)` lists what is wrong with one; the tests at the end feed it a notebook broken in each way.
"""

from __future__ import annotations

import base64
import io
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.validator import iter_validate
from PIL import Image

from tests.tools.execute_notebooks import (
    HIDDEN,
    METADATA,
    WIDGET_TEXT,
    every_notebook,
    main,
    normalise,
    read,
    serialise,
    write,
)

MAX_IGNORED_SHARE = 0.15
FIRST_CELLS = 3  # one of these code cells shows a picture

# What makes nbval compare nothing: its tags, and its comments for the same.
UNCOMPARED_TAGS = {"nbval-ignore-output", "nbval-skip"}
UNCOMPARED_COMMENT = re.compile(r"^\s*#\s*(NBVAL_IGNORE_OUTPUT|NBVAL_SKIP|PYTEST_VALIDATE_IGNORE_OUTPUT)", re.I | re.M)
MACHINE = re.compile(r"/(home|root|tmp|Users)/|\b[Pp]ython 3\.\d+\.\d")
BINARY = {"image/png", "image/jpeg"}

Cell = dict[str, Any]
Notebook = dict[str, Any]


def code_cells(nb: Notebook) -> list[Cell]:
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"]


def is_uncompared(cell: Cell) -> bool:
    return bool(UNCOMPARED_TAGS & set(cell["metadata"].get("tags", [])) or UNCOMPARED_COMMENT.search(cell["source"]))


def pictures(cells: list[Cell]) -> list[dict[str, Any]]:
    data = [output.get("data", {}) for cell in cells for output in cell["outputs"]]
    return [kinds for kinds in data if any(kind.startswith("image/") for kind in kinds)]


# ---- the rules: each yields a sentence for what it finds


def form(nb: Notebook) -> Iterator[str]:
    yield from (f"is no valid notebook: {error.message}" for error in iter_validate(nb))
    ids = Counter(cell.get("id") for cell in nb["cells"])
    yield from (f"has several cells with the id {name}" for name, times in ids.items() if times > 1)
    if normalise(nb) != nb:
        yield "is not in normal form: python tests/tools/execute_notebooks.py --form notebooks/NAME.ipynb"


def opening(nb: Notebook) -> Iterator[str]:
    heading = nb["cells"][0]["source"].split("\n")[0]
    if not (heading.startswith("# ") and "?" in heading):
        yield f"must begin with a title that asks a question, and begins with {heading!r}"
    first = pictures(code_cells(nb)[:FIRST_CELLS])
    if not first or not BINARY & set(first[0]):  # JupyterLab shows no SVG before the notebook is trusted
        yield "stores no PNG under its first picture"


def predictions(nb: Notebook) -> Iterator[str]:
    for number, cell in enumerate(nb["cells"]):
        if cell["cell_type"] == "markdown" and "**Predict" in cell["source"]:
            answers = [later for later in nb["cells"][number + 1 :] if later["cell_type"] == "code"]
            if not answers or HIDDEN not in answers[0]["metadata"].get("tags", ()):
                yield f"shows at once what cell {number} asks to predict: the next code cell needs the tag {HIDDEN}"


def comparison(nb: Notebook) -> Iterator[str]:
    cells = code_cells(nb)
    counts = [cell["execution_count"] for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        yield f"was not run from top to bottom, because its cells are numbered {counts}"
    ignored = sum(is_uncompared(cell) and "explorers." not in cell["source"] for cell in cells)  # these have tests
    if ignored >= MAX_IGNORED_SHARE * len(cells):
        yield f"has {ignored} of {len(cells)} code cells whose output nobody compares"


def results(nb: Notebook) -> Iterator[str]:
    for number, cell in enumerate(code_cells(nb), start=1):
        for output in cell["outputs"]:
            text = json.dumps(
                {**output, "data": {kind: data for kind, data in output.get("data", {}).items() if kind not in BINARY}}
            ).replace("\\/", "/")
            if output["output_type"] == "error":
                yield f"[{number}] raised {output['ename']}"
            if output.get("name") == "stderr":
                yield f"[{number}] wrote to stderr"
            if WIDGET_TEXT in text and not is_uncompared(cell):
                yield f"[{number}] shows a widget, which nothing compares"
            if MACHINE.search(text):
                yield f"[{number}] shows a path or a version of the machine it ran on"
            try:
                ET.fromstring(output.get("data", {}).get("image/svg+xml", "<svg/>"))
            except ET.ParseError:
                yield f"[{number}] shows an SVG that no browser reads"


def problems(nb: Notebook) -> list[str]:
    return [problem for rule in (form, opening, predictions, comparison, results) for problem in rule(nb)]


@pytest.mark.parametrize("path", every_notebook(), ids=lambda path: path.stem)
def test_notebook_keeps_to_the_rules(path: Path) -> None:
    nb = read(path)
    assert problems(nb) == []
    assert path.read_text(encoding="utf-8") == serialise(nb)


# ---- each rule, seen to fail


def code_cell(text: str, *outputs: dict[str, Any], tags: tuple[str, ...] = ()) -> Cell:
    return {"cell_type": "code", "metadata": {"tags": list(tags)}, "source": text, "outputs": list(outputs)}


def markdown_cell(text: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def shown(kind: str, data: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {kind: data}}


def printed(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


SQUARE = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='20'><circle r='{}'/></svg>"
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}


def notebook(*cells: Cell, first: str = "# Who reads what?") -> Notebook:
    """A notebook that keeps to the rules, with these cells put in."""
    filler = [code_cell("1 + 1", shown("image/jpeg", "/tmp/")), *[code_cell("1 + 1")] * 10]
    return normalise({"cells": [markdown_cell(first), *cells, *filler], "metadata": METADATA})


def ignored(source: str = "x") -> Cell:
    return code_cell(source, tags=("nbval-ignore-output",))


def test_a_good_notebook_has_no_problems() -> None:
    assert problems(notebook(ignored(), code_cell("print(1)", printed("1\n")))) == []


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (notebook(first="# Samplers"), "title that asks"),
        (notebook(*[code_cell("x")] * 3), "no PNG"),
        (notebook(code_cell("x", shown("image/svg+xml", "<svg>"))), "no PNG"),
        (notebook(code_cell("x", shown("image/svg+xml", "<svg>"))), "no browser reads"),
        (notebook(markdown_cell("**Predict.** 1?"), code_cell("x")), "asks to predict"),
        (notebook(*[ignored()] * 2), "nobody compares"),
        (notebook(*[code_cell("# NBVAL_IGNORE_OUTPUT\nx")] * 2), "nobody compares"),
        (notebook(code_cell("x", ERROR)), "raised ValueError"),
        (notebook(code_cell("x", printed("careful", "stderr"))), "wrote to stderr"),
        (notebook(code_cell("x", shown("text/plain", WIDGET_TEXT))), "shows a widget"),
        (notebook(code_cell("x", shown("text/html", "<b>/root/x</b>"))), "a path"),
        (notebook(code_cell("x", printed("Python 3.11.7"))), "a version"),
    ],
)
def test_a_broken_notebook_is_caught(broken: Notebook, problem: str) -> None:
    assert any(problem in found for found in problems(broken))


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("execution_count", 2, "top to bottom"),
        ("id", "cell-01", "the id cell-01"),
        ("metadata", {"collapsed": True}, "normal form"),
        ("outputs", [{"output_type": "riddle"}], "no valid notebook"),
    ],
)
def test_a_cell_out_of_form_is_caught(field: str, value: object, problem: str) -> None:
    nb = notebook()
    nb["cells"][1][field] = value
    assert any(problem in found for found in problems(nb))


def test_the_first_picture_alone_is_stored_as_png_too_until_its_svg_changes() -> None:
    nb = notebook(*[code_cell("x", shown("image/svg+xml", SQUARE.format(9)))] * 2)
    assert normalise(nb) == nb
    first, second = (cell["outputs"][0]["data"] for cell in nb["cells"][1:3])
    assert (set(first), set(second)) == ({"image/svg+xml", "image/png"}, {"image/svg+xml"})
    with Image.open(io.BytesIO(base64.b64decode(first["image/png"]))) as picture:
        assert picture.size == (80, 40)
    png = first["image/png"]
    first["image/svg+xml"] = SQUARE.format(8)
    assert normalise(nb)["cells"][1]["outputs"][0]["data"]["image/png"] != png


def test_notebooks_are_executed_in_place_or_left_alone(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.ipynb", tmp_path / "bad.ipynb"
    write(good, notebook(code_cell("from pathlib import Path\nprint(Path.cwd().name)", printed("before"))))
    write(bad, notebook(code_cell("1 / 0")))
    before = bad.read_text()
    with pytest.raises(CellExecutionError):
        main([str(good), str(bad)])
    assert read(good)["cells"][1]["outputs"] == [printed(f"{tmp_path.name}\n")]
    assert bad.read_text() == before
