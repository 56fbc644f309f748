"""`multiples`: what an explorer shows at some of its settings, for pages on which nothing can be moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

from ..machine import Profile
from ..values.checks import one_of
from .machine import Machines
from .transfers import Copies


@dataclass(frozen=True)
class Multiple:
    """A picture, as SVG, of an explorer with `settings`; those that are not named are as the explorer starts."""

    settings: dict[str, Any]
    svg: str

    @property
    def caption(self) -> str:
        """The settings as one writes them: ``num_workers=2, ordered=True``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())


# Of each explorer, the functions that paint it, and the values of two settings at whose combinations they do.
_SHOWN: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
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
    "pipeline_parallel": {"picture": {"schedule": ("gpipe", "interleaved_1f1b"), "num_ranks": (2, 4)}},
}


def multiples(name: str, profiles: Mapping[str, Profile] | None = None, **settings: Any) -> tuple[Multiple, ...]:
    """Return pictures of `explorers.<name>`, at each combination of a few values of one or two of its settings.

    `settings` replace those with which the explorer starts. That of machines needs `profiles`, by name. Raises
    ValueError for an explorer that has no such pictures, and for settings as the explorer itself does.

    >>> [one.caption for one in multiples("samplers", size=10)][:2]
    ['size=10, num_ranks=4, drop_last=False', 'size=10, num_ranks=4, drop_last=True']
    """
    shown = _SHOWN[one_of("name", name, tuple(_SHOWN))]
    painter = _painter(name, profiles)
    found = []
    for picture, axes in shown.items():
        axes = {"profile": tuple(painter.profiles), **axes} if name == "machine" else axes
        for values in product(*axes.values()):
            now = {**settings, **dict(zip(axes, values, strict=True))}
            found.append(Multiple(now, getattr(painter, picture)(**now)))
    return tuple(found)


def _painter(name: str, profiles: Mapping[str, Profile] | None) -> Any:
    """What has the functions that paint: the explorer's module, or what it makes of the profiles."""
    if name == "machine":
        return Machines(profiles or {})
    return Copies() if name == "transfers" else import_module(f".{name}", __package__)
