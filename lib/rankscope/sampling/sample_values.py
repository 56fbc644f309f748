"""Checks of what a sampler knows of each sample: lengths, costs and weights; and a digest that states can compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import one_of

MOST_LENGTH = 2**40  # tokens of one sample; sums of many lengths then fit in 64 bits
MOST_WINDOW = 2**50  # steps
COSTS = ("linear", "quadratic")

CostFunction = Callable[[NDArray[np.int64]], ArrayLike]


def checked_lengths(lengths: Any) -> NDArray[np.int64]:
    """Return a read-only array of the lengths of all samples.

    Raises ValueError, which names the first sample that is wrong, unless all are whole numbers from 0 to `MOST_LENGTH`.

    >>> checked_lengths([3, -9, 2])
    Traceback (most recent call last):
    ValueError: lengths must be whole numbers from 0 to 1099511627776, got -9 for sample 1
    """
    values = _as_array("lengths", lengths, "whole numbers")  # of floats if the list is empty
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        got = f"{values.dtype} of shape {values.shape}"
        raise ValueError(f"lengths must be a 1-D array of whole numbers, one for each sample, got {got}")
    if values.size and (values.min() < 0 or values.max() > MOST_LENGTH):
        sample = int(np.argmax((values < 0) | (values > MOST_LENGTH)))  # the first one that is wrong
        raise ValueError(
            f"lengths must be whole numbers from 0 to {MOST_LENGTH}, got {values[sample]} for sample {sample}"
        )
    return _frozen_copy(values, np.int64)


def costs_of(lengths: NDArray[np.int64], cost: str | CostFunction) -> NDArray[np.float64]:
    """Return the cost of each sample: its length, the length's square, or what a function returns for it.

    "linear" is for layers whose time is proportional to the number of tokens, "quadratic" for attention. Raises
    ValueError for another word, and for a function that does not return a finite cost of at least 0 for each sample,
    or whose costs have no finite sum, because the costs of batches and steps are sums of them.

    >>> costs_of(np.array([1, 2, 3]), "quadratic").tolist()
    [1.0, 4.0, 9.0]
    """
    if not callable(cost):
        word = one_of("cost", cost, COSTS)
        linear = lengths.astype(np.float64)
        if word == "linear":
            return linear
        return linear**2
    try:
        costs = np.asarray(cost(lengths))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cost must be a function of the array of all lengths, and fails on it: {error}") from error
    if costs.shape != lengths.shape or (costs.size and costs.dtype.kind not in "iuf"):
        got = f"{costs.dtype} of shape {costs.shape}"
        raise ValueError(f"cost must return a number for each of {lengths.size} lengths, got {got}")
    numbers = _checked_numbers(costs, "cost must return")
    with np.errstate(over="ignore"):  # an overflow is an error below, not a warning here
        total = numbers.sum()
    if not np.isfinite(total):
        raise ValueError(f"cost must return numbers with a finite sum, got up to {numbers.max():.3g} each")
    return numbers


def checked_weights(weights: Any) -> NDArray[np.float64]:
    """Return a read-only array of the weights of all samples.

    Raises ValueError, which names the first sample that is wrong, unless all are finite numbers of at least 0.

    >>> checked_weights([0.5, float("nan")])
    Traceback (most recent call last):
    ValueError: weights must be finite numbers of at least 0, got nan for sample 1
    """
    values = _as_array("weights", weights, "numbers")
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iuf"):
        got = f"{values.dtype} of shape {values.shape}"
        raise ValueError(f"weights must be a 1-D array of numbers, one for each sample, got {got}")
    return _checked_numbers(values, "weights must be")


def digest_of(values: NDArray[Any]) -> str:
    """Return 16 hexadecimal digits that differ for different values."""
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=8).hexdigest()


def _as_array(name: str, values: Any, expected: str) -> NDArray[Any]:
    """Return an array. Raises ValueError for what numpy cannot convert, such as ragged lists and some tensors."""
    must_be = f"{name} must be a 1-D array of {expected}, one for each sample"
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{must_be}: {error}") from error
    # numpy makes a 0-d array of objects of an iterable that it cannot read, such as a dataset.
    if array.ndim == 0 and hasattr(values, "__iter__") and not isinstance(values, str | bytes):
        reason = "a framework that replaces samplers, as Lightning does, needs use_distributed_sampler=False"
        raise ValueError(f"{must_be}, got a {type(values).__name__}: {reason}")
    return array


def _checked_numbers(values: NDArray[Any], requirement: str) -> NDArray[np.float64]:
    """Return a read-only copy as floats. Raises ValueError for numbers that are not finite or below 0.

    `requirement` begins the message: the name of the argument, and what it must be or return.
    """
    numbers = _frozen_copy(values, np.float64)
    is_wrong = ~np.isfinite(numbers) | (numbers < 0)
    if is_wrong.any():
        sample = int(np.argmax(is_wrong))
        raise ValueError(f"{requirement} finite numbers of at least 0, got {numbers[sample]} for sample {sample}")
    return numbers


def _frozen_copy(values: NDArray[Any], dtype: Any) -> NDArray[Any]:
    copy = values.astype(dtype)
    copy.flags.writeable = False
    return copy
