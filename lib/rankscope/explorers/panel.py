"""What explorers share: a table of settings, pictures and a report that are pure functions of them, and one panel."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets

from ..figures.marks import Drawing
from ..figures.svg import to_svg
from ..values.checks import one_of, printable, truth, whole

MOST_SVG_BYTES = 55_000  # of the picture that a notebook stores; a larger one is left out
Now = Any  # what every setting is set to: a named tuple, so that it can be a key of a cache
Controls = dict[str, Any]


class Setting(NamedTuple):
    """A setting and its control: a slider for an int, a switch for a bool, a list for a str; the default tells which.

    `choices` are a slider's ends, a switch's two values, or a list's words, each a word or a pair (label, word). The
    keys of a mapping are its words; they may change.

    >>> Setting("num_ranks", 4, (1, 64), "ranks").check(65)
    Traceback (most recent call last):
    ValueError: num_ranks must be a whole number from 1 to 64, got 65
    """

    name: str
    default: Any
    choices: Collection[Any]
    label: str

    def check(self, value: Any) -> Any:
        """Return the value, or raise ValueError if the control does not offer it."""
        if isinstance(self.default, bool):
            return truth(self.name, value)
        if isinstance(self.default, int):
            return whole(self.name, value, *self.choices)
        return one_of(self.name, value, self.words)

    def control(self, value: Any) -> Any:
        """Return a new widget that is set to the value."""
        if isinstance(self.default, bool):
            narrow = widgets.Layout(width="180px")
            return widgets.Checkbox(value=value, description=self.label, indent=False, layout=narrow)
        looks = {"layout": widgets.Layout(width="320px"), "style": {"description_width": "96px"}}
        if isinstance(self.default, int):
            low, high = self.choices
            return widgets.IntSlider(value=value, min=low, max=high, description=self.label, **looks)
        return widgets.Dropdown(value=value, options=list(self.choices), description=self.label, **looks)

    @property
    def kind(self) -> type:
        return type(self.default)

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a list."""
        return tuple(choice[1] if isinstance(choice, tuple) else choice for choice in self.choices)

    @property
    def allowed(self) -> str:
        """What the control offers, in words.

        >>> Setting("num_ranks", 4, (1, 64), "ranks").allowed
        '1 to 64'
        """
        joint = " or " if isinstance(self.default, bool) else " to "
        return joint.join(map(str, self.choices)) if isinstance(self.default, int) else ", ".join(map(repr, self.words))


class Panel(widgets.VBox):  # type: ignore[misc]
    """A widget that also gives a picture as it is when the cell is run, for readers without a kernel.

    Front ends that can show widgets prefer the widget.
    """

    still: Callable[[], str] = staticmethod(lambda: "")

    @classmethod
    def of(cls, children: Sequence[widgets.Widget], still: Callable[[], str]) -> Panel:
        """Return a panel whose picture `still` draws, as SVG; "" for none."""
        panel = cls(children)
        panel.still = still
        return panel

    def _repr_mimebundle_(self, **given: Any) -> dict[str, Any]:
        data: dict[str, Any] = super()._repr_mimebundle_(**given)
        picture = self.still()
        return data | ({"image/svg+xml": picture} if 0 < len(picture.encode()) <= MOST_SVG_BYTES else {})


class Explorer:
    """A table of settings, and what is shown of them: pictures, each with a name, and the lines of a report.

    Pictures and report are pure functions of the settings. A picture may be None, and may raise ValueError, whose
    message then stands in its place. `follow` adjusts controls to the settings before they are painted.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        pictures: Mapping[str, Callable[[Now], Drawing | None]],
        report: Callable[[Now], list[str]],
        follow: Callable[[Controls, Now], None] = lambda controls, now: None,
    ) -> None:
        self.settings, self.pictures, self.report, self.follow = settings, pictures, report, follow
        self._now: Any = namedtuple("Now", [setting.name for setting in settings])  # type: ignore[misc]

    def at(self, **given: Any) -> Now:
        """Return all settings: these, and the defaults of the others. Raises ValueError for wrong and unknown ones."""
        known = self._now._fields
        if unknown := given.keys() - {*known}:
            raise ValueError(f"settings are {', '.join(known)}; got {', '.join(sorted(unknown))}")
        return self._now(*(setting.check(given.get(setting.name, setting.default)) for setting in self.settings))

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
        return pictures, f"<pre style='line-height:1.35;font-family:monospace'>{words}</pre>"

    def panel(self, **given: Any) -> Panel:
        """Return controls, set to these settings, over the pictures and the report, which change with them."""
        start = self.at(**given)
        controls = {setting.name: setting.control(getattr(start, setting.name)) for setting in self.settings}
        pictures, report = widgets.HTML(), widgets.HTML()
        painted: Now = None

        def set_to() -> Now:
            return self.at(**{name: control.value for name, control in controls.items()})

        def repaint(_: object = None) -> None:
            nonlocal painted
            self.follow(controls, set_to())  # may move a control, which repaints
            if (now := set_to()) != painted:
                pictures.value, report.value = self.html(now)
                painted = now

        for control in controls.values():
            control.observe(repaint, names="value")
        repaint()
        layout = widgets.Layout(flex_flow="row wrap", max_width="1000px")
        children = [widgets.Box(list(controls.values()), layout=layout), pictures, report]
        return Panel.of(children, lambda: self.still(set_to()))


def shows(settings: Sequence[Setting]) -> Callable[[Callable[..., Explorer]], Callable[..., Panel]]:
    """Make of a function that returns an Explorer one that opens its panel, and takes settings as keywords, too.

    Its signature and its docstring list the settings; `explorer_of` gives the Explorer.
    """

    def decorate(make: Callable[..., Explorer]) -> Callable[..., Panel]:
        @wraps(make, assigned=("__module__", "__name__", "__qualname__"))
        def show(*inputs: Any, **given: Any) -> Panel:
            own = {name: given.pop(name) for name in signature.parameters if name in given}
            return make(*inputs, **own).panel(**given)

        signature = inspect.signature(make)
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
            "explorer": make,  # and not __wrapped__: Sphinx would look for the defaults of the settings in its source
        }
        return show

    return decorate


def explorer_of(show: Any, *inputs: Any) -> Explorer:
    """Return what a function such as `explorers.zero` opens a panel of."""
    explorer: Explorer = show.explorer(*inputs)
    return explorer
