"""Bytes over time: those that a model predicts, by term, and those of live tensors in a real run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...common.units import decimal_words
from ...timeline.spans import Times

# The terms of a rank's memory, and what each one is.
TERMS = {
    "parameters": "the rank's shards, padding included",
    "optimizer_states": "of the rank's shards",
    "buffers": "of the module, whole on every rank",
    "gathered_parameters": "whole parameters of the groups that are in use, padding included",
    "gather_buffers": "what all-gathers write to, until it is copied to the parameters",
    "gradients": "whole ones until they are reduced, and then the rank's shard",
    "reduce_buffers": "what reduce-scatters read, until the next group is done",
    "activations": "what forward keeps for backward, and temporary tensors of the module",
}


class LiveBytes(msgspec.Struct, frozen=True, eq=False):
    """The live bytes of a rank: ``num_bytes[i]`` from ``at_s[i]`` until the next instant."""

    at_s: Times
    num_bytes: NDArray[np.int64]

    @property
    def peak_bytes(self) -> int:
        return int(self.num_bytes.max(initial=0))


class PredictedMemory(msgspec.Struct, frozen=True, eq=False):
    """The bytes of a rank over one step, by term: ``terms[name][i]`` from ``at_s[i]`` until the next instant.

    `doing` names the rank's activity at each instant.
    """

    at_s: Times
    terms: Mapping[str, NDArray[np.int64]]
    doing: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """The sum of all terms at each instant."""
        total: NDArray[np.int64] = np.sum(list(self.terms.values()), axis=0)
        return total

    @property
    def peak_place(self) -> int:
        """The index, in `at_s` and `terms`, of the first instant at which the sum is largest."""
        return int(self.num_bytes.argmax())

    @property
    def peak_bytes(self) -> int:
        return int(self.num_bytes.max(initial=0))

    @property
    def peak_terms(self) -> dict[str, int]:
        """The bytes of each term at the peak, the largest first."""
        index = self.peak_place
        sizes = {name: int(values[index]) for name, values in self.terms.items()}
        names = sorted(sizes, key=lambda name: -sizes[name])
        return {name: sizes[name] for name in names}

    def __str__(self) -> str:
        if not self.at_s.size:  # a step whose parameters have no elements: nothing is allocated
            return "peak 0 B"
        lines = [f"peak {decimal_words(self.peak_bytes)}, during {self.doing[self.peak_place]}"]
        for name, num_bytes in self.peak_terms.items():
            if num_bytes:
                lines.append(f"  {name:<20}{decimal_words(num_bytes):>9}")
        return "\n".join(lines)
