"""DDP's gradient buckets: which gradients share an allreduce, in which order, and why each bucket was closed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ...common.checks import check_field, number, of_type, several, truth, whole
from ...common.units import bytes_words
from ...common.words import count_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    Parameters: TypeAlias = Module | Iterable[Tensor] | Iterable["ParameterSpec"]

_MIB = 2**20
CAP_MB = 25.0  # DDP's cap if the user sets none
_FIRST_MB = 1.0  # DDP's cap of the first bucket if the user sets none
_NEVER_MB = 2.0**40  # larger than any bucket: a cap that is never reached, whose bytes are still a finite float
_MOST_BYTES = 2**50  # of a gradient: sums of thousands still fit into 64 bits


class BucketError(ValueError):
    """The observed buckets are not the predicted ones."""


# ---- the parameters that go into buckets


class ParameterSpec(msgspec.Struct, frozen=True, array_like=True):
    """The properties of a parameter that decide its bucket; `num_bytes` is the size of its gradient.

    >>> ParameterSpec("fc.weight", 4 * 10 * 10)
    ParameterSpec(name='fc.weight', num_bytes=400, dtype='float32', device='cpu', sparse=False)
    """

    name: str
    num_bytes: int
    dtype: str = "float32"
    device: str = "cpu"
    sparse: bool = False

    def __post_init__(self) -> None:
        check_field(self, "name", of_type, str)
        check_field(self, "num_bytes", whole, 0, _MOST_BYTES)
        check_field(self, "sparse", truth)


def parameter_specs(parameters: Parameters) -> tuple[ParameterSpec, ...]:
    """Return the spec of each parameter that requires a gradient, each parameter once, in the order of definition.

    A module's specs have the parameters' names. A spec is sparse if the first module that contains the parameter is an
    Embedding or EmbeddingBag with ``sparse=True``. Raises ValueError for anything but parameters and `ParameterSpec`
    values, and if none requires a gradient.

    >>> import torch
    >>> parameter_specs(torch.nn.Linear(10, 5))[0]
    ParameterSpec(name='weight', num_bytes=200, dtype='float32', device='cpu', sparse=False)
    """
    wanted = "parameters must be a module, its parameters or ParameterSpec values"
    sparse_ids: set[int] = set()
    named: Iterable[tuple[str, Any]]
    if hasattr(parameters, "named_parameters"):
        named = parameters.named_parameters()
        sparse_ids = _sparse_parameters(parameters)
    elif isinstance(parameters, Iterable):
        named = ((f"parameter {index}", param) for index, param in enumerate(parameters))
    else:
        raise ValueError(f"{wanted}, got {parameters!r}")
    specs = []
    known_ids = set[int]()
    for name, param in named:
        if isinstance(param, ParameterSpec):
            specs.append(param)
            continue
        # By its methods, because `ParameterSpec` values must work without torch, which has the class.
        if not (hasattr(param, "element_size") and hasattr(param, "numel")):
            raise ValueError(f"{wanted}, got {param!r}")
        if not param.requires_grad or id(param) in known_ids:
            continue
        known_ids.add(id(param))
        num_bytes = param.numel() * param.element_size()
        dtype = str(param.dtype).removeprefix("torch.")
        specs.append(ParameterSpec(name, num_bytes, dtype, str(param.device), id(param) in sparse_ids))
    if not specs:
        raise ValueError("parameters must hold at least one that requires a gradient, got none")
    return tuple(specs)


def _sparse_parameters(module: Any) -> set[int]:
    """Return the ids of the parameters whose gradients are sparse.

    A parameter that several modules share counts as one of the first module, as it does for DDP.
    """
    from torch.nn import Embedding, EmbeddingBag

    owners: dict[int, Module] = {}
    for owner in module.modules():
        for param in owner.parameters(recurse=False):
            owners.setdefault(id(param), owner)
    sparse_ids = set()
    for param_id, owner in owners.items():
        if isinstance(owner, Embedding | EmbeddingBag) and owner.sparse:
            sparse_ids.add(param_id)
    return sparse_ids


# ---- buckets


class Buckets(tuple[tuple[int, ...], ...]):
    """Which gradients share an allreduce: a tuple for each bucket, in launch order, of its parameters' indices.

    The argument is a list of lists of indices, or a `DDPBuckets`, whose buckets after the rebuild are used. Raises
    ValueError unless every index from 0 up is in exactly one bucket, and no bucket is empty.

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
        checked_buckets = []
        for bucket in several("buckets", buckets, "buckets"):
            indices = several("a bucket", bucket, "places")
            checked_buckets.append(tuple([whole("buckets", index, 0) for index in indices]))
        value = super().__new__(cls, checked_buckets)
        all_indices = sorted(chain.from_iterable(value))
        if all_indices != list(range(len(all_indices))):
            raise ValueError(f"buckets must hold each parameter from 0 to {all_indices[-1]} once, got {value!r}")
        if () in value:
            raise ValueError(f"buckets must hold at least one parameter each, got {value!r}")
        return value

    @property
    def num_parameters(self) -> int:
        return sum(map(len, self))


