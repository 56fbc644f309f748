"""The time of training steps on texts of unequal length: predicted from measured parts, and measured on real ranks.

Ranks wait for each other in every step. While one of them waits, the others may compute faster, because they share
cores, caches and memory with it. So the prediction needs the time of a step in which all ranks compute, and also of one
in which some of them wait.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..common.checks import of_type, several, whole
from ..common.frozen import checked, frozen, mapping
from ..ranks.launcher import launch
from ..sampling import Assignment
from ..train.gradients import DemoError

VOCABULARY = 512
"""Words that the model distinguishes; a word's number is a hash of it."""

_WIDTH = 256
_NUM_PASSES = 16  # through one hidden layer: much to compute for each word, and little to allreduce
_LEARNING_RATE = 0.1
_NUM_SIZES = 8  # of steps whose time is measured for the prediction
_NUM_WARM_UPS = 5
_MOST_ROUNDS = 100

Seconds = NDArray[np.float64]
Numbers = NDArray[np.int64]
Batches = list[list[list[int]]]  # of one order of texts: the texts of each rank in each step


@frozen(eq=False)
class StepCurves:
    """Measured times of steps in which some ranks compute and the others wait.

    ``seconds[k - 1, i]`` is the time of a step in which k ranks read ``words[i]`` words each, and all other ranks one
    word. `words` rises from 1.

    Raises ValueError for arrays whose shapes do not fit each other.
    """

    words: Numbers = checked(lambda name, value: np.asarray(value))
    seconds: Seconds = checked(lambda name, value: np.asarray(value))

    def __attrs_post_init__(self) -> None:
        is_rising = self.words.ndim == 1 and self.words.size > 1 and bool((np.diff(self.words) > 0).all())
        if not is_rising or self.words[0] != 1:
            raise ValueError(f"words must be at least two numbers that rise from 1, got {self.words.tolist()}")
        if self.seconds.ndim != 2 or self.seconds.shape[1] != self.words.size or not self.seconds.shape[0]:
            raise ValueError(
                f"seconds must have the shape (ranks, {self.words.size}), as words have it, got {self.seconds.shape}"
            )

    def predict(self, step_words: ArrayLike) -> Seconds:
        """Return the time of each step, from the words of each rank in it: an array of shape (steps, ranks).

        All ranks compute until the one with the fewest words waits, then all but one, and so on. Between the measured
        sizes, times are interpolated. Raises ValueError for another number of ranks.

        >>> curves = StepCurves([1, 101], [[0.0, 1.0], [0.0, 2.0]])  # two ranks slow each other down to half the speed
        >>> curves.predict([[101, 101], [101, 1], [101, 51]]).tolist()
        [2.0, 1.0, 1.5]
        """
        ascending_words = np.sort(self._checked(step_words), axis=1)  # (steps, ranks), fewest words first
        num_ranks = ascending_words.shape[1]
        # All ranks compute up to the fewest words.
        total_s: Seconds = np.interp(ascending_words[:, 0], self.words, self.seconds[-1])
        for num_waiting in range(1, num_ranks):
            # The others go on, from the words of the rank that waits now to those of the next one.
            num_computing = num_ranks - num_waiting
            curve_s = self.seconds[num_computing - 1]
            total_s += np.interp(ascending_words[:, num_waiting], self.words, curve_s)
            total_s -= np.interp(ascending_words[:, num_waiting - 1], self.words, curve_s)
        return total_s

    def predict_alone(self, step_words: ArrayLike) -> Seconds:
        """Return the time of each step if ranks did not slow each other down: that of the longest batch alone.

        >>> curves = StepCurves([1, 101], [[0.0, 1.0], [0.0, 2.0]])
        >>> curves.predict_alone([[101, 101], [101, 1], [101, 51]]).tolist()
        [1.0, 1.0, 1.0]
        """
        longest = self._checked(step_words).max(axis=1)
        return np.asarray(np.interp(longest, self.words, self.seconds[0]))

    def _checked(self, step_words: ArrayLike) -> Numbers:
        table = np.asarray(step_words)
        if table.ndim != 2 or table.shape[1] != self.seconds.shape[0]:
            raise ValueError(f"step_words must have the shape (steps, {self.seconds.shape[0]}), got {table.shape}")
        return table


