"""All explorers: `EXPLORERS` lists them, `gallery` opens them in one place."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ..common.checks import one_of
from .opening import open_panel

if TYPE_CHECKING:
    from .panel import Panel, PicturedWidget


class Entry(NamedTuple):
    """The name of the function that opens an explorer, its module, a title, and the notebook that explains it.

    The module is imported when the explorer is first used: some are of packages that are built on this one. The
    notebook is its file's stem.
    """

    name: str
    module: str
    title: str
    notebook: str

    @property
    def show(self) -> Callable[..., Panel]:
        function: Callable[..., Panel] = getattr(import_module(self.module), self.name)
        return function


_ENTRIES = (
    Entry("samplers", "rankscope.explorers.core.samplers", "Which rank reads which sample", "01_who_reads_what"),
    Entry(
        "unequal_lengths",
        "rankscope.explorers.core.unequal_lengths",
        "What samples of unequal length cost",
        "01_who_reads_what",
    ),
    Entry("pipeline", "rankscope.explorers.core.pipeline", "How a batch arrives", "02_how_a_batch_arrives"),
    Entry("transfers", "rankscope.box.explorers.transfers", "Copies to the GPU", "03_onto_the_gpu"),
    Entry("allreduce", "rankscope.explorers.core.allreduce", "An allreduce, step by step", "04_collectives"),
    Entry("player", "rankscope.explorers.core.player", "A collective that plays", "04_collectives"),
    Entry("boxes", "rankscope.box.explorers.boxes", "Collectives measured on GPU boxes", "05_your_box"),
    Entry("machine", "rankscope.box.explorers.machine", "Recorded machines against the model", "05_your_box"),
    Entry("nccl", "rankscope.box.explorers.nccl", "What NCCL chooses, and how long it takes", "06_what_nccl_chooses"),
    Entry("data_parallel", "rankscope.train.explorers.data_parallel", "DataParallel against DDP", "07_ddp"),
    Entry("ddp", "rankscope.train.explorers.ddp", "DDP's buckets and overlap", "07_ddp"),
    Entry("uneven", "rankscope.train.explorers.uneven", "Ranks that run out of batches", "07_ddp"),
    Entry("fsdp", "rankscope.train.explorers.fsdp", "FSDP: streams and memory", "08_zero_and_fsdp"),
    Entry("zero", "rankscope.train.explorers.zero", "Memory per rank with ZeRO", "08_zero_and_fsdp"),
    Entry(
        "pipeline_parallel",
        "rankscope.train.explorers.pipeline_parallel",
        "Pipelines and their bubbles",
        "09_pipelines",
    ),
    Entry("parts", "rankscope.explorers.core.parts", "Trainers on part files", "appendix/a2_part_files"),
)
EXPLORERS = {entry.name: entry for entry in _ENTRIES}  # in the order of the notebooks


def gallery(opened: str = "samplers") -> PicturedWidget:
    """Return one button per explorer, above the selected explorer, which is `opened` at first.

    An explorer is made when it is first picked, and keeps its settings when another one is picked. Raises ValueError
    if the explorer is unknown.

    >>> box = gallery()
    >>> [label for label, _ in box.children[0].options][:2]
    ['Which rank reads which sample', 'What samples of unequal length cost']
    """
    box: PicturedWidget = open_panel("gallery_panel.Gallery", one_of("opened", opened, tuple(EXPLORERS)))
    return box
