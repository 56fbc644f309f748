"""In which order DDP's reducer comes upon buckets that are not full when the parameters end: a C++ hash table's."""

from __future__ import annotations

from collections.abc import Iterable

Key = tuple[str, str]  # dtype and device

# c10/core/ScalarType.h and DeviceType.h, whose numbers are part of torch's file format and do not change
_DTYPES = {"float16": 5, "float32": 6, "float64": 7, "complex32": 8, "complex64": 9, "complex128": 10, "bfloat16": 15,
           "float8_e5m2": 23, "float8_e4m3fn": 24, "float8_e5m2fnuz": 25, "float8_e4m3fnuz": 26}  # fmt: skip
_DEVICES = {"cpu": 0, "cuda": 1, "hip": 6, "xla": 9, "xpu": 12, "mps": 13, "meta": 14, "hpu": 15, "mtia": 19}
_SIZES = (13, 29, 59, 127, 257, 541, 1109)


def table_order(keys: Iterable[Key]) -> list[Key]:
    """Return different keys, given in the order in which they came, in the order in which the table is walked through.

    The reducer keeps open buckets in a ``std::unordered_map``. GCC's (libstdc++'s) puts a new key in front of all, or,
    if its slot is taken, in front of the others of that slot: so the last comes first unless slots coincide, for which
    there must be three keys. It starts with 13 slots. A dtype or device that is not known here has a slot of its own.

    >>> table_order([("float32", "cpu"), ("bfloat16", "cpu"), ("float64", "cpu")])
    [('float64', 'cpu'), ('bfloat16', 'cpu'), ('float32', 'cpu')]
    >>> table_order([("float16", "cuda:0"), ("float32", "cuda:0"), ("float16", "cuda:1")])
    [('float32', 'cuda:0'), ('float16', 'cuda:1'), ('float16', 'cuda:0')]
    """
    table: list[Key] = []
    sizes = iter(_SIZES)
    size = next(sizes)
    for key in keys:
        if len(table) == size:
            size, old, table = next(sizes, 2 * size), table, []
            for kept in old:
                _put(table, kept, size)
        _put(table, key, size)
    return table


def _put(table: list[Key], key: Key, size: int) -> None:
    slot = _slot(key, size)
    table.insert(next((place for place, other in enumerate(table) if _slot(other, size) == slot), 0), key)


def _slot(key: Key, size: int) -> int | Key:
    """c10::get_hash(dtype, device) modulo the slots, where std::hash of a number is that number."""
    dtype, (kind, _, index) = key[0], key[1].partition(":")
    if dtype not in _DTYPES or kind not in _DEVICES:
        return key
    device = _DEVICES[kind] << 16 | (int(index) if index else 255)
    return (device ^ (_DTYPES[dtype] + 0x9E3779B9 + (device << 6) + (device >> 2))) % size
