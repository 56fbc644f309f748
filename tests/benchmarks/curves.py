"""How far curves are off at sizes that were left out: python -m tests.benchmarks.curves.

The curves are all those of at least 12 sizes in the bank of machines. Every second size is
left out, first those in odd places and then those in even ones. The peer is one line, α + size / B, fitted to the very
sizes that the curve knows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankscope.box import fit_link
from tests.box.published import Left, Published, left_out, published

Floats = NDArray[np.float64]


def peer(curves: list[Published], first: int) -> Floats:
    """Return the errors of one line, which `fit_link` fits to every second size from its first one on."""
    errors = []
    for measured in curves:
        sizes = list(measured.measured_s)
        fit = fit_link(sizes[first:], [measured.measured_s[size] for size in sizes[first:]])
        errors += [fit.link.seconds(size) / measured.measured_s[size] - 1 for size in sizes[1 - first :: 2]]
    return np.array(errors)


def row(name: str, errors: Floats) -> str:
    off = 100 * np.abs(errors)
    return f"{name:34}{off.size:6}{np.median(off):8.2f}{np.percentile(off, 90):8.1f}{off.max():8.0f}"


def inside(left: Left) -> bool:
    sizes = [size for size in left.known.measured_s if size]
    return sizes[0] < left.num_bytes < sizes[-1]


def table(curves: list[Published]) -> None:
    """Print the errors of the curve, of its peers, and of parts of the sizes."""
    both = [list(left_out(curves, first)) for first in (0, 1)]
    left = both[0] + both[1]
    errors = np.array([size_left.error for size_left in left])
    where = {
        "between sizes": [inside(size_left) for size_left in left],
        "outside of them": [not inside(size_left) for size_left in left],
        "below 64 KiB": [size_left.num_bytes < 2**16 for size_left in left],
        "from 64 KiB, below 64 MiB": [2**16 <= size_left.num_bytes < 2**26 for size_left in left],
        "from 64 MiB": [size_left.num_bytes >= 2**26 for size_left in left],
    }
    print(f"{len(curves)} curves of {len({measured.machine for measured in curves})} machines; errors in %")
    print(f"{'':34}{'sizes':>6}{'median':>8}{'p90':>8}{'worst':>8}")
    print(row("curve", errors))
    for first, some in enumerate(both):
        chosen = np.array([size_left.error for size_left in some])
        print(row(f"  {('odd', 'even')[first]} places left out", chosen))
    for name, mask in where.items():
        print(row(f"  {name}", errors[mask]))
    print(row("one line, α + size / B", np.concatenate([peer(curves, first) for first in (0, 1)])))


if __name__ == "__main__":
    table(list(published()))
