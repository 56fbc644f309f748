"""What every notebook keeps to, so that it reads well and its strict comparison compares something.

`problems(nb)` lists what is wrong with one; the tests at the end feed it a notebook broken in each way.
"""

from __future__ import annotations

import ast
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

NOTEBOOKS = every_notebook()

MAX_NOTEBOOK_BYTES = 300_000
MAX_OUTPUT_BYTES = 120_000
MAX_IGNORED_SHARE = 0.15
MAX_CELL_LINES = 15
FIRST_CELLS = 3  # one of these code cells shows a picture

# What makes nbval compare nothing: its tags, and its comments for the same.
UNCOMPARED_TAGS = {"nbval-ignore-output", "nbval-skip"}
UNCOMPARED_COMMENT = re.compile(r"^\s*#\s*(NBVAL_IGNORE_OUTPUT|NBVAL_SKIP|PYTEST_VALIDATE_IGNORE_OUTPUT)", re.I | re.M)
INSTALLS = re.compile(r"^\s*[!%]+\s*(pip|conda|mamba|uv)\b|\bsys\.path\b", re.M)
MACHINE = re.compile(r"/(home|root|tmp|Users)/")
BINARY = {"image/png", "image/jpeg"}
MAGIC = re.compile(r"^\s*[%!].*$", re.M)

RESTORE = "Write it: python tests/tools/execute_notebooks.py --form notebooks/NAME.ipynb"
EXECUTE = "Run it again: python tests/tools/execute_notebooks.py notebooks/NAME.ipynb"

Cell = dict[str, Any]
Notebook = dict[str, Any]


def code_cells(nb: Notebook) -> list[Cell]:
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"]


def outputs(nb: Notebook) -> Iterator[tuple[int, Cell, dict[str, Any]]]:
    for number, cell in enumerate(code_cells(nb), start=1):
        yield from ((number, cell, output) for output in cell["outputs"])


def is_uncompared(cell: Cell) -> bool:
    return bool(UNCOMPARED_TAGS & set(cell["metadata"].get("tags", [])) or UNCOMPARED_COMMENT.search(cell["source"]))


def is_picture(output: dict[str, Any]) -> bool:
    data = output.get("data", {})
    return any(kind.startswith("image/") for kind in data) or "<svg" in data.get("text/html", "")


# ---- the rules: each yields a sentence for what it finds


def form(nb: Notebook) -> Iterator[str]:
    yield from (f"is no valid notebook: {error.message}" for error in iter_validate(nb))
    for name, times in Counter(cell.get("id") for cell in nb["cells"]).items():
        if times > 1:
            yield f"has {times} cells with the id {name}: delete it in all of them except one. {RESTORE}"
    if normalise(nb) != nb:
        yield f"is not in normal form. {RESTORE}"


def title(nb: Notebook) -> Iterator[str]:
    first = nb["cells"][0]["source"] if nb["cells"] and nb["cells"][0]["cell_type"] == "markdown" else ""
    heading = first.split("\n")[0]
    if not (heading.startswith("# ") and "?" in heading):
        yield f"must begin with a title that asks a question, as in “# Who reads what?”, and begins with {heading!r}"
    if not re.search(r"\b\d+ minutes\b", first):
        yield "must say under its title how many minutes it takes, as in “*10 minutes.*”, and does not"


def keys(nb: Notebook) -> Iterator[str]:
    first = nb["cells"][0]["source"] if nb["cells"] else ""
    if "**Shift+Enter**" not in first or "**Run > Run All Cells**" not in first:
        yield "must say in its first cell: “Press **Shift+Enter** …, or choose **Run > Run All Cells** …”, and does not"


def opening(nb: Notebook) -> Iterator[str]:
    first_outputs = [output for cell in code_cells(nb)[:FIRST_CELLS] for output in cell["outputs"]]
    pictures = [output["data"] for output in first_outputs if is_picture(output)]
    if not pictures:
        yield f"shows no picture in its first {FIRST_CELLS} code cells: show one there, to be seen at once"
    elif not BINARY & set(pictures[0]):
        yield f"has no PNG of its first picture, and JupyterLab shows no SVG before it is trusted. {RESTORE}"


def links(nb: Notebook) -> Iterator[str]:
    count = sum(cell["source"].count("](https://") for cell in nb["cells"] if cell["cell_type"] == "markdown")
    if count == 0:
        yield "links to no source: give what it claims a source, as in “[paper](https://arxiv.org/abs/…)”"


