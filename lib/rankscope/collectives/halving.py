"""Allreduce between pairs at growing distances: log₂N steps for powers of two, fold and unfold for other N.

Recursive halving and doubling: Rabenseifner (2004); Thakur, Rabenseifner and Gropp (2005). Swing: De Sensi and others
(2024), Swing: short-cutting rings for higher bandwidth allreduce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..checks import whole
from .schedule import Ints, Phase, Schedule


def recursive_doubling(num_ranks: int) -> Schedule:
    """The butterfly: in step k ranks that differ in bit k exchange and add whole buffers.

    Where N is no power of two, the first 2(N - p) ranks fold onto half of them before and unfold after, p = 2^⌊log₂N⌋.
    """

    def core(p: int, real: Ints) -> Iterator[Phase]:
        places = np.arange(p)
        for k in range(p.bit_length() - 1):
            yield Phase(real, real[places ^ (1 << k)], 0, 1, True)

    return _folded("recursive_doubling", num_ranks, 1, core)


def halving_doubling(num_ranks: int) -> Schedule:
    """Reduce-scatter by halving what is exchanged while distance doubles, then allgather the other way round.

    The largest messages go to the nearest ranks. Other N fold and unfold as in `recursive_doubling`.
    """

    def core(p: int, real: Ints) -> Iterator[Phase]:
        places, keep, back = np.arange(p), np.zeros(p, dtype=np.int64), []
        for k in range(p.bit_length() - 1):
            peer, half = places ^ (1 << k), p >> (k + 1)
            upper = (places >> k & 1) * half
            yield Phase(real, real[peer], keep + half - upper, half, True)  # what the peer keeps
            keep = keep + upper
            back.append(Phase(real, real[peer], keep, half))
        yield from reversed(back)

    p = _power(whole("num_ranks", num_ranks, 1))
    return _folded("halving_doubling", num_ranks, p, core)


def swing(num_ranks: int) -> Schedule:
    """Halving and doubling with peers that swing round a ring, at distances 1, 1, 3, 5, 11, …: short ways on a torus.

    On a network where all pairs are joined alike it costs what `halving_doubling` does. Other N fold and unfold.
    """

    def core(p: int, real: Ints) -> Iterator[Phase]:
        rounds = p.bit_length() - 1
        peers = [swing_peers(p, k) for k in range(rounds)]
        # blocks[k][r]: what rank r is to have summed after k rounds, and what its later peers pass on from it
        blocks = [np.arange(p)[:, None]]
        for peer in reversed(peers):
            blocks.append(np.concatenate([blocks[-1], blocks[-1][peer]], axis=1))
        blocks.reverse()
        back = []
        for peer, block in zip(peers, blocks[1:], strict=True):
            src, dst = np.repeat(real, block.shape[1]), np.repeat(real[peer], block.shape[1])
            yield Phase(src, dst, block[peer].ravel(), 1, True)
            back.append(Phase(src, dst, block.ravel()))
        yield from reversed(back)

    p = _power(whole("num_ranks", num_ranks, 1))
    return _folded("swing", num_ranks, p, core)


def swing_peers(num_ranks: int, step: int) -> Ints:
    """Return each rank's peer: even ranks look ahead by the sum of (-2)^i up to `step`, odd ones back.

    >>> swing_peers(8, 0).tolist(), swing_peers(8, 1).tolist()
    ([1, 0, 3, 2, 5, 4, 7, 6], [7, 2, 1, 4, 3, 6, 5, 0])
    """
    ranks = np.arange(num_ranks)
    distance = (1 - (-2) ** (step + 1)) // 3
    return np.asarray((ranks + np.where(ranks % 2 == 0, distance, -distance)) % num_ranks)


def _power(num_ranks: int) -> int:
    return 1 << (num_ranks.bit_length() - 1)


def _folded(algorithm: str, num_ranks: int, num_chunks: int, core: Callable[[int, Ints], Iterator[Phase]]) -> Schedule:
    """`core(p, ranks)` among p ranks, a power of two; before it the others hand their share to one of them."""
    n = whole("num_ranks", num_ranks, 1)
    p = _power(n)
    folded = np.arange(0, 2 * (n - p), 2)
    real = np.r_[folded + 1, np.arange(2 * (n - p), n)]

    def phases() -> Iterator[Phase]:
        if folded.size:
            yield Phase(folded, folded + 1, 0, num_chunks, True)
        yield from core(p, real)
        if folded.size:
            yield Phase(folded + 1, folded, 0, num_chunks)

    return Schedule("allreduce", algorithm, n, num_chunks, phases)
