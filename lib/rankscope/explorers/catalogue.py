"""All explorers: `CATALOGUE` names them, `gallery` opens them in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets

from ..machine import Profile
from ..values.checks import of_type, one_of
from .allreduce import allreduce
from .boxes import boxes
from .ddp import ddp
from .machine import by_name, machine
from .panel import Panel
from .parts import parts
from .pipeline import pipeline
from .pipeline_parallel import pipeline_parallel
from .samplers import samplers
from .transfers import transfers
from .uneven import uneven
from .zero import zero


class Entry(NamedTuple):
    """The function that opens an explorer, a title, and the notebook (its file's stem) that ends in it.

    >>> CATALOGUE[0].name
    'samplers'
    """

    show: Callable[..., Panel]
    title: str
    notebook: str

    @property
    def name(self) -> str:
        return self.show.__name__


CATALOGUE = (
    Entry(samplers, "Which rank reads which sample", "01_who_reads_what"),
    Entry(pipeline, "How a batch arrives", "03_how_a_batch_arrives"),
    Entry(parts, "Trainers on part files", "04_part_files"),
    Entry(allreduce, "An allreduce, step by step", "06_allreduce_variants"),
    Entry(machine, "Recorded machines against the model", "07_model_and_machine"),
    Entry(transfers, "Copies to the GPU, and the loop", "08_transfers"),
    Entry(ddp, "DDP's buckets and overlap", "09_ddp_buckets_and_overlap"),
    Entry(zero, "What ZeRO leaves on a rank", "11_zero_memory"),
    Entry(uneven, "Ranks that run out of batches", "12_uneven_inputs"),
    Entry(pipeline_parallel, "Pipelines and their bubbles", "13_other_ways"),
    Entry(boxes, "Collectives measured on GPU boxes", "15_measured_gpu_boxes"),
)
_ENTRIES = {entry.name: entry for entry in CATALOGUE}
NEEDS_PROFILES = "This one shows machines that were recorded: gallery(profiles={'a name': Profile.load('a file')})"


def gallery(
    profiles: Mapping[str, Profile] | None = None, gpu: Profile | None = None, opened: str = "samplers"
) -> Panel:
    """Return a button for each explorer of `CATALOGUE` over the one that was picked, at first `opened`.

    `profiles`, by name, are for `machine`, which says so where there are none, and those of GPUs for `boxes`; `gpu`, a
    profile with copies to a GPU, is for `transfers`. An explorer is made when it is first picked, and keeps its
    settings when another one is. Raises ValueError for what is no profile and no explorer.

    >>> box = gallery()
    >>> [label for label, _ in box.children[0].options][:2]
    ['Which rank reads which sample', 'How a batch arrives']
    """
    inputs: dict[str, Any] = {
        "machine": by_name(profiles or {}),
        "boxes": {name: one for name, one in by_name(profiles or {}).items() if one.provenance.get("gpus")},
        "transfers": None if gpu is None else of_type("gpu", gpu, Profile),
    }
    made: dict[str, Panel] = {}
    picked = widgets.ToggleButtons(
        options=[(entry.title, entry.name) for entry in CATALOGUE],
        value=one_of("opened", opened, tuple(_ENTRIES)),
        style={"button_width": "auto"},
        layout=widgets.Layout(max_width="1000px"),
    )
    heading, place = widgets.HTML(), widgets.VBox()

    def opened_anew(name: str) -> Panel:
        if name == "machine" and not inputs[name]:
            return Panel([widgets.HTML(f"<p>{escape(NEEDS_PROFILES)}</p>")])
        return _ENTRIES[name].show(*([inputs[name]] if name in inputs else []))

    def show(_: object = None) -> None:
        entry = _ENTRIES[picked.value]
        if entry.name not in made:
            made[entry.name] = opened_anew(entry.name)
        call = f"<code>explorers.{entry.name}</code>"
        heading.value = f"<p><b>{escape(entry.title)}</b>: {call}, of notebook {entry.notebook}</p>"
        place.children = (made[entry.name],)

    picked.observe(show, names="value")
    show()
    return Panel.of([picked, heading, place], lambda: made[picked.value].still())
