"""What each step of an epoch costs, and how long ranks wait."""

from __future__ import annotations

from numpy.typing import ArrayLike

from ...common.checks import of_type
from ...common.units import percent_words
from ...drawing.bars import draw_bars
from ...drawing.drawing import Drawing
from ..assignment import Assignment
from .model import epoch_work

_MOST_STEPS = 40


def draw_step_costs(
    assignment: Assignment,
    lengths: ArrayLike,
    cost: str = "linear",
    title: str | None = None,
) -> Drawing:
    """Draw the cost of each step: the mean over the ranks, and the mean wait for the costliest rank.

    Of many steps the first 40 are shown. The number behind a bar is the share of padding, if each batch is padded to
    its longest sample. `lengths` are those of all samples in tokens, and `cost` is that of
    `epoch_work`. Raises ValueError if `lengths` are not one whole number of at least 0 per sample.
    """
    of_type("assignment", assignment, Assignment)
    work = epoch_work(assignment, lengths, cost)
    rows = {}
    for step, costs in enumerate(work.step_costs[:_MOST_STEPS]):
        mean = float(costs.mean())
        wait = float(costs.max()) - mean
        rows[f"step {step}"] = {"compute on the mean rank": mean, "wait for the costliest rank": wait}
    padding = [percent_words(share) for share in work.step_padding_shares[: len(rows)].tolist()]
    unit = {"linear": "tokens", "quadratic": "tokens²"}[cost]
    deck = f"{percent_words(work.padding_share)} of tokens are padding; behind each bar, the share of its step"
    if len(work.step_costs) > len(rows):
        deck += f"; the first {len(rows)} steps"
    waiting = percent_words(1 - 1 / work.imbalance)  # the mean rank works for 1 / imbalance of the costliest one's time
    title = title or f"Ranks wait for {waiting} of the time"
    return draw_bars(rows, f"cost of the step [{unit}]", title, deck, padding)
