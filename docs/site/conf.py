"""Sphinx's settings of the site; `make_site.py` lays out the sources and runs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # pages

from pages.api import type_aliases
from pages.docstrings import as_rst, is_left_out, with_plain_names

import rankscope

project = "rankscope"
author = "rankscope contributors"
release = rankscope.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "index"
default_role = "py:obj"  # `name` in a docstring is a link where there is something of that name
show_warning_types = True

nb_execution_mode = "off"  # what is shown is what is stored, and `make test` holds it against a fresh run
nb_ipywidgets_js: dict[str, Any] = {}  # would come from elsewhere; explorers are shown as pictures
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = type_aliases()
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "rankscope"
html_static_path = [str(Path(__file__).parent / "_static")]
html_css_files = ["site.css"]
html_js_files = [("explorers.js", {"defer": "defer"})]
html_copy_source = False
html_use_index = html_domain_indices = False  # the API's pages and the search have every name
html_show_search_summary = False  # it fetches pages, which a browser refuses for files
html_show_sphinx = False
html_show_copyright = False
html_permalinks_icon = "#"


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("autodoc-process-signature", with_plain_names)
    app.connect("autodoc-skip-member", is_left_out)
