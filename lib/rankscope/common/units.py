"""Seconds and bytes in units that suit them, and ticks at round numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

# Units from the largest to the smallest, each with its size in the basic unit.
_SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATES = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_LEAST_OF_FIVE_DIGITS = 9999.5  # it is rounded to 10000


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the largest unit of which there are at least two, or seconds if the time is 0.

    >>> time_unit(0.5), time_unit(3.0)
    ((0.001, 'ms'), (1.0, 's'))
    """
    if not seconds:
        return (1.0, "s")
    for scale, unit in _SECONDS:
        if seconds >= 2 * scale:
            return (scale, unit)
    return _SECONDS[-1]


def time_words(seconds: float) -> str:
    """Return the time with its unit, as in `three_digits`.

    >>> time_words(0.0123456), time_words(0)
    ('12.3 ms', '0 s')
    """
    return _in_words(seconds, time_unit(seconds))


def cell_words(seconds: float) -> str:
    """Return a time for a table, in the largest unit of which there is at least one.

    So 1.24 ms is above 2.47 ms, where `time_words` would write 1242 µs.

    >>> cell_words(1242e-6), cell_words(2.47e-3), cell_words(999.7e-6), cell_words(0)
    ('1.24 ms', '2.47 ms', '1 ms', '0 s')
    """
    if not seconds:
        return time_words(0.0)
    return _in_largest_unit(seconds, _SECONDS)


def times_in_one_unit(*seconds: float) -> list[str]:
    """Return times that are shown next to each other, in the same unit.

    It is the largest unit in which the longest time is at least 1 and no other is below 0.1, except for times of 0. If
    the longest time would have five digits or more in it, the unit is the largest in which the longest time is at least
    1, and times below 0.01 in it have their own unit.

    >>> times_in_one_unit(0.001242, 0.00247, 0.0), times_in_one_unit(1.4, 0.036)
    (['1.24 ms', '2.47 ms', '0 ms'], ['1400 ms', '36 ms'])
    >>> times_in_one_unit(2.0, 3e-6)
    ['2 s', '3 µs']
    """
    longest_s = max(seconds, default=0.0)
    if not longest_s:
        return ["0 s"] * len(seconds)
    shortest_s = min(time_s for time_s in seconds if time_s)
    unit_of_longest = _largest_unit(_SECONDS, longest_s)
    smaller_units = _SECONDS[_SECONDS.index(unit_of_longest) :]  # and the unit of the longest time itself
    common_unit = next((unit for unit in smaller_units if shortest_s >= 0.1 * unit[0]), _SECONDS[-1])
    if longest_s >= _LEAST_OF_FIVE_DIGITS * common_unit[0]:
        common_unit = unit_of_longest
    words = []
    for time_s in seconds:
        if 0 < time_s < 0.01 * common_unit[0]:
            words.append(_in_words(time_s, _largest_unit(_SECONDS, time_s)))
        else:
            words.append(_in_words(time_s, common_unit))
    return words


def bytes_words(num_bytes: float) -> str:
    """Return the bytes with their unit, as in `three_digits`.

    A number that rounds up to the next unit is printed in that unit.

    >>> bytes_words(65536), bytes_words(1.5 * 2**30), bytes_words(2**20 - 1)
    ('64 KiB', '1.5 GiB', '1 MiB')
    """
    return _in_largest_unit(num_bytes, _BINARY)


