"""`Model`: which algorithm and protocol NCCL chooses, what it expects of them, and what machines then take."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from ...common.checks import whole
from .constants import LIMITS
from .log import read_log
from .machine import UNSTATED_PATCH
from .times import terms_us
from .tuner import Tuner

if TYPE_CHECKING:
    from ..profile import Profile

_LEAST_READING_BYTES = 1024  # the smallest size of the curves that the terms were fitted to


class Estimate(NamedTuple):
    """An algorithm and a protocol for a collective at a size.

    `channels` is the number that NCCL uses, and `nccl_s` the time that it expects. `time_s` is the time that a machine
    needs by this package's model, which is the sum of its named terms, `terms_s`.
    """

    algorithm: str
    protocol: str
    channels: int
    nccl_s: float
    terms_s: dict[str, float]

    @property
    def time_s(self) -> float:
        return sum(self.terms_s.values())


class Model(Tuner, frozen=True, dict=True, eq=False):
    """NCCL's cost model of a cluster: the algorithm and protocol that it chooses for a collective, and their times.

    `gpu` is one of GPUS, `version` is NCCL's, and `cpu` is "intel", "amd" or "other". Each node has `nics` network
    cards of `nic_bytes_per_s` each; by default one card per GPU, at the usual rate of such machines. `graphs` replaces
    the paths that NCCL is expected to find, by algorithm ("ring", "tree", "nvls"). `terms` are the constants that
    NCCL's model omits, by default those of the GPU's generation; `minimum_s` is the minimum host time per collective.
    `with_readings` determines it from measurements. `printed` contains the figures of NCCL's log; see `from_log`.

    Raises ValueError if an argument is out of range or unknown.

    >>> choice = Model(gpu="h100", gpus_per_node=8, version=(2, 29)).choose("allreduce", 1 << 30)
    >>> choice.algorithm, choice.protocol, f"{choice.nccl_s * 1e3:.2f} ms"
    ('nvls', 'simple', '3.97 ms')
    """

    @property
    def network(self) -> str:
        """What data cross, one of LIMITS: "NVLink", "PCIe" or, between nodes, "InfiniBand"."""
        if self.num_nodes > 1:
            return "InfiniBand"
        return "NVLink" if self.is_on_nvlink else "PCIe"

    @property
    def notes(self) -> list[str]:
        """The limitations of `time_s`."""
        notes = [LIMITS[self.network]]
        if self.facts.generation == "volta":
            notes.append("No measurements of Volta were available to fit, so the terms are those of Ampere.")
        if self.version > (2, 30, UNSTATED_PATCH):
            notes.append("The constants are those of NCCL 2.30.7, the latest known version.")
        return notes

    def compare(self, collective: str, num_bytes: int) -> list[Estimate]:
        """Return the estimates that NCCL compares, for a buffer of `num_bytes` as nccl-tests counts them.

        Raises ValueError if the collective is not in COLLECTIVES, or if `num_bytes` is below 1.
        """
        whole("num_bytes", num_bytes, 1)
        estimates = []
        for pair in self.eligible(collective):
            channels = self.channels(collective, *pair, num_bytes)
            nccl_us = self.expected_us(collective, *pair, num_bytes)
            terms = terms_us(self, collective, *pair, num_bytes, channels)
            terms_s = {name: term_us * 1e-6 for name, term_us in terms.items()}
            estimates.append(Estimate(*pair, channels, nccl_us * 1e-6, terms_s))
        return estimates

    def choose(self, collective: str, num_bytes: int) -> Estimate:
        """Return NCCL's choice: the pair whose time it expects to be the lowest.

        Raises as `compare`, and if NCCL's log states no bandwidth for the collective.
        """
        estimates = self.compare(collective, num_bytes)
        if not estimates:
            raise ValueError(f"collective must be one with a bandwidth in NCCL's log, got {collective!r}")
        return min(estimates, key=lambda estimate: estimate.nccl_s)

    def with_readings(self, profile: Profile) -> Model:
        """Return the model with the host's minimum time, from a profile with the model's number of ranks.

        It is the time of the smallest native allreduce of at least 1 KiB. If the model is slower than that, its launch
        becomes shorter instead. Raises ValueError if the profile has none, or another number of ranks.
        """
        if profile.num_ranks != self.num_ranks:
            raise ValueError(f"profile must be of {self.num_ranks} ranks, got {profile.num_ranks}")
        readings = profile.native_s("allreduce")
        num_bytes = min([size for size in readings if size >= _LEAST_READING_BYTES], default=0)
        if not num_bytes:
            raise ValueError("profile must have a native allreduce of 1 KiB or more")
        seconds = readings[num_bytes]
        missing_s = seconds - replace(self, minimum_s=0.0).choose("allreduce", num_bytes).time_s
        if missing_s >= 0:
            return replace(self, minimum_s=seconds)
        terms = self.terms or self.generation.terms
        launch_us = max(terms.launch_us + missing_s * 1e6, 0.0)
        return replace(self, minimum_s=0.0, terms=replace(terms, launch_us=launch_us))

    @classmethod
    def from_log(cls, path: str | os.PathLike[str], gpu: str | None = None, **arguments: Any) -> Model:
        """Return the model of a job from its log, with the latencies and bandwidths that NCCL itself printed.

        The job runs with ``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING``. `gpu` is required if the log does not
        name exactly one GPU of GPUS. `arguments` are further arguments of `Model`; they override the log.

        Raises ValueError if the log does not contain NCCL's tuning table; OSError if it cannot be opened.
        """
        return cls(**{**read_log(path, gpu), **arguments})
