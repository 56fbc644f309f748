"""Explorers: panels with controls, drawings and a report, which are pure functions of the settings.

Each explorer of `EXPLORERS` is a function, like ``samplers(num_ranks=8)``, that opens its panel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature, signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from .common.extras import naming_extra
from .panel.explorer import Explorer

if TYPE_CHECKING:
    from .panel.widgets import Panel


class Entry(NamedTuple):
    """An explorer: the function that returns it, imported when it is first used, its title, and its notebook."""

    function: str
    title: str
    notebook: str

    @property
    def make(self) -> Callable[..., Explorer]:
        """The function itself, of the inputs."""
        function: Callable[..., Explorer] = resolve_name(f"rankscope.{self.function}")
        return function

    def inputs(self) -> list[Parameter]:
        """Return the parameters of what it can be opened with, which are positional."""
        parameters = signature(self.make).parameters.values()
        return [parameter.replace(kind=Parameter.POSITIONAL_ONLY) for parameter in parameters]

    @property
    def name(self) -> str:
        return self.function.rpartition(":")[2]


_ENTRIES = (
    Entry("sampling.explorer:samplers", "Which rank reads which sample", "01_who_reads_what"),
    Entry("sampling.work.explorer:unequal_lengths", "What samples of unequal length cost", "01_who_reads_what"),
    Entry("pipeline.stages.explorer:pipeline", "How a batch arrives", "02_how_a_batch_arrives"),
    Entry("pipeline.dataloader.explorer:loader", "What a DataLoader would gain", "02_how_a_batch_arrives"),
    Entry("box.transfers.explorer:transfers", "Copies to the GPU", "03_onto_the_gpu"),
    Entry("collectives.player.explorer:player", "Which collective is fastest, and why", "04_collectives"),
    Entry("box.judging.explorer:box", "What a GPU box should reach", "05_your_box"),
    Entry("box.nccl.explorer:nccl", "What NCCL chooses", "06_what_nccl_chooses"),
    Entry("train.ddp.explorer:ddp", "DDP's buckets and overlap", "07_ddp"),
    Entry("train.fsdp.explorer:fsdp", "FSDP: streams and memory", "08_zero_and_fsdp"),
    Entry("train.zero.explorer:zero", "Memory per rank with ZeRO", "08_zero_and_fsdp"),
    Entry("train.pipeline_parallel.explorer:pipeline_parallel", "Pipelines and their bubbles", "09_pipelines"),
    Entry("diagnose.traces.explorer:slow_rank", "Which rank is late", "11_slow_or_stuck"),
    Entry("diagnose.explorer:paste", "What a pasted table or log shows", "11_slow_or_stuck"),
    Entry("pipeline.parts.explorer:parts", "Trainers on part files", "appendix/a2_part_files"),
)
EXPLORERS = {entry.name: entry for entry in _ENTRIES}  # in the order of the notebooks


@cache
def opener(name: str) -> Callable[..., Panel]:
    """Return the function that opens a panel of an explorer, as ``samplers(num_ranks=8)`` does.

    Positional arguments are the explorer's inputs, keyword arguments its settings; Shift+Tab in a notebook shows both,
    with what they are at first and what else they can be.
    """
    entry = EXPLORERS[name]
    settings = entry.make().settings
    choices = "\n".join(f"    {setting.name}: {setting.allowed}" for setting in settings)

    @naming_extra()
    def show(*inputs: Any, **settings: Any) -> Panel:
        from .panel.widgets import Panel

        explorer = entry.make(*inputs)
        now = explorer.at(**settings)
        for setting in explorer.settings:
            if setting.name in settings and not setting.when(now):
                raise ValueError(f"{setting.name} has no effect with these settings")
        return Panel(explorer, now, f"explorers.{name}", [getattr(value, "__name__", "…") for value in inputs])

    keywords = [Parameter(setting.name, Parameter.KEYWORD_ONLY, default=setting.default) for setting in settings]
    show.__signature__ = Signature([*entry.inputs(), *keywords])  # type: ignore[attr-defined]
    show.__name__ = show.__qualname__ = name
    show.__doc__ = f"""Open the explorer “{entry.title}” with these inputs, if it takes any, and settings.

    Raises ValueError for a setting that is unknown, that no control offers, or that has no effect.

    {entry.make.__doc__}
    Settings are

{choices}
    """
    return show


__all__ = [*EXPLORERS]


def __getattr__(name: str) -> Any:
    if name in EXPLORERS:
        return opener(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