def parse_bytes(name: str, text: str) -> int:
    """Return the bytes that a text like ``64 KiB``, ``1MiB`` or ``512`` states. Raises ValueError for any other text.

    ``64M`` is 64 MiB, as for nccl-tests.

    >>> parse_bytes("sizes", "64 KiB"), parse_bytes("sizes", "1.5MiB"), parse_bytes("sizes", "64k")
    (65536, 1572864, 65536)
    >>> parse_bytes("sizes", "3 apples")
    Traceback (most recent call last):
    ValueError: sizes must be bytes like 512, 64K, 64KiB or 1.5MiB, got '3 apples'
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:B|([KMGT])(?:iB)?)?", text.strip(), re.IGNORECASE)
    if match is not None:
        stated = f"{match[2].upper()}iB" if match[2] else "B"
        (scale,) = [scale for scale, unit in _BINARY if unit == stated]
        num_bytes = float(match[1]) * scale
        if num_bytes.is_integer():
            return int(num_bytes)
    raise ValueError(f"{name} must be bytes like 512, 64K, 64KiB or 1.5MiB, got {text!r}")


def decimal_unit(num_bytes: float) -> tuple[float, str]:
    """Return the largest decimal unit of which there is at least one, or bytes if there is none.

    >>> decimal_unit(31.4e9), decimal_unit(0)
    ((1000000000.0, 'GB'), (1.0, 'B'))
    """
    return _largest_unit(_DECIMAL, num_bytes)


def decimal_words(num_bytes: float) -> str:
    """Return the bytes in the decimal unit that suits them, as on a label; see `bytes_words`.

    >>> decimal_words(31.40625e9), decimal_words(938e6), decimal_words(999.9e6)
    ('31.4 GB', '938 MB', '1 GB')
    """
    return _in_largest_unit(num_bytes, _DECIMAL)


def rate_words(bytes_per_s: float) -> str:
    """Return a bandwidth in the decimal unit that suits it, as in `bytes_words`.

    >>> rate_words(12.5e6), rate_words(450e9), rate_words(999.7e6)
    ('12.5 MB/s', '450 GB/s', '1 GB/s')
    """
    return _in_largest_unit(bytes_per_s, _RATES)


def rate_range_words(bytes_per_s: Collection[float]) -> str:
    """Return the lowest and the highest bandwidth, or one if they are written alike.

    >>> rate_range_words([12.5e6, 450e9, 1e9]), rate_range_words([450e9, 450.1e9])
    ('12.5 MB/s to 450 GB/s', '450 GB/s')
    """
    return " to ".join(dict.fromkeys([rate_words(min(bytes_per_s)), rate_words(max(bytes_per_s))]))


def percent_words(share: float, digits: int = 0) -> str:
    """Return a share in percent, with `digits` after the point.

    >>> percent_words(0.254), percent_words(0.254, 1), percent_words(-1e-16)
    ('25 %', '25.4 %', '0 %')
    """
    return f"{100 * share:z.{digits}f} %"  # z: a share just below 0 is 0


def three_digits(value: float) -> str:
    """Return a number with three digits, or as many as it has before the point.

    >>> three_digits(1.23456), three_digits(1234.5)
    ('1.23', '1234')
    """
    if value < 999.5:
        return f"{value:.3g}"
    return f"{value:.0f}"  # ".3g" would write 1e+03


def round_ticks(width: float) -> tuple[tuple[float, str], ...]:
    """Return ticks at round numbers from 0 to `width`, which is above 0: one at 0, and at most ten more.

    >>> [label for _, label in round_ticks(35)]
    ['0', '5', '10', '15', '20', '25', '30', '35']
    """
    power = 10.0 ** math.floor(math.log10(width / 10))  # the largest power of ten that is at most width / 10
    # The smallest round step with which there are at most ten steps.
    step = next(power * factor for factor in (1, 2, 5, 10) if width <= power * factor * 10)
    num_steps = int(width / step + 1e-9)  # the addend keeps the last tick if rounding leaves 6.999999 steps of 7
    positions = [number * step for number in range(num_steps + 1)]
    return tuple((position, f"{position:g}") for position in positions)


def _in_words(value: float, unit: tuple[float, str]) -> str:
    scale, name = unit
    return f"{three_digits(value / scale)} {name}"


def _in_largest_unit(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """Return a value in the largest unit of which there is at least one once it is rounded to the digits shown."""
    scale, _ = _largest_unit(units, value)
    rounded = float(three_digits(value / scale)) * scale
    return _in_words(value, _largest_unit(units, rounded))


def _largest_unit(units: tuple[tuple[float, str], ...], value: float) -> tuple[float, str]:
    """Return the largest unit of which there is at least one, or the smallest unit; each with its size."""
    for scale, name in units:
        if value >= scale:
            return (scale, name)
    return units[-1]
