"""What samplers and audits know of each sample, checked: its length, its cost and its weight."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST_LENGTH = 2**40  # tokens of one sample; sums of many lengths then fit in 64 bits

CostFunction = Callable[[NDArray[np.int64]], ArrayLike]


def checked_lengths(lengths: Any) -> NDArray[np.int64]:
    """Return an array of the lengths of all samples.

    Raises ValueError, which names the first sample that is wrong, unless all are whole numbers from 0 to `MOST_LENGTH`.

    >>> checked_lengths([3, -9, 2])
    Traceback (most recent call last):
    ValueError: lengths must be whole numbers from 0 to 1099511627776, got -9 for sample 1
    """
    values = _as_array("lengths", lengths, "iu", "whole numbers")
    requirement = f"lengths must be whole numbers from 0 to {MOST_LENGTH}"
    _check_each(values, (values >= 0) & (values <= MOST_LENGTH), requirement)
    return values.astype(np.int64)


def checked_weights(weights: Any) -> NDArray[np.float64]:
    """Return an array of the weights of all samples.

    Raises ValueError, which names the first sample that is wrong, unless all are finite numbers of at least 0.

    >>> checked_weights([0.5, float("nan")])
    Traceback (most recent call last):
    ValueError: weights must be finite numbers of at least 0, got nan for sample 1
    """
    return _finite(_as_array("weights", weights, "iuf", "numbers"), "weights must be")


def costs_of(lengths: NDArray[np.int64], cost: str | CostFunction) -> NDArray[np.float64]:
    """Return the cost of each sample: its length, the length's square, or what a function returns for it.

    "linear" is for layers whose time is proportional to the number of tokens, "quadratic" for attention. Raises
    ValueError for another word, and for a function that does not return a finite cost of at least 0 for each sample.

    >>> costs_of(np.array([1, 2, 3]), "quadratic").tolist()
    [1.0, 4.0, 9.0]
    """
    if cost == "linear":
        return lengths.astype(np.float64)
    if cost == "quadratic":
        return lengths.astype(np.float64) ** 2
    if not callable(cost):
        raise ValueError(f"cost must be 'linear', 'quadratic' or a function of the array of all lengths, got {cost!r}")
    costs = _as_array("what cost returns", cost(lengths), "iuf", "numbers")
    if costs.shape != lengths.shape:
        raise ValueError(f"cost must return a number for each of {lengths.size} lengths, got {costs.size}")
    return _finite(costs, "cost must return")


def digest_of(values: NDArray[Any]) -> str:
    """Return 16 hexadecimal digits that differ for different values."""
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8).hexdigest()


def _as_array(name: str, values: Any, kinds: str, expected: str) -> NDArray[Any]:
    """Return a 1-D array with a dtype of one of these kinds. Raises ValueError for anything else."""
    must_be = f"{name} must be a 1-D array of {expected}, one for each sample"
    try:
        array = np.asarray(values)  # of floats if the list is empty
    except (TypeError, ValueError, RuntimeError) as error:  # such as ragged lists and some tensors
        raise ValueError(f"{must_be}: {error}") from error
    if array.ndim == 1 and (not array.size or array.dtype.kind in kinds):
        return array
    # numpy makes a 0-d array of objects of an iterable that it cannot read, such as a sampler.
    if array.ndim == 0 and hasattr(values, "__iter__"):
        reason = "a framework that replaces samplers, as Lightning does, needs use_distributed_sampler=False"
        raise ValueError(f"{must_be}, got a {type(values).__name__}: {reason}")
    raise ValueError(f"{must_be}, got {array.dtype} of shape {array.shape}")


def _finite(values: NDArray[Any], requirement: str) -> NDArray[np.float64]:
    """Return a copy as floats. Raises ValueError for numbers that are not finite or below 0."""
    numbers = values.astype(np.float64)
    _check_each(numbers, np.isfinite(numbers) & (numbers >= 0), f"{requirement} finite numbers of at least 0")
    return numbers


def _check_each(values: NDArray[Any], is_right: NDArray[np.bool_], requirement: str) -> None:
    if not is_right.all():
        sample = int(np.argmin(is_right))  # the first one that is wrong
        raise ValueError(f"{requirement}, got {values[sample]} for sample {sample}")