def buckets_of(name: str, value: Any, num_parameters: int | None = None) -> Buckets:
    """Return the value as `Buckets`; ValueError if they are not of so many parameters."""
    buckets = Buckets(value)
    if num_parameters is not None and buckets.num_parameters != num_parameters:
        raise ValueError(f"{name} must hold each of {count_of(num_parameters, 'parameter')} once, got {buckets!r}")
    return buckets


class Bucket(msgspec.Struct, frozen=True):
    """One bucket: its parameters' indices in the order of its buffer, and why it was closed.

    `closed` is "cap" if the bucket had reached `cap_bytes`, "end" if no parameters of its dtype and device were left,
    and "sparse" for a sparse gradient, which has a bucket to itself. `cap_bytes` is None if there is no cap. Parameters
    are never split, so a bucket can be much larger than its cap.

    >>> Bucket((3, 2), 3 * 2**20, 2**20, "cap").why
    'it reached its cap of 1 MiB'
    """

    indices: tuple[int, ...]
    num_bytes: int
    cap_bytes: int | None
    closed: str

    @property
    def why(self) -> str:
        """Why the bucket was closed, in words."""
        if self.closed == "cap":
            assert self.cap_bytes is not None, "a bucket without a cap cannot reach it"
            return f"it reached its cap of {bytes_words(self.cap_bytes)}"
        if self.closed == "sparse":
            return "a sparse gradient is always alone"
        return "no parameters are left"


class DDPBuckets(msgspec.Struct, frozen=True):
    """The buckets of a DistributedDataParallel in launch order: the `first` ones, and those `rebuilt` at `rebuilt_at`.

    Parameters have the numbers that DDP's own error messages use: those that require a gradient count from 0. If DDP
    never rebuilds, `rebuilt_at` is None and `rebuilt` is `first`. Only iterations that synchronise count, not those
    under ``no_sync()``.
    """

    parameters: tuple[ParameterSpec, ...]
    first: tuple[Bucket, ...]
    rebuilt: tuple[Bucket, ...]
    rebuilt_at: int | None

    def at(self, iteration: int) -> tuple[Bucket, ...]:
        """Return the buckets of an iteration, counted from 0."""
        iteration = whole("iteration", iteration, 0)
        if self.rebuilt_at is None or iteration < self.rebuilt_at:
            return self.first
        return self.rebuilt

    def check(self, observed_buckets: Iterable[Iterable[int]], iteration: int) -> None:
        """Raise BucketError unless these are the buckets of that iteration, in that order, parameter by parameter.

        >>> expected = buckets([ParameterSpec("weight", 400), ParameterSpec("bias", 40)])
        >>> expected.check([[1, 0]], iteration=1)
        >>> expected.check([[1], [0]], iteration=1)
        Traceback (most recent call last):
        rankscope.train.ddp.buckets.BucketError: iteration 1, bucket 0: expected parameters 1, 0, found 1
        """
        observed = []
        for bucket in several("observed_buckets", observed_buckets, "buckets"):
            observed.append(tuple(several("observed_buckets", bucket, "places")))
        expected = [bucket.indices for bucket in self.at(iteration)]
        for position, (indices, observed_indices) in enumerate(zip_longest(expected, observed)):
            if indices != observed_indices:
                difference = f"expected parameters {_listed(indices)}, found {_listed(observed_indices)}"
                raise BucketError(f"iteration {iteration}, bucket {position}: {difference}")

    def __str__(self) -> str:
        """A table of the buckets before and after the rebuild.

        A row has the number of parameters, the bytes, the reason for closing, and the first and last name.
        """
        num_bytes = sum(spec.num_bytes for spec in self.parameters)
        lines = [f"{count_of(len(self.parameters), 'parameter')}, {bytes_words(num_bytes)}"]
        if self.rebuilt_at is None:
            return "\n".join([*lines, "every iteration: " + self._table(self.first)])
        when = "iteration 0" if self.rebuilt_at == 1 else f"iterations 0 to {self.rebuilt_at - 1}"
        lines.append(f"{when}: {self._table(self.first)}")
        lines.append(f"from iteration {self.rebuilt_at}: {self._table(self.rebuilt)}")
        return "\n".join(lines)

    def _table(self, buckets: tuple[Bucket, ...]) -> str:
        """Return a line with the number of buckets, a head, and a row for each bucket."""
        # The columns have the width of the longest reason and of "1000 parameters, 1023.9 MiB".
        head = f"  {'':>3}  {'contents':<27}  {'closed because':<33}  parameters"
        rows = [count_of(len(buckets), "bucket"), head]
        for position, bucket in enumerate(buckets):
            first = self.parameters[bucket.indices[0]].name
            last = self.parameters[bucket.indices[-1]].name
            names = first if first == last else f"{first} … {last}"
            size = f"{count_of(len(bucket.indices), 'parameter')}, {bytes_words(bucket.num_bytes)}"
            rows.append(f"  {position:>3}  {size:<27}  {bucket.why:<33}  {names}")
        return "\n".join(rows)