def exercises(nb: Notebook) -> Iterator[str]:
    if not any(re.search(r"\bscore\(", cell["source"]) for cell in code_cells(nb)):
        yield "has no exercise that builds something and shows its score: end a code cell with score(…)"


def predictions(nb: Notebook) -> Iterator[str]:
    """A reader who is asked to predict must not see the answer: neither the figure nor the sentence below it."""
    for number, cell in enumerate(nb["cells"]):
        if cell["cell_type"] != "markdown" or "**Predict" not in cell["source"]:
            continue
        answer = next((later for later in nb["cells"][number + 1 :] if later["cell_type"] == "code"), None)
        if answer is None or HIDDEN not in answer["metadata"].get("tags", ()):
            yield (
                f"has a prediction in cell {number} and shows the answer at once: give the code cell after it the tag "
                f"{HIDDEN}. {RESTORE}"
            )


def sections(nb: Notebook) -> Iterator[str]:
    """A merge that loses a section leaves a gap in the numbers, or an answer to a question that nobody asked."""
    texts = [cell["source"] for cell in nb["cells"] if cell["cell_type"] == "markdown"]
    prose = "\n".join(texts)
    numbers = [int(number) for number in re.findall(r"^## (\d+)\.", prose, re.MULTILINE)]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"has sections numbered {numbers}: number them from 1, or restore the one that is missing"
    num_predictions = prose.count("**Predict")
    num_answers = prose.count("<summary>Answer")
    if num_predictions != num_answers:
        yield (
            f"asks for {num_predictions} predictions and answers {num_answers}: each **Predict** needs one folded "
            "answer, <details><summary>Answer</summary>"
        )


def counts(nb: Notebook) -> Iterator[str]:
    found = [cell["execution_count"] for cell in code_cells(nb)]
    if found != list(range(1, len(found) + 1)):
        yield f"was not run from top to bottom, because its cells are numbered {found}. {EXECUTE}"


def comparison(nb: Notebook) -> Iterator[str]:
    cells = code_cells(nb)
    ignored = sum(map(is_uncompared, cells))
    if ignored >= MAX_IGNORED_SHARE * len(cells):
        yield (
            f"has {ignored} of {len(cells)} code cells whose output nobody compares, and may have fewer than "
            f"{MAX_IGNORED_SHARE:.0%}: print what load cannot change, and take away the tag nbval-ignore-output"
        )


def code(nb: Notebook) -> Iterator[str]:
    lengths = [len(cell["source"].splitlines()) for cell in code_cells(nb)]
    for number, cell in enumerate(code_cells(nb), start=1):
        if lengths[number - 1] > MAX_CELL_LINES:
            yield (
                f"[{number}] has {lengths[number - 1]} lines, and may have {MAX_CELL_LINES}: divide it into steps, "
                "each with its claim, or move code to the library"
            )
        if INSTALLS.search(cell["source"]):
            yield f"[{number}] installs something or changes sys.path: leave both to make setup"
        if cell["source"].rstrip().endswith(";"):
            yield f"[{number}] ends in a semicolon, which nbval does not heed: write _ = … instead"
        try:
            tree = ast.parse(MAGIC.sub("", cell["source"]))
        except SyntaxError as error:
            yield f"[{number}] is not Python, so nobody can run it: {error}"
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield f"[{number}] defines the class {node.name}: move it to the library, and import it"


def results(nb: Notebook) -> Iterator[str]:
    for number, cell, output in outputs(nb):
        text = json.dumps(output, ensure_ascii=False)
        if output["output_type"] == "error":
            yield f"[{number}] raised {output['ename']}: mend its code. {EXECUTE}"
        if output.get("name") == "stderr":
            yield f"[{number}] wrote to stderr: mend what it warns of, or catch the warning. {EXECUTE}"
        if len(text.encode()) > MAX_OUTPUT_BYTES:
            yield (
                f"[{number}] has an output of {len(text.encode())} bytes, and may have {MAX_OUTPUT_BYTES}: "
                "show fewer items"
            )
        if WIDGET_TEXT in text and not is_uncompared(cell):
            yield f"[{number}] shows a widget, which nothing compares: tag it nbval-ignore-output"
        try:
            ET.fromstring(output.get("data", {}).get("image/svg+xml", "<svg/>"))
        except ET.ParseError as error:
            yield f"[{number}] shows an SVG that no browser reads, so mend what draws it: {error}"
        data = {key: value for key, value in output.get("data", {}).items() if key not in BINARY}
        if MACHINE.search(json.dumps({**output, "data": data}).replace("\\/", "/")):
            yield f"[{number}] shows a path of the machine it ran on: print the file's name alone. {EXECUTE}"
    for number, cell in enumerate(code_cells(nb), start=1):
        pictures = sum(map(is_picture, cell["outputs"]))
        if pictures > 1:
            yield f"[{number}] shows {pictures} pictures, and may show one: give each a cell of its own"


