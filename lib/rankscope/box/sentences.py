"""`verdict`: a profile in sentences: what to use at which size, how good it is, and what looks wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from ..cluster import Link
from ..collectives import lower_bounds
from ..collectives.cost import Bounds
from ..common.checks import of_type
from ..common.units import bytes_words, cell_words, percent_words, rate_words, three_digits
from ..common.words import count_of
from .expected import compare_with_peers
from .fit import LinkFit
from .link_facts import transfers_of
from .profile import LEAST_CLEAN, LINKS, NATIVE, PATTERNS, Point, Profile

_AS_FAST = 1.05  # as stated in the sentence
_FAR_UNDER = 0.5  # of the link's rate
_MOSTLY_BYTES = 5  # a size is large if bandwidth time is this multiple of latency
_FALLS_TO = 0.7  # of the rate at the size before
_WIDE = 0.25  # of the median
_FIT_OFF = 0.10  # of the times of sizes held out
_PREDICTED_OFF = 0.25  # of the measured times, in the median
_MOST_SIZES = 40  # of an algorithm, used to judge its predictions; a sweep over powers of two has fewer
_MOST_ODD = 3  # sizes that a sentence names


def verdict(profile: Profile) -> list[str]:
    """Return the verdict as sentences.

    They state the fastest algorithm per collective and its distance from the bound first, then anything suspicious.

    >>> provenance = dict(name="a", date="2030-01-01", backend="gloo", num_ranks=4, num_nodes=1, ranks_per_node=[4])
    >>> times = {"native": 2e-3, "ring": 1e-3}
    >>> points = [Point("allreduce", 1024, [s] * 4, [True] * 4, {"algorithm": name}) for name, s in times.items()]
    >>> for sentence in verdict(Profile(provenance, {}, points)):
    ...     print(sentence)
    allreduce: use ring at 1 KiB; no other algorithm is faster by more than 5 % plus noise.
    allreduce: ring is 2 times as fast as native at 1 KiB.
    No link was measured, so no algorithm can be predicted or compared with a bound.
    """
    of_type("profile", profile, Profile)
    return [sentence for rule in (*FINDINGS, *WARNINGS) for sentence in rule(profile)]


# ---- the collectives of a profile


class MeasuredCollective(msgspec.Struct, frozen=True):
    """One collective: by size (ascending) the fastest point of each algorithm; in-place points if there are any."""

    collective: str
    by_size: Mapping[int, Mapping[str, Point]]

    @property
    def is_native(self) -> bool:
        """Whether only the backend's own algorithm was measured."""
        return all(points.keys() == {NATIVE} for points in self.by_size.values())

    def fastest(self, num_bytes: int) -> Point:
        """Return the fastest point of a size."""
        return min(self.by_size[num_bytes].values(), key=lambda point: point.median_s)


def groups(profile: Profile) -> list[MeasuredCollective]:
    """Return the collectives that were measured, in the order of their first points."""
    collectives = []
    named = [point for point in profile.points if "algorithm" in point.options]
    for collective in dict.fromkeys(point.what for point in named):  # each once
        points = [point for point in named if point.what == collective]
        in_place = [point for point in points if point.options.get("in_place")]
        if in_place:
            points = in_place
        by_size: dict[int, dict[str, Point]] = {}
        for point in sorted(points, key=lambda point: -point.median_s):  # the fastest comes last, and stays
            by_size.setdefault(point.num_bytes, {})[str(point.options["algorithm"])] = point
        collectives.append(MeasuredCollective(collective, dict(sorted(by_size.items()))))
    return collectives


def joining(profile: Profile) -> dict[str, LinkFit]:
    """Return the fits of the links that connect the profile's ranks: "inter", "intra" or both.

    Raises ValueError if no link was measured, or if the profile does not state its nodes.
    """
    links = {}
    if len(profile.ranks_per_node) > 1:
        links["inter"] = profile.best_link("inter")
    if max(profile.ranks_per_node) > 1:
        links["intra"] = profile.best_link("intra")
    return links


def bounds(profile: Profile, collective: str, num_bytes: int, num_ranks: int | None = None) -> Bounds:
    """Return the lower bounds, taking every link to be as good as the best one: α of small messages, B at this size.

    `num_ranks` is the profile's by default. Raises ValueError if no link was measured, or if its messages are not small
    enough to tell α or not large enough to tell B: a bound must hold.
    """
    fits = list(joining(profile).values())
    if not fits:  # A single rank is not joined to others. This raises if no link was measured.
        fits = [profile.best_link("intra")]
    for fit in fits:
        gap = fit.gap(num_bytes)
        if gap:
            raise ValueError(f"there is no lower bound: {gap}")
    # A collective may send its bytes in small messages, so the α of small ones bounds the latency. The line of large
    # messages may have a larger α, as after a switch of the protocol.
    alpha_s = min(fit.link.alpha_s for fit in fits)
    rate = max(fit.link.bytes_per_s for fit in fits)
    if num_ranks is None:
        num_ranks = profile.num_ranks
    return lower_bounds(collective, num_ranks, num_bytes, Link(alpha_s, rate), profile.gamma_s_per_byte)


