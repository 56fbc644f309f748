"""A sampler of one's own: its arguments, recognised by their names, and what all ranks read in an epoch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from ...common.checks import function
from ...common.words import and_joined, one_line
from ..assignment import Assignment
from ..samplers.wrapping import layers_of
from .generators import shared_left_alone

_ROLES = ("dataset", "size", "num_ranks", "rank", "batch_size", "shuffle", "drop_last", "seed", "epoch")
# Other names that people give to arguments of these roles.
_ALIASES = {
    "data_source": "dataset",
    "num_replicas": "num_ranks",
    "world_size": "num_ranks",
}
_MOST_ITEMS = 1_000_000  # of a rank in an epoch: a sampler that yields more may never end


class OwnSampler:
    """A class or a function that returns the sampler of a rank, or its indices.

    `arguments` maps the role of each argument that is known to its name. Roles are "dataset" or "size", "num_ranks" and
    "rank", and any of "batch_size", "shuffle", "drop_last", "seed" and "epoch". What a
    `functools.partial` sets stays as it is. Raises ValueError if an argument without a default is not known, or if
    there is none for the dataset, the number of ranks or the rank.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = function("a sampler of your own", make, "or a class that returns the sampler of a rank")
        self.name = getattr(getattr(make, "func", make), "__name__", type(make).__name__)
        fixed = getattr(make, "keywords", {})  # of a functools.partial
        self.arguments: dict[str, str] = {}
        lacking = []
        for name, parameter in inspect.signature(make).parameters.items():
            role = _ALIASES.get(name, name)
            if role in _ROLES and name not in fixed:
                self.arguments.setdefault(role, name)
            elif parameter.default is parameter.empty and "*" not in str(parameter):
                lacking.append(f"a value for {name}")
        needed = ("size" if "size" in self.arguments else "dataset", "num_ranks", "rank")
        lacking += [f"an argument for {role}" for role in needed if role not in self.arguments]
        if lacking:
            raise ValueError(
                f"{self.name} lacks {and_joined(lacking)}. Pass a function that has torch's arguments and calls it, as "
                f"in lambda dataset, num_replicas, rank: {self.name}(…)"
            )

    def epochs(self, **settings: Any) -> tuple[str, list[Assignment]]:
        """Return the sampler in words, and what the ranks read in an epoch, after the one before if there is one.

        None of the ranks seeds the generators that its process shares. `settings` are `size`, `num_ranks`, `epoch`,
        `batch_size` and those of `arguments`, by role. All epochs are read, because a sampler may count them; it is
        made anew if it takes the epoch, or if it can be iterated only once. Raises ValueError with what the sampler
        raised, or if it does not seem to end.
        """
        name = self.name
        samplers: list[Any] = []
        assignments = []
        with shared_left_alone():
            try:
                for rank in range(settings["num_ranks"]):
                    if any(True for _ in islice(self._made(settings, rank, epoch=0), _MOST_ITEMS, None)):
                        raise ValueError(f"rank {rank} yields more than {_MOST_ITEMS:,} times, and may never end")
                for epoch in range(settings["epoch"] + 1):
                    if not samplers or "epoch" in self.arguments or isinstance(samplers[0], Iterator):
                        samplers = [self._made(settings, rank, epoch) for rank in range(settings["num_ranks"])]
                    for sampler in samplers:
                        settable = [layer for layer in layers_of(sampler) if hasattr(layer, "set_epoch")]
                        if settable:
                            settable[0].set_epoch(epoch)
                        elif "epoch" not in self.arguments:
                            name = f"{self.name}, no set_epoch"
                    assignments.append(Assignment.collect(samplers, settings["size"], epoch))
            except Exception as error:
                raise ValueError(one_line(f"{self.name} raised {type(error).__name__}: {error}")) from error
        if assignments[0].batch_stops is None:
            assignments = [assignment.with_loader(settings["batch_size"]) for assignment in assignments]
        return f"{name}: ", assignments[-2:]

    def _made(self, settings: Mapping[str, Any], rank: int, epoch: int) -> Any:
        values = {**settings, "dataset": range(settings["size"]), "rank": rank, "epoch": epoch}
        return self.make(**{name: values[role] for role, name in self.arguments.items()})
