"""What explorers share: a table of settings, pictures and a report that are pure functions of them, and one panel."""

from __future__ import annotations

import ast
import inspect
import json
from collections import namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets

from ..figures.marks import Drawing
from ..figures.svg import to_svg
from ..values.checks import of_type, one_line, printable, runs, truth, whole
from ..values.units import bytes_words

MOST_SVG_BYTES = 55_000  # of the picture that a notebook stores; a larger one is left out
_MOST_LINE_CHARACTERS = 2000
_MOST_COLUMN_PX = 400  # so that two columns fit next to JupyterLab's file browser on a screen of 1,280 px
_STYLE = """<style>
.rankscope-explorer .widget-readout { flex: none; min-width: 48px; max-width: none; white-space: nowrap; }
</style>"""
Now = Any  # what every setting is set to: a named tuple, so that it can be a key of a cache


class Steps(tuple[Any, ...]):
    """The values of a slider, in order: each as a person types it, or a pair (label, value)."""


def sizes(low: int, high: int) -> Steps:
    """Return powers of two in bytes as a person types them.

    >>> sizes(19, 21)
    ('512 KiB', '1 MiB', '2 MiB')
    """
    return Steps(bytes_words(1 << power) for power in range(low, high + 1))


class Setting(NamedTuple):
    """A setting and its control, which the default and the choices tell.

    A bool is a switch. A `range` of whole numbers and `Steps` are sliders. Any other collection is a list; its values
    are strings or pairs (label, string), and where they may change a function returns it. `hint` says more than the
    label.

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
        with suppress(ValueError):
            plain = whole(self.name, value) if self.kind is int else of_type(self.name, value, str)
            return self.values[self.values.index(plain)]
        raise ValueError(f"{self.name} must be one of {self.allowed}, got {value!r}")

    def control(self, value: Any) -> Any:
        """Return a new widget that is set to the value."""
        looks = {"description": self.label, "tooltip": self.hint or None, "value": value}
        if isinstance(self.default, bool):
            return widgets.Checkbox(indent=False, layout=widgets.Layout(width="auto"), **looks)
        looks["layout"] = widgets.Layout(width="auto")
        if isinstance(self.choices, range):
            return widgets.IntSlider(min=self.choices[0], max=self.choices[-1], **looks)
        kind = widgets.SelectionSlider if isinstance(self.choices, Steps) else widgets.Dropdown
        return kind(options=self.options, **looks)

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
        choices = self.choices() if callable(self.choices) else self.choices
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
        return ", ".join(map(repr, self.values) if self.kind is str else runs(self.values, " to "))


def jitter(default: int, what: str) -> Setting:
    """Return the setting of how much the times of something vary."""
    hint = f"standard deviation of {what}, in per cent of the mean"
    return Setting("jitter", default, Steps((0, 10, 20, 30, 40, 50, 75, 100, 150, 200)), "jitter [%]", hint)


class Explorer:
    """A table of settings, and what is shown of them: pictures, each with a name, and the lines of a report.

    Everything is a pure function of the settings. A picture may be None, and may raise ValueError, whose message then
    stands in its place. `presets` are settings worth seeing, by the text of their buttons; what one does not name is at
    its default. `without_effect` gives the reason for each control that changes nothing at these settings, `most` the
    largest value of a slider that ends before its own end, and `derived` the value of each setting that follows from
    the others: whatever it is set to, it has that value.
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
        self.settings, self.pictures, self.report = settings, pictures, report
        self.presets, self.without_effect, self.most = presets or {}, without_effect, most
        self.derived = derived
        self._now: Any = namedtuple("Now", [setting.name for setting in settings])  # type: ignore[misc]

    def at(self, **given: Any) -> Now:
        """Return all settings: these, and the defaults of the others. Raises ValueError for wrong and unknown ones."""
        known = self._now._fields
        if unknown := given.keys() - {*known}:
            raise ValueError(f"settings are {', '.join(known)}; got {', '.join(sorted(unknown))}")
        now = self._now(*(setting.check(given.get(setting.name, setting.default)) for setting in self.settings))
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

    def read(self, line: str) -> Now:
        """Return the settings of such a line, which is not run. Raises ValueError for any other."""
        try:
            if len(line) > _MOST_LINE_CHARACTERS:
                raise ValueError
            call = ast.parse(line.strip(), mode="eval").body
            if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] != self.name:
                raise ValueError
            written = {str(key.arg): key.value for key in call.keywords if key.arg not in self.inputs}
            given = {name: ast.literal_eval(value) for name, value in written.items()}
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            like = self.line(self.at(**next(iter(self.presets.values()), {})))
            raise ValueError(f"a line must be like {like}, got {one_line(line)!r}") from None
        return self.at(**given)

    def svg(self, picture: str, now: Now) -> str:
        """Return one picture as SVG, nothing where it is None. Raises ValueError where it cannot be drawn."""
        drawing = self.pictures[picture](now)
        return to_svg(drawing) if drawing else ""

    def still(self, now: Now) -> str:
        """Return the first picture that there is at these settings, as SVG; "" for none."""
        for picture in self.pictures:
            with suppress(ValueError):
                if svg := self.svg(picture, now):
                    return svg
        return ""

    def html(self, now: Now) -> tuple[str, str]:
        """Return all pictures, and the report, as the panel shows them."""
        pictures, words = "", escape(printable("\n".join(self.report(now)), keep="\n"))
        for picture in self.pictures:
            try:
                pictures += self.svg(picture, now)
            except ValueError as error:
                pictures += f"<p>{escape(printable(str(error)))}</p>"
        return (
            pictures,
            f"<pre style='line-height:1.35;font-family:monospace;white-space:pre-wrap;word-break:normal'>{words}</pre>",
        )


