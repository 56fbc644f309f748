"""`Model`: which algorithm and protocol NCCL chooses, what it expects of them, and what machines then take."""

from __future__ import annotations

from typing import NamedTuple

from ...common.checks import whole
from .constants import LIMITS
from .machine import UNSTATED_PATCH
from .times import terms_us
from .tuner import Tuner

_NAMES = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}  # of protocols


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

    @property
    def words(self) -> str:
        """The algorithm and the protocol; of NVLS, which has only one, the algorithm."""
        if self.algorithm.startswith("nvls"):
            return self.algorithm.replace("nvls", "NVLS").replace("_", " ")
        return f"{self.algorithm} {_NAMES[self.protocol]}"


class Model(Tuner, frozen=True, dict=True, eq=False):
    """NCCL's cost model of a cluster: the algorithm and protocol that it chooses for a collective, and their times.

    `gpu` is one of GPUS, and `version` is NCCL's. Each node has `nics` network cards of `nic_bytes_per_s` each; by
    default one card per GPU, at the usual rate of such machines. `graphs` replaces the paths that NCCL is expected to
    find, by algorithm ("ring", "tree", "nvls"). `terms` are the constants that NCCL's model omits, by default those of
    the GPU's generation.

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
        if self.version > (2, 30, UNSTATED_PATCH):
            notes.append("The constants are those of NCCL 2.30.7, the latest known version.")
        return notes

    def compare(self, collective: str, num_bytes: int) -> list[Estimate]:
        """Return the estimates that NCCL compares, its choice first.

        `num_bytes` is the size of the buffer as nccl-tests counts it. Raises ValueError if the collective is not in
        COLLECTIVES, or if `num_bytes` is below 1.
        """
        whole("num_bytes", num_bytes, 1)
        estimates = []
        for pair in self.eligible(collective):
            channels = self.channels(collective, *pair, num_bytes)
            nccl_us = self.expected_us(collective, *pair, num_bytes)
            terms = terms_us(self, collective, *pair, num_bytes, channels)
            terms_s = {name: term_us * 1e-6 for name, term_us in terms.items()}
            estimates.append(Estimate(*pair, channels, nccl_us * 1e-6, terms_s))
        return sorted(estimates, key=lambda estimate: estimate.nccl_s)

    def choose(self, collective: str, num_bytes: int) -> Estimate:
        """Return NCCL's choice: the pair whose time it expects to be the lowest.

        Raises as `compare`.
        """
        return self.compare(collective, num_bytes)[0]
