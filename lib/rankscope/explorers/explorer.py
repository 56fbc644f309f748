"""`Explorer`: a table of settings, and pictures and a report that are pure functions of them.

Nothing here needs ipywidgets. Only the panel with the controls does (`panel`).
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any, NamedTuple

from ..common.checks import of_type, truth, whole
from ..common.units import bytes_words
from ..common.words import printable, run_words
from ..figures.marks import Drawing
from ..figures.svg import to_svg

MOST_SVG_BYTES = 55_000  # of the picture that a notebook stores; a larger one is left out
_REPORT_STYLE = "line-height:1.35;font-family:monospace;white-space:pre-wrap;word-break:normal"
Now = Any  # the values of all settings: a named tuple, so that it can be a key of a cache


ALL: tuple[Any, ...] = ()  # of a setting that moves on the site: every value that its control offers


class ByIdentity:
    """An object as part of the key of a cache, equal to itself only, so that it need not be hashable.

    >>> builder = ["a callable object, say, that cannot be hashed"]
    >>> ByIdentity(builder) == ByIdentity(builder), ByIdentity(builder) == ByIdentity(list(builder))
    (True, False)
    """

    def __init__(self, value: Any) -> None:
        self.value = value  # held, so that no other object gets its id while the key is in use

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Steps(tuple[Any, ...]):
    """The values of a slider, in order: each as a person types it, or a pair (label, value)."""


def sizes(low: int, high: int) -> Steps:
    """Return powers of two in bytes as a person types them.

    >>> sizes(19, 21)
    ('512 KiB', '1 MiB', '2 MiB')
    """
    return Steps(bytes_words(1 << power) for power in range(low, high + 1))


class Setting(NamedTuple):
    """A setting and its control, whose kind follows from the default and the choices.

    A bool is a switch. A `range` of whole numbers and `Steps` are sliders. Any other collection is a list; its values
    are strings or pairs (label, string), and if they may change, `choices` is a function that returns them. `hint` says
    more than the label.

    >>> Setting("num_ranks", 4, range(1, 65), "ranks").check(65)
    Traceback (most recent call last):
    ValueError: num_ranks must be one of 1 to 64, got 65
    >>> Setting("message", "1 MiB", sizes(19, 21), "message").allowed
    "'512 KiB', '1 MiB', '2 MiB'"
    """

    name: str
    default: Any
    choices: Collection[Any] | Callable[[], Collection[Any]]
    label: str
    hint: str = ""

    def check(self, value: Any) -> Any:
        """Return the value, or raise ValueError if the control does not offer it."""
        if isinstance(self.default, bool):
            return truth(self.name, value)
        try:
            # first the type, because 4.0 and True equal values that a control of whole numbers offers
            checked = whole(self.name, value) if self.kind is int else of_type(self.name, value, str)
            index = self.values.index(checked)
        except ValueError:
            raise ValueError(f"{self.name} must be one of {self.allowed}, got {value!r}") from None
        return self.values[index]  # the control's own, because `value` may be of a subclass of str

    @property
    def kind(self) -> type:
        return type(self.default)

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Each value that the control offers, in order, with its label.

        >>> Setting("overlap", True, (), "overlap").options
        (('off', False), ('on', True))
        """
        if isinstance(self.default, bool):
            return ("off", False), ("on", True)
        choices = self.choices
        if callable(choices):
            choices = choices()
        return tuple(choice if isinstance(choice, tuple) else (str(choice), choice) for choice in choices)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(value for _, value in self.options)

    @property
    def allowed(self) -> str:
        """What the control offers, in words.

        >>> Setting("size", 3, Steps((0, 1, 2, 3, 10, 50)), "samples").allowed
        '0 to 3, 10, 50'
        """
        if isinstance(self.default, bool):
            return "False or True"
        if self.kind is str:
            return ", ".join(map(repr, self.values))
        return ", ".join(run_words(self.values, " to "))