class TimedOrder(NamedTuple):
    """The steps of one order of the texts.

    `step_words` has the words that each rank counted in each step, of shape (steps, ranks), `seconds` the median time
    of each step over the rounds, and `round_s` the time of all steps in each round.
    """

    step_words: Numbers
    seconds: Seconds
    round_s: Seconds

    @property
    def spread(self) -> float:
        """Half of the range of the rounds, over their median: what the times differ by without a cause in the model."""
        return float((self.round_s.max() - self.round_s.min()) / 2 / np.median(self.round_s))


@frozen(eq=False)
class StepTimes:
    """Steps on real ranks, measured in the same rounds as the curves that predict them; ``str()`` is a table.

    `losses` has for each round the mean over ranks of a rank's mean loss per word.
    """

    curves: StepCurves = checked(StepCurves)
    orders: Mapping[str, TimedOrder] = checked(mapping)
    losses: tuple[float, ...] = checked(tuple)

    def predicted_s(self, name: str) -> Seconds:
        """The predicted time of each step of an order."""
        return self.curves.predict(self.orders[name].step_words)

    def difference(self, name: str) -> float:
        """The measured time of all steps over the predicted one, minus 1."""
        return float(self.orders[name].seconds.sum() / self.predicted_s(name).sum() - 1)

    def gain(self, name: str, reference: str) -> float:
        """How many times as long all steps of the reference take."""
        return float(self.orders[reference].seconds.sum() / self.orders[name].seconds.sum())

    def predicted_gain(self, name: str, reference: str) -> float:
        """How many times as long all steps of the reference should take."""
        return float(self.predicted_s(reference).sum() / self.predicted_s(name).sum())

    def gains_of_rounds(self, name: str, reference: str) -> Seconds:
        """The gain in each round."""
        return np.asarray(self.orders[reference].round_s / self.orders[name].round_s)

    def __str__(self) -> str:
        num_ranks = self.curves.seconds.shape[0]
        head = f"{num_ranks} ranks, {os.cpu_count()} cores"
        width = max(len(head), *[len(name) for name in self.orders])
        rows = [f"{head:{width}}  steps  measured  noise  predicted   off  longest batch alone  whole epoch"]
        for name, order in self.orders.items():
            seconds = order.seconds
            predicted_s = self.predicted_s(name)
            alone_s = self.curves.predict_alone(order.step_words)
            cells = f"{seconds.size:5}  {_ms(seconds)}   ±{order.spread:3.0%}  {_ms(predicted_s)} "
            cells += f"  {self.difference(name):+4.0%}  {alone_s.mean() * 1e3:16.1f} ms  {seconds.sum():9.2f} s"
            rows.append(f"{name:{width}}  {cells}")
        return "\n".join(rows)


def _ms(seconds: Seconds) -> str:
    return f"{seconds.mean() * 1e3:5.1f} ms"


