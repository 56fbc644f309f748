"""From a function that returns an Explorer to one that opens its panel, for which ipywidgets is imported only then.

Such a function with a title and a notebook is an entry of the catalogue, from which `gallery` is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ..common.checks import function, of_type
from ..common.extensions import check_not_in_package, check_unclaimed
from ..common.extras import naming_extras
from ..common.frozen import ReadOnly, mapping
from .explorer import Explorer, Setting

if TYPE_CHECKING:
    from .panel import Panel


class Given(NamedTuple):
    """What `gallery` was given: profiles by name, and the profile of a GPU or None."""

    profiles: Mapping[str, Any]
    gpu: Any


def _no_inputs(given: Given) -> Any:
    return None


class Entry(NamedTuple):
    """The function that opens an explorer, a title, and the notebook (its file's stem) that explains it.

    `inputs` returns what the explorer takes of what the gallery was given, None if that is nothing. It raises
    ValueError for what is no profile. `on_the_site` has the settings that move on its static page, where no kernel
    runs, with their values; `ALL` stands for every value of the control.
    """

    show: Callable[..., Panel]
    title: str
    notebook: str
    inputs: Callable[[Given], Any] = _no_inputs
    on_the_site: Mapping[str, tuple[Any, ...]] = ReadOnly()

    @property
    def name(self) -> str:
        return self.show.__name__


ENTRIES: dict[str, Entry] = {}  # by name, of the modules that were imported


def shows(
    settings: Sequence[Setting],
    opens: str = "panel.Panel",
    *,
    title: str = "",
    notebook: str = "",
    inputs: Callable[[Given], Any] = _no_inputs,
    on_the_site: Mapping[str, tuple[Any, ...]] = ReadOnly(),
) -> Callable[[Callable[..., Explorer]], Callable[..., Panel]]:
    """Make of a function that returns an Explorer one that opens its panel, and takes settings as keywords, too.

    The new function's signature and docstring list the settings; `explorer_of` gives the Explorer. `opens` is the
    module and the class of the panel, which is imported when one is opened, so that importing an explorer does not need
    ipywidgets. With a `title` the function becomes an `Entry` of the catalogue; see there for the last three.
    """

    def decorate(make: Callable[..., Explorer]) -> Callable[..., Panel]:
        signature = inspect.signature(make)

        def made(*inputs: Any, **own: Any) -> Explorer:
            explorer = make(*inputs, **own)
            explorer.name, explorer.inputs = make.__name__, tuple(signature.bind(*inputs, **own).arguments)
            return explorer

        @wraps(make, assigned=("__module__", "__name__", "__qualname__"))
        def show(*inputs: Any, **given: Any) -> Panel:
            own = {name: given.pop(name) for name in signature.parameters if name in given}
            explorer = made(*inputs, **own)
            panel: Panel = open_panel(opens, explorer.name, explorer, explorer.at(**given))
            return panel

        keywords = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
            for one in settings
        ]
        parameters = [*signature.parameters.values(), *keywords]
        ranges = [f"- `{one.name}`: {one.allowed} (“{one.label}”)" for one in settings if one.choices]
        text = "Controls start at these settings. Raises ValueError for a setting that its control does not offer:"
        show.__doc__ = "\n".join([inspect.getdoc(make) or "", "", text, "", *ranges])
        show.__dict__ = {
            "__signature__": inspect.Signature(parameters, return_annotation="Panel"),
            "explorer": made,  # and not __wrapped__: Sphinx would look for the defaults of the settings in its source
        }
        if title:
            _add_entry(Entry(show, title, notebook, inputs, on_the_site))
        return show

    return decorate


def _add_entry(entry: Entry) -> None:
    """Add an entry to the catalogue; raise ValueError if its name is taken or one of its fields is wrong."""
    of_type(f"title of explorer {entry.name!r}", entry.title, str)
    of_type(f"notebook of explorer {entry.name!r}", entry.notebook, str)
    function(f"inputs of explorer {entry.name!r}", entry.inputs, "of what the gallery was given")
    mapping(f"on_the_site of explorer {entry.name!r}", entry.on_the_site)
    check_not_in_package("explorer", entry.name, entry.show.__module__, __package__)
    known = ENTRIES.get(entry.name)
    known_show = None
    if known is not None:
        known_show = known.show
    check_unclaimed("explorer", entry.name, entry.show, known_show)
    ENTRIES[entry.name] = entry


def open_panel(panel: str, user: str, *arguments: Any) -> Any:
    """Return a new panel; `panel` is like "panel.Panel". If ipywidgets is missing, the error says how to install it."""
    module, _, name = panel.partition(".")
    with naming_extras(f"rankscope.explorers.{user}"):
        panels = import_module(f".{module}", __package__)
    return getattr(panels, name)(*arguments)