def size(nb: Notebook) -> Iterator[str]:
    num_bytes = len(serialise(nb).encode())
    if num_bytes > MAX_NOTEBOOK_BYTES:
        yield f"has {num_bytes} bytes, and may have {MAX_NOTEBOOK_BYTES}: show fewer or smaller outputs"


def problems(nb: Notebook) -> list[str]:
    rules = (
        form,
        title,
        keys,
        opening,
        links,
        exercises,
        predictions,
        sections,
        counts,
        comparison,
        code,
        results,
        size,
    )
    return [problem for rule in rules for problem in rule(nb)]


# ---- the notebooks themselves


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_to_the_rules(path: Path) -> None:
    nb = read(path)
    found = problems(nb)
    assert not found, "\n".join(f"notebooks/{path.name} {problem}" for problem in found)
    is_as_written = path.read_text(encoding="utf-8") == serialise(nb)
    assert is_as_written, f"notebooks/{path.name} is written otherwise than its normal form. {RESTORE}"


# ---- each rule, seen to fail


def code_cell(text: str, *outputs: dict[str, Any], tags: tuple[str, ...] = ()) -> Cell:
    metadata = {"tags": list(tags)} if tags else {}
    return {"cell_type": "code", "metadata": metadata, "source": text, "outputs": list(outputs)}


