"""`Model`: which algorithm and protocol NCCL chooses, what it expects of them, and what machines then take."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ...common.checks import number, of_type, one_of, several, whole
from ...common.frozen import ReadOnly, checked, evolve, frozen, mapping, optional
from .constants import (
    ALGORITHMS,
    COLLECTIVES,
    CORRECTION,
    GPUS,
    MOST_CHANNELS,
    MULTICAST_CHUNK,
    MULTICAST_CHUNKS,
    NET_OVERHEAD,
    NVLS_CHANNELS,
    NVLS_EFFICIENCY,
    NVLS_SPEEDS,
    PLATEAU,
    PROTOCOLS,
    SLICE_BYTES,
    SPEEDS,
    TERMS,
    THREADS,
    THRESHOLD,
    Era,
    GenerationTerms,
    Graph,
    constants,
)
from .log import read_log

if TYPE_CHECKING:
    import pandas as pd

    from .. import Profile

Floats = NDArray[np.float64]
SIZES = tuple(2**power for power in range(10, 40))  # 1 KiB to 512 GiB


def _version(name: str, value: Any) -> tuple[int, int, int]:
    parts = value.split(".") if isinstance(value, str) else value
    if (
        not isinstance(parts, tuple | list)
        or len(parts) not in (2, 3)
        or not all(str(one).isdecimal() for one in parts)
    ):
        raise ValueError(f"{name} must be of NCCL, as in (2, 29) or '2.29.2', got {value!r}")
    found = tuple(int(one) for one in parts)
    if not (2, 19) <= found[:2] <= (2, 99):
        raise ValueError(f"{name} must be NCCL 2.19 or later, got {value!r}")
    return found[0], found[1], found[2] if len(found) == 3 else 99


@attrs.frozen
class Choice:
    """What NCCL runs of a collective at a size: the algorithm, the protocol, and how many channels.

    `nccl_s` is what NCCL expects, `time_s` what a machine takes by the model with the named terms, `terms_s` their sum
    by name.
    """

    collective: str
    num_bytes: int
    algorithm: str
    protocol: str
    channels: int
    nccl_s: float
    time_s: float
    terms_s: Mapping[str, float]


def _graphs(name: str, value: Any) -> ReadOnly:
    found = mapping(name, value)
    for key, graph in found.items():
        of_type(f"{name}[{one_of(f'{name}: algorithm', key, ALGORITHMS)!r}]", graph, Graph)
    return found


@frozen
class Model:
    """NCCL's cost model of a cluster: which algorithm and protocol it chooses for a collective, and what they take.

    `gpu` is one of GPUS, `version` NCCL's, `cpu` "intel", "amd" or "other". `nics` is the number of network cards of a
    node, and `nic_bytes_per_s` what one of them carries; by default a card for each GPU, of the rate that such boxes
    have. `graphs` replaces the paths that NCCL is expected to find, by algorithm ("ring", "tree", "nvls"). `terms` are
    the constants that NCCL's model lacks, by default those of the GPU's generation, and `floor_s` is the least that the
    host takes for a collective; `with_readings` finds them. `printed` is what NCCL's log says, see `from_log`.

    Raises ValueError for anything else.

    >>> model = Model(gpu="h100", gpus_per_node=8, version=(2, 29))
    >>> choice = model.choose("allreduce", 1 << 30)
    >>> choice.algorithm, choice.protocol, f"{choice.nccl_s * 1e3:.2f} ms"
    ('nvls', 'simple', '3.97 ms')
    """

    gpu: str = checked(one_of, tuple(GPUS), default="h100")
    gpus_per_node: int = checked(whole, 1, 72, default=8)
    num_nodes: int = checked(whole, 1, 4096, default=1)
    version: tuple[int, ...] = checked(_version, default=(2, 30))
    cpu: str = checked(one_of, tuple(NET_OVERHEAD), default="intel")
    nics: int | None = checked(optional, whole, 1, 64, default=None)
    nic_bytes_per_s: float | None = checked(optional, number, above=0, default=None)
    graphs: Mapping[str, Graph] = checked(_graphs, factory=dict, hash=False)
    terms: GenerationTerms | None = checked(optional, of_type, GenerationTerms, default=None)
    floor_s: float = checked(number, 0, default=0.0)
    printed: Mapping[tuple[str, str, str], tuple[float, float]] = checked(mapping, factory=dict, hash=False)

    def __attrs_post_init__(self) -> None:
        if self.num_ranks < 2:
            raise ValueError("gpus_per_node must be at least 2 on one node, got 1")

    @property
    def num_ranks(self) -> int:
        return self.gpus_per_node * self.num_nodes

    @property
    def notes(self) -> tuple[str, ...]:
        """What `time_s` does not know, a sentence each."""
        about, found = GPUS[self.gpu], []
        if about.link == "pcie":
            found.append("Over PCIe no published rate predicts times: time_s is NCCL's own, with a launch.")
        if about.generation == "volta":
            found.append("No curves of Volta were there to fit: the terms are Ampere's.")
        if self.num_nodes > 1 and not (self.terms or self.floor_s):
            found.append("Between nodes InfiniBand with GPUDirect is meant; any other network needs with_readings.")
        if self.version > (2, 30, 99):
            found.append("The constants are those of NCCL 2.30.7, the newest known.")
        return tuple(found)

    def choose(self, collective: str, num_bytes: int) -> Choice:
        """Return what NCCL runs of a collective of so many bytes (the whole buffer, as nccl-tests counts them).

        Raises ValueError for a collective that is none of COLLECTIVES, and fewer bytes than 1.
        """
        one_of("collective", collective, COLLECTIVES)
        size = whole("num_bytes", num_bytes, 1, 1 << 50)
        sizes = np.array([float(size)])
        expected = {pair: float(self._nccl_us(collective, *pair, sizes)[0]) for pair in self._eligible(collective)}
        if not expected:
            raise ValueError(f"collective must be one with a bandwidth in NCCL's log, got {collective!r}")
        algorithm, protocol = min(expected, key=lambda pair: expected[pair])
        channels = self._channels(collective, algorithm, protocol, sizes)
        terms = self._terms_us(collective, algorithm, protocol, sizes)
        named = ReadOnly({name: float(one[0]) * 1e-6 for name, one in terms.items()})
        nccl_s = expected[algorithm, protocol] * 1e-6
        return Choice(collective, size, algorithm, protocol, int(channels[0]), nccl_s, sum(named.values()), named)

    def why_not(self, collective: str, algorithm: str, protocol: str) -> str:
        """Return why NCCL does not choose from this algorithm and protocol; an empty text where it may."""
        n, about = self.num_nodes, GPUS[self.gpu]
        if self.printed:
            has = self.printed.get((collective, algorithm, protocol), (0.0, 0.0))[1] > 0
            return "" if has else "NCCL's log has no bandwidth for it"
        if algorithm.startswith("collnet"):
            return "CollNet is off unless NCCL_COLLNET_ENABLE is set"
        if collective in ("broadcast", "reduce") and algorithm != "ring":
            return f"{collective} is a ring only"
        if algorithm == "pat" and (collective == "allreduce" or self.gpus_per_node > 1 or self.version < (2, 23)):
            return "PAT is for allgather and reduce_scatter of one GPU per node, from 2.23 on"
        if algorithm.startswith("nvls"):
            if about.generation not in ("hopper", "blackwell") or about.link != "nvlink" or self.gpus_per_node < 2:
                return "NVLS needs NVSwitch and Hopper or later"
            if algorithm == "nvls" and n > 1:
                return "NVLS between nodes needs CollNet"
            if algorithm == "nvls_tree" and (n == 1 or collective != "allreduce"):
                return "NVLSTree is for allreduce of several nodes"
        if algorithm == "tree" and collective != "allreduce":
            return "the tree is for allreduce"
        if protocol != "simple" and algorithm not in ("tree", "ring"):
            return f"{algorithm} has Simple only"
        if protocol == "ll128" and about.link != "nvlink":
            return "LL128 needs NVLink"
        return ""

    def latency_us(self, collective: str, algorithm: str, protocol: str) -> float:
        """Return NCCL's latency, as its log prints it."""
        if (collective, algorithm, protocol) in self.printed:
            return self.printed[collective, algorithm, protocol][0]
        place, n, ppn, ranks = PROTOCOLS.index(protocol), self.num_nodes, self.gpus_per_node, self.num_ranks
        base, hop = self._constants["BASE"], self._constants["HOP"]
        start = base.get(algorithm, (0, 0, 0))[place]
        intra = hop[GPUS[self.gpu].link].get(algorithm, (0, 0, 0))[place]
        overhead = NET_OVERHEAD[self.cpu] * (3 if protocol == "simple" else 1) if n > 1 else 0
        depth = math.floor(math.log2(n))
        if algorithm == "ring":
            intra = max(intra, overhead)
            if collective in ("broadcast", "reduce"):
                if self.graph("ring").same_channels:
                    return float(start + intra)
                hw = hop[GPUS[self.gpu].link]["tree"][place] if protocol == "simple" else intra
                return float(start + _num_steps(collective, ranks) * hw)
            between = 0 if n == 1 else 2 * (n - 1 + self._era.is_hop_more) if collective == "allreduce" else n - 1
            inter = max(hop["net"]["tree" if ppn == 1 else "ring"][place], overhead)
            return float(start + (_num_steps(collective, ranks) - between) * intra + between * inter)
        inter = max(hop["net"].get(algorithm, (0, 0, 0))[place], overhead)
        if algorithm == "tree":
            return float(start + 2 * ((ppn - 1) * intra + depth * inter))
        if algorithm == "nvls_tree":
            return float(start + intra + 2 * depth * inter)
        return float(start + depth * inter / 3.5 + 2.8 * ranks if algorithm == "pat" else intra)

    def bandwidth(self, collective: str, algorithm: str, protocol: str) -> float:
        """Return NCCL's bandwidth in GB/s of the whole buffer, as its log prints it."""
        if (collective, algorithm, protocol) in self.printed:
            return self.printed[collective, algorithm, protocol][1]
        n, ppn, ranks = self.num_nodes, self.gpus_per_node, self.num_ranks
        graph, era, generation = self.graph(algorithm), self._era, GPUS[self.gpu].generation
        column, channels = min(n - 1, 2), graph.num_channels
        table = {
            name: rows[generation][column] for name, rows in self._constants.items() if name not in ("BASE", "HOP")
        }
        row = generation if n == 1 else "volta" if self.cpu == "intel" else "ampere"
        ll_max = self._constants["LL_MAX"][row][column]
        bus = channels * (graph.intra if n <= 2 else graph.inter)
        ratio = ranks / _num_steps(collective, ranks)
        if algorithm == "ring":
            if protocol == "ll":
                quarter = 1 / 4 if n > 1 or collective in ("allreduce", "reduce") else 1 / 3
                bus = min(ll_max, bus * (0.5 if era.is_ll_half else quarter))
            elif protocol == "ll128":
                share = 0.92 if ppn > 1 else era.ll128_alone
                bus = min(share * bus, channels * table["CHANNEL_RING_LL128"])
            return float(bus * ratio)
        if algorithm == "tree":
            bus = min(0.92 * bus, channels * table["CHANNEL_TREE"])
            if protocol == "ll":
                bus = min(bus / 3.8, ll_max)
            elif protocol == "ll128":
                bus = min(bus * (7 / 9 if n == 1 else 120 / 128), channels * table["CHANNEL_TREE_LL128"])
            return float(bus * (0.85 if graph.is_plain_tree else 1) / 2)
        if algorithm == "pat":
            return 0.75 * bus
        inter = graph.inter if n <= 2 else graph.inter / 2
        is_reduced = collective == "allreduce"  # only then NCCL turns a bus's rate into that of the buffer
        if not era.is_nvls_by_steps:
            rate = min(graph.intra, inter) if n > 1 else graph.intra
            return channels * rate * (5 / 6 if is_reduced else 1)
        share = 2 if is_reduced else (ppn - 1) / ppn
        rate = graph.intra * NVLS_EFFICIENCY[generation] * (channels - 1) / channels * share
        rate = min(rate, graph.inter * (2 if n == 2 else 1), table["CHANNEL_NVLS_TREE"] if n > 1 else math.inf)
        return channels * rate * (ratio if is_reduced else 1)

    def graph(self, algorithm: str) -> Graph:
        """Return the paths of an algorithm: those given, or those that NCCL is expected to find."""
        like = {"nvls_tree": "nvls", "pat": "tree", "collnet_direct": "ring", "collnet_chain": "ring"}.get(
            algorithm, algorithm
        )
        return self.graphs.get(like) or self._expected_graphs[like]

    @cached_property
    def _expected_graphs(self) -> dict[str, Graph]:
        about, ppn = GPUS[self.gpu], self.gpus_per_node
        fits = about.wire / (ppn + 1)  # each GPU is the head of one path, and a member of all
        speeds = NVLS_SPEEDS.get(about.generation, (about.wire,))
        heads = next((speed for speed in speeds if speed <= fits), fits)
        if self.num_nodes == 1:
            channels, rate = about.ring
            tree = Graph(channels, 2 * rate if ppn == 2 else rate, rate, is_plain_tree=False)
            nvls = Graph(min(ppn, MOST_CHANNELS // 2), heads, speeds[0])
            return {"ring": Graph(channels, rate, rate), "tree": tree, "nvls": nvls}
        nic = min((self.nic_bytes_per_s or about.nic * 1e9) / 1e9, about.wire)
        speed = next((one for one in SPEEDS if one <= nic), nic)
        channels, halved = self.nics or ppn, 1
        if speed >= 25 and not (about.generation in ("hopper", "blackwell") and speed < 50 and channels > 4):
            channels, halved = 2 * channels, 2  # few wide paths are made twice as many
        channels = min(channels, MOST_CHANNELS)
        return {
            "ring": Graph(channels, speed / halved, speed / halved, same_channels=False),
            "tree": Graph(channels, max(speed, 48), speed / halved),
            "nvls": Graph(channels, min(heads, speed), speed / halved),
        }

    @property
    def num_channels(self) -> int:
        """How many channels collectives have on this cluster: NCCL doubles those of the paths that it found."""
        ring = self.graph("ring")
        found = min(2 * min(ring.num_channels, self.graph("tree").num_channels), MOST_CHANNELS)
        is_few = self.num_nodes > 1 and found < 16 and ring.intra > 45
        return 2 * found if is_few and GPUS[self.gpu].generation in ("hopper", "blackwell") else found

    @cached_property
    def _era(self) -> Era:
        return constants(self.version)[0]

    @cached_property
    def _constants(self) -> dict[str, Any]:
        return constants(self.version)[1]

    def _eligible(self, collective: str) -> list[tuple[str, str]]:
        return [pair for pair in _PAIRS if not self.why_not(collective, *pair)]

    def _nccl_us(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> Floats:
        late = np.full(sizes.shape, self.latency_us(collective, algorithm, protocol))
        rates = np.full(sizes.shape, self.bandwidth(collective, algorithm, protocol))
        if algorithm == "tree":
            octave = np.log2(np.maximum(sizes / 64, 1)).astype(int)
            inside = (octave < CORRECTION.shape[1]) & (sizes >= 64)
            factors = CORRECTION[PROTOCOLS.index(protocol)][np.minimum(octave, CORRECTION.shape[1] - 1)]
            rates = rates * np.where(inside, factors, 1)
        if (collective, algorithm, protocol) == ("allreduce", "ring", "simple") and self.num_nodes > 1:
            full = sizes / (self.num_channels * self.num_ranks) >= 64
            late = late * np.where(full, PLATEAU[GPUS[self.gpu].generation], 1)
        return np.asarray(late + sizes / (1000 * rates))

    # ---- what machines take

    def times_s(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> Floats:
        """Return the seconds of sizes with the named terms, of an algorithm and a protocol that need not be chosen."""
        named = self._terms_us(collective, algorithm, protocol, sizes)
        return np.asarray(sum(named.values())) * 1e-6

    def _channels(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> Floats:
        """How many channels NCCL uses: no more than give a thread enough bytes, and a channel enough traffic."""
        if algorithm.startswith("nvls"):
            most = np.full(sizes.shape, NVLS_CHANNELS.get(GPUS[self.gpu].generation, self.num_channels))
        else:
            ranks = self.num_ranks if (algorithm, protocol) == ("ring", "ll") else 1
            most = np.clip(sizes // (THREADS[protocol] * THRESHOLD[protocol] * ranks), 1, self.num_channels)
        if not (least := self._era.least_traffic):
            return most
        is_split = collective in ("allgather", "reduce_scatter")
        own = np.ceil(sizes / self.num_ranks) if is_split else sizes  # what a rank brings, or keeps
        a_byte = {"allreduce": 2, "broadcast": 1, "reduce": 1}.get(collective, self.num_ranks)
        a_byte *= 4 if protocol == "ll" else 1
        cell = 16 * math.ceil(math.ceil(least / a_byte) / 16)
        cells, of_channel = np.ceil(own / cell), np.maximum(own * a_byte // most, least)
        return np.asarray(np.minimum(np.ceil(cells / np.ceil(of_channel / (cell * a_byte))), most))

    def _terms_us(self, collective: str, algorithm: str, protocol: str, sizes: Floats) -> dict[str, Floats]:
        """The named terms of the time, in µs."""
        terms, about = self.terms or TERMS[GPUS[self.gpu].generation], GPUS[self.gpu]
        found = {"launch": np.full(sizes.shape, terms.launch_us)}
        if algorithm == "nvls":
            found |= self._nvls_us(terms, collective, sizes)
        elif (algorithm, about.link, self.num_nodes) == ("ring", "nvlink", 1) and collective in COLLECTIVES[2:]:
            found |= self._ring_us(terms, collective, protocol, sizes)
        else:  # no term was found that helps: NCCL's own, with the launch in the place of its base
            latency = self.latency_us(collective, algorithm, protocol)
            base = self._constants["BASE"].get(algorithm, (0, 0, 0))[PROTOCOLS.index(protocol)]
            found["hops"] = np.full(sizes.shape, max(latency - base, 0.0))
            found["bytes"] = self._nccl_us(collective, algorithm, protocol, sizes) - latency
        if self.floor_s:
            found["floor"] = np.maximum(self.floor_s * 1e6 - sum(found.values()), 0)
        return found

    def _ring_us(self, terms: GenerationTerms, collective: str, protocol: str, sizes: Floats) -> dict[str, Floats]:
        graph, steps = self.graph("ring"), _num_steps(collective, self.num_ranks)
        wire = GPUS[self.gpu].wire
        if protocol == "simple":  # in the long run it reaches what NCCL itself expects of the paths
            wire = graph.num_channels * graph.intra
        share = {"ll": 0.5, "ll128": terms.ll128_share, "simple": 1.0}[protocol]
        piece = sizes / self.num_ranks / self._channels(collective, "ring", protocol, sizes)  # a rank's, on a channel
        step = piece / (share * 1000 * wire / self.num_channels)
        found = {"hops": np.full(sizes.shape, steps * terms.hop_us), "bytes": steps * step}
        if protocol == "ll":
            found["tail"] = terms.ll_tail * step
        elif protocol == "ll128":
            found["hops"] = np.full(sizes.shape, terms.ll128_launch_us + steps * terms.ll128_hop_us)
        else:  # two slices at the bandwidth, or one slice and the way: which takes longer, with a soft corner
            loops = np.maximum(np.ceil(piece / SLICE_BYTES), 1)
            one = step / loops
            corner = (one**4 + (one / 2 + terms.simple_hop_us) ** 4) ** 0.25
            found["hops"] = terms.simple_launch_us + loops * steps * (corner - one)
            found["tail"] = terms.simple_tail * step * np.minimum(1, SLICE_BYTES / np.maximum(piece, 1))
        return found | ({"copy": terms.copy * step} if collective == "allgather" else {})

    def _nvls_us(self, terms: GenerationTerms, collective: str, sizes: Floats) -> dict[str, Floats]:
        about, together = GPUS[self.gpu], self._channels(collective, "nvls", "simple", sizes) * self.gpus_per_node
        chunk = np.full(sizes.shape, float(MULTICAST_CHUNK))
        for rounds, least in MULTICAST_CHUNKS:
            chunk = np.where(sizes < rounds * together * chunk, np.minimum(chunk, least), chunk)
        rounds_of = sizes / (together * chunk) + 2
        rate = 1000 * about.wire * NVLS_EFFICIENCY[about.generation]
        return {"hops": rounds_of * terms.nvls_hop * terms.hop_us, "bytes": rounds_of * together * chunk / rate}

    # ---- from a machine of one's own

    def with_readings(self, profile: Profile, fewer: Profile | None = None) -> Model:
        """Return the model with the host's floor, or with launch and hop, as they were measured on the machine itself.

        One profile of as many ranks gives the floor: what its smallest collective of 1 KiB and more takes. With a
        second one of fewer GPUs of one node, the launch and the hop of LL follow from the smallest allgather of each.

        Raises ValueError for profiles without native collectives, and of the wrong number of ranks.
        """
        if profile.num_ranks != self.num_ranks:
            raise ValueError(f"profile must be of {self.num_ranks} ranks, got {profile.num_ranks}")
        terms = self.terms or TERMS[GPUS[self.gpu].generation]
        if fewer is None:
            what, size, reading = _smallest(profile, ("allreduce", "allgather", "reduce_scatter"))
            missing = reading - evolve(self, floor_s=0.0).choose(what, size).time_s
            if missing >= 0:
                return evolve(self, floor_s=reading)
            launch = max(terms.launch_us + missing * 1e6, 0.0)
            return evolve(self, floor_s=0.0, terms=attrs.evolve(terms, launch_us=launch))
        if self.num_nodes > 1 or not 2 <= fewer.num_ranks < profile.num_ranks:
            raise ValueError(f"fewer must be of 2 to {self.num_ranks - 1} ranks of one node, got {fewer.num_ranks}")
        (_, _, many_s), (_, _, few_s) = (_smallest(one, ("allgather",)) for one in (profile, fewer))
        hop = max((many_s - few_s) * 1e6 / (profile.num_ranks - fewer.num_ranks), 0.01)
        launch = max(few_s * 1e6 - (fewer.num_ranks - 1) * hop, 0.0)
        return evolve(self, floor_s=0.0, terms=attrs.evolve(terms, launch_us=launch, hop_us=hop))

    @classmethod
    def from_log(cls, path: str | os.PathLike[str], gpu: str | None = None, **more: Any) -> Model:
        """Return the model of the job whose log this is, with the latencies and bandwidths that NCCL itself printed.

        The job runs with ``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING``. `gpu` is needed where the log names
        no GPU of GPUS; `more` is what `Model` takes, and goes before what the log says.

        Raises ValueError for a log without NCCL's table; OSError where it cannot be opened.
        """
        found = read_log(path, gpu)
        return cls(**{**found, **more})

    def compared(self, collective: str, sizes: Sequence[int] = SIZES) -> dict[tuple[str, str], tuple[Floats, ...]]:
        """Return what NCCL compares: channels, the seconds it expects and those of a machine, each by size.

        Keys are algorithm and protocol. Raises ValueError for sizes below 1 and another collective.
        """
        one_of("collective", collective, COLLECTIVES)
        wanted = np.array([whole("size", one, 1, 1 << 50) for one in several("sizes", sizes)], float)
        takes = [(collective, *pair, wanted) for pair in self._eligible(collective)]
        return {one[1:3]: (self._channels(*one), 1e-6 * self._nccl_us(*one), self.times_s(*one)) for one in takes}

    def table(self, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
        """Return every collective, algorithm, protocol and size as a DataFrame, and which of them NCCL chooses.

        `why_not` says why one is not eligible; its figures are not numbers. Raises ValueError for sizes below 1.
        """
        import pandas as pd

        wanted = np.array([whole("size", one, 1, 1 << 50) for one in several("sizes", sizes)], np.int64)
        nothing, rows = (np.full(wanted.shape, np.nan),) * 3, []
        for collective in COLLECTIVES:
            known = self.compared(collective, wanted.tolist())
            block = [(collective, *pair, self.why_not(collective, *pair), *known.get(pair, nothing)) for pair in _PAIRS]
            least = np.argmin(np.nan_to_num(np.array([row[5] for row in block]), nan=np.inf), axis=0)
            rows += [(*row, (least == place) & (row[3] == "")) for place, row in enumerate(block)]
        *words, channels, nccl_s, time_s, is_chosen = zip(*rows, strict=True)
        names = ("collective", "algorithm", "protocol", "why_not")
        found = {name: np.repeat(np.array(one, object), len(wanted)) for name, one in zip(names, words, strict=True)}
        figures = {"channels": channels, "nccl_s": nccl_s, "time_s": time_s, "is_chosen": is_chosen}
        found |= {"num_bytes": np.tile(wanted, len(rows))}
        found |= {name: np.concatenate(one) for name, one in figures.items()}
        return pd.DataFrame(found)


def _smallest(profile: Profile, collectives: tuple[str, ...]) -> tuple[str, int, float]:
    """The collective, the bytes and the seconds of the smallest native point of 1 KiB and more."""
    found: list[tuple[int, str, list[float]]] = []
    for collective in collectives:
        for size, points in profile.native_points(collective).items():
            if size >= 1024:
                found.append((size, collective, [point.median_s for point in points]))
    if not found:
        raise ValueError(f"profile must have native points of {' or '.join(collectives)}, of 1 KiB and more")
    size, collective, medians_s = min(found, key=lambda one: one[0])
    return collective, size, float(np.median(medians_s))


_PAIRS = tuple((algorithm, protocol) for algorithm in ALGORITHMS for protocol in PROTOCOLS)


def _num_steps(collective: str, num_ranks: int) -> int:
    once = num_ranks - 1
    return {"allreduce": 2 * once, "allgather": once, "reduce_scatter": once}.get(collective, num_ranks)
