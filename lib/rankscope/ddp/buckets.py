"""DDP's gradient buckets: which gradients share an allreduce, in which order they are launched, and why they part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from ..values.checks import count_of, number, several, truth, whole
from ..values.units import bytes_words
from .bucket_keys import Key, table_order
from .local_step import ParameterSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    Parameters: TypeAlias = Module | Iterable[Tensor] | Iterable[ParameterSpec]

_MIB = 2**20
CAP_MB, _FIRST_MB = 25.0, 1.0  # of DDP, where its cap is left alone
_NEVER_MB = 2.0**40  # more than any bucket has: a cap that is never reached


class BucketError(ValueError):
    """Buckets are not those that were predicted."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that one allreduce takes, by their parameters' numbers, in the order in which they lie in its buffer.

    `closed` says why nothing was added: it had reached its "cap" of `cap_bytes`, "end" where the parameters of its
    dtype and device had ended, or "sparse" for a sparse gradient, which has a bucket to itself. `cap_bytes` is None
    where there is no cap. Parameters are never split, so that a bucket may hold much more than its cap.
    """

    indices: tuple[int, ...]
    num_bytes: int
    cap_bytes: int | None
    closed: str

    @property
    def why(self) -> str:
        """Why the bucket was closed, in words.

        >>> Bucket((3, 2), 3 * 2**20, 2**20, "cap").why
        'reached its cap of 1 MiB'
        """
        if self.closed == "cap":
            return f"reached its cap of {bytes_words(self.cap_bytes or 0)}"
        return {"sparse": "a sparse gradient, always alone", "end": "nothing left to add"}[self.closed]


@dataclass(frozen=True)
class DDPBuckets:
    """The buckets of a DistributedDataParallel in launch order: the `first` ones, and those `rebuilt` at `rebuilt_at`.

    They number the `parameters` as DDP's own error messages do: those that require a gradient, from 0. `rebuilt_at`
    is None where DDP never rebuilds; `rebuilt` is what was there at first then. Iterations are those that synchronise:
    others, under ``no_sync()``, do not count.
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

        >>> buckets = ddp_buckets([ParameterSpec("weight", 400), ParameterSpec("bias", 40)])
        >>> buckets.check([[1, 0]], iteration=1)
        >>> buckets.check([[1], [0]], iteration=1)
        Traceback (most recent call last):
        rankscope.ddp.buckets.BucketError: iteration 1, bucket 0: expected parameters 1, 0, found 1
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


def assign_buckets(
    params: Parameters, bucket_cap_mb: float = CAP_MB, first_bucket_mb: float = _FIRST_MB
) -> list[list[int]]:
    """Return which parameters share a bucket, in launch order, as DDP assigns them before it has seen a backward.

    Parameters are taken in the order in which they are defined and put into the open bucket of their dtype and device,
    which is closed as soon as it holds `bucket_cap_mb` or more (of 2²⁰ bytes, despite the name); the first one of each
    dtype and device is closed at `first_bucket_mb`. Buckets are launched in reverse: the small one, of the parameters
    defined first, comes last, when nothing is left to hide its allreduce behind. That is what DDP does where
    `find_unused_parameters` is set and its cap left alone; `ddp_buckets` has its other ways.

    Numbers are those of the parameters that require a gradient. Sparse gradients are known of a module and of
    `ParameterSpec` values, not of bare parameters. Raises ValueError for no parameters and for sizes below 0.

    After ``torch.distributed._compute_bucket_assignment_by_size``, torch/csrc/distributed/c10d/reducer.cpp.

    >>> layers = [ParameterSpec(f"layer {n}", 2**20) for n in range(6)]
    >>> assign_buckets(layers, bucket_cap_mb=2)
    [[5], [3, 4], [1, 2], [0]]
    """
    caps = _bytes("first_bucket_mb", first_bucket_mb), _bytes("bucket_cap_mb", bucket_cap_mb)
    return [list(bucket.indices) for bucket in _defined_order(parameter_specs(params), caps)]


def ddp_buckets(
    params: Parameters,
    bucket_cap_mb: float | None = None,
    *,
    ready_order: Sequence[int] | None = None,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    bucket_cap_mb_list: Sequence[float] | None = None,
) -> DDPBuckets:
    """Return the buckets that ``DistributedDataParallel(module, ...)`` with these arguments uses, at first and later.

    At iteration 0 all gradients of one dtype and device wait for each other in one bucket. Then DDP knows in which
    order they get ready, and fills buckets in that order: at iteration 1, or 2 with `static_graph`. Where only
    `find_unused_parameters` is set it does neither: see `assign_buckets`. The bucket of 1 MiB, launched first once
    rebuilt, is there only where the cap is left alone: 25 given is not None. A list of caps holds from the start.

    `ready_order` is that of rank 0's backward, by default the reverse of the definitions, which a real one often is
    not. Raises ValueError for an order that repeats a parameter, and for one that leaves out such as get no gradient
    unless `static_graph` or `find_unused_parameters` is set: DDP would stop.

    The same in torch 2.6 to 2.13 (lists of caps: from 2.11): torch/nn/parallel/distributed.py, and reducer.cpp as
    above while the environment variable DDP_SET_LAST_BUCKET_CAP is not 1.

    >>> print(ddp_buckets([ParameterSpec(f"layer {n}", 2**20) for n in range(4)], 2))
    4 parameters, 4 MiB
    iteration 0: 1 bucket
        0  4 parameters, 4 MiB          nothing left to add              layer 0 … layer 3
    from iteration 1: 2 buckets
        0  2 parameters, 2 MiB          reached its cap of 2 MiB         layer 3 … layer 2
        1  2 parameters, 2 MiB          reached its cap of 2 MiB         layer 1 … layer 0
    """
    listed = several("bucket_cap_mb_list", () if bucket_cap_mb_list is None else bucket_cap_mb_list, "caps")
    specs, caps = parameter_specs(params), cap_bytes(bucket_cap_mb, listed)
    static, unused = truth("static_graph", static_graph), truth("find_unused_parameters", find_unused_parameters)
    order = _ready_order(specs, ready_order, static or unused)
    if unused and not static:
        first = _defined_order(specs, caps)
        return DDPBuckets(specs, first, first, None)
    first = _defined_order(specs, caps if listed else (None,))
    return DDPBuckets(specs, first, tuple(_fill([(n, specs[n]) for n in order], caps)), 2 if static else 1)


