"""What looks wrong in a profile: rules that say so in a sentence, and are silent otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from ..values.checks import count_of
from ..values.units import bytes_words, rate_words, time_words
from .fit import LinkFit
from .groups import NATIVE, Group, bounds, groups, joining
from .points import LEAST_CLEAN, Key, Point
from .profile import HOW, WHERE, Profile
from .rows import algbw_bytes_per_s, busbw_bytes_per_s, busbw_factor

_FAR_UNDER = 0.5  # of the link's rate
_MOSTLY_BYTES = 5  # times as long on the wire as in latency: a large size
_FALLS_TO = 0.7  # of the rate at the size before
_WIDE = 0.25  # of the median
_FIT_OFF, _PREDICTED_OFF = 0.10, 0.25
_CROWDED = 1.5  # times as long a latency with all ranks sending as with one


def no_prediction(profile: Profile) -> Iterator[str]:
    """That no link was measured, or that the nodes are uneven."""
    if not any(profile.select(how) for how in HOW):
        yield "No link was measured, so nothing can be predicted or compared with a bound."
        return
    try:
        profile.cluster()
    except ValueError as error:
        yield f"Nothing can be predicted: {error}."


def far_under_the_link(profile: Profile) -> Iterator[str]:
    """A busbw at the largest size that is far under what the slowest of the links carries."""
    for group in groups(profile) if _has_link(profile) and profile.num_ranks > 1 else []:
        size = max(group.by_size)
        link_rate = min(fit.at(size).bytes_per_s for fit in joining(profile).values())
        bound = bounds(profile, group.collective, size)
        busbw = busbw_bytes_per_s(group.quickest(size), profile.num_ranks)
        if bound.bandwidth_s > _MOSTLY_BYTES * bound.latency_s and busbw < _FAR_UNDER * link_rate:
            rates = f"busbw is {rate_words(busbw)}, and a link carries {rate_words(link_rate)}"
            yield f"{group.collective}: even the quickest is far under the link at {bytes_words(size)}: {rates}."


def native_falls_off(profile: Profile) -> Iterator[str]:
    """A size at which native has much less bandwidth than at the size before."""
    for group in groups(profile) if profile.num_ranks > 1 else []:
        points = [group.by_size[size][NATIVE] for size in group.by_size if NATIVE in group.by_size[size]]
        for before, after in pairwise(points):
            rates = algbw_bytes_per_s(before), algbw_bytes_per_s(after)
            if rates[1] < _FALLS_TO * rates[0]:
                factor = busbw_factor(group.collective, profile.num_ranks)
                words = " to ".join(rate_words(rate * factor) for rate in rates)
                sizes = f"from {bytes_words(before.num_bytes)} to {bytes_words(after.num_bytes)}"
                yield f"{group.collective}: native falls off {sizes}: busbw goes from {words}."


def few_clean(profile: Profile) -> Iterator[str]:
    """Points with so few clean iterations that all of theirs were used."""
    few = [point for point in profile.points if point.num_clean < min(LEAST_CLEAN, len(point.seconds))]
    if few:
        yield f"{_some(few, profile)} fewer than {LEAST_CLEAN} clean iterations: their times hold what the host took."


def wide_spread(profile: Profile) -> Iterator[str]:
    """Points of which repetitions differ much."""
    wide = [point for point in profile.points if point.iqr_s > _WIDE * point.median_s]
    if wide:
        worst = max(wide, key=lambda point: point.iqr_s / point.median_s)
        most = f"{_words(worst)}: {time_words(worst.iqr_s)} round {time_words(worst.median_s)}"
        yield f"{_some(wide, profile)} an interquartile range above {_WIDE:.0%} of the median, the widest {most}."


def fit_is_off(profile: Profile) -> Iterator[str]:
    """A link whose fit does not hold on the sizes that were held out."""
    for where in WHERE:
        fit = _fit(profile, where, "together") or _fit(profile, where, "ping_pong")
        if fit and fit.held_out_error > _FIT_OFF:
            off = f"{fit.held_out_error:.0%} off on the sizes held out"
            yield f"The fit of link {where} is {off}: messages do not follow α + bytes/B, predictions will not hold."


def prediction_is_off(profile: Profile) -> Iterator[str]:
    """Algorithms that the model does not predict well, and what that is likely to come from."""
    seconds = profile.predicted_s
    for group in groups(profile):
        wrong = []
        for name in dict.fromkeys(name for points in group.by_size.values() for name in points):
            off = _off(group, name, seconds)
            if off and float(np.median(np.abs(off))) > _PREDICTED_OFF:
                wrong.append(f"{name} ({float(np.median(off)):+.0%})")
        if wrong:
            names = f"{', '.join(wrong)} at the median of sizes"
            yield f"{group.collective}: predictions are off for {names}{_cause(profile)}."


def _off(group: Group, name: str, seconds: Mapping[Key, float]) -> list[float]:
    """At each size, how far the prediction is off as a share of what was measured."""
    points = [points[name] for points in group.by_size.values() if name in points]
    return [seconds[point.key] / point.median_s - 1 for point in points if point.key in seconds]


def _cause(profile: Profile) -> str:
    cores, most = profile.provenance.get("num_cores"), max(profile.provenance["ranks_per_node"])
    if cores and most > cores:
        return f"; likely ranks share cores: {most} of them have {cores}"
    for where in WHERE:
        alone, together = _fit(profile, where, "ping_pong"), _fit(profile, where, "together")
        if alone and together and together.link.alpha_s > _CROWDED * alone.link.alpha_s:
            times = together.link.alpha_s / alone.link.alpha_s if alone.link.alpha_s else np.inf
            return f"; likely ranks share cores: with all of them sending the latency is {times:.2g} times that of one"
    return ""


def _fit(profile: Profile, where: str, how: str) -> LinkFit | None:
    try:
        return profile.link(where, how)
    except ValueError:  # not measured, or at too few sizes
        return None


def _has_link(profile: Profile) -> bool:
    try:
        return bool(profile.best_link("inter"))
    except ValueError:  # not measured, or at too few sizes
        return False


def _some(points: list[Point], profile: Profile) -> str:
    return f"Of {count_of(len(profile.points), 'point')} {len(points)} {'has' if len(points) == 1 else 'have'}"


def _words(point: Point) -> str:
    names = [str(point.options[name]) for name in ("algorithm", "link") if name in point.options]
    return " ".join([point.what, *names, "at", bytes_words(point.num_bytes)])


DOUBTS = (no_prediction, far_under_the_link, native_falls_off, few_clean, wide_spread, fit_is_off, prediction_is_off)