def bound_s(profile: Profile, collective: str, num_bytes: int, num_ranks: int | None = None) -> float:
    """Return the lower bound in seconds; 0 if there is none."""
    try:
        return float(bounds(profile, collective, num_bytes, num_ranks).seconds)
    except ValueError:  # no link was measured, or not at these sizes
        return 0.0


# ---- what was found


def expected_got_why(profile: Profile) -> Iterator[str]:
    """What similar machines of the bank reach, and what explains a gap; each sentence names its rule.

    Without a similar machine, say so: otherwise silent rules would look like a healthy machine. Measurements of other
    backends are compared with each other, if there are several algorithms.
    """
    comparison = compare_with_peers(profile)
    can_be_compared = profile.backend == "nccl" or all(group.is_native for group in groups(profile))
    if profile.native and not comparison.rows and can_be_compared:
        reason = "the bank has no measurement of a similar machine" if comparison.gpu else "its GPUs are not stated"
        yield f"There is nothing to compare this machine with, because {reason}."
    yield from map(str, comparison.findings)


def fastest(profile: Profile) -> Iterator[str]:
    """Which algorithm to use at which sizes; the previous one stays if it is within 5 % or the noise of the fastest."""
    for group in groups(profile):
        if group.is_native:
            continue
        recommended: dict[int, str] = {}  # the algorithm to use at each size
        previous = ""  # the algorithm to use at the size before; none at first
        for size, points in group.by_size.items():
            best = group.fastest(size)
            if not _stays(points.get(previous), best):
                previous = str(best.options["algorithm"])
            recommended[size] = previous
        ranges = []
        for name, sizes in groupby(recommended, recommended.__getitem__):  # sizes in a row with the same algorithm
            ranges.append(f"{name} {_range(list(sizes))}")
        yield f"{group.collective}: use {', '.join(ranges)}; no other algorithm is faster by more than 5 % plus noise."


def _stays(previous: Point | None, best: Point) -> bool:
    """Return whether the algorithm of the size before is within 5 % or the noise of the best one."""
    if previous is None:
        return False
    return previous.median_s <= best.median_s * _AS_FAST or not previous.differs(best)


def _range(sizes: list[int]) -> str:
    low = bytes_words(sizes[0])
    high = bytes_words(sizes[-1])
    return f"at {low}" if low == high else f"from {low} to {high}"


def against_native(profile: Profile) -> Iterator[str]:
    """Our fastest algorithm compared with the native one, at its best and at its worst size."""
    for group in groups(profile):
        comparisons = []
        for size, points in group.by_size.items():
            ours = [(point.median_s, name) for name, point in points.items() if name != NATIVE]
            if ours and NATIVE in points:
                seconds, name = min(ours)
                comparisons.append(_NativeComparison(seconds / points[NATIVE].median_s, name, size))
        if comparisons:
            best = min(comparisons, key=_share_and_algorithm)
            worst = max(comparisons, key=_share_and_algorithm)
            words = [best.words]
            if worst is not best:
                words.append(worst.words)
            yield f"{group.collective}: {', '.join(words)}."


class _NativeComparison(NamedTuple):
    """The time of an algorithm at a size, as a share of native's."""

    share: float
    algorithm: str
    num_bytes: int

    @property
    def words(self) -> str:
        size = bytes_words(self.num_bytes)
        if self.share < 1:
            return f"{self.algorithm} is {three_digits(1 / self.share)} times as fast as native at {size}"
        return f"{self.algorithm} takes {self.share:.2f} times as long as native at {size}"


def _share_and_algorithm(comparison: _NativeComparison) -> tuple[float, str]:
    """Return what comparisons are ranked by: not the size, so that equal ones at several sizes are stated once."""
    return comparison.share, comparison.algorithm


