"""The list of networks of explorers that need the cost of an allreduce, and the settings that belong to it.

A `Networks` has those of `box.networks`, profiles of one's own before them, and "latency and bandwidth", which
two sliders set, after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ..box.networks import Network, network_of, registered
from ..box.profile import Profile
from ..cluster import Link
from ..common.checks import of_type
from ..common.units import bytes_words
from ..networks import Cost, ring_cost
from ..panel.explorer import Now, Setting, Steps

BY_HAND = "latency and bandwidth"


def _by_hand(now: Now) -> bool:
    return bool(now.network == BY_HAND)


class Networks:
    """The networks that an explorer offers, by name.

    Raises ValueError if `profiles` are not profiles by name, and for one without the backend's own allreduce.
    """

    def __init__(self, profiles: Mapping[str, Profile] | None = None) -> None:
        own = {}
        for name, profile in of_type("profiles", {} if profiles is None else profiles, dict).items():
            own[name] = network_of(name, of_type(f"profiles[{name!r}]", profile, Profile))
        self.by_name = own | registered() | own  # one's own come first, and take the place of others of the same name
        self.default = next(iter(own), BY_HAND)  # on which any number of ranks can be chosen
        self.default_ranks = own[self.default].num_ranks if own else 32

    def settings(self) -> tuple[Setting, ...]:
        """Return the settings of the network, the number of ranks, and latency and bandwidth by hand."""
        choices = [(network.label, name) for name, network in self.by_name.items()]
        choices.append((f"{BY_HAND}, by hand", BY_HAND))
        return (
            Setting("network", self.default, choices, "network"),
            Setting(
                "num_ranks",
                self.default_ranks,
                Steps(2**power for power in range(1, 13)),
                "ranks",
                lambda now: self._network(now).num_ranks is None,
                most=4096,
            ),
            Setting("alpha_us", 10, Steps((0, 1, 2, 5, 10, 20, 50, 100, 200, 500)), "latency (α) [µs]", _by_hand),
            Setting("gb_per_s", 25, Steps((1, 2, 3, 5, 10, 25, 50, 100, 200, 400)), "bandwidth (B) [GB/s]", _by_hand),
        )

    def _network(self, now: Now) -> Network:
        if not _by_hand(now):
            return self.by_name[now.network]
        ring = partial(ring_cost, Link(now.alpha_us / 1e6, now.gb_per_s * 1e9))
        about = f"network: a ring with links of {now.alpha_us} µs and {now.gb_per_s} GB/s"
        return Network(BY_HAND, ring, (about,))

    def num_ranks(self, now: Now) -> int:
        """Return the number of ranks: the network's own if it has one, whatever its control says."""
        return int(self._network(now).num_ranks or now.num_ranks)

    def cost(self, now: Now) -> Cost:
        """Return the cost of an allreduce: the network's, or that of a ring over links set by hand."""
        return self._network(now).cost(now.num_ranks)

    def about(self, now: Now, most_bytes: float) -> list[str]:
        """Return where the times are from, and whether those of up to `most_bytes` are extrapolated."""
        network = self._network(now)
        lines = list(network.about)
        if most_bytes > network.most_bytes:
            measured = bytes_words(network.most_bytes)
            lines.append(f"beyond {measured}, the largest size that was measured, times are extrapolated")
        return lines
