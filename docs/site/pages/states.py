"""An explorer on a page without a kernel: what it shows at some thousand settings, drawn when the site is made."""

from __future__ import annotations

import ast
import gzip
import json
import re
from base64 import b64encode
from contextlib import chdir
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rankscope import explorers
from rankscope.box import Profile
from rankscope.panel.explorer import Explorer, Now, Setting, Steps
from rankscope.panel.widgets import NUM_BESIDE, height_of

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
_MOST_OF_A_SLIDER = 16  # values; of longer sliders some, evenly spread
_MOST_OF_A_LIST = 4


class Place(NamedTuple):
    """A cell that opens an explorer, and the name of the script with its states."""

    source: str
    key: str

    def panel(self) -> Any:
        """Return the panel that the cell shows; the cell runs in the folder of the notebooks."""
        *statements, shown = ast.parse(self.source).body
        assert isinstance(shown, ast.Expr)
        names = {"explorers": explorers, "Profile": Profile}
        with chdir(NOTEBOOKS):
            exec(compile(ast.Module(statements, []), self.key, "exec"), names)
            return eval(compile(ast.Expression(shown.value), self.key, "eval"), names)

    def html(self) -> str:
        """Return what stands on the page: the explorer as it is at first, to which a script adds its controls."""
        panel = self.panel()
        call = escape(self.source.splitlines()[-1])
        return (
            f'<div class="explorer" data-states="{self.key}">'
            f'<div class="explorer-shown">{shown(panel.explorer, panel.now)}</div>'
            f'<p class="explorer-more">In a notebook, <code>{call}</code> has all settings: '
            f"{escape(', '.join(setting.label for setting in panel.explorer.settings))}.</p></div>"
        )

    def script(self, most_states: int) -> str:
        """Return a script with all states, which a page loads from disk, where it could fetch no data."""
        panel = self.panel()
        text = json.dumps(states(panel.explorer, panel.now, most_states), ensure_ascii=False, separators=(",", ":"))
        letters = b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
        return f'rankscopeStates["{self.key}"]="{letters}"\n'


def shown(explorer: Explorer, now: Now) -> str:
    """Return what the explorer shows; the style of its drawings is the page's."""
    _, drawn, report = explorer.shown(now)
    return f'<div class="explorer-drawn">{drawn}</div>{report}'


def offered(setting: Setting, wanted: list[Any]) -> list[Any]:
    """Return the values of a setting that a page offers: all, or of many the wanted ones and some evenly spread.

    >>> offered(Setting("size", 50, range(101), "samples"), [50, 10])
    [0, 8, 10, 15, 23, 31, 38, 46, 50, 54, 62, 69, 77, 85, 92, 100]
    """
    values = list(setting.values)
    is_slider = isinstance(setting.choices, range | Steps)
    most = _MOST_OF_A_SLIDER if is_slider else _MOST_OF_A_LIST
    if len(values) > most:
        number = max(most - len(wanted), 0)
        spread = [values[round(place * (len(values) - 1) / max(number - 1, 1))] for place in range(number)]
        values = [value for value in values if value in wanted or value in spread]
    return values


def axes(explorer: Explorer, start: Now, most_states: int) -> dict[str, list[Any]]:
    """Return the settings that move on a page, with their values: as many as make at most `most_states` states.

    Those move that the panel does not fold: first switches, then the others in their order. One that does not fit has
    the values of presets only, and stands still if those do not fit either. Numbers beyond the slider, which a preset
    types, are shown with that preset only: a million samples take long to draw.
    """
    at_presets = [explorer.at(**preset) for preset in explorer.presets.values()]
    chosen: dict[str, list[Any]] = {}
    num_states = 1
    for setting in sorted(explorer.settings[:NUM_BESIDE], key=lambda setting: not isinstance(setting.default, bool)):
        at_all = dict.fromkeys(getattr(now, setting.name) for now in (start, *at_presets))
        wanted = [value for value in at_all if value in setting.values]
        for values in (offered(setting, wanted), [value for value in offered(setting, wanted) if value in wanted]):
            if 1 < len(values) <= most_states // num_states:
                chosen[setting.name] = values
                num_states *= len(values)
                break
    return {setting.name: chosen[setting.name] for setting in explorer.settings if setting.name in chosen}


def states(explorer: Explorer, start: Now, most_states: int) -> dict[str, Any]:
    """Return what the page's script reads: controls, presets, and all combinations, the last setting fastest.

    A state is a number of what it shows and the numbers of its disabled controls. What is shown is a list of numbers of
    pieces of HTML, because states share most of them.
    """
    moving = axes(explorer, start, most_states)
    settings = {setting.name: setting for setting in explorer.settings}
    pieces: dict[str, int] = {}
    all_shown: dict[str, int] = {}
    ratio = 0.0

    def state(now: Now) -> list[Any]:
        nonlocal ratio
        html = shown(explorer, now)
        ratio = max(ratio, height_of(html))
        numbers = [pieces.setdefault(piece, len(pieces)) for piece in re.split(r"(?=<g)|(?<=</g>)", html)]
        disabled = [place for place, name in enumerate(moving) if not settings[name].when(now)]
        return [all_shown.setdefault(json.dumps(numbers), len(all_shown)), disabled]

    all_states = [
        state(start._replace(**dict(zip(moving, values, strict=True)))) for values in product(*moving.values())
    ]
    presets = []
    for label, preset in {"the first settings": {}, **explorer.presets}.items():
        now = explorer.at(**preset) if preset else start
        at, typed = [], []
        for name, values in moving.items():
            value = getattr(now, name)
            is_typed = value not in values
            at.append(len(values) - 1 if is_typed else values.index(value))
            typed.append(f"{value:,}" if is_typed else None)
        is_drawn = not any(typed) and start._replace(**{name: getattr(now, name) for name in moving}) == now
        presets.append({"label": label, "at": at, "typed": typed, "state": None if is_drawn else state(now)})
    return {
        "controls": [control(settings[name], values) for name, values in moving.items()],
        "presets": presets,
        "states": all_states,
        "shown": [json.loads(numbers) for numbers in all_shown],
        "pieces": list(pieces),
        "ratio": round(ratio, 3),
    }


def control(setting: Setting, values: list[Any]) -> dict[str, Any]:
    """Return the name, the kind and the values' words of a control."""
    kind = "select"
    if isinstance(setting.default, bool):
        kind = "checkbox"
    elif isinstance(setting.choices, range | Steps):
        kind = "range"
    words = {value: label for label, value in setting.options}
    return {"label": setting.label, "kind": kind, "values": [words.get(value, str(value)) for value in values]}
