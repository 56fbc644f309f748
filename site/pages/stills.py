"""What an explorer shows at some of its settings, for pages on which nothing can be moved."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from rankscope import explorers
from rankscope.explorers.panel import explorer_of
from rankscope.machine import Profile
from rankscope.values.checks import one_of

# Of each explorer, by picture: the values of some settings, at all combinations of which it is shown.
_STILLS: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
    "samplers": {"picture": {"num_ranks": (4, 6), "drop_last": (False, True)}},
    "pipeline": {"picture": {"num_workers": (2, 4), "ordered": (True, False)}},
    "parts": {"picture": {"queue_size": (0, 2), "aligned": (False, True)}},
    "allreduce": {
        "picture": {"algorithm": ("ring", "halving_doubling"), "step": (1, 3)},
        "ranking": {"log2_bytes": (12, 26), "shared_nic": (False, True)},
    },
    "machine": {"ranking": {"log2_bytes": (12, 22)}},  # of each profile
    "transfers": {"timeline": {"method": ("pageable", "pinned"), "prefetched": (False, True)}},
    "ddp": {"picture": {"default_cap": (False,), "log2_cap_mb": (3, 5), "overlap": (True, False)}},
    "zero": {"picture": {"model": ("7.5 B", "70 B"), "log2_ranks": (3, 6)}},
    "uneven": {"picture": {"handling": ("hang", "drop", "pad", "join")}},
    "boxes": {"picture": {"collective": ("allreduce", "all_to_all"), "view": ("busbw", "time")}},
    "pipeline_parallel": {"picture": {"schedule": ("gpipe", "interleaved_1f1b"), "num_ranks": (2, 4)}},
}


class Still(NamedTuple):
    """A picture of an explorer, as SVG, with `settings`; those that are not named are as the explorer starts."""

    settings: dict[str, Any]
    svg: str

    @property
    def caption(self) -> str:
        """The settings as one writes them: ``num_workers=2, ordered=True``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())


def stills(name: str, profiles: Mapping[str, Profile] | None = None, **settings: Any) -> tuple[Still, ...]:
    """Return still pictures of an explorer, each with other values of one or two of its settings.

    `settings` replace those with which the explorer starts. `machine` needs `profiles`, by name. Raises ValueError for
    an unknown explorer, and for settings as the explorer itself does.

    >>> [one.caption for one in stills("samplers", size=10)][:2]
    ['size=10, num_ranks=4, drop_last=False', 'size=10, num_ranks=4, drop_last=True']
    """
    pictures = _STILLS[one_of("name", name, tuple(_STILLS))]
    explorer = explorer_of(getattr(explorers, name), *([profiles or {}] if name == "machine" else []))
    found = []
    for picture, axes in pictures.items():
        axes = {"profile": tuple(profiles or {}), **axes} if name == "machine" else axes
        for values in product(*axes.values()):
            now = {**settings, **dict(zip(axes, values, strict=True))}
            found.append(Still(now, explorer.svg(picture, explorer.at(**now))))
    return tuple(found)
