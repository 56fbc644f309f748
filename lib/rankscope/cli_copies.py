"""What the command line prints of copies to and from a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from rich.table import Table

from .cli_parts import table_of
from .machine import Point, Profile
from .machine.folklore import folklore
from .machine.folklore_model import YES_NO, predicted_folklore
from .machine.link_facts import facts_of
from .machine.measure_plan import NUM_PIECES
from .values.units import bytes_words, rate_words, three_digits, time_words

_PLAIN = {"pieces": 1, "both": False}
_METHODS = {
    "pageable": "pageable",
    "pinned": "pinned",
    "non_blocking": "pinned_non_blocking",
    "on the fly": "pin_on_the_fly",
    "cached": "pin_on_the_fly_cached",
}
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "to GPU": ("transfer", {"direction": "h2d", "method": "pinned_non_blocking", **_PLAIN}),
    "both ways": ("transfer", {"direction": "h2d", "method": "pinned_non_blocking", "pieces": 1, "both": True}),
    "in pieces": (
        "transfer",
        {"direction": "h2d", "method": "pinned_non_blocking", "pieces": NUM_PIECES, "both": False},
    ),
    "on GPU": ("transfer", {"direction": "d2d"}),
    "pin": ("pin", {"cached": False}),
    "cached": ("pin", {"cached": True}),
}


def copies_tables(profile: Profile) -> Iterator[Table]:
    """Yield what copies reach by method and size, what else was measured of them, and what is said about them.

    Nothing for a profile without copies.
    """
    for direction, words in (("h2d", "to the GPU"), ("d2h", "to the host")):
        if profile.select("transfer", direction=direction):
            yield _by_method(profile, direction, f"copies {words}")
    if profile.select("transfer"):
        yield _in_other_ways(profile)
    if profile.select("transfer", direction="p2p"):
        yield _between_gpus(profile)
    if any(one.holds is not None for one in folklore(profile)):
        yield _said(profile)


def _by_method(profile: Profile, direction: str, title: str) -> Table:
    table = table_of(title, "size", *_METHODS, "call")
    table.caption = "call: for how long one with non_blocking held the host; on the fly: pinned for the copy"
    for size in _sizes(profile, "transfer", direction=direction):
        row = [
            _told(profile, size, "transfer", {"direction": direction, "method": method, **_PLAIN}, rate=True)
            for method in _METHODS.values()
        ]
        held = {"direction": direction, "method": "pinned_non_blocking", **_PLAIN}
        table.add_row(bytes_words(size), *row, _told(profile, size, "transfer_host", held))
    return table


def _in_other_ways(profile: Profile) -> Table:
    table = table_of("copies in other ways", "size", *_OTHERS)
    table.caption = (
        f"from pinned memory; both ways at once; in {NUM_PIECES} pieces; pin: the host's time of pin_memory()"
    )
    for size in _sizes(profile, "transfer"):
        table.add_row(bytes_words(size), *(_told(profile, size, *wanted) for wanted in _OTHERS.values()))
    return table


def _between_gpus(profile: Profile) -> Table:
    points = profile.select("transfer", direction="p2p", both=False)
    size = max((point.num_bytes for point in points), default=0)
    rates = {(p.options["src"], p.options["dst"]): p.num_bytes / p.median_s for p in points if p.num_bytes == size}
    gpus = sorted(set(chain.from_iterable(rates)))
    table = table_of(f"copies between GPUs, {bytes_words(size)} [GB/s]", "from", *map(str, gpus))
    for src in gpus:
        cells = [three_digits(rates[src, dst] / 1e9) if (src, dst) in rates else "" for dst in gpus]
        table.add_row(str(src), *cells)
    return table


def _said(profile: Profile) -> Table:
    facts = facts_of(profile)
    table = table_of("what is said about copies", "claim", "predicted", "measured")
    predicted = [YES_NO[one.holds] for one in predicted_folklore(facts)] if facts else [""] * len(folklore(profile))
    for one, guess in zip(folklore(profile), predicted, strict=True):
        table.add_row(one.claim, guess, YES_NO[one.holds])
    return table


def _sizes(profile: Profile, what: str, **options: Any) -> list[int]:
    return sorted({point.num_bytes for point in profile.select(what, **options)})


def _told(profile: Profile, num_bytes: int, what: str, options: Mapping[str, Any], rate: bool = False) -> str:
    """The median of the one such point, as time or rate; nothing where there is none."""
    found: tuple[Point, ...] = profile.select(what, num_bytes, **options)
    if not found:
        return ""
    return rate_words(num_bytes / found[0].median_s) if rate else time_words(found[0].median_s)
