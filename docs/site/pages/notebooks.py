"""A notebook as its page shows it: pictures described in words, and explorers that need no kernel."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from rankscope import figures
from rankscope.explorers.entries import EXPLORERS

from .states import Shown

Cell = dict[str, Any]
Notebook = dict[str, Any]
Place = Callable[[Shown], str]

_EXPLORERS = {"gallery", *EXPLORERS}
_GALLERY = "In JupyterLab (`make lab`) this cell has all explorers. Here they are on [one page](../index.md)."
_KEYS = re.compile(r"\n\n[^\n]*\*\*Shift\+Enter\*\*[^\n]*")  # a paragraph on keys, which a page does not have
_WIDGET = "In JupyterLab (`make lab`) this cell has controls."


def page(nb: Notebook, widget_text: str, place: Place) -> Notebook:
    """The notebook's page: in place of a widget, stored as `widget_text`, stands what `place` makes of the explorer."""
    shown_nb = copy.deepcopy(nb)
    cells: list[Cell] = []
    heading = ""
    for cell in shown_nb["cells"]:
        source = "".join(cell["source"])
        cells.append(cell)
        if cell["cell_type"] == "markdown":
            cell["source"] = _KEYS.sub("", source)
            heading = [heading, *re.findall(r"^#+ (.+)$", source, re.M)][-1]
            continue
        if any(_text(output) == widget_text for output in cell["outputs"]):
            cell["outputs"] = []  # with the widget's own picture
            text = _in_place_of(source, place)
            cells.append({"cell_type": "markdown", "id": f"{cell['id']}-explorer", "metadata": {}, "source": text})
        elif any(kind.startswith("image/") for kind in _kinds(cell)):
            for output in cell["outputs"]:
                if "image/svg+xml" in output.get("data", {}):
                    output["data"].pop("image/png", None)  # its copy for readers who do not see SVG
            cell["metadata"]["mystnb"] = {"image": {"alt": described(source, heading)}}
    shown_nb["cells"] = cells
    return shown_nb


def _in_place_of(source: str, place: Place) -> str:
    """What stands on the page for the widget that a cell shows."""
    shown = explorer_call(source)
    if shown is None:
        return _WIDGET
    if shown.name == "gallery":
        return _GALLERY
    return as_markdown(place(shown))


def as_markdown(html: str) -> str:
    return f"```{{raw}} html\n{html}\n```"


def explorer_call(source: str) -> Shown | None:
    """The explorer that a cell calls, with those of its settings that are written out there.

    >>> explorer_call("explorers.zero(stage=2)")
    Shown(name='zero', settings=(('stage', 2),))
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (name := _name(node.func)) in _EXPLORERS:
            written = [(key.arg, key.value.value) for key in node.keywords if isinstance(key.value, ast.Constant)]
            return Shown(name, tuple(pair for pair in written if pair[0]))
    return None


def described(source: str, heading: str) -> str:
    """What a cell's figure shows, in words: what its kind always shows, then its title or the heading above it.

    >>> described('_ = figures.timeline(simulate(two, 3), title="Two stages")', "## 1. A path")
    'The spans of a timeline, with one row per lane of a rank: “Two stages”'
    """
    tree = ast.parse(source)
    assigned = dict(pair for node in ast.walk(tree) if isinstance(node, ast.Assign) for pair in _assigned(node))
    kinds: list[str] = []
    titles: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _name(node.func.value) == "figures":
            said = _said(node, getattr(figures, node.func.attr), assigned)
            kinds += said["kind"]
            titles += [title for title in said["title"] if len(re.findall(r"[^\W\d]{3,}", title)) > 1]
    title = "; ".join(dict.fromkeys(titles)) or heading.lstrip("# ").replace("`", "")
    return f"{'; '.join(dict.fromkeys(kinds)) or 'Figure'}: “{title}”"


def _said(call: ast.Call, function: Callable[..., Any], assigned: dict[str, ast.expr]) -> dict[str, list[str]]:
    """What a call of a figure function says of the figure, by `title` and, from the labels or the function, `kind`."""
    argument_of = dict(zip(inspect.signature(function).parameters, call.args, strict=False))
    argument_of |= {key.arg: key.value for key in call.keywords if key.arg}
    said = {name: list(_strings(argument_of.get(name), assigned)) for name in ("title", "x_label", "y_label")}
    if said["x_label"] and said["y_label"]:
        kind = f"{said['y_label'][0]} over {said['x_label'][0]}"
    else:
        first = re.split(r"[;.]|, ``", inspect.getdoc(function) or "")[0].removeprefix("Draw ")
        kind = re.sub(r"\[(name|algorithm)\]|`", "", first)
    return {"title": said["title"], "kind": [kind[:1].upper() + kind[1:]]}


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Each name that an assignment gives a value written in the same statement."""
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    yield from ((name.id, assigned) for name, assigned in pairs if isinstance(name, ast.Name))


def _strings(value: ast.expr | None, assigned: dict[str, ast.expr]) -> Iterator[str]:
    """The strings that an argument may be; what is put into one when it runs is only in the picture."""
    value = assigned.get(value.id, value) if isinstance(value, ast.Name) else value
    if isinstance(value, ast.IfExp):
        yield from (*_strings(value.body, assigned), *_strings(value.orelse, assigned))
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in value.values)


def _kinds(cell: Cell) -> set[str]:
    return {kind for output in cell["outputs"] for kind in output.get("data", {})}


def _text(output: dict[str, Any]) -> str:
    return "".join(output.get("data", {}).get("text/plain", ""))


def _name(node: ast.expr) -> str | None:
    """The last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