class Pictured(widgets.VBox):  # type: ignore[misc]
    """A widget that also gives a picture as it is when the cell is run, for readers without a kernel.

    Front ends that can show widgets prefer the widget.
    """

    def still(self) -> str:
        """Return the picture, as SVG; "" for none."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **given: Any) -> dict[str, Any]:
        data: dict[str, Any] = super()._repr_mimebundle_(**given)
        picture = self.still()
        return data | ({"image/svg+xml": picture} if 0 < len(picture.encode()) <= MOST_SVG_BYTES else {})


class Panel(Pictured):
    """Presets over controls over pictures and a report, which change with them; the line is their state, both ways."""

    def __init__(self, explorer: Explorer, start: Now) -> None:
        self.explorer, self._painted, self._held = explorer, None, False
        self.controls = {one.name: one.control(getattr(start, one.name)) for one in explorer.settings}
        self.pictures, self.report, self.refusal = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.line = widgets.Text(
            description="these settings",
            tooltip="Copy this line into a notebook, or paste one here",
            continuous_update=False,
            layout=widgets.Layout(width="auto"),
            style={"description_width": "initial"},
        )
        starts = {label: explorer.at(**given) for label, given in [*explorer.presets.items(), ("reset", {})]}
        self.presets = [
            self._button(label, explorer.line(to), lambda to=to: self.go(to))  # type: ignore[misc]
            for label, to in starts.items()
        ]
        above = [widgets.HTML(_STYLE), self._row(self.presets), self._grid(), self.line]
        super().__init__([*above, self.refusal, self.pictures, self.report])
        self.add_class("rankscope-explorer")
        for control in self.controls.values():
            control.observe(lambda _: self._paint(), names="value")
        self.line.observe(lambda _: self._read(), names="value")
        self._paint()

    def still(self) -> str:
        return self.explorer.still(self.now)

    @property
    def now(self) -> Now:
        return self.explorer.at(**{name: control.value for name, control in self.controls.items()})

    def go(self, now: Now) -> None:
        """Set all controls, and paint once."""
        with self._hold():
            for setting, value in zip(self.explorer.settings, now, strict=True):
                control = self.controls[setting.name]
                if isinstance(setting.choices, range):
                    control.max = setting.choices[-1]
                control.value = value
        self._paint()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Controls that are moved here do not paint."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _paint(self) -> None:
        if self._held:
            return
        with self._hold():
            for name, most in self.explorer.most(self.now).items():
                self.controls[name].max = most
            now = self.now
            for name in self.explorer.derived(now):
                self.controls[name].value = getattr(now, name)
            if now != self._painted:
                self._painted = now
                self.pictures.value, self.report.value = self.explorer.html(now)
                reasons = self.explorer.without_effect(now)
                for setting in self.explorer.settings:
                    reason = reasons.get(setting.name, "")
                    self.controls[setting.name].disabled = bool(reason)
                    self.controls[setting.name].tooltip = reason or setting.hint or None
            self.line.value, self.refusal.value = self.explorer.line(now), ""

    def _read(self) -> None:
        if self._held:
            return
        try:
            self.go(self.explorer.read(self.line.value))
        except ValueError as error:
            self.refusal.value = f"<p>{escape(printable(str(error)))}</p>"

    def _button(self, label: str, tooltip: str, act: Callable[[], None]) -> widgets.Button:
        button = widgets.Button(description=label, tooltip=tooltip, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: act())
        return button

    def _row(self, children: Sequence[widgets.Widget]) -> widgets.Box:
        return widgets.Box(children, layout=widgets.Layout(flex_flow="row wrap"))

    def _grid(self) -> widgets.Box:
        """Controls in as many columns as there is room for; labels in line, unless that cuts what a list shows."""
        labels_px = 14 + max(7 * len(one.label) for one in self.explorer.settings if one.kind is not bool)
        lists = [one for one in self.explorer.settings if one.kind is str and not isinstance(one.choices, Steps)]
        longest_px = {one.name: 40 + 7 * max(len(label) for label, _ in one.options) for one in lists}
        column_px = min(labels_px + max(200, *longest_px.values(), 0), _MOST_COLUMN_PX)
        for setting in self.explorer.settings:
            if setting.kind is not bool:
                own_px = min(labels_px, column_px - longest_px.get(setting.name, 0))
                self.controls[setting.name].style.description_width = f"{max(own_px, 14 + 7 * len(setting.label))}px"
        return widgets.Box(
            list(self.controls.values()),
            layout=widgets.Layout(
                display="grid",
                # on a telephone a column is as wide as the page, and not wider
                grid_template_columns=f"repeat(auto-fill, minmax(min({column_px}px, 100%), 1fr))",
                grid_gap="0 16px",
                align_items="center",
            ),
        )


def _typed(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def shows(
    settings: Sequence[Setting], opens: type[Panel] = Panel
) -> Callable[[Callable[..., Explorer]], Callable[..., Panel]]:
    """Make of a function that returns an Explorer one that opens its panel, and takes settings as keywords, too.

    Its signature and its docstring list the settings; `explorer_of` gives the Explorer.
    """

    def decorate(make: Callable[..., Explorer]) -> Callable[..., Panel]:
        signature = inspect.signature(make)

        def made(*inputs: Any, **own: Any) -> Explorer:
            explorer = make(*inputs, **own)
            explorer.name, explorer.inputs = make.__name__, tuple(signature.bind(*inputs, **own).arguments)
            return explorer

        @wraps(make, assigned=("__module__", "__name__", "__qualname__"))
        def show(*inputs: Any, **given: Any) -> Panel:
            own = {name: given.pop(name) for name in signature.parameters if name in given}
            explorer = made(*inputs, **own)
            return opens(explorer, explorer.at(**given))

        keywords = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
            for one in settings
        ]
        parameters = [*signature.parameters.values(), *keywords]
        ranges = [f"- `{one.name}`: {one.allowed} (“{one.label}”)" for one in settings if one.choices]
        text = "Controls start at these settings. Raises ValueError for a setting that its control does not offer:"
        show.__doc__ = "\n".join([inspect.getdoc(make) or "", "", text, "", *ranges])
        show.__dict__ = {
            "__signature__": inspect.Signature(parameters, return_annotation=Panel),
            "explorer": made,  # and not __wrapped__: Sphinx would look for the defaults of the settings in its source
        }
        return show

    return decorate


def explorer_of(show: Any, *inputs: Any) -> Explorer:
    """Return what a function such as `explorers.zero` opens a panel of."""
    explorer: Explorer = show.explorer(*inputs)
    return explorer
