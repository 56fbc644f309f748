"""What the forecasts of `what_if` have in common, for DDP and for FSDP: their answers, and the words for these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..common.units import percent_words, times_in_one_unit

if TYPE_CHECKING:
    import pandas as pd


class Answer(NamedTuple):
    """One change, the seconds of a step with it, and the share of the recorded step that it saves."""

    what: str
    step_s: float
    saved_share: float


class RangedAnswer(NamedTuple):
    """An `Answer` with the range that the recorded steps support: `low_s` to `high_s` seconds."""

    what: str
    step_s: float
    saved_share: float
    low_s: float
    high_s: float


class Forecast:
    """The part of a forecast that does not depend on the model behind it: the recorded step, and the answers.

    There is always an answer: each forecast has those of a faster link and of collectives that take no time.
    """

    step_s: float
    answers: Sequence[Answer | RangedAnswer]
    skipped_steps: tuple[int, ...]

    @property
    def notes(self) -> list[str]:
        """Sentences on what the forecast leaves out."""
        return []

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each answer: what, step_s, saved_share, and low_s and high_s if it has a range."""
        import pandas as pd

        return pd.DataFrame(self.answers, columns=type(self.answers[0])._fields)

    def __str__(self) -> str:
        now, *times = times_of_answers([self.step_s], self.answers)
        lines = [f"The median step takes {now}. It would take"]
        for answer, step in zip(self.answers, times, strict=True):
            change = change_words(answer.saved_share)
            if change:
                step = f"{step} ({change})"
            lines.append(f"  {step} with {answer.what}")
        return "\n".join([*lines, *self.notes])


def times_of_answers(recorded_s: Sequence[float], answers: Sequence[Answer | RangedAnswer]) -> list[str]:
    """Return recorded times and the step of each answer in words, by `times_in_one_unit`; a range follows its answer.

    >>> times_of_answers([0.02], [RangedAnswer("a link", 0.0152, 0.24, 0.015, 0.0161)])
    ['20 ms', '15.2 ms, 15 to 16.1 ms']
    """
    seconds = [*recorded_s]
    for answer in answers:
        seconds.append(answer.step_s)
        if isinstance(answer, RangedAnswer):
            seconds += [answer.low_s, answer.high_s]
    words = iter(times_in_one_unit(*seconds))  # in the order of `seconds`
    times = [next(words) for _ in recorded_s]
    for answer in answers:
        step = next(words)
        if isinstance(answer, RangedAnswer):
            low = next(words)
            high = next(words)
            unit = low.rpartition(" ")[2]
            # usually the unit behind the second time is enough; but a time far below the others has a unit of its own
            if high.endswith(f" {unit}"):
                low = low.removesuffix(f" {unit}")
            step = f"{step}, {low} to {high}"
        times.append(step)
    return times


def change_words(saved_share: float) -> str:
    """Return the change of a step in percent, or "" if it would be printed as 0.0 %.

    >>> change_words(0.5), change_words(-0.02), change_words(0.0004)
    ('-50.0 %', '+2.0 %', '')
    """
    words = percent_words(-saved_share, 1, signed=True)
    return "" if words in ("+0.0 %", "-0.0 %") else words