def _listed(indices: tuple[Any, ...] | None) -> str:
    """The parameters of a bucket in words; None stands for a bucket that does not exist."""
    if indices is None:
        return "no such bucket"
    if not indices:
        return "none"
    return ", ".join(map(str, indices))


# ---- which buckets DDP makes


def assign_buckets(
    parameters: Parameters, bucket_cap_mb: float = CAP_MB, first_bucket_mb: float = _FIRST_MB
) -> list[list[int]]:
    """Return the parameters of each bucket, in launch order, as DDP assigns them before its first backward pass.

    Each parameter, in the order of definition, goes into the open bucket of its dtype and device, which is closed as
    soon as it contains at least `bucket_cap_mb` (in units of 2²⁰ bytes, despite the name). The first bucket of each
    dtype and device is closed at `first_bucket_mb`. Buckets are launched in reverse, so the small one, with the
    parameters defined first, is the last, when no computation is left to hide its allreduce. DDP assigns buckets in
    this way if `find_unused_parameters` is set and its cap is not; `buckets` covers the other cases.

    Parameters are indices among those that require a gradient. Sparse gradients are recognised in a module and in
    `ParameterSpec` values, not in bare parameters. Raises ValueError if there are no parameters or a size is below 0.

    After ``torch.distributed._compute_bucket_assignment_by_size``, torch/csrc/distributed/c10d/reducer.cpp.

    >>> layers = [ParameterSpec(f"layer {n}", 2**20) for n in range(6)]
    >>> assign_buckets(layers, bucket_cap_mb=2)
    [[5], [3, 4], [1, 2], [0]]
    """
    first_cap_bytes = _bytes("first_bucket_mb", first_bucket_mb)
    cap_bytes = _bytes("bucket_cap_mb", bucket_cap_mb)
    assigned = _in_defined_order(parameter_specs(parameters), [first_cap_bytes, cap_bytes])
    return [list(bucket.indices) for bucket in assigned]


