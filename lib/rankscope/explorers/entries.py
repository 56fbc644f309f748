"""All explorers: `catalogue` lists them, `gallery` opens them in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..common.checks import one_of
from ..common.extensions import extensions, import_all
from .opening import ENTRIES, Entry, GalleryInputs, open_panel

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


def gallery(
    profiles: Mapping[str, Any] | None = None,
    gpu: Any = None,
    opened: str = "samplers",
    address: str | None = None,
) -> PicturedWidget:
    """Return one button per explorer of the catalogue, above the selected explorer, which is `opened` at first.

    `profiles`, by name, are for `machine`; those of GPUs are also for `boxes`, and for `ddp` if they have the backend's
    own allreduce. Without any, machines of the bank are shown. `gpu`, a profile with copies to a GPU, is for
    `transfers`. An explorer is made when it is first picked, and keeps its settings when another one is picked.
    `address` is the query of a page of its own, like ``state=explorers.zero(stage=1)``, with the state to start at; the
    page then links to its present state. Raises ValueError if a value is not a profile or an explorer is unknown.

    >>> box = gallery()
    >>> [label for label, _ in box.children[0].options][:2]
    ['Which rank reads which sample', 'What samples of unequal length cost']
    """
    entries = catalogue()
    if not isinstance(profiles, Mapping | None):
        raise ValueError(f"profiles must be Profiles by name, got {profiles!r}")
    inputs = GalleryInputs({} if profiles is None else profiles, gpu)
    inputs_of_entries = {entry.name: entry.inputs(inputs) for entry in entries}
    one_of("opened", opened, tuple([entry.name for entry in entries]))
    box: PicturedWidget = open_panel("gallery_panel.Gallery", "gallery", entries, inputs_of_entries, opened, address)
    return box