def step_times(
    texts: Sequence[str], orders: Mapping[str, Assignment], num_rounds: int = 5, timeout_s: float = 120.0
) -> StepTimes:
    """Train on real ranks over Gloo, and time every step of each order of the texts.

    The model predicts the next word from the last one, so a step's work is proportional to its words. It is trained by
    DDP, with losses that give each word of a step the same weight, and each rank computes with one thread. In each of
    `num_rounds` rounds, the steps of all orders and those for the prediction come in one random order, and the median
    time of each step counts.

    Each order is an assignment with batches for the same number of ranks, all of them with the same number of batches.
    Raises ValueError if an order is anything else or a text is empty; RankError if a rank fails; DemoError if the ranks
    end with different parameters.

    >>> from rankscope.sampling import assign
    >>> texts = ["a b", "c", "d e f g", "h"]
    >>> times = step_times(texts, {"in order": assign(4, 2, shuffle=False).with_loader(1)}, num_rounds=1)
    >>> times.orders["in order"].step_words.tolist()
    [[2, 1], [4, 1]]
    """
    word_numbers = [_numbers_of(text) for text in several("texts", texts, "a text each")]
    num_rounds = whole("num_rounds", num_rounds, 1, _MOST_ROUNDS)
    batches = {name: _batches(name, order, len(word_numbers)) for name, order in orders.items()}
    if not batches:
        raise ValueError("orders must have at least one, by name, got none")
    num_ranks = next(iter(orders.values())).num_ranks
    for name, order in orders.items():
        if order.num_ranks != num_ranks:
            raise ValueError(f"all orders must be for {num_ranks} ranks, and {name!r} is for {order.num_ranks}")
    sizes = _sizes_to_measure(word_numbers, list(batches.values()))
    plan = _TrainingPlan(word_numbers, list(batches.values()), sizes, num_rounds)
    ranks = launch(_train, num_ranks, (plan,), timeout_s=timeout_s)
    # All ranks apply the same mean gradients, so not even the rounding of their parameters may differ.
    if len({rank.checksum for rank in ranks}) > 1:
        raise DemoError("the ranks should end with equal parameters, and do not")
    seconds = np.max([rank.seconds for rank in ranks], axis=0)  # of each round and step, by its slowest rank
    median_s = np.median(seconds, axis=0)
    words = np.stack([rank.words for rank in ranks], axis=1)  # (steps, ranks)
    # The first steps are those for the prediction: a step of each size, for each number of ranks that compute.
    num_curve_steps = num_ranks * sizes.size
    curves = StepCurves(sizes, median_s[:num_curve_steps].reshape(num_ranks, sizes.size))
    timed = {}
    first = num_curve_steps
    for name, steps in batches.items():
        stop = first + len(steps)
        timed[name] = TimedOrder(words[first:stop], median_s[first:stop], seconds[:, first:stop].sum(axis=1))
        first = stop
    return StepTimes(curves, timed, tuple(np.mean([rank.losses for rank in ranks], axis=0).tolist()))


def _sizes_to_measure(word_numbers: Sequence[Numbers], orders: Sequence[Batches]) -> Numbers:
    """Return numbers of words from 1 to those of the largest batch, at equal distances except for rounding."""
    most_words = 2  # at least, because a curve needs two sizes
    for steps in orders:
        for batches in steps:
            for batch in batches:
                num_words = sum(word_numbers[text].size for text in batch)
                most_words = max(most_words, num_words)
    sizes = np.linspace(1, most_words, _NUM_SIZES).astype(np.int64)
    return np.unique(sizes)  # of few words, some are equal


def _numbers_of(text: str) -> Numbers:
    """The number of each word, the same on every machine."""
    words = of_type("each of texts", text, str).split()
    if not words:
        raise ValueError(f"each of texts must have at least one word, got {text!r}")
    return np.array([zlib.crc32(word.encode()) % VOCABULARY for word in words])


def _batches(name: str, order: Assignment, num_texts: int) -> Batches:
    """Return the texts of each rank in each step."""
    of_type(f"orders[{name!r}]", order, Assignment)
    if order.size != num_texts:
        raise ValueError(f"{name!r} must be an order of {num_texts} texts, got one of {order.size}")
    by_rank = [[batch.tolist() for batch in order.batches(rank)] for rank in range(order.num_ranks)]
    if len({len(batches) for batches in by_rank}) > 1 or not by_rank[0]:
        counts = [len(batches) for batches in by_rank]
        raise ValueError(f"all ranks of {name!r} must have the same number of batches, at least one, got {counts}")
    if any(not batch for batches in by_rank for batch in batches):
        raise ValueError(f"every batch of {name!r} must have a text, and one has none")
    return [list(step) for step in zip(*by_rank, strict=True)]


# ---- in a rank


class _TrainingPlan(NamedTuple):
    """All texts as numbers of words, the batches of each order, and the sizes to measure."""

    texts: list[Numbers]
    orders: list[Batches]
    sizes: Numbers
    num_rounds: int


