"""How far curves are off at sizes that were left out: python -m tests.benchmarks.curves.

The curves are all those of at least 12 sizes that published logs hold (../shared/measurements). Every second size is
left out, first those in odd places and then those in even ones. The peer is one line, α + size / B, fitted to the very
sizes that the curve knows. With --calibrate the constants of `machine.curve` are
found again, on each half of the machines and held against the other half, and on all.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from rankscope.box import curve, fit_link
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


def row(name: str, errors: Floats, suffix: str = "") -> str:
    off = 100 * np.abs(errors)
    return f"{name:34}{off.size:6}{np.median(off):8.2f}{np.percentile(off, 90):8.1f}{off.max():8.0f}  {suffix}"


def inside(left: Left) -> bool:
    sizes = [size for size in left.known.measured_s if size]
    return sizes[0] < left.num_bytes < sizes[-1]


def table(curves: list[Published]) -> None:
    """Print the errors of the curve, of its peers, and of parts of the sizes."""
    both = [list(left_out(curves, first)) for first in (0, 1)]
    left = both[0] + both[1]
    errors, holds = np.array([size_left.error for size_left in left]), np.array([size_left.holds for size_left in left])
    where = {
        "between sizes": [inside(size_left) for size_left in left],
        "outside of them": [not inside(size_left) for size_left in left],
        "below 64 KiB": [size_left.num_bytes < 2**16 for size_left in left],
        "from 64 KiB, below 64 MiB": [2**16 <= size_left.num_bytes < 2**26 for size_left in left],
        "from 64 MiB": [size_left.num_bytes >= 2**26 for size_left in left],
    }
    print(f"{len(curves)} curves of {len({measured.machine for measured in curves})} machines; errors in %")
    print(f"{'':34}{'sizes':>6}{'median':>8}{'p90':>8}{'worst':>8}  in the 90 % interval")
    print(row("curve", errors, f"{holds.mean():.1%}"))
    for first, some in enumerate(both):
        chosen = np.array([size_left.error for size_left in some])
        print(
            row(
                f"  {('odd', 'even')[first]} places left out",
                chosen,
                f"{np.mean([size_left.holds for size_left in some]):.1%}",
            )
        )
    for name, mask in where.items():
        print(row(f"  {name}", errors[mask], f"{holds[mask].mean():.1%}"))
    print(row("one line, α + size / B", np.concatenate([peer(curves, first) for first in (0, 1)])))


def residuals(curves: list[Published]) -> Floats:
    """What leaving out each size of thinned curves in turn leaves, per octave."""
    known = {id(size_left.known): size_left.known for first in (0, 1) for size_left in left_out(curves, first)}
    return np.concatenate([size_left._residuals[1] for size_left in known.values()])


def scores(curves: list[Published]) -> Floats:
    """How far each size left out is off, by its scale and its distance."""
    distances = []
    for size_left in (size_left for first in (0, 1) for size_left in left_out(curves, first)):
        low, high = size_left.known.interval_s(size_left.num_bytes)
        scale = max(math.log(high / low) / 2 / curve._WIDE, 1e-12)
        distances.append(abs(math.log(size_left.known.seconds(size_left.num_bytes) / size_left.seconds)) / scale)
    return np.array(distances)


def twins(curves: list[Published]) -> Floats:
    """How far the same allreduces in place and out of place differ, by the scale: at which distance they would lie."""
    by_name, distances = {measured.name: measured for measured in curves}, []
    for name, measured in by_name.items():
        other = by_name.get(name.replace("('in_place', True)", "('in_place', False)"))
        if other and other is not measured and "allreduce" in name:
            known = curve.Curve(measured.measured_s)
            for size in measured.measured_s.keys() & other.measured_s.keys():
                low, high = known.interval_s(size)
                off = abs(math.log(measured.measured_s[size] / other.measured_s[size]))
                distances.append(curve._LEAST_OCTAVES * off / (math.log(high / low) / 2))
    return np.array(distances)


def calibrate(curves: list[Published]) -> None:
    """Print the constants of `machine.curve`, found on some machines, and what the interval then holds of others."""
    machines = sorted({measured.machine for measured in curves})
    halves = [[measured for measured in curves if machines.index(measured.machine) % 2 == half] for half in (0, 1)]
    stored = curve._TYPICAL
    for name, some, others in (("first half", *halves), ("second half", *halves[::-1]), ("all", curves, curves)):
        curve._TYPICAL = float(np.median(residuals(some)))
        wide = float(np.percentile(scores(some), 90))
        held = float(np.mean(scores(others) <= wide))
        which = "them" if some is others else "the other half"
        print(f"{name}: _TYPICAL {curve._TYPICAL:.3f}, _WIDE {wide:.2f}, which holds {held:.1%} of {which}")
    curve._TYPICAL = stored
    print(f"_LEAST_OCTAVES {np.percentile(twins(curves), 90):.2f}: 90 % of allreduces in place against out of place")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibrate", action="store_true", help="find the constants of machine.curve again")
    chosen = list(published())
    if not chosen:
        print("no published logs were found in ../shared/measurements")
    elif parser.parse_args().calibrate:
        calibrate(chosen)
    else:
        table(chosen)
