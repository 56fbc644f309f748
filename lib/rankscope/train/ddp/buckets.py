"""DDP's gradient buckets: which gradients share an allreduce, in which order, and why each bucket was closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from ...common.checks import count_of, number, several, truth, whole
from ...common.frozen import checked, frozen
from ...common.units import bytes_words

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    Parameters: TypeAlias = Module | Iterable[Tensor] | Iterable["ParameterSpec"]

_MIB = 2**20
CAP_MB, _FIRST_MB = 25.0, 1.0  # DDP's caps where the user sets none
_NEVER_MB = 2.0**40  # more than any bucket has: a cap that is never reached
_MOST_BYTES = 2**50  # of a gradient: sums of thousands still fit into 64 bits


class BucketError(ValueError):
    """The buckets found are not the predicted ones."""


# ---- what goes into buckets


@frozen
class ParameterSpec:
    """What DDP needs to know of a parameter to put its gradient into a bucket; `num_bytes` is the gradient's size.

    >>> ParameterSpec("fc.weight", 4 * 10 * 10)
    ParameterSpec(name='fc.weight', num_bytes=400, dtype='float32', device='cpu', sparse=False)
    """

    name: str = checked(str)
    num_bytes: int = checked(whole, 0, _MOST_BYTES)
    dtype: str = "float32"
    device: str = "cpu"
    sparse: bool = checked(truth, default=False)


def parameter_specs(parameters: Parameters) -> tuple[ParameterSpec, ...]:
    """Return the spec of each parameter that requires a gradient, each parameter once, in the order of definition.

    A module's specs have the parameters' names, and are sparse where the first module that holds a parameter is an
    Embedding or EmbeddingBag with ``sparse=True``. Raises ValueError for anything but parameters and `ParameterSpec`
    values, and if none requires a gradient.

    >>> import torch
    >>> parameter_specs(torch.nn.Linear(10, 5))[0]
    ParameterSpec(name='weight', num_bytes=200, dtype='float32', device='cpu', sparse=False)
    """
    sparse: set[int] = set()
    named: Iterable[tuple[str, Any]]
    if hasattr(parameters, "named_parameters"):
        named, sparse = parameters.named_parameters(), _sparse_parameters(parameters)
    elif isinstance(parameters, Iterable):
        named = ((f"parameter {place}", param) for place, param in enumerate(parameters))
    else:
        raise ValueError(f"parameters must be a module, its parameters or ParameterSpec values, got {parameters!r}")
    specs, seen = [], set[int]()
    for name, param in named:
        if isinstance(param, ParameterSpec):
            specs.append(param)
        elif not (hasattr(param, "element_size") and hasattr(param, "numel")):
            raise ValueError(f"parameters must be a module, its parameters or ParameterSpec values, got {param!r}")
        elif param.requires_grad and id(param) not in seen:
            seen.add(id(param))
            num_bytes, dtype = param.numel() * param.element_size(), str(param.dtype).removeprefix("torch.")
            specs.append(ParameterSpec(name, num_bytes, dtype, str(param.device), id(param) in sparse))
    if not specs:
        raise ValueError("parameters must hold at least one that requires a gradient, got none")
    return tuple(specs)


def _sparse_parameters(module: Any) -> set[int]:
    from torch.nn import Embedding, EmbeddingBag

    owners: dict[int, Module] = {}
    for owner in module.modules():
        for param in owner.parameters(recurse=False):
            owners.setdefault(id(param), owner)
    return {key for key, owner in owners.items() if isinstance(owner, Embedding | EmbeddingBag) and owner.sparse}


# ---- buckets


class Buckets(tuple[tuple[int, ...], ...]):
    """Which gradients share an allreduce: a tuple for each bucket, in launch order, of its parameters' places.

    It is made from lists of places, or from a `DDPBuckets`, whose buckets after the rebuild it takes. Every place from
    0 up is in exactly one bucket, and no bucket is empty; anything else raises ValueError.

    >>> Buckets([[2, 1], [0]])
    ((2, 1), (0,))
    >>> Buckets([[2, 1], [1]])
    Traceback (most recent call last):
    ValueError: buckets must hold each parameter from 0 to 2 once, got ((2, 1), (1,))
    """

    def __new__(cls, buckets: Any) -> Buckets:
        if isinstance(buckets, Buckets):
            return buckets
        if isinstance(buckets, DDPBuckets):
            buckets = [bucket.indices for bucket in buckets.rebuilt]
        lists = [several("a bucket", bucket, "places") for bucket in several("buckets", buckets, "buckets")]
        made = super().__new__(cls, (tuple([whole("buckets", place, 0) for place in places]) for places in lists))
        places = sorted(chain.from_iterable(made))
        if places != list(range(len(places))):
            raise ValueError(f"buckets must hold each parameter from 0 to {places[-1]} once, got {made!r}")
        if not all(made):
            raise ValueError(f"buckets must hold at least one parameter each, got {made!r}")
        return made

    @property
    def num_parameters(self) -> int:
        return sum(map(len, self))


def buckets_of(name: str, value: Any, num_parameters: int | None = None) -> Buckets:
    """Return the value as `Buckets`, of so many parameters."""
    found = Buckets(value)
    if num_parameters is not None and found.num_parameters != num_parameters:
        raise ValueError(f"{name} must hold each of {count_of(num_parameters, 'parameter')} once, got {found!r}")
    return found


@attrs.frozen
class Bucket:
    """One bucket: its parameters' places in the order in which they lie in its buffer, and why nothing was added.

    `closed` is "cap" if it had reached `cap_bytes`, "end" if no parameters of its dtype and device were left, "sparse"
    for a sparse gradient, which has a bucket to itself. `cap_bytes` is None if there is no cap. Parameters are never
    split, so a bucket can hold much more than its cap.

    >>> Bucket((3, 2), 3 * 2**20, 2**20, "cap").why
    'reached its cap of 1 MiB'
    """

    indices: tuple[int, ...]
    num_bytes: int
    cap_bytes: int | None
    closed: str

    @property
    def why(self) -> str:
        """Why the bucket was closed, in words."""
        if self.closed == "cap":
            return f"reached its cap of {bytes_words(self.cap_bytes or 0)}"
        return {"sparse": "a sparse gradient, always alone", "end": "nothing left to add"}[self.closed]


@attrs.frozen
class DDPBuckets:
    """The buckets of a DistributedDataParallel in launch order: the `first` ones, and those `rebuilt` at `rebuilt_at`.

    They number the `parameters` as DDP's own error messages do: those that require a gradient, from 0. If DDP never
    rebuilds, `rebuilt_at` is None and `rebuilt` is `first`. Only iterations that synchronise count, not those under
    ``no_sync()``.
    """

    parameters: tuple[ParameterSpec, ...]
    first: tuple[Bucket, ...]
    rebuilt: tuple[Bucket, ...]
    rebuilt_at: int | None

    def at(self, iteration: int) -> tuple[Bucket, ...]:
        """Return the buckets of an iteration, counted from 0."""
        iteration = whole("iteration", iteration, 0)
        return self.first if self.rebuilt_at is None or iteration < self.rebuilt_at else self.rebuilt

    def check(self, found: Iterable[Iterable[int]], iteration: int) -> None:
        """Raise BucketError unless `found` are the buckets of that iteration, in that order, parameter by parameter.

        >>> expected = buckets([ParameterSpec("weight", 400), ParameterSpec("bias", 40)])
        >>> expected.check([[1, 0]], iteration=1)
        >>> expected.check([[1], [0]], iteration=1)
        Traceback (most recent call last):
        rankscope.train.ddp.buckets.BucketError: iteration 1, bucket 0: expected parameters 1, 0, found 1
        """
        seen = [tuple(several("found", one, "places")) for one in several("found", found, "buckets")]
        wanted = [bucket.indices for bucket in self.at(iteration)]
        for place, pair in enumerate(zip_longest(wanted, seen)):
            if pair[0] != pair[1]:
                mine, other = ("no such bucket" if one is None else ", ".join(map(str, one)) or "none" for one in pair)
                raise BucketError(f"iteration {iteration}, bucket {place}: expected parameters {mine}, found {other}")

    def __str__(self) -> str:
        """A table of the buckets at first and later: how many parameters, bytes, why closed, first and last name."""
        whole_bytes = sum(spec.num_bytes for spec in self.parameters)
        lines = [f"{count_of(len(self.parameters), 'parameter')}, {bytes_words(whole_bytes)}"]
        if self.rebuilt_at is None:
            return "\n".join([*lines, "every iteration: " + self._table(self.first)])
        when = "iteration 0" if self.rebuilt_at == 1 else f"iterations 0 to {self.rebuilt_at - 1}"
        lines.append(f"{when}: {self._table(self.first)}")
        lines.append(f"from iteration {self.rebuilt_at}: {self._table(self.rebuilt)}")
        return "\n".join(lines)

    def _table(self, buckets: tuple[Bucket, ...]) -> str:
        rows = [count_of(len(buckets), "bucket")]
        for place, bucket in enumerate(buckets):
            ends = dict.fromkeys(self.parameters[index].name for index in (bucket.indices[0], bucket.indices[-1]))
            held = f"{count_of(len(bucket.indices), 'parameter')}, {bytes_words(bucket.num_bytes)}"
            rows.append(f"  {place:>3}  {held:<27}  {bucket.why:<31}  {' … '.join(ends)}")
        return "\n".join(rows)


# ---- which buckets DDP makes


def assign_buckets(
    parameters: Parameters, bucket_cap_mb: float = CAP_MB, first_bucket_mb: float = _FIRST_MB
) -> list[list[int]]:
    """Return which parameters share a bucket, in launch order, as DDP assigns them before it has seen a backward.

    Parameters are taken in the order of definition and put into the open bucket of their dtype and device, which is
    closed as soon as it holds `bucket_cap_mb` or more (in units of 2²⁰ bytes, despite the name); the first bucket of
    each dtype and device is closed at `first_bucket_mb`. Buckets are launched in reverse: the small one, with the
    parameters defined first, comes last, when nothing is left to hide its allreduce behind. DDP does this if
    `find_unused_parameters` is set and its cap is not; `buckets` knows its other ways.

    Places count the parameters that require a gradient. Sparse gradients are known of a module and of `ParameterSpec`
    values, not of bare parameters. Raises ValueError for no parameters and for sizes below 0.

    After ``torch.distributed._compute_bucket_assignment_by_size``, torch/csrc/distributed/c10d/reducer.cpp.

    >>> layers = [ParameterSpec(f"layer {n}", 2**20) for n in range(6)]
    >>> assign_buckets(layers, bucket_cap_mb=2)
    [[5], [3, 4], [1, 2], [0]]
    """
    caps = _bytes("first_bucket_mb", first_bucket_mb), _bytes("bucket_cap_mb", bucket_cap_mb)
    return [list(bucket.indices) for bucket in _in_defined_order(parameter_specs(parameters), caps)]


def buckets(
    parameters: Parameters,
    bucket_cap_mb: float | None = None,
    *,
    ready_order: Sequence[int] | None = None,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
) -> DDPBuckets:
    """Return the buckets that ``DistributedDataParallel(module, ...)`` with these arguments uses, at first and later.

    `parameters` is a module, its parameters or `ParameterSpec` values. At iteration 0 all gradients of one dtype and
    device share one bucket. Then DDP knows in which order gradients get ready, and fills buckets in that order, at
    iteration 1, or 2 with `static_graph`. With `find_unused_parameters` alone it does neither: see `assign_buckets`.
    The bucket of 1 MiB, launched first after the rebuild, exists only if no cap is set: 25 is not None.

    `ready_order` is the order in rank 0's backward. The default is the reverse of the definitions, which a real one
    often is not. Raises ValueError for an order that repeats a parameter, and for one that leaves out parameters
    (because they get no gradient) unless `static_graph` or `find_unused_parameters` is set: DDP would stop.

    The same in torch 2.6 to 2.13: torch/nn/parallel/distributed.py, and reducer.cpp as above while the environment
    variable DDP_SET_LAST_BUCKET_CAP is not 1. (Lists of caps, from 2.11 on, are left out.)

    >>> print(buckets([ParameterSpec(f"layer {n}", 2**20) for n in range(4)], 2))
    4 parameters, 4 MiB
    iteration 0: 1 bucket
        0  4 parameters, 4 MiB          nothing left to add              layer 0 … layer 3
    from iteration 1: 2 buckets
        0  2 parameters, 2 MiB          reached its cap of 2 MiB         layer 3 … layer 2
        1  2 parameters, 2 MiB          reached its cap of 2 MiB         layer 1 … layer 0
    """
    specs = parameter_specs(parameters)
    mb = (_FIRST_MB, CAP_MB) if bucket_cap_mb is None else (bucket_cap_mb,)  # the last one is that of all others
    caps = [_bytes("bucket_cap_mb", one) for one in mb]
    static, unused = truth("static_graph", static_graph), truth("find_unused_parameters", find_unused_parameters)
    order = _ready_order(specs, ready_order, may_miss=static or unused)
    if unused and not static:
        first = _in_defined_order(specs, caps)
        return DDPBuckets(specs, first, first, None)
    first = _in_defined_order(specs, (None,))
    return DDPBuckets(specs, first, tuple(_fill(((n, specs[n]) for n in order), caps)), 2 if static else 1)


def _bytes(name: str, megabytes: float) -> int:
    return int(min(number(name, megabytes, 0), _NEVER_MB) * _MIB)


def _ready_order(specs: Sequence[ParameterSpec], order: Sequence[int] | None, may_miss: bool) -> list[int]:
    """Return the order with the parameters that get no gradient at its end, as a static graph has them."""
    if order is None:
        return list(reversed(range(len(specs))))
    places = [whole("ready_order", place, 0, len(specs) - 1) for place in several("ready_order", order, "places")]
    missing = sorted(set(range(len(specs))) - set(places))
    if len(places) + len(missing) != len(specs):
        raise ValueError(f"ready_order must name each parameter once, got {places!r}")
    if missing and not may_miss:
        raise ValueError(
            f"ready_order must name each parameter unless static_graph or find_unused_parameters is set: DDP stops "
            f"where one gets no gradient, as {specs[missing[0]].name!r}"
        )
    return places + missing


def _fill(order: Iterable[tuple[int, ParameterSpec]], caps: Sequence[int | None]) -> Iterator[Bucket]:
    """Yield buckets filled in that order; those that are not full at the end come last."""
    filling: dict[Key, list[int]] = {}
    num_bytes, num_closed = Counter[Key](), Counter[Key]()
    for index, spec in order:
        if spec.sparse:
            yield Bucket((index,), spec.num_bytes, None, "sparse")
            continue
        key = spec.dtype, spec.device
        filling.setdefault(key, []).append(index)
        num_bytes[key] += spec.num_bytes
        cap = caps[min(num_closed[key], len(caps) - 1)]
        if cap is not None and num_bytes[key] >= cap:
            yield Bucket(tuple(filling[key]), num_bytes[key], cap, "cap")
            filling[key], num_bytes[key], num_closed[key] = [], 0, num_closed[key] + 1
    for key in table_order(filling):
        if filling[key]:
            yield Bucket(tuple(filling[key]), num_bytes[key], caps[min(num_closed[key], len(caps) - 1)], "end")


def _in_defined_order(specs: Sequence[ParameterSpec], caps: Sequence[int | None]) -> tuple[Bucket, ...]:
    """Buckets filled in the order of definition, launched in reverse order of their first parameters."""
    return tuple(sorted(_fill(enumerate(specs), caps), key=lambda bucket: bucket.indices[0], reverse=True))


# ---- in which order the reducer finds buckets that are not full at the end: that of a C++ hash table


Key = tuple[str, str]  # dtype and device

# c10/core/ScalarType.h and DeviceType.h, whose numbers are part of torch's file format and do not change
_DTYPES = {
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex32": 8,
    "complex64": 9,
    "complex128": 10,
    "bfloat16": 15,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
}
_DEVICES = {"cpu": 0, "cuda": 1, "hip": 6, "xla": 9, "xpu": 12, "mps": 13, "meta": 14, "hpu": 15, "mtia": 19}
_SIZES = (13, 29, 59, 127, 257, 541, 1109)


def table_order(keys: Iterable[Key]) -> list[Key]:
    """Return distinct keys, given in order of insertion, in the order in which a walk through the table finds them.

    The reducer keeps open buckets in a ``std::unordered_map``. GCC's (libstdc++'s) puts a new key in front of all
    others, or, if its slot is taken, in front of the keys of that slot: the last key comes first unless slots coincide,
    for which it takes three keys. The table starts with 13 slots. An unknown dtype or device gets a slot of its own.

    >>> table_order([("float32", "cpu"), ("bfloat16", "cpu"), ("float64", "cpu")])
    [('float64', 'cpu'), ('bfloat16', 'cpu'), ('float32', 'cpu')]
    >>> table_order([("float16", "cuda:0"), ("float32", "cuda:0"), ("float16", "cuda:1")])
    [('float32', 'cuda:0'), ('float16', 'cuda:1'), ('float16', 'cuda:0')]
    """
    table: list[Key] = []
    sizes = iter(_SIZES)
    size = next(sizes)

    def put(key: Key) -> None:
        slot = _slot(key, size)
        table.insert(next((place for place, other in enumerate(table) if _slot(other, size) == slot), 0), key)

    for key in keys:
        if len(table) == size:
            size, old, table = next(sizes, 2 * size), table, []
            for kept in old:
                put(kept)
        put(key)
    return table


def _slot(key: Key, size: int) -> int | Key:
    """c10::get_hash(dtype, device) modulo the number of slots, where std::hash of a number is that number."""
    dtype, (kind, _, index) = key[0], key[1].partition(":")
    if dtype not in _DTYPES or kind not in _DEVICES:
        return key
    device = _DEVICES[kind] << 16 | (int(index) if index else 255)
    return (device ^ (_DTYPES[dtype] + 0x9E3779B9 + (device << 6) + (device >> 2))) % size