class _TextStep(NamedTuple):
    """The words that a rank reads, each followed by the next one, and the number of words of all ranks."""

    words: Tensor
    next_words: Tensor
    num_words_of_all: int


class _TrainedRank(NamedTuple):
    """What one rank measured: seconds of shape (rounds, steps), words of each step, the mean loss of each round."""

    seconds: Seconds
    words: Numbers
    losses: Seconds
    checksum: float


class _NextWord(nn.Module):
    """Predicts the next word: a word passes through one residual layer many times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, _WIDTH)
        self.hidden = nn.Linear(_WIDTH, _WIDTH)
        self.output = nn.Linear(_WIDTH, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        state: Tensor = self.embedding(words)
        for _ in range(_NUM_PASSES):
            state = state + torch.tanh(self.hidden(state)) / _NUM_PASSES
        logits: Tensor = self.output(state)
        return logits


def _train(plan: _TrainingPlan) -> _TrainedRank:
    """Train on this rank, and time each step of each round."""
    steps = _steps_for_the_prediction(plan) + _steps_of_orders(plan)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = DistributedDataParallel(_NextWord())
    optimizer = torch.optim.SGD(module.parameters(), lr=_LEARNING_RATE)
    num_ranks = dist.get_world_size()
    seconds = np.zeros((plan.num_rounds, len(steps)))
    losses = np.zeros(plan.num_rounds)

    def train(step: _TextStep) -> float:
        """Take a step, and return the sum of the losses of this rank's words."""
        loss = nn.functional.cross_entropy(module(step.words), step.next_words, reduction="sum")
        # DDP divides the sum of the ranks' gradients by the number of ranks.
        (loss * num_ranks / step.num_words_of_all).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    any_step = steps[-1]  # every rank takes the same one
    for _ in range(_NUM_WARM_UPS):
        train(any_step)
    draw = np.random.default_rng(0)  # the same on all ranks
    for round_number in range(plan.num_rounds):
        loss_of_round = 0.0
        for index in draw.permutation(len(steps)).tolist():
            dist.barrier()  # a step must not begin with a wait for ranks that are still in the step before
            start_s = time.perf_counter()
            loss_of_round += train(steps[index])
            seconds[round_number, index] = time.perf_counter() - start_s
        losses[round_number] = loss_of_round / sum(step.words.numel() for step in steps)
    checksum = sum(float(parameter.detach().double().sum()) for parameter in module.parameters())
    return _TrainedRank(seconds, np.array([step.words.numel() for step in steps]), losses, checksum)


def _steps_for_the_prediction(plan: _TrainingPlan) -> list[_TextStep]:
    """Return this rank's part of steps in which 1, 2, … ranks read each of the sizes, and the others one word."""
    all_words = np.concatenate(plan.texts)
    num_ranks = dist.get_world_size()
    rank = dist.get_rank()
    steps = []
    for num_active in range(1, num_ranks + 1):
        for size in plan.sizes.tolist():
            own_size = size if rank < num_active else 1
            words = np.resize(all_words, own_size)  # which repeats them if there are too few
            num_words_of_all = num_active * size + (num_ranks - num_active)
            steps.append(_step([words], num_words_of_all))
    return steps


def _steps_of_orders(plan: _TrainingPlan) -> list[_TextStep]:
    """Return this rank's part of each step of each order."""
    rank = dist.get_rank()
    steps = []
    for order in plan.orders:
        for batches in order:
            num_words = sum(plan.texts[text].size for batch in batches for text in batch)
            steps.append(_step([plan.texts[text] for text in batches[rank]], num_words))
    return steps


def _step(texts: Sequence[Numbers], num_words_of_all: int) -> _TextStep:
    """Return the step on some texts, one after the other."""
    next_words = [np.append(text[1:], 0) for text in texts]  # 0 stands for the end of a text
    return _TextStep(
        torch.from_numpy(np.concatenate(texts)), torch.from_numpy(np.concatenate(next_words)), num_words_of_all
    )