def markdown_cell(text: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def shown(**data: str) -> dict[str, Any]:
    kinds = {key.replace("_", "/"): value for key, value in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": kinds}


def printed(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


KEYS = "Press **Shift+Enter**, or choose **Run > Run All Cells**."
SOURCE = "[a](https://example.org) "


def notebook(*cells: Cell, first: str = f"# Who reads what?\n*5 minutes*\n\n{KEYS}", link: str = SOURCE) -> Notebook:
    """A notebook that keeps to the rules, with these cells put in."""
    text = markdown_cell("word " + link)
    filler = [code_cell("2 + 2", shown(image_jpeg="a")), code_cell("1  # score(1)"), *[code_cell("1 + 1")] * 10]
    nb = {"cells": [markdown_cell(first), text, *cells, *filler]}
    return normalise({**nb, "metadata": METADATA})


WIDGET_WITH_PICTURE = {
    "output_type": "display_data",
    "metadata": {},
    "data": {"text/plain": WIDGET_TEXT, "image/svg+xml": "<svg/>"},
}


def without(source: str) -> Notebook:
    """A good notebook whose cells with this source do nothing."""
    nb = notebook()
    for cell in nb["cells"]:
        cell["source"] = cell["source"].replace(source, "pass")
    return nb


def test_a_good_notebook_has_no_problems() -> None:
    assert NOTEBOOKS, "there are notebooks to keep to the rules"
    good = notebook(
        code_cell("assign(10, 4)", shown(image_jpeg="/tmp/" * 100)),
        code_cell("explorer()", WIDGET_WITH_PICTURE, tags=("nbval-ignore-output",)),
        code_cell("print(1)", printed("1\n")),
    )
    assert problems(good) == []


ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (notebook(first="Who reads what?"), "title that asks"),
        (notebook(first="# Who reads what"), "title that asks"),
        (notebook(first="# Samplers\nWhy?"), "title that asks"),
        (notebook(first="# Why?\nA minute."), "how many minutes"),
        (notebook(*[code_cell("x")] * 3), "no picture in its first 3"),
        (notebook(link=""), "links to no source"),
        (without("score(1)"), "no exercise that builds"),
        (notebook(code_cell("x", {**shown(), "data": {"image/svg+xml": "<svg>"}})), "no PNG of its first picture"),
        (notebook(first="# Why?\n*5 minutes*"), "Shift+Enter"),
        (notebook(*[code_cell("x", tags=("nbval-ignore-output",))] * 3), "nobody compares"),
        (notebook(*[code_cell("# NBVAL_IGNORE_OUTPUT\nx")] * 3), "nobody compares"),
        (notebook(*[code_cell("x", tags=("nbval-skip",))] * 3), "nobody compares"),
        (notebook(code_cell("x = 1\n" * 16)), "[1] has 16 lines"),
        (
            notebook({"cell_type": "markdown", "metadata": {}, "source": "**Predict.** 1?"}, code_cell("x")),
            "the answer at once",
        ),
        (notebook({"cell_type": "markdown", "metadata": {}, "source": "**Predict.** 1?"}), "the answer at once"),
        (notebook(markdown_cell("**Predict.** 1?")), "asks for 1 predictions and answers 0"),
        (notebook(markdown_cell("<details><summary>Answer</summary>\n1\n</details>")), "answers 1"),
        (notebook(markdown_cell("## 1. One\n\n## 3. Three")), "sections numbered [1, 3]"),
        (notebook(code_cell("!pip install torch")), "installs something"),
        (notebook(code_cell("%pip install torch")), "installs something"),
        (notebook(code_cell("import sys\nsys.path.insert(0, 'lib')")), "changes sys.path"),
        (notebook(code_cell("plot(x);")), "ends in a semicolon"),
        (notebook(code_cell("1 +")), "is not Python"),
        (notebook(code_cell("class Sampler: pass")), "the class Sampler"),
        (notebook(code_cell("x", ERROR)), "raised ValueError"),
        (notebook(code_cell("x", printed("careful", "stderr"))), "wrote to stderr"),
        (notebook(code_cell("x", printed("1" * 120_001))), "an output of"),
        (notebook(code_cell("x", shown(text_plain=WIDGET_TEXT))), "shows a widget"),
        (notebook(code_cell("x", printed("/home/ann/data"))), "a path of the machine"),
        (notebook(code_cell("x", shown(text_html="<b>/root/x</b>"))), "a path of the machine"),
        (notebook(code_cell("x", {**shown(), "data": {"image/svg+xml": "<svg font='a'b''/>"}})), "no browser reads"),
        (notebook(code_cell("x", shown(image_jpeg="a"), shown(text_html="<svg></svg>"))), "shows 2 pictures"),
        (notebook(*[code_cell("x", printed("1" * 59_000))] * 6), "bytes"),
    ],
)
def test_a_broken_notebook_is_caught(broken: Notebook, problem: str) -> None:
    assert [found for found in problems(broken) if problem in found]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"cells": {2: {"execution_count": None}}}, "top to bottom"),
        ({"cells": {2: {"execution_count": 2}}}, "top to bottom"),
        ({"cells": {1: {"id": "cell-01"}}}, "2 cells with the id"),
        ({"cells": {2: {"metadata": {"collapsed": True}}}}, "normal form"),
        ({"metadata": {"widgets": {}}}, "normal form"),
        ({"metadata": {"language_info": {"name": "python", "version": "3.11.7"}}}, "normal form"),
        ({"nbformat_minor": 4}, "normal form"),
        ({"cells": {2: {"outputs": [{"output_type": "riddle"}]}}}, "no valid notebook"),
    ],
)
def test_a_notebook_out_of_form_is_caught(change: dict[str, Any], problem: str) -> None:
    def changed(old: Any, new: Any) -> Any:
        if not isinstance(new, dict):
            return new
        if isinstance(old, list):
            return [changed(one, new.get(place, {})) for place, one in enumerate(old)]
        return {**old, **{key: changed(old.get(key, {}), value) for key, value in new.items()}}

    assert [found for found in problems(changed(notebook(), change)) if problem in found]


def test_normal_form_is_stable_and_keeps_tags_and_ids() -> None:
    nb = notebook(code_cell("x", tags=("nbval-ignore-output",)))
    nb["cells"][2]["id"] = "reader"
    assert normalise(nb) == nb
    assert normalise(nb)["cells"][2]["metadata"] == {"tags": ["nbval-ignore-output"]}