def above_the_bound(profile: Profile) -> Iterator[str]:
    """How far the fastest algorithm is above the lower bound, at the smallest and the largest size."""
    for group in groups(profile):
        words = []
        for size in sorted({min(group.by_size), max(group.by_size)}):
            bound = bound_s(profile, group.collective, size)
            if bound:
                multiple = group.fastest(size).median_s / bound
                words.append(f"{multiple:.2f} times the lower bound at {bytes_words(size)}")
        if words:
            yield f"{group.collective}: the fastest algorithm takes {', '.join(words)}."


def copies(profile: Profile) -> Iterator[str]:
    """The rates of copies to and from the GPU."""
    for direction, name in (("h2d", "to the GPU"), ("d2h", "to the host")):
        rates = []
        # Logs of other programs have pinned copies that block the host, which reach the same rates.
        pinned = transfers_of(profile, direction, "pinned_non_blocking") or transfers_of(profile, direction, "pinned")
        pageable = transfers_of(profile, direction, "pageable")
        for memory, points in (("pinned", pinned), ("pageable", pageable)):
            if points:
                largest = max(points, key=lambda point: point.num_bytes)  # of the first GPU, as in `show`
                rate = rate_words(largest.algbw_bytes_per_s)
                rates.append(f"{rate} with {memory} memory at {bytes_words(largest.num_bytes)}")
        if rates:
            yield f"Copies {name}: {', '.join(rates)}."


FINDINGS = (expected_got_why, fastest, against_native, above_the_bound, copies)


# ---- what looks wrong: each rule yields sentences only if something does


def no_prediction(profile: Profile) -> Iterator[str]:
    """No link was measured, or not at the sizes that matter, or the nodes are uneven."""
    if not any(profile.select(how) for how in PATTERNS):
        # If no collective but native was measured, no link is missing, because curves predict native. An empty profile,
        # of which the same is true, lacks the links, too.
        if not profile.points or not all(group.is_native for group in groups(profile)):
            yield "No link was measured, so no algorithm can be predicted or compared with a bound."
        return
    try:
        profile.cluster()
    except ValueError as error:
        yield f"Nothing can be predicted: {error}."
        return
    for where, fit in joining(profile).items():
        gap = fit.gap(0)  # of α alone, because B's gap depends on the predicted size
        if gap:
            yield f"Link {where}: {gap}. Do not rely on predictions by algorithm; there is no lower bound."


def far_under_the_link(profile: Profile) -> Iterator[str]:
    """The busbw at the largest size is far under what the slowest of the links carries."""
    if profile.num_ranks == 1:  # which uses no link
        return
    for group in groups(profile):
        size = max(group.by_size)
        try:
            bound = bounds(profile, group.collective, size)
        except ValueError:  # no link was measured, or not at these sizes
            continue
        link_rate = min(fit.link.bytes_per_s for fit in joining(profile).values())
        busbw = group.fastest(size).busbw_bytes_per_s(profile.num_ranks)
        if bound.bandwidth_s > _MOSTLY_BYTES * bound.latency_s and busbw < _FAR_UNDER * link_rate:
            rates = f"busbw is {rate_words(busbw)}, but a link carries {rate_words(link_rate)}"
            yield f"{group.collective}: even the fastest is far below the link rate at {bytes_words(size)}: {rates}."


def native_falls_off(profile: Profile) -> Iterator[str]:
    """Native has much less bandwidth at a size than at the size before."""
    if profile.num_ranks == 1:  # which uses no link
        return
    for group in groups(profile):
        points = [points[NATIVE] for points in group.by_size.values() if NATIVE in points]
        for before, after in pairwise(points):
            rate_before = before.busbw_bytes_per_s(profile.num_ranks)
            rate_after = after.busbw_bytes_per_s(profile.num_ranks)
            if rate_after < _FALLS_TO * rate_before:  # not if they are nan, as for a barrier
                rates = f"from {rate_words(rate_before)} to {rate_words(rate_after)}"
                sizes = f"from {bytes_words(before.num_bytes)} to {bytes_words(after.num_bytes)}"
                yield f"{group.collective}: busbw of native falls {rates} {sizes}."


def odd_points(profile: Profile) -> Iterator[str]:
    """Some sizes take a time that disagrees with those of their neighbours; see `Curve.odd`."""
    native_points = profile.select(algorithm=NATIVE)
    curves = dict.fromkeys((point.what, point.options.get("in_place")) for point in native_points)  # each once
    for collective, in_place in curves:
        try:
            ratios = profile.curve(collective, in_place).odd  # by size: its time, as a multiple of the interpolated one
        except ValueError:  # too few sizes, or measured in several ways
            continue
        if not ratios:
            continue
        oddest_first = sorted(ratios, key=lambda size: -abs(math.log(ratios[size])))
        sizes = [f"{bytes_words(size)} takes {three_digits(ratios[size])}×" for size in oddest_first[:_MOST_ODD]]
        name = collective
        if in_place is not None:
            name += " in place" if in_place else " out of place"
        others = ""
        if len(ratios) > _MOST_ODD:
            others = f"; also odd: {count_of(len(ratios) - _MOST_ODD, 'more size')}"
        yield f"{name}: {', '.join(sizes)} the time that its neighbours suggest{others}."


