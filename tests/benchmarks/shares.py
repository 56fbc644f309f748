"""What share of its links a healthy machine reaches, and how often the verdict on it is right.

    python -m tests.benchmarks.shares               # each source is left out: its tables are judged by all others
    python -m tests.benchmarks.shares --calibrate   # print the bands of `judging.shares`

The tables are those of the bank, one for each collective of a machine. Their network cards are those that the operator
of the machine states (`CARDS`), because no log of the bank states all rates. Bands come from tables of full rates.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from unittest import mock

from rankscope.box import Profile, bank
from rankscope.box.judging import shares as judged
from rankscope.box.judging.limits import MESSAGES, Limit, limits
from rankscope.box.judging.shares import Band, Share
from rankscope.box.machines import is_sick
from rankscope.box.points import Point

CARDS = {  # by the beginning of a machine's name: the number of its nodes' cards and their rate in Gbit/s
    "abci_a100_": (4, 200),
    "abci_v100_": (2, 100),
    "alps_gh200_": (4, 200),
    "aws_p4d_": (4, 100),
    "h100_fleet_10x1": (1, 400),
    "h100_fleet_10x2": (2, 400),
    "v100_25gbe_": (1, 25),
}
LEAST_SOURCES = 3  # of a band of its own for a collective


class Table(NamedTuple):
    """A collective of a machine of the bank: as its log states it, and with the cards that its operator states.

    `share` is its highest rate with these, and `limit` what all links of the machine carry.
    """

    source: str
    is_healthy: bool
    as_logged: Profile
    with_cards: Profile
    share: Share
    limit: Limit

    @property
    def has_full_rate(self) -> bool:
        per_rank_bytes = judged.FULL_BYTES_PER_RANK * self.as_logged.num_ranks
        return self.share.num_bytes >= max(judged.FULL_BYTES, per_rank_bytes)


def tables() -> list[Table]:
    found = []
    for name in bank():
        profile = Profile.load(f"bank:{name}")
        about = profile.provenance
        for collective in judged.rates_of(profile):
            one = Profile(about, profile.protocol, profile.select(collective))
            stated = dict(about)
            for beginning, (number, gbits) in CARDS.items():
                if name.startswith(beginning):
                    cards = [f"card c{card} {gbits} Gbit/s" for card in range(number)]
                    stated["network"] = ", ".join([about.get("network", ""), *cards])
            with_cards = Profile(stated, profile.protocol, one.points)
            known = limits(with_cards, collective)
            if known:
                (share,) = judged.shares(with_cards)
                source = about["source"]["repository"]
                found.append(Table(source, not is_sick(about), one, with_cards, share, known[-1]))
    return found


def calibrated(some: Iterable[Table], least_sources: int = LEAST_SOURCES) -> dict[str, dict[str, Band]]:
    """Return the bands of the healthy tables with full rates and known links, by kind of links and collective.

    A collective that few sources have measured counts among all of its kind, whose name is ""; but kinds that accuse
    nobody need two sources only. Messages, which may reach half of what a ring does, never count.
    """
    by_kind: dict[str, dict[str, list[Table]]] = defaultdict(lambda: defaultdict(list))
    for table in some:
        is_message = table.share.collective in MESSAGES
        if table.is_healthy and table.has_full_rate and not is_message and not table.limit.is_guess:
            by_kind[table.limit.kind][""].append(table)
            by_kind[table.limit.kind][table.share.collective].append(table)
    bands: dict[str, dict[str, Band]] = defaultdict(dict)
    for kind, by_collective in by_kind.items():
        for collective, measured in by_collective.items():
            num_sources = len({table.source for table in measured})
            reached = [table.share.rate / table.limit.rate for table in measured]
            band = Band(round(min(reached), 3), round(max(reached), 3))
            has_enough = num_sources >= (least_sources if kind in judged.SLOW else 2)
            if not collective or (has_enough and band != bands[kind][""]):
                bands[kind][collective] = band
    return bands


def slowed(profile: Profile, factor: float) -> Profile:
    """Return the profile of a machine on which everything takes so many times as long."""
    points = []
    for point in profile.points:
        seconds = tuple(factor * second for second in point.seconds)
        points.append(Point(point.what, point.num_bytes, seconds, point.clean, point.options))
    return Profile(profile.provenance, profile.protocol, points)


def left_out(known: list[Table]) -> dict[str, Counter[str]]:
    """Return how often tables are called what by the bands of the other sources, as they are and at half their rate."""
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    unknown = {kind: {"": Band(1.0, 1.0)} for kind in judged.HEALTHY}  # to all other sources
    for source in {table.source for table in known}:
        bands = calibrated([table for table in known if table.source != source], LEAST_SOURCES - 1)
        with mock.patch.object(judged, "HEALTHY", unknown | bands):
            for table in known:
                if table.source == source:
                    judge(table, verdicts)
    return verdicts


def judge(table: Table, verdicts: Mapping[str, Counter[str]]) -> None:
    """Count the verdicts on a table, by the kind of its links."""
    kind = table.limit.kind
    if table.share.collective in MESSAGES:
        kind = f"{kind}, messages"
    state = "healthy" if table.is_healthy else "sick"
    variants = {f"{state}, as logged": table.as_logged, f"{state}, cards stated": table.with_cards}
    if table.is_healthy and table.has_full_rate and not table.limit.is_guess:
        variants["half of a healthy rate, as logged"] = slowed(table.as_logged, 2)
        variants["half of a healthy rate, cards stated"] = slowed(table.with_cards, 2)
    for what, profile in variants.items():
        (share,) = judged.shares(profile)
        verdicts[f"{kind}: {what}"][share.verdict] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibrate", action="store_true")
    known = tables()
    if not parser.parse_args().calibrate:
        verdicts = left_out(known)
        width = max(map(len, verdicts))
        print(f"{'':{width}}  tables  as expected  cannot tell  low")
        for what, counts in sorted(verdicts.items()):
            numbers = [counts[verdict] for verdict in (judged.EXPECTED, judged.UNKNOWN, judged.LOW)]
            print(f"{what:{width}}  {sum(numbers):6}  {numbers[0]:11}  {numbers[1]:11}  {numbers[2]:3}")
        return
    for kind, bands in calibrated(known).items():
        print(f"{kind!r}:")
        for collective, one in bands.items():
            print(f"    {collective!r}: {one}")


if __name__ == "__main__":
    main()
