"""`Explorer`: settings, and drawings and a report that are pure functions of them.

Nothing here needs ipywidgets. Only the panel with the controls does (`panel`).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import Any, NamedTuple

from ..common.checks import of_type, truth, whole
from ..common.units import bytes_words
from ..common.words import run_words
from ..drawing.drawing import Drawing, to_svg

Now = Any  # the values of all settings: a named tuple, so that it can be the key of a cache
_REPORT_STYLE = "margin:8px 0 0 8px;line-height:1.4;font-size:12px;white-space:pre-wrap;word-break:normal"


class Steps(tuple[Any, ...]):
    """The values of a slider, in order."""


class Typed(tuple[Any, ...]):
    """Examples of a text of several lines; any other text can be typed or pasted."""


def sizes(low: int, high: int) -> Steps:
    """Return powers of two in bytes as a person types them.

    >>> sizes(19, 21)
    ('512 KiB', '1 MiB', '2 MiB')
    """
    return Steps(bytes_words(1 << power) for power in range(low, high + 1))


def always(now: Now) -> bool:
    """Return True: most settings have an effect whatever the others are."""
    return True


class Setting(NamedTuple):
    """A setting and its control, whose kind follows from the default and the choices.

    A bool is a switch. A `range` of whole numbers and `Steps` are sliders. `Typed` is a field. Other choices are a
    list; a choice may be a pair (label, value). If `most` is not 0, any whole number up to it can be typed next to the
    slider, whose choices are then ascending numbers. The control is disabled where `when`, a predicate of all settings,
    is false.

    >>> Setting("num_ranks", 4, range(1, 65), "ranks").check(65)
    Traceback (most recent call last):
    ValueError: num_ranks must be one of 1 to 64, got 65
    >>> Setting("num_ranks", 4, range(1, 65), "ranks", most=1000).check(65)
    65
    """

    name: str
    default: Any
    choices: Collection[Any]
    label: str
    when: Callable[[Now], bool] = always
    most: int = 0

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Each value that the control offers, in order, behind its label."""
        if isinstance(self.default, bool):
            return ("off", False), ("on", True)
        return tuple(choice if isinstance(choice, tuple) else (str(choice), choice) for choice in self.choices)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(value for _, value in self.options)

    def check(self, value: Any) -> Any:
        """Return the value, or raise ValueError if the control does not offer it."""
        if isinstance(self.default, bool):
            return truth(self.name, value)
        if self.most:
            return whole(self.name, value, self.values[0], self.most)
        if isinstance(self.choices, Typed):
            return of_type(self.name, value, str)
        try:
            # first the type, because 4.0 and True equal whole numbers
            checked = whole(self.name, value) if isinstance(self.default, int) else of_type(self.name, value, str)
            return self.values[self.values.index(checked)]
        except ValueError:
            advice = "; what is your own is the first argument, without a name" if callable(value) else ""
            raise ValueError(f"{self.name} must be one of {self.allowed}, got {value!r}{advice}") from None

    @property
    def allowed(self) -> str:
        """What the setting can be, in words."""
        if self.most:
            return f"{self.values[0]} to {self.most}"
        if isinstance(self.choices, Typed):
            return "any text"
        if isinstance(self.default, bool) or not isinstance(self.default, int):
            return ", ".join(map(repr, self.values))
        return ", ".join(run_words(self.values, " to "))


def jitter(default: int) -> Setting:
    """Return the setting of the standard deviation of some times, in per cent of their mean."""
    return Setting("jitter", default, Steps((0, 10, 20, 30, 40, 50, 75, 100, 150, 200)), "jitter [%]")


class Shown(NamedTuple):
    """What an explorer shows: its drawings, and as HTML these, or the reason why there are none, and the report."""

    drawings: Sequence[Drawing]
    drawn: str
    report: str


class Explorer:
    """Settings; what they `draw`, one drawing below the other; the lines of their `report`; and presets by name.

    `draw` and `report` are pure functions of the settings. Where one raises ValueError, its message is shown instead of
    both. Settings that a preset does not name are at their defaults. `play` returns an SVG that moves by itself,
    which is then shown in the place of the drawings.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        draw: Callable[[Now], Sequence[Drawing]],
        report: Callable[[Now], list[str]],
        presets: Mapping[str, Mapping[str, Any]],
        play: Callable[[Now], str] | None = None,
    ) -> None:
        self.settings = settings
        self.draw = draw
        self.report = report
        self.presets = presets
        self.play = play
        self._now_class: Any = namedtuple("Now", [setting.name for setting in settings])  # type: ignore[misc]

    def at(self, **values: Any) -> Now:
        """Return all settings: these, and the defaults of the others. Raises ValueError for wrong and unknown ones."""
        names = [setting.name for setting in self.settings]
        unknown = values.keys() - {*names}
        if unknown:
            raise ValueError(f"settings are {', '.join(names)}; got {', '.join(sorted(unknown))}")
        return self._now_class(*[setting.check(values.get(setting.name, setting.default)) for setting in self.settings])

    def line(self, now: Now) -> str:
        """Return the settings that are not at their defaults as keyword arguments: those that open it like this.

        A text that can be typed is left out.
        """
        pairs = [pair for pair in zip(self.settings, now, strict=True) if not isinstance(pair[0].choices, Typed)]
        return ", ".join(f"{one.name}={value!r}" for one, value in pairs if value != one.default and one.when(now))

    def shown(self, now: Now, before: Sequence[Drawing] = ()) -> Shown:
        """Return what is shown; marks move from where they were in the drawings `before`."""
        try:
            drawings = self.draw(now)
            if self.play is None:
                pairs = zip_longest(drawings, before[: len(drawings)])
                drawn = "".join(to_svg(drawing, old, style=False) for drawing, old in pairs)
            else:
                drawn = self.play(now)
            first, *others = [escape(line) for line in self.report(now)]
        except ValueError as error:
            return Shown((), f"<p>{escape(str(error))}</p>", "")
        rest = "\n".join(others)
        report = f"<details style='{_REPORT_STYLE}'><summary>{first}</summary>{rest}</details>"
        return Shown(drawings, drawn, report)
