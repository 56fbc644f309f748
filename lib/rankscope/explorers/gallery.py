"""`gallery`: every explorer in one place, each made when it is first picked."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib import import_module
from typing import Any

import ipywidgets as widgets

from ..machine import Profile
from ..values.checks import of_type, one_of
from .catalogue import CATALOGUE, Entry
from .machine import by_name

NEEDS_PROFILES = "This one shows machines that were recorded: gallery(profiles={'a name': Profile.load('a file')})"


def gallery(
    profiles: Mapping[str, Profile] | None = None, gpu: Profile | None = None, opened: str = "samplers"
) -> widgets.VBox:
    """Return a button for each explorer of `CATALOGUE` over the one that was picked, at first `opened`.

    `profiles`, by name, are for `machine`, which says so where there are none; `gpu`, a profile with copies to a GPU,
    for `transfers`. An explorer that was left keeps its settings. Raises ValueError for what is no profile and no
    explorer.

    >>> box = gallery()
    >>> [label for label, _ in box.children[0].options][:2]
    ['Which rank reads which sample', 'How a batch arrives']
    """
    entries = {entry.name: entry for entry in CATALOGUE}
    inputs: dict[str, tuple[Any, ...]] = {
        "machine": tuple(filter(None, [by_name(profiles or {})])),
        "transfers": () if gpu is None else (of_type("gpu", gpu, Profile),),
    }
    first = one_of("opened", opened, tuple(entries))
    made: dict[str, widgets.Widget] = {}
    picked = widgets.ToggleButtons(
        options=[(entry.title, entry.name) for entry in CATALOGUE],
        value=first,
        style={"button_width": "auto"},
        layout=widgets.Layout(max_width="1000px"),
    )
    heading, place = widgets.HTML(), widgets.VBox()

    def show(_: object = None) -> None:
        entry = entries[picked.value]
        if entry.name not in made:
            made[entry.name] = _explorer(entry.name, inputs.get(entry.name, ()))
        heading.value, place.children = _heading(entry), (made[entry.name],)

    picked.observe(show, names="value")
    show()
    return widgets.VBox([picked, heading, place])


def _explorer(name: str, inputs: tuple[Any, ...]) -> widgets.Widget:
    if name == "machine" and not inputs:
        return widgets.HTML(f"<p>{escape(NEEDS_PROFILES)}</p>")
    explorer: widgets.Widget = getattr(import_module(f".{name}", __package__), name)(*inputs)
    return explorer


def _heading(entry: Entry) -> str:
    return f"<p><b>{escape(entry.title)}</b>: <code>explorers.{entry.name}</code>, of notebook {entry.notebook}</p>"