def buckets(
    parameters: Parameters,
    bucket_cap_mb: float | None = None,
    *,
    ready_order: Sequence[int] | None = None,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
) -> DDPBuckets:
    """Return the buckets of ``DistributedDataParallel(module, ...)`` with these arguments, at first and later.

    `parameters` is a module, its parameters or `ParameterSpec` values. At iteration 0 all gradients of one dtype and
    device share one bucket. DDP then knows the order in which gradients become ready and fills buckets in that order,
    at iteration 1, or 2 with `static_graph`. With `find_unused_parameters` alone it does neither; see `assign_buckets`.
    The bucket of 1 MiB, launched first after the rebuild, exists only if `bucket_cap_mb` is None; 25 is a cap.

    `ready_order` is the order in rank 0's backward pass. The default is the reverse of the definitions, but a real
    order often differs. With `find_unused_parameters` alone it has no effect. Raises ValueError if the order repeats a
    parameter, or if it leaves out parameters (because they get no gradient) although neither `static_graph` nor
    `find_unused_parameters` is set, because DDP would stop.

    This is the same in torch 2.6 to 2.13: torch/nn/parallel/distributed.py, and reducer.cpp as above unless the
    environment variable DDP_SET_LAST_BUCKET_CAP is 1. Lists of caps, which torch accepts since 2.11, are not supported.

    >>> print(buckets([ParameterSpec(f"layer {n}", 2**20) for n in range(4)], 2))
    4 parameters, 4 MiB
    iteration 0: 1 bucket
           contents                     closed because                     parameters
        0  4 parameters, 4 MiB          no parameters are left             layer 0 … layer 3
    from iteration 1: 2 buckets
           contents                     closed because                     parameters
        0  2 parameters, 2 MiB          it reached its cap of 2 MiB        layer 3 … layer 2
        1  2 parameters, 2 MiB          it reached its cap of 2 MiB        layer 1 … layer 0
    """
    specs = parameter_specs(parameters)
    if bucket_cap_mb is None:
        caps_bytes = [_bytes("bucket_cap_mb", _FIRST_MB), _bytes("bucket_cap_mb", CAP_MB)]
    else:
        caps_bytes = [_bytes("bucket_cap_mb", bucket_cap_mb)]
    static_graph = truth("static_graph", static_graph)
    find_unused_parameters = truth("find_unused_parameters", find_unused_parameters)
    order = _ready_order(specs, ready_order, may_miss=static_graph or find_unused_parameters)
    if find_unused_parameters and not static_graph:
        first = _in_defined_order(specs, caps_bytes)
        return DDPBuckets(specs, first, rebuilt=first, rebuilt_at=None)
    first = _in_defined_order(specs, [None])  # no cap
    rebuilt = tuple(_fill([(index, specs[index]) for index in order], caps_bytes))
    return DDPBuckets(specs, first, rebuilt, rebuilt_at=2 if static_graph else 1)


def _bytes(name: str, megabytes: float) -> int:
    return int(min(number(name, megabytes, 0), _NEVER_MB) * _MIB)


def _ready_order(specs: Sequence[ParameterSpec], order: Sequence[int] | None, may_miss: bool) -> list[int]:
    """Return the order, followed by the parameters that get no gradient.

    `may_miss` says whether DDP accepts such parameters. For a static graph, it appends them to the order from which it
    rebuilds its buckets. With `find_unused_parameters` alone it marks them as ready when the first gradient is, and
    never rebuilds (``should_rebuild_buckets``): then an order is only checked, and has no effect on the buckets.
    """
    if order is None:
        return list(reversed(range(len(specs))))
    ready = [whole("ready_order", index, 0, len(specs) - 1) for index in several("ready_order", order, "places")]
    missing = sorted(set(range(len(specs))) - set(ready))
    if len(set(ready)) < len(ready):
        raise ValueError(f"ready_order must name each parameter once, got {ready!r}")
    if missing and not may_miss:
        raise ValueError(
            f"ready_order must name each parameter unless static_graph or find_unused_parameters is set: DDP stops "
            f"where one gets no gradient, as {specs[missing[0]].name!r}"
        )
    return ready + missing


class _Filling(msgspec.Struct):
    """The open bucket of a dtype and device, and how many buckets of these were closed."""

    indices: list[int] = []
    num_bytes: int = 0
    num_closed: int = 0

    def cap_bytes(self, caps_bytes: Sequence[int | None]) -> int | None:
        """The n-th bucket has the n-th cap; the last cap is that of all further buckets."""
        return caps_bytes[min(self.num_closed, len(caps_bytes) - 1)]


