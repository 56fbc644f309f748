"""Where FSDP's ranks run. This was DDP's, and leaves with FSDP's own harness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...common.checks import check_field, number, one_of, optional, whole
from ...ranks.host import MOST_RANKS
from ...ranks.launcher import launch

Loss = Callable[..., Any]
Optimizer = Callable[..., Any]
_LEAST_CLEAN = 4  # iterations


def used_iterations(clean: Sequence[bool]) -> tuple[int, ...]:
    """Return the indices of the clean iterations, or of all if fewer than four are clean."""
    used = tuple(index for index, is_clean in enumerate(clean) if is_clean)
    return used if len(used) >= _LEAST_CLEAN else tuple(range(len(clean)))


class Where(msgspec.Struct, frozen=True):
    """Where ranks run, and the time in seconds after which they must have ended.

    Ranks compute on GPUs if the backend is NCCL, else on the CPU. `network` is None for this machine, or an object with
    `num_hosts` hosts, whose ``launch(fn, args, timeout_s, ranks_per_host)`` runs the ranks on them. Raises ValueError
    if the backend is unknown.

    >>> Where(backend="tcp")
    Traceback (most recent call last):
    ValueError: backend must be one of 'gloo', 'nccl', got 'tcp'
    """

    backend: str = "gloo"
    network: Any = None
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        check_field(self, "backend", one_of, ("gloo", "nccl"))
        check_field(self, "timeout_s", number, above=0, high=10**6)

    def launch(self, fn: Callable[..., Any], args: tuple[Any, ...], num_ranks: int | None) -> list[Any]:
        """Run `fn` on the ranks and return its results. Raises ValueError if the network has no hosts for them."""
        optional("num_ranks", num_ranks, whole, 1, MOST_RANKS)
        if self.network is None:
            return launch(fn, num_ranks, args, self.backend, self.timeout_s)
        num_hosts = getattr(self.network, "num_hosts", 0)
        # A network starts its ranks on Gloo: its `launch` takes no backend, and a number of ranks for each host.
        if self.backend != "gloo" or num_ranks is None or num_hosts == 0 or num_ranks % num_hosts:
            wanted = f"one with hosts for {num_ranks} ranks, the same number on each, on Gloo"
            raise ValueError(f"network must be {wanted}, got {self.network!s}")
        results: list[Any] = self.network.launch(fn, args, self.timeout_s, num_ranks // num_hosts)
        return results


HERE = Where()
