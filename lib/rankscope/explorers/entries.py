"""All explorers: `EXPLORERS` lists them, `opener` opens one, and `gallery` offers all of them in one place."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ..common.extras import naming_extra
from .explorer import Explorer

if TYPE_CHECKING:
    from .panel import Gallery, Panel


class Entry(NamedTuple):
    """An explorer: where its function is, which returns an Explorer, a title, and the notebook that explains it.

    The module is imported when the explorer is first used: some are of packages that are built on this one.
    """

    module: str
    title: str
    notebook: str

    def make(self, *inputs: Any) -> Explorer:
        """Return the Explorer; its function is named like its module."""
        function = getattr(import_module(f"rankscope.{self.module}"), self.name)
        explorer: Explorer = function(*inputs)
        return explorer

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]


_ENTRIES = (
    Entry("explorers.core.samplers", "Which rank reads which sample", "01_who_reads_what"),
    Entry("explorers.core.unequal_lengths", "What samples of unequal length cost", "01_who_reads_what"),
    Entry("explorers.core.pipeline", "How a batch arrives", "02_how_a_batch_arrives"),
    Entry("box.explorers.transfers", "Copies to the GPU", "03_onto_the_gpu"),
    Entry("explorers.core.allreduce", "An allreduce, step by step", "04_collectives"),
    Entry("explorers.core.player", "A collective that plays", "04_collectives"),
    Entry("train.explorers.ddp", "DDP's buckets and overlap", "07_ddp"),
    Entry("train.explorers.fsdp", "FSDP: streams and memory", "08_zero_and_fsdp"),
    Entry("train.explorers.zero", "Memory per rank with ZeRO", "08_zero_and_fsdp"),
    Entry("train.explorers.pipeline_parallel", "Pipelines and their bubbles", "09_pipelines"),
    Entry("explorers.core.parts", "Trainers on part files", "appendix/a2_part_files"),
)
EXPLORERS = {entry.name: entry for entry in _ENTRIES}  # in the order of the notebooks


def opener(name: str) -> Callable[..., Panel]:
    """Return the function that opens a panel of an explorer, as ``samplers(num_ranks=8)`` does.

    Positional arguments are the explorer's inputs, keyword arguments its settings.
    """
    entry = EXPLORERS[name]

    @naming_extra()
    def show(*inputs: Any, **settings: Any) -> Panel:
        from .panel import Panel

        explorer = entry.make(*inputs)
        now = explorer.at(**settings)
        for setting in explorer.settings:
            if setting.name in settings and not setting.when(now):
                raise ValueError(f"{setting.name} has no effect with these settings")
        return Panel(explorer, now)

    show.__name__ = show.__qualname__ = name
    show.__doc__ = f"""Open the explorer “{entry.title}” with these inputs, if it takes any, and settings.

    The panel names its settings. Raises ValueError for a setting that is unknown, that no control offers, or that has
    no effect.
    """
    return show


@naming_extra()
def gallery() -> Gallery:
    """Return a list of all explorers above the one that is selected, the samplers' at first.

    >>> gallery().picked.options[0]
    ('Which rank reads which sample', 'samplers')
    """
    from .panel import Gallery

    return Gallery()