def _fill(order: Iterable[tuple[int, ParameterSpec]], caps_bytes: Sequence[int | None]) -> Iterator[Bucket]:
    """Yield buckets filled with these parameters, each with its index, in the order in which the reducer closes them.

    Those that are not full at the end come last, in the order of `table_order`. `caps_bytes` are the caps of the first,
    second, ... bucket of each dtype and device; see `_Filling.cap_bytes`.
    """
    fillings: dict[Key, _Filling] = {}
    for index, spec in order:
        if spec.sparse:
            yield Bucket((index,), spec.num_bytes, None, "sparse")
            continue
        filling = fillings.setdefault((spec.dtype, spec.device), _Filling())
        filling.indices.append(index)
        filling.num_bytes += spec.num_bytes
        cap_bytes = filling.cap_bytes(caps_bytes)
        if cap_bytes is not None and filling.num_bytes >= cap_bytes:
            yield Bucket(tuple(filling.indices), filling.num_bytes, cap_bytes, "cap")
            filling.indices = []
            filling.num_bytes = 0
            filling.num_closed += 1
    for key in table_order(fillings):
        filling = fillings[key]
        if filling.indices:
            yield Bucket(tuple(filling.indices), filling.num_bytes, filling.cap_bytes(caps_bytes), "end")


def _in_defined_order(specs: Sequence[ParameterSpec], caps_bytes: Sequence[int | None]) -> tuple[Bucket, ...]:
    """Buckets filled in the order of definition, launched in reverse order of their first parameters."""
    filled = _fill(enumerate(specs), caps_bytes)
    return tuple(sorted(filled, key=lambda bucket: bucket.indices[0], reverse=True))


# ---- the order of buckets that are not full at the end: the reducer iterates over a C++ hash table


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
# The numbers of slots of a table that grows, by the list of primes in libstdc++.
_TABLE_SIZES = (13, 29, 59, 127, 257, 541, 1109)
_GOLDEN_RATIO = 0x9E3779B9  # the constant of hash_combine in c10/util/hash.h
_NO_INDEX = 255  # the index of a device without one is -1, stored in 8 bits without a sign


def table_order(keys: Iterable[Key]) -> list[Key]:
    """Return distinct keys, given in order of insertion, in the order of an iteration over the hash table.

    The reducer keeps open buckets in a ``std::unordered_map``. GCC's (libstdc++'s) inserts a new key in front of all
    others, or, if its slot is taken, in front of the keys of that slot. So the last key comes first unless slots
    coincide, for which it takes three keys. The table starts with 13 slots. An unknown dtype or device gets a slot of
    its own.

    >>> table_order([("float32", "cpu"), ("bfloat16", "cpu"), ("float64", "cpu")])
    [('float64', 'cpu'), ('bfloat16', 'cpu'), ('float32', 'cpu')]
    >>> table_order([("float16", "cuda:0"), ("float32", "cuda:0"), ("float16", "cuda:1")])
    [('float32', 'cuda:0'), ('float16', 'cuda:1'), ('float16', 'cuda:0')]
    """
    table: list[Key] = []
    num_slots = _TABLE_SIZES[0]
    larger_sizes = iter(_TABLE_SIZES[1:])
    for key in keys:
        if len(table) == num_slots:  # full: it grows, and all keys are inserted again in the order of an iteration
            num_slots = next(larger_sizes, 2 * num_slots)  # beyond the list, no model has as many keys
            old_keys = table
            table = []
            for old_key in old_keys:
                _insert(table, old_key, num_slots)
        _insert(table, key, num_slots)
    return table


def _insert(table: list[Key], key: Key, num_slots: int) -> None:
    """Insert a key in front of the first key of its slot, or, if there is none, in front of all keys."""
    slot = _slot(key, num_slots)
    for position, other in enumerate(table):
        if _slot(other, num_slots) == slot:
            table.insert(position, key)
            return
    table.insert(0, key)


def _slot(key: Key, num_slots: int) -> int | Key:
    """c10::get_hash(dtype, device) modulo the number of slots, where std::hash of a number is that number.

    The hash of a device is the number of its kind in the upper 16 bits and its index in the lower ones. A key with an
    unknown dtype or device is its own slot.
    """
    dtype, device_name = key
    kind, _, index_text = device_name.partition(":")
    if dtype not in _DTYPES or kind not in _DEVICES:
        return key
    index = int(index_text) if index_text else _NO_INDEX
    device = _DEVICES[kind] << 16 | index
    combined = device ^ (_DTYPES[dtype] + _GOLDEN_RATIO + (device << 6) + (device >> 2))
    return combined % num_slots
