"""All explorers: `catalogue` lists them, `gallery` opens them in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.checks import one_of
from ..common.extensions import extensions, import_all
from .opening import ENTRIES, Entry, open_panel

if TYPE_CHECKING:
    from .panel import PicturedWidget


def catalogue() -> tuple[Entry, ...]:
    """Return the explorers of the core and of each subpackage that is installed, in the order of their notebooks.

    One that needs a package which is not installed is left out; see `rankscope.common.extensions`.

    >>> [entry.name for entry in catalogue()][:2]
    ['samplers', 'unequal_lengths']
    """
    for extension in extensions():
        for package in extension.explorers:
            import_all(package)  # each module puts its explorers into `ENTRIES`
    return tuple(sorted(ENTRIES.values(), key=lambda entry: (entry.notebook, entry.name)))


def gallery(opened: str = "samplers") -> PicturedWidget:
    """Return one button per explorer of the catalogue, above the selected explorer, which is `opened` at first.

    An explorer is made when it is first picked, and keeps its settings when another one is picked. Raises ValueError
    if the explorer is unknown.

    >>> box = gallery()
    >>> [label for label, _ in box.children[0].options][:2]
    ['Which rank reads which sample', 'What samples of unequal length cost']
    """
    entries = catalogue()
    one_of("opened", opened, tuple([entry.name for entry in entries]))
    box: PicturedWidget = open_panel("gallery_panel.Gallery", "gallery", entries, opened)
    return box
