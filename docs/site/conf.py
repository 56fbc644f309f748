"""Sphinx's settings of the site; `make_site.py` lays out the sources and runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import rankscope

project = "rankscope"
author = "rankscope contributors"
release = rankscope.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "index"
default_role = "py:obj"  # `name` in a docstring is a link where there is something of that name
nb_execution_mode = "off"  # what is shown is what is stored, and `make test` holds it against a fresh run
nb_ipywidgets_js: dict[str, Any] = {}  # would come from elsewhere
myst_heading_anchors = 3
suppress_warnings = ["autodoc", "ref.python"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "rankscope"
html_static_path = [str(Path(__file__).parent / "_static")]
html_css_files = ["site.css", "drawings.css"]
html_js_files = [("explorers.js", {"defer": "defer"})]
if tags.has("live"):  # noqa: F821  # Sphinx's name for what its option -t says
    html_static_path.append(str(Path(__file__).parent / "live" / "_static"))
    html_js_files.append(("live.js", {"defer": "defer"}))
html_copy_source = False
html_use_index = html_domain_indices = False  # the API's pages and the search have every name
html_show_search_summary = False  # it fetches pages, which a browser refuses for files
html_show_sphinx = html_show_copyright = False
html_permalinks_icon = "#"

# What reStructuredText would take for markup in a docstring, though nobody meant it: *args, a |x|, a trailing_ name.
_MARKUP = re.compile(r"``.+?``|`[^`]+`|(?P<mark>[*|\\]|(?<=\w)_(?!\w))")


def as_rst(_app: Any, _kind: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Escape what a line of plain text has that only looks like markup; examples and `names` stay."""
    in_example = False
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if not in_example:
            lines[number] = _MARKUP.sub(lambda match: "\\" + match[0] if match["mark"] else match[0], line)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_rst)
