"""Seconds and bytes in units that suit them, and ticks at round numbers."""

from __future__ import annotations

import math
import re

_SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATES = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
_SCALES = {  # of each unit: what it is a unit of, and its size
    **{unit: ("time", scale) for scale, unit in (*_SECONDS, (1e-6, "us"))},
    **{unit: ("bytes", scale) for scale, unit in (*_DECIMAL, *_BINARY)},
    **{unit: ("rate", scale) for scale, unit in (*_RATES, *((scale, f"{unit}/s") for scale, unit in _BINARY))},
    "": ("number", 1.0),
    "%": ("number", 0.01),
}
_AMOUNT = re.compile(r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d+)?)\s*(\D*)", re.ASCII | re.IGNORECASE)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the largest unit of which there are at least two; seconds where there is no time at all.

    >>> time_unit(0.5), time_unit(3.0)
    ((0.001, 'ms'), (1.0, 's'))
    """
    fits = [(scale, unit) for scale, unit in _SECONDS if seconds >= 2 * scale]
    return fits[0] if fits else _SECONDS[-1] if seconds else (1.0, "s")


def time_words(seconds: float) -> str:
    """Return the time with its unit, as in `three_digits`.

    >>> time_words(0.0123456), time_words(0)
    ('12.3 ms', '0 s')
    """
    return _in_words(seconds, time_unit(seconds))


def bytes_unit(num_bytes: float) -> tuple[float, str]:
    """Return the largest unit of which there is at least one, bytes where there is none.

    >>> bytes_unit(1024), bytes_unit(0)
    ((1024.0, 'KiB'), (1.0, 'B'))
    """
    return _largest(_BINARY, num_bytes)


def bytes_words(num_bytes: float) -> str:
    """Return the bytes with their unit, as in `three_digits`.

    >>> bytes_words(65536), bytes_words(1.5 * 2**30)
    ('64 KiB', '1.5 GiB')
    """
    return _in_words(num_bytes, bytes_unit(num_bytes))


def parse_bytes(name: str, text: str) -> int:
    """Return the bytes that a text like ``64 KiB``, ``1MiB`` or ``512`` states; ValueError for any other.

    >>> parse_bytes("sizes", "64 KiB"), parse_bytes("sizes", "1.5MiB")
    (65536, 1572864)
    >>> parse_bytes("sizes", "3 apples")
    Traceback (most recent call last):
    ValueError: sizes must be bytes like 512, 64KiB or 1.5MiB, got '3 apples'
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(B|KiB|MiB|GiB|TiB)?", text.strip())
    scaled = float(found[1]) * _SCALES[found[2] or "B"][1] if found else 0.5
    if not scaled.is_integer():
        raise ValueError(f"{name} must be bytes like 512, 64KiB or 1.5MiB, got {text!r}")
    return int(scaled)


def parse_amount(text: str, unit: str) -> float:
    """Return the number that a text states, in `unit`; it may name another unit of the same kind, or none.

    Units are those of time, bytes and bytes per second, and "%" of a plain number. Any other unit must be the same.

    >>> parse_amount("12.5 ms", "s"), parse_amount("3 GB/s", "GB/s"), parse_amount("1,024", "KiB")
    (0.0125, 3.0, 1024.0)
    >>> parse_amount("1 MiB", "KiB"), parse_amount("60%", ""), parse_amount("1 rank", "ranks")
    (1024.0, 0.6, 1.0)
    >>> parse_amount("3 s", "GB/s")
    Traceback (most recent call last):
    ValueError: the answer must be a number in GB/s, such as '3' or '3 GB/s', got '3 s'
    """
    found = _AMOUNT.fullmatch(text.strip())
    given = (found[2] or unit) if found else None
    (kind, scale), (stated, stated_scale) = (_SCALES.get(one or "", (one, 1.0)) for one in (unit, given))
    value = float(found[1].replace(",", "")) * (stated_scale / scale) if found and stated == kind else math.inf
    if found and kind == unit and given == unit.removesuffix("s"):
        value = float(found[1])
    if math.isinf(value):
        like = f" in {unit}, such as '3' or '3 {unit}'" if unit else ", such as '0.5' or '50 %'"
        raise ValueError(f"the answer must be a number{like}, got {text!r}")
    return value


def rate_unit(bytes_per_s: float) -> tuple[float, str]:
    """Return the largest decimal unit of which there is at least one, B/s where there is none.

    >>> rate_unit(12.5e6), rate_unit(0)
    ((1000000.0, 'MB/s'), (1.0, 'B/s'))
    """
    return _largest(_RATES, bytes_per_s)


def rate_words(bytes_per_s: float) -> str:
    """Return a bandwidth in the decimal unit that suits it.

    >>> rate_words(12.5e6), rate_words(450e9)
    ('12.5 MB/s', '450 GB/s')
    """
    return _in_words(bytes_per_s, rate_unit(bytes_per_s))


def decimal_unit(num_bytes: float) -> tuple[float, str]:
    """Return the largest decimal unit of which there is at least one, bytes where there is none.

    >>> decimal_unit(31.4e9), decimal_unit(0)
    ((1000000000.0, 'GB'), (1.0, 'B'))
    """
    return _largest(_DECIMAL, num_bytes)


def _in_words(value: float, unit: tuple[float, str]) -> str:
    scale, name = unit
    return f"{three_digits(value / scale)} {name}"


def _largest(units: tuple[tuple[float, str], ...], value: float) -> tuple[float, str]:
    return next((pair for pair in units if value >= pair[0]), units[-1])


def decimal_words(num_bytes: float) -> str:
    """Return the bytes in the decimal unit that suits them, as memory is sold.

    >>> decimal_words(31.40625e9), decimal_words(938e6)
    ('31.4 GB', '938 MB')
    """
    return _in_words(num_bytes, decimal_unit(num_bytes))


def three_digits(value: float) -> str:
    """Return a number with three digits, or as many as it has before the point.

    >>> three_digits(1.23456), three_digits(1234.5)
    ('1.23', '1234')
    """
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def round_ticks(width: float) -> tuple[tuple[float, str], ...]:
    """Return ticks at round numbers from 0 to `width`, which is above 0: at most ten after that at 0.

    >>> [label for _, label in round_ticks(35)]
    ['0', '5', '10', '15', '20', '25', '30', '35']
    """
    power = 10.0 ** math.floor(math.log10(width / 10))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if width <= power * factor * 10)
    return tuple((place * step, f"{place * step:g}") for place in range(int(width / step + 1e-9) + 1))