def jitter(default: int, times: str) -> Setting:
    """Return the setting of how much some times vary."""
    hint = f"standard deviation of {times}, in per cent of the mean"
    return Setting("jitter", default, Steps((0, 10, 20, 30, 40, 50, 75, 100, 150, 200)), "jitter [%]", hint)


class Explorer:
    """A table of settings, with pictures, each of which has a name, and the lines of a report.

    Everything is a pure function of the settings. A picture may be None, and may raise ValueError, whose message is
    then shown instead. `presets` are settings worth seeing, by the text of their buttons; settings that a preset does
    not name are at their defaults. `without_effect` returns the reason for each control that changes nothing at these
    settings, `most` the largest value of a slider that ends before its own end, and `derived` the value of each setting
    that follows from the others, whatever its control says.
    """

    name: str = ""  # of the function that makes it, if one does
    inputs: tuple[str, ...] = ()  # that the function was given

    def __init__(
        self,
        settings: Sequence[Setting],
        pictures: Mapping[str, Callable[[Now], Drawing | None]],
        report: Callable[[Now], list[str]],
        presets: Mapping[str, Mapping[str, Any]] | None = None,
        without_effect: Callable[[Now], dict[str, str]] = lambda now: {},
        most: Callable[[Now], dict[str, int]] = lambda now: {},
        derived: Callable[[Now], dict[str, Any]] = lambda now: {},
    ) -> None:
        self.settings = settings
        self.pictures = pictures
        self.report = report
        self.presets = presets or {}
        self.without_effect = without_effect
        self.most = most
        self.derived = derived
        self._now_class: Any = namedtuple("Now", [setting.name for setting in settings])  # type: ignore[misc]

    def at(self, **values: Any) -> Now:
        """Return all settings: these, and the defaults of the others. Raises ValueError for wrong and unknown ones."""
        names = [setting.name for setting in self.settings]
        unknown = values.keys() - {*names}
        if unknown:
            raise ValueError(f"settings are {', '.join(names)}; got {', '.join(sorted(unknown))}")
        checked_values = {}
        for setting in self.settings:
            checked_values[setting.name] = setting.check(values.get(setting.name, setting.default))
        now = self._now_class(**checked_values)
        return now._replace(**self.derived(now))

    def line(self, now: Now) -> str:
        """Return the call that opens the explorer at these settings.

        It names those that are not at their defaults and do not follow from others.
        """
        derived = self.derived(now)
        words = []
        for setting, value in zip(self.settings, now, strict=True):
            if value != setting.default and setting.name not in derived:
                words.append(f"{setting.name}={_typed(value)}")
        return f"explorers.{self.name}({', '.join([*self.inputs, *words])})"

    def svg(self, picture: str, now: Now) -> str:
        """Return one picture as SVG, "" if it is None. Raises ValueError if it cannot be drawn."""
        drawing = self.pictures[picture](now)
        if drawing is None:
            return ""
        return to_svg(drawing)

    def still(self, now: Now) -> str:
        """Return the first picture that there is at these settings, as SVG; "" for none."""
        for picture in self.pictures:
            with suppress(ValueError):
                svg = self.svg(picture, now)
                if svg:
                    return svg
        return ""

    def html(self, now: Now) -> tuple[str, str]:
        """Return all pictures, and the report, as the panel shows them."""
        report = escape(printable("\n".join(self.report(now)), keep="\n"))
        pictures = ""
        for picture in self.pictures:
            try:
                pictures += self.svg(picture, now)
            except ValueError as error:
                pictures += f"<p>{escape(printable(str(error)))}</p>"
        return pictures, f"<pre style='{_REPORT_STYLE}'>{report}</pre>"


def _typed(value: Any) -> str:
    """A value as a person types it in a line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def explorer_of(show: Any, *inputs: Any) -> Explorer:
    """Return the Explorer that a function such as `explorers.zero` opens a panel of."""
    explorer: Explorer = show.explorer(*inputs)
    return explorer
