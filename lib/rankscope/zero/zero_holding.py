"""What a rank holds of parameters, gradients and optimizer states, by stage and by the way they are divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import attrgetter

from .zero_module import ModuleSizes, Parameter
from .zero_partition import zero_redundancy_partition

_BLOCK = 2048  # elements that share a scale (Dettmers et al., 2022: 8-bit Optimizers via Block-wise Quantization)
Held = Callable[[Parameter], int | Fraction]


@dataclass(frozen=True)
class Recipe:
    """Bytes of an element: of the parameters, the gradients, the master copy (0: there is none), an optimizer state."""

    parameter: int
    gradient: int
    master: int
    state: int

    @property
    def shard(self) -> int:
        """What `fully_shard` keeps: the master copy, or the parameters where they are their own."""
        return self.master or self.parameter


@dataclass(frozen=True)
class Optimizer:
    """How many states an element has, the bytes of each tensor's step counter, and whether states are in 8 bits."""

    num_states: int
    counter_bytes: int = 0
    eight_bit: bool = False

    def element_bytes(self, recipe: Recipe) -> Fraction:
        """Return the bytes of all states of one element; in 8 bits with a float32 scale for each block.

        >>> float(OPTIMIZERS["adam"].element_bytes(RECIPES["mixed"]))
        8.0
        >>> float(OPTIMIZERS["adam_8bit"].element_bytes(RECIPES["mixed"]))
        2.00390625
        """
        return self.num_states * (1 + Fraction(4, _BLOCK) if self.eight_bit else Fraction(recipe.state))


RECIPES = {"fp32": Recipe(4, 4, 0, 4), "mixed": Recipe(2, 2, 4, 4), "bf16": Recipe(2, 2, 0, 2)}
OPTIMIZERS = {"sgd": Optimizer(0), "momentum": Optimizer(1), "adam": Optimizer(2, counter_bytes=4),
              "adam_8bit": Optimizer(2, counter_bytes=4, eight_bit=True)}  # fmt: skip


@dataclass(frozen=True)
class Holding:
    """A rank's bytes of what ZeRO divides; `rank` is the fullest one where it is None."""

    sizes: ModuleSizes
    num_ranks: int
    stage: int
    partition: str
    rank: int | None
    recipe: str
    optimizer: Optimizer

    @property
    def trained(self) -> list[Parameter]:
        return [p for p in self.sizes.parameters if p.trainable]

    def total(self, kind: str, parameters: Iterable[Parameter], held: Held) -> int:
        """Return the bytes of one kind, of as many elements as are held of each of the parameters."""
        return math.ceil(sum((getattr(self._recipe(p), kind) * held(p) for p in parameters), Fraction(0)))

    def shares(self) -> dict[str, int]:
        """Return the terms as the paper divides them: evenly, or whole tensors in stage 1."""
        parameters = self._share if self.stage >= 3 else attrgetter("size")
        gradients = self._share if self.stage >= 2 else attrgetter("size")
        updated = (
            self._whole_tensors if self.partition == "tensors" else self._share if self.stage else attrgetter("size")
        )
        return {
            "parameters": self.total("parameter", self.sizes.parameters, parameters),
            "gradients": self.total("gradient", self.trained, gradients),
            "optimizer_states": self._states(updated),
            "master_copy": self.total("master", self.trained, updated),
            "largest_layer": self._largest_layer("gradient", attrgetter("size")),
        }

    def rows(self) -> dict[str, int]:
        """Return the terms as `fully_shard` divides them, which keeps its shard beside what it gathers.

        Gradients come in the dtype in which they were computed, and are kept in that of the shard.
        """
        everything = self.sizes.parameters
        shard, gradients = (self.total("shard", which, self._bound) for which in (everything, self.trained))
        masters = shard if self.stage == 2 else self.total("master", everything, self._bound)
        gathered = self.total("parameter", everything, self.gathered) if self.stage == 2 else shard - masters
        return {
            "parameters": gathered,
            "gradients": gradients,
            "optimizer_states": self._states(lambda p: p.rows_held(self.num_ranks, self.rank or 0)),
            "master_copy": masters,
            "largest_layer": self._largest_layer("parameter", self.gathered),
        }

    def _states(self, held: Held) -> int:
        elements = sum((held(p) * self.optimizer.element_bytes(self._recipe(p)) for p in self.trained), Fraction(0))
        counters = len(self._own) if self.partition == "tensors" else len(self.trained)
        return math.ceil(elements) + self.optimizer.counter_bytes * counters

    def _largest_layer(self, gradient: str, held: Held) -> int:
        """Gathered parameters in stage 3, and gradients that are still whole in stages 2 and 3."""
        layers = [[self.sizes.parameters[place] for place in layer] for layer in self.sizes.layers]
        trained = [[p for p in layer if p.trainable] for layer in layers]
        gathered = max((self.total("parameter", layer, held) for layer in layers), default=0)
        reduced = max((self.total(gradient, layer, held) for layer in trained), default=0)
        return (gathered if self.stage >= 3 else 0) + (reduced if self.stage >= 2 else 0)

    def _recipe(self, parameter: Parameter) -> Recipe:
        own = parameter.itemsize
        return RECIPES[self.recipe] if self.recipe != "own" and parameter.floating else Recipe(own, own, 0, own)

    def _share(self, parameter: Parameter) -> Fraction:
        return Fraction(parameter.size, self.num_ranks)

    def _bound(self, parameter: Parameter) -> int:
        return parameter.rows_bound(self.num_ranks)

    def gathered(self, parameter: Parameter) -> int:
        """Return how many elements `fully_shard` has of a parameter while it is gathered, padding included."""
        return self.num_ranks * parameter.rows_bound(self.num_ranks)

    def _whole_tensors(self, parameter: Parameter) -> int:
        return parameter.size if parameter.name in self._own else 0

    @cached_property
    def _own(self) -> frozenset[str]:
        """The names of the tensors that the rank updates."""
        dealt = zero_redundancy_partition([p.size for p in self.trained], self.num_ranks)
        places = max(dealt, key=self._updating_bytes) if self.rank is None else dealt[self.rank]
        return frozenset(self.trained[place].name for place in places)

    def _updating_bytes(self, places: Sequence[int]) -> Fraction | int:
        """What a rank holds more for updating these tensors: states, their counters, master copies."""
        mine = [self.trained[place] for place in places]
        held = sum(p.size * (self.optimizer.element_bytes(self._recipe(p)) + self._recipe(p).master) for p in mine)
        return held + self.optimizer.counter_bytes * len(mine)