def test_normal_form_keeps_the_picture_of_a_widget_and_nothing_else_of_it() -> None:
    data = {"text/plain": "VBox()", "application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    for picture in ({"image/svg+xml": "<svg/>"}, {}):
        first_picture = code_cell("y", shown(image_jpeg="a"))
        nb = notebook(first_picture, code_cell("x", shown() | {"data": data | picture}))
        assert nb["cells"][3]["outputs"][0]["data"] == {"text/plain": WIDGET_TEXT, **picture}
        assert normalise(nb) == nb


SQUARE = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='20'>{}</svg>"


def svg_cell(inside: str) -> Cell:
    return code_cell("x", {**shown(), "data": {"image/svg+xml": SQUARE.format(inside)}})


def test_the_first_picture_alone_is_stored_as_png_too_and_shown_in_the_size_of_the_svg() -> None:
    text = "<text x='2' y='15' font-family='DejaVu Sans, Verdana, sans-serif'>rank</text>"
    nb = notebook(svg_cell(text), svg_cell(""))
    first, second = (cell["outputs"][0] for cell in nb["cells"][2:4])
    assert set(first["data"]) == {"image/svg+xml", "image/png"}
    assert first["metadata"] == {"image/png": {"width": 40}}
    assert (set(second["data"]), second["metadata"]) == ({"image/svg+xml"}, {})
    with Image.open(io.BytesIO(base64.b64decode(first["data"]["image/png"]))) as picture:
        assert picture.size == (80, 40)
        assert picture.convert("L").getextrema() == (0, 255), "the text is drawn, on white"


def test_a_png_is_kept_until_its_svg_changes_and_goes_where_it_is_first_no_more() -> None:
    nb = notebook(svg_cell("<circle r='9'/>"), svg_cell(""))
    kept = nb["cells"][2]["outputs"][0]["data"]["image/png"]
    assert normalise(nb) == nb
    changed = normalise(nb)
    changed["cells"][2]["outputs"][0]["data"]["image/svg+xml"] = SQUARE.format("<circle r='8'/>")
    assert normalise(changed)["cells"][2]["outputs"][0]["data"]["image/png"] != kept
    moved = normalise(nb)
    moved["cells"][2], moved["cells"][3] = moved["cells"][3], moved["cells"][2]
    first, second = (cell["outputs"][0] for cell in normalise(moved)["cells"][2:4])
    assert "image/png" in first["data"]
    assert (second["data"].keys(), second["metadata"]) == ({"image/svg+xml"}, {})


def test_normal_form_keeps_a_picture_in_few_colours_and_those_of_small_patches(tmp_path: Path) -> None:
    picture = Image.linear_gradient("L").convert("RGBA")
    picture.paste((254, 232, 56), (100, 100, 108, 108))
    picture.save(tmp_path / "a.png")
    png = base64.b64encode((tmp_path / "a.png").read_bytes()).decode()
    nb = notebook(code_cell("draw()", shown(image_png=png)))
    with Image.open(io.BytesIO(base64.b64decode(nb["cells"][2]["outputs"][0]["data"]["image/png"]))) as stored:
        assert (stored.mode, stored.size) == ("P", (256, 256))
        seen = stored.convert("RGB").getpixel((104, 104))
    assert max(abs(a - b) for a, b in zip(seen, (254, 232, 56), strict=True)) <= 12
    assert normalise(nb) == nb


def test_form_runs_nothing_and_restores_what_a_merge_left_out(tmp_path: Path) -> None:
    path = tmp_path / "merged.ipynb"
    nb = notebook(svg_cell(""), code_cell("1 / 0"))
    merged = normalise(nb)
    del merged["cells"][2]["outputs"][0]["data"]["image/png"]
    merged["metadata"] = {"language_info": {"name": "python", "version": "3.12.1"}}
    path.write_text(serialise(merged), encoding="utf-8")
    main(["--form", str(path)])
    assert read(path) == nb


def test_notebooks_are_executed_in_place_or_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.ipynb", tmp_path / "bad.ipynb"
    write(good, notebook(code_cell("from pathlib import Path\nprint(Path.cwd().name)", printed("before"))))
    write(bad, notebook(code_cell("1 / 0")))
    before = bad.read_text()
    with pytest.raises(CellExecutionError):
        main([str(good), str(bad)])
    assert read(good)["cells"][2]["outputs"] == [printed(f"{tmp_path.name}\n")]
    assert capsys.readouterr().out.startswith("good.ipynb: ")
    assert bad.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.ipynb", "good.ipynb"]
