"""A notebook as its page shows it: pictures described in words, and pictures where an explorer's sliders would be."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from typing import Any

from rankscope import figures
from rankscope.explorers.catalogue import CATALOGUE

from .stills import Still

Cell = dict[str, Any]
Notebook = dict[str, Any]
Stills = Callable[..., Iterable[Still]]

_EXPLORERS = {entry.name for entry in CATALOGUE} | {"gallery"}
_SLIDERS = "In JupyterLab (`make lab`) these are sliders. This is what they show at some of their settings."
_GALLERY = "In JupyterLab (`make lab`) all explorers are here. What each shows stands at the end of its notebook:\n\n"
_WIDGET = "In JupyterLab (`make lab`) there is something to move here."


def page(nb: Notebook, stem: str, widget_text: str, stills: Stills) -> tuple[Notebook, dict[str, str]]:
    """The notebook's page, and the pictures that it needs beside it, by file name.

    In a widget's place, which the notebook stores as `widget_text`, come ``stills(name, **settings)`` where it is an
    explorer, a sentence where it is not.
    """
    made = copy.deepcopy(nb)
    cells: list[Cell] = []
    pictures: dict[str, str] = {}
    heading = ""
    for cell in made["cells"]:
        source = "".join(cell["source"])
        cells.append(cell)
        if cell["cell_type"] == "markdown":
            heading = [heading, *re.findall(r"^#+ (.+)$", source, re.M)][-1]
            continue
        if any(_text(output) == widget_text for output in cell["outputs"]):
            cell["outputs"] = []  # with the widget's own picture
            text, shown = _in_place_of(source, stem, stills)
            pictures |= shown
            cells.append({"cell_type": "markdown", "id": f"{cell['id']}-still", "metadata": {}, "source": text})
        elif any(kind.startswith("image/") for kind in _kinds(cell)):
            cell["metadata"]["mystnb"] = {"image": {"alt": described(source, heading)}}
    made["cells"] = cells
    return made, pictures


def _in_place_of(source: str, stem: str, stills: Stills) -> tuple[str, dict[str, str]]:
    """What stands on the page for the widget that a cell shows, and its pictures by file name."""
    name, settings = explorer_call(source)
    if name == "gallery":
        return _GALLERY + "\n".join(f"- [{entry.title}]({entry.notebook}.ipynb)" for entry in CATALOGUE), {}
    if name is None:
        return _WIDGET, {}
    shown = {f"{stem}_{name}_{number}.svg": one for number, one in enumerate(stills(name, **settings), start=1)}
    text = "\n\n".join([_SLIDERS, *(_figure(file, one) for file, one in shown.items())])
    return text, {file: one.svg for file, one in shown.items()}


def explorer_call(source: str) -> tuple[str | None, dict[str, Any]]:
    """The explorer that a cell calls, and those of its settings that are written out there.

    >>> explorer_call("explorers.zero(module, stage=2)")
    ('zero', {'stage': 2})
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (name := _name(node.func)) in _EXPLORERS:
            written = {key.arg: key.value for key in node.keywords if key.arg}
            return name, {key: value.value for key, value in written.items() if isinstance(value, ast.Constant)}
    return None, {}


def described(source: str, heading: str) -> str:
    """What a cell's figure shows, in words: what its kind always shows, then its title or the heading above it.

    >>> described('_ = figures.timeline(simulate(two, 3), title="Two stages")', "## 1. A road")
    'What ran when, on which lane of which rank: “Two stages”'
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
    given = dict(zip(inspect.signature(function).parameters, call.args, strict=False))
    given |= {key.arg: key.value for key in call.keywords if key.arg}
    said = {name: list(_strings(given.get(name), assigned)) for name in ("title", "x_label", "y_label")}
    if said["x_label"] and said["y_label"]:
        kind = f"{said['y_label'][0]} over {said['x_label'][0]}"
    else:
        first = re.split(r"[;.]|, ``", inspect.getdoc(function) or "")[0].removeprefix("Draw ")
        kind = re.sub(r"\[(name|algorithm)\]|`", "", first)
    return {"title": said["title"], "kind": [kind[:1].upper() + kind[1:]]}


def _assigned(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Each name that an assignment gives a value written beside it."""
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    yield from ((name.id, given) for name, given in pairs if isinstance(name, ast.Name))


def _strings(value: ast.expr | None, assigned: dict[str, ast.expr]) -> Iterator[str]:
    """The strings that an argument may be; what is put into one when it runs is only in the picture."""
    value = assigned.get(value.id, value) if isinstance(value, ast.Name) else value
    if isinstance(value, ast.IfExp):
        yield from (*_strings(value.body, assigned), *_strings(value.orelse, assigned))
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in value.values)


def _figure(file: str, one: Still) -> str:
    title = re.search(r"<title>(.*?)</title>", one.svg, re.S)
    shows = unescape(title[1]) if title else "picture"
    alt = json.dumps(f"{shows}, with {one.caption}", ensure_ascii=False)
    return f"```{{figure}} {file}\n:alt: {alt}\n:figclass: multiple\n\n`{one.caption}`\n```"


def _kinds(cell: Cell) -> set[str]:
    return {kind for output in cell["outputs"] for kind in output.get("data", {})}


def _text(output: dict[str, Any]) -> str:
    return "".join(output.get("data", {}).get("text/plain", ""))


def _name(node: ast.expr) -> str | None:
    """The last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
