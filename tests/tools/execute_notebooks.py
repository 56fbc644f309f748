"""Run notebooks from a clean kernel, in place, and store them in one normal form.

    python tests/tools/execute_notebooks.py [--form] [notebook ...]        (without names: every notebook)

The normal form keeps what a reader sees and nothing of the machine or the moment: sources, outputs, tags, cell ids,
counts 1…n, and the metadata that JupyterLab writes, except the version of Python. The tag `hide-output` folds a cell's
output. The first picture is stored as PNG, too. With `--form` nothing runs: the stored outputs are put into normal
form, as after a merge. A notebook is written at once or not at all; one that raises stays as it was.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat.v4
from nbclient import NotebookClient
from nbformat.validator import iter_validate

from rankscope.common.files import write_whole

sys.path.insert(1, str(Path(__file__).parents[2]))  # as a script, too
from tests.tools.pictures import KERNEL, PNG, SVG, copy_as_png, is_copy, stored

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# What JupyterLab writes when it opens and saves a notebook, except language_info.version, which is that of the reader.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
HIDDEN = "hide-output"  # the tag of a cell whose output answers a prediction: JupyterLab and the site fold the output
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_TEXT = "(a widget: run this cell to use it)"

Notebook = dict[str, Any]  # a nbformat.NotebookNode is one


def every_notebook() -> list[Path]:
    """The notebooks in reading order: the main ones, then those of the appendix."""
    return [*sorted(NOTEBOOKS.glob("*.ipynb")), *sorted((NOTEBOOKS / "appendix").glob("*.ipynb"))]


def read(path: Path) -> Notebook:
    """The notebook as it lies in the file: lines joined, but nothing repaired and no ids made up."""
    return nbformat.v4.reads(path.read_text(encoding="utf-8"))


def serialise(nb: Notebook) -> str:
    """The file's text: a line of source is a line of the file, so that changes to a notebook read well."""
    return nbformat.v4.writes(nbformat.from_dict(nb)) + "\n"


def normalise(nb: Notebook) -> Notebook:
    """A copy in normal form. Doing it twice changes nothing.

    A widget's view points at a model that lives only as long as its kernel, so a sentence stands in for it, next to the
    picture that the widget gives of itself, if it does.
    """
    nb = nbformat.from_dict(copy.deepcopy(nb))
    nb["nbformat"], nb["nbformat_minor"] = 4, 5
    nb["metadata"] = nbformat.from_dict(METADATA)
    count, ids, is_first_picture = 0, set(), True
    for number, cell in enumerate(nb["cells"], start=1):
        if "id" not in cell or cell["id"] in ids:
            cell["id"] = f"cell-{number:02d}"
        ids.add(cell["id"])
        cell["metadata"] = {key: value for key, value in cell["metadata"].items() if key == "tags" and value}
        if HIDDEN in cell["metadata"].get("tags", ()):
            cell["metadata"]["jupyter"] = {"outputs_hidden": True}
            cell["metadata"]["collapsed"] = True  # JupyterLab writes both when it saves
        cell["source"] = cell["source"].strip("\n")
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"] = count
        for output in cell["outputs"]:
            has_picture = _normalise_output(output, count, is_first_picture)
            if has_picture:
                is_first_picture = False
    return nb


def _normalise_output(output: dict[str, Any], count: int, is_first_picture: bool) -> bool:
    """Put one output into normal form, and return whether it has a picture."""
    if output["output_type"] == "execute_result":
        output["execution_count"] = count
    if "metadata" in output:
        output["metadata"] = {}
    output.pop("transient", None)
    data = output.get("data", {})
    earlier_copy = data.pop(PNG) if PNG in data and is_copy(data[PNG]) else None
    if WIDGET in data:
        picture = {kind: content for kind, content in data.items() if kind == SVG}
        data.clear()
        data |= {"text/plain": WIDGET_TEXT, **picture}
    if data:
        output["data"] = stored(data)
        if is_first_picture and SVG in output["data"]:
            with suppress(ValueError):  # an SVG that nothing can draw stays alone, and the tests of notebooks refuse it
                output["data"][PNG], output["metadata"] = copy_as_png(output["data"][SVG], earlier_copy)
    return any(kind.startswith("image/") for kind in output.get("data", {}))


def execute(path: Path, timeout_s: int = 600) -> Notebook:
    """Run a notebook in its own folder; a cell that raises, raises here."""
    nb = normalise(read(path))
    for cell in nb["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    client = NotebookClient(
        nb,
        timeout=timeout_s,
        startup_timeout=timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        extra_arguments=[*KERNEL, "--log-level=ERROR"],  # else each kernel remarks that it listens on loopback
    )
    client.execute()
    return normalise(nb)


def write(path: Path, nb: Notebook) -> None:
    for error in iter_validate(nb):
        raise error
    write_whole(path, serialise(nb).encode())


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Run notebooks in place, and store them in one normal form.")
    parser.add_argument("--form", action="store_true", help="run nothing: put what is stored into normal form")
    parser.add_argument("notebook", nargs="*", type=Path, help="by default, every notebook")
    options = parser.parse_args(arguments)
    paths = [path.resolve() for path in options.notebook] or every_notebook()
    for path in paths:
        start = time.perf_counter()
        write(path, normalise(read(path)) if options.form else execute(path))
        print(f"{path.name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