def parameter_specs(params: Parameters) -> tuple[ParameterSpec, ...]:
    """Return what DDP asks of each parameter that requires a gradient, each once, in their order.

    A module's have their names, and are sparse where the first module that holds them is an Embedding or EmbeddingBag
    with ``sparse=True``. Raises ValueError for anything else than parameters or `ParameterSpec`, and for none.

    >>> import torch
    >>> parameter_specs(torch.nn.Linear(10, 5))[0]
    ParameterSpec(name='weight', num_bytes=200, dtype='float32', device='cpu', sparse=False)
    """
    if named := getattr(params, "named_parameters", None):
        sparse = _sparse_ids(params)
        specs = [_spec(name, one, id(one) in sparse) for name, one in named() if one.requires_grad]
    else:
        if not isinstance(params, Iterable):
            raise ValueError(f"params must be a module, its parameters or ParameterSpec values, got {params!r}")
        specs, seen = [], set()
        for place, one in enumerate(params):
            if isinstance(one, ParameterSpec):
                specs.append(one)
            elif id(one) not in seen and getattr(one, "requires_grad", True):
                seen.add(id(one))
                specs.append(_spec(f"parameter {place}", one, False))
    if not specs:
        raise ValueError("params must hold at least one that requires a gradient, got none")
    return tuple(specs)


def _spec(name: str, param: Any, sparse: bool) -> ParameterSpec:
    if not (hasattr(param, "element_size") and hasattr(param, "numel")):
        raise ValueError(f"params must be a module, its parameters or ParameterSpec values, got {param!r}")
    dtype = str(param.dtype).removeprefix("torch.")
    return ParameterSpec(name, param.numel() * param.element_size(), dtype, str(param.device), sparse)


def _sparse_ids(module: Any) -> set[int]:
    from torch.nn import Embedding, EmbeddingBag

    owners: dict[int, Module] = {}
    for owner in module.modules():
        for param in owner.parameters(recurse=False):
            owners.setdefault(id(param), owner)
    return {key for key, owner in owners.items() if isinstance(owner, Embedding | EmbeddingBag) and owner.sparse}


def cap_bytes(cap_mb: float | None, caps_mb: Sequence[float] | None = None) -> tuple[int, ...]:
    """Return the caps of the first, the second, … bucket of a dtype and device; the last is that of all others."""
    if caps_mb:
        return tuple(_bytes("bucket_cap_mb_list", one) for one in caps_mb)
    if cap_mb is None:
        return int(_FIRST_MB * _MIB), int(CAP_MB * _MIB)
    return (_bytes("bucket_cap_mb", cap_mb),)


def _bytes(name: str, megabytes: float) -> int:
    return int(min(number(name, megabytes, 0), _NEVER_MB) * _MIB)


def _ready_order(specs: Sequence[ParameterSpec], order: Sequence[int] | None, may_miss: bool) -> list[int]:
    """The order with those that get no gradient at its end, where a static graph has them."""
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


@dataclass
class _Filling:
    """The open bucket of one dtype and device, and how many of theirs have been closed at a cap."""

    indices: list[int] = field(default_factory=list)
    num_bytes: int = 0
    num_closed: int = 0


def _fill(order: Iterable[tuple[int, ParameterSpec]], caps: Sequence[int | None]) -> list[Bucket]:
    """Put parameters into buckets in that order; those that are not full at the end come last."""
    done: list[Bucket] = []
    filling: dict[Key, _Filling] = {}
    for index, spec in order:
        if spec.sparse:
            done.append(Bucket((index,), spec.num_bytes, None, "sparse"))
            continue
        key = spec.dtype, spec.device
        open_one = filling.get(key) or filling.setdefault(key, _Filling())
        open_one.indices.append(index)
        open_one.num_bytes += spec.num_bytes
        cap = caps[min(open_one.num_closed, len(caps) - 1)]
        if cap is not None and open_one.num_bytes >= cap:
            done.append(Bucket(tuple(open_one.indices), open_one.num_bytes, cap, "cap"))
            open_one.indices, open_one.num_bytes, open_one.num_closed = [], 0, open_one.num_closed + 1
    for key in table_order(filling):
        left = filling[key]
        if left.indices:
            cap = caps[min(left.num_closed, len(caps) - 1)]
            done.append(Bucket(tuple(left.indices), left.num_bytes, cap, "end"))
    return done


def _defined_order(specs: Sequence[ParameterSpec], caps: Sequence[int | None]) -> tuple[Bucket, ...]:
    """Buckets filled in the order of definition, launched in reverse of that of their first parameters."""
    return tuple(sorted(_fill(enumerate(specs), caps), key=lambda bucket: bucket.indices[0], reverse=True))