def few_clean(profile: Profile) -> Iterator[str]:
    """Some points have so few clean iterations that disturbed ones were used, too."""
    few = []
    for point in profile.points:
        enough = min(LEAST_CLEAN, len(point.seconds))  # a short measurement can be undisturbed, too
        if point.num_clean < enough:
            few.append(point)
    if few:
        words = f"{_how_many_have(few, profile)} fewer than {LEAST_CLEAN} clean iterations"
        yield f"{words}, so their times include disturbances by the host."


def wide_spread(profile: Profile) -> Iterator[str]:
    """The iterations of some points vary widely."""
    wide = [point for point in profile.points if point.iqr_s > _WIDE * point.median_s]
    if wide:
        worst = max(wide, key=lambda point: point.iqr_s / point.median_s)
        names = [str(worst.options[name]) for name in ("algorithm", "link") if name in worst.options]
        words = " ".join([worst.what, *names, "at", bytes_words(worst.num_bytes)])
        longer_s = max(worst.iqr_s, worst.median_s)  # decides the unit of both
        iqr = cell_words(worst.iqr_s, longer_s)
        median = cell_words(worst.median_s, longer_s)
        widest = f"The widest is {words}: IQR {iqr}, median {median}"
        beginning = _how_many_have(wide, profile)
        yield f"{beginning} an interquartile range (IQR) above {percent_words(_WIDE)} of the median. {widest}."


def _how_many_have(points: list[Point], profile: Profile) -> str:
    """Begin a sentence about what some of the points have."""
    verb = "has" if len(points) == 1 else "have"
    return f"Of {count_of(len(profile.points), 'point')}, {len(points)} {verb}"


def fit_is_off(profile: Profile) -> Iterator[str]:
    """The fit of a link is wrong at the sizes that were held out."""
    for where in LINKS:
        fits = []
        for how in PATTERNS:
            with suppress(ValueError):  # not measured, or at too few sizes
                fits.append(profile.link(where, how))
        # The first one is the one that predictions use; see `Profile.best_link`.
        if fits and fits[0].held_out_error > _FIT_OFF:
            off = f"{percent_words(fits[0].held_out_error)} off on the held-out sizes"
            advice = "Messages do not follow α + bytes/B, so do not rely on the predictions"
            yield f"The fit of link {where} is {off}. {advice}."


def prediction_is_off(profile: Profile) -> Iterator[str]:
    """The model predicts some algorithms badly; names a likely cause. Checks a subset if there are many sizes."""
    for group in groups(profile):
        points_by_name: dict[str, list[Point]] = {}
        for points_of_size in group.by_size.values():
            for name, point in points_of_size.items():
                points_by_name.setdefault(name, []).append(point)
        wrong = []
        for name, points in points_by_name.items():
            errors = _prediction_errors(profile, points)
            if errors and float(np.median(np.abs(errors))) > _PREDICTED_OFF:
                wrong.append(f"{name} ({percent_words(float(np.median(errors)), signed=True)})")
        if wrong:
            names = f"{', '.join(wrong)}, at the median over sizes"
            yield f"{group.collective}: predictions are off for {names}{_likely_cause(profile)}."


def _prediction_errors(profile: Profile, points: list[Point]) -> list[float]:
    """Return the relative errors of the predictions for at most `_MOST_SIZES` of the points."""
    stride = math.ceil(len(points) / _MOST_SIZES)
    errors = []
    for point in points[::stride]:
        predicted_s = profile.point_s(point)
        if predicted_s is not None:
            errors.append(predicted_s / point.median_s - 1)
    return errors


def _likely_cause(profile: Profile) -> str:
    """Name too few cores as the likely cause of wrong predictions, if there are fewer than ranks."""
    cores = profile.provenance.get("num_cores")
    if not cores:
        return ""
    most_ranks = max(profile.ranks_per_node)
    if most_ranks <= cores:
        return ""
    return f", probably because {most_ranks} ranks share {count_of(cores, 'core')}"


WARNINGS = (
    no_prediction,
    far_under_the_link,
    native_falls_off,
    odd_points,
    few_clean,
    wide_spread,
    fit_is_off,
    prediction_is_off,
)
