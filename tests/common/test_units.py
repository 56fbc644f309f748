"""Units: a printed number is never as large as the next unit, and it is the given value, rounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankscope.common.units import bytes_words, decimal_words, rate_words

KINDS: list[tuple[Callable[[float], str], float, tuple[str, ...]]] = [
    (bytes_words, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB")),
    (rate_words, 1000.0, ("B/s", "kB/s", "MB/s", "GB/s")),
    (decimal_words, 1000.0, ("B", "kB", "MB", "GB", "TB")),
]


@pytest.mark.parametrize(("in_words", "step", "units"), KINDS)
def test_a_number_never_reaches_the_next_unit(
    in_words: Callable[[float], str], step: float, units: tuple[str, ...]
) -> None:
    for power in range(1, len(units)):
        edge = step**power
        for share in (0.5, 0.99, 0.9985, 0.9994, 0.9996, 0.9997, 0.99999, 1 - 1e-9, 1.0, 1.0004, 1.5):
            value = edge * share
            number, unit = in_words(value).split()
            assert float(number) < step or unit == units[-1]
            scale = step ** units.index(unit)
            assert float(number) * scale == pytest.approx(value, rel=0.005)


def test_values_that_round_up_to_the_next_unit_are_printed_in_it() -> None:
    assert bytes_words(2**20 - 1) == "1 MiB"
    assert bytes_words(1023) == "1023 B"
    assert rate_words(999.7e6) == "1 GB/s"
    assert rate_words(999.4e6) == "999 MB/s"
    assert rate_words(0) == "0 B/s"
