"""All explorers: `CATALOGUE` names them, `gallery` opens them in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..machine import Profile
from ..values.checks import of_type, one_of
from .allreduce import allreduce
from .boxes import boxes
from .data_parallel import data_parallel
from .ddp import ddp
from .machine import by_name, machine
from .nccl import nccl
from .networks import has_network
from .opening import open_panel
from .parts import parts
from .pipeline import pipeline
from .pipeline_parallel import pipeline_parallel
from .player import player
from .samplers import samplers
from .transfers import transfers
from .uneven import uneven
from .zero import zero

if TYPE_CHECKING:
    from .panel import Panel, Pictured


class Entry(NamedTuple):
    """The function that opens an explorer, a title, and the notebook (its file's stem) that explains it.

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
    Entry(player, "A collective that plays", "05_collectives"),
    Entry(allreduce, "An allreduce, step by step", "06_allreduce_variants"),
    Entry(machine, "Recorded machines against the model", "07_model_and_machine"),
    Entry(transfers, "Copies to the GPU", "08_transfers"),
    Entry(ddp, "DDP's buckets and overlap", "09_ddp_buckets_and_overlap"),
    Entry(data_parallel, "DataParallel against DDP", "10_dataparallel_against_ddp"),
    Entry(zero, "Memory per rank with ZeRO", "11_zero_memory"),
    Entry(uneven, "Ranks that run out of batches", "12_uneven_inputs"),
    Entry(pipeline_parallel, "Pipelines and their bubbles", "18_pipelines"),
    Entry(boxes, "Collectives measured on GPU boxes", "15_measured_gpu_boxes"),
    Entry(nccl, "What NCCL chooses, and what it takes", "17_nccls_choice"),
)
ENTRIES = {entry.name: entry for entry in CATALOGUE}


def gallery(
    profiles: Mapping[str, Profile] | None = None,
    gpu: Profile | None = None,
    opened: str = "samplers",
    address: str | None = None,
) -> Pictured:
    """Return a button for each explorer of `CATALOGUE` over the one that was picked, at first `opened`.

    `profiles`, by name, are for `machine`; those of GPUs are also for `boxes`, and for `ddp` if they have the backend's
    own allreduce. Without any, machines of the bank are shown. `gpu`, a profile with copies to a GPU, is for
    `transfers`. An explorer is made when it is first picked, and keeps its settings when another one is. `address` is
    the query of a page of its own, like ``state=explorers.zero(stage=1)``, with the state to start at; the page then
    links to what it shows. Raises ValueError for what is no profile and no explorer.

    >>> box = gallery()
    >>> [label for label, _ in box.children[0].options][:2]
    ['Which rank reads which sample', 'How a batch arrives']
    """
    by_names = by_name(profiles or {})
    of_gpus = {name: profile for name, profile in by_names.items() if profile.provenance.get("gpus")}
    inputs: dict[str, Any] = {
        "machine": by_names or None,
        "boxes": of_gpus,
        "ddp": {name: profile for name, profile in of_gpus.items() if has_network(profile)},
        "transfers": None if gpu is None else of_type("gpu", gpu, Profile),
    }
    one_of("opened", opened, tuple(ENTRIES))
    box: Pictured = open_panel("gallery_panel.Gallery", "gallery", inputs, opened, address)
    return box
