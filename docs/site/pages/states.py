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

from .live import NEED_TORCH, setting_data, state

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
_MOST_OF_A_SLIDER = 16  # values; of longer sliders some, evenly spread
_MOST_OF_A_LIST = 4


class Place(NamedTuple):
    """A cell that opens an explorer, the name of the script with its states, and the explorer's name."""

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

    @property
    def name(self) -> str:
        """The explorer's name: cells open it without inputs, so that a live page can do that, too."""
        return re.findall(r"(\w+)\(", self.source)[-1]

    def html(self, is_live: bool) -> str:
        """Return what stands on the page: the explorer as it is at first, to which scripts add controls."""
        panel = self.panel()
        call = escape(self.source.splitlines()[-1])
        live = " data-live" if is_live and self.name not in NEED_TORCH else ""
        return (
            f'<div class="explorer" data-name="{self.name}" data-states="{self.key}"{live}>'
            f'<div class="explorer-shown">{state(panel.explorer, panel.now)["html"]}</div>'
            f'<p class="explorer-more">In a notebook, <code>{call}</code> has all settings: '
            f"{escape(', '.join(setting.label for setting in panel.explorer.settings))}.</p></div>"
        )

    def script(self, most_states: int) -> str:
        """Return a script with all states, which a page loads from disk, where it could fetch no data."""
        panel = self.panel()
        text = json.dumps(states(panel, most_states), ensure_ascii=False, separators=(",", ":"))
        letters = b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
        return f'rankscopeStates["{self.key}"]="{letters}"\n'


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


def states(panel: Any, most_states: int) -> dict[str, Any]:
    """Return what the page's script reads: settings, presets, and all combinations of what moves, the last one fastest.

    A state is a number of what it shows and the names of the settings that have no effect. What is shown is a list of
    numbers of pieces of HTML, because states share most of them.
    """
    explorer, start = panel.explorer, panel.now
    moving = axes(explorer, start, most_states)
    pieces: dict[str, int] = {}
    all_shown: dict[str, int] = {}
    heights = [height_of(state(explorer, start)["html"])]

    def stored(now: Now) -> list[Any]:
        html, disabled = state(explorer, now).values()
        heights.append(height_of(html))
        numbers = [pieces.setdefault(piece, len(pieces)) for piece in re.split(r"(?=<g)|(?<=</g>)", html)]
        return [all_shown.setdefault(json.dumps(numbers), len(all_shown)), disabled]

    combinations = [start._replace(**dict(zip(moving, values, strict=True))) for values in product(*moving.values())]
    all_states = [stored(now) for now in combinations]
    presets = []
    for label, now in panel.presets.items():
        presets.append({"label": label, "at": now._asdict(), "state": None if now in combinations else stored(now)})
    return {
        "settings": [setting_data(setting) | {"stored": moving.get(setting.name)} for setting in explorer.settings],
        "first": start._asdict(),
        "presets": presets,
        "states": all_states,
        "shown": [json.loads(numbers) for numbers in all_shown],
        "pieces": list(pieces),
        # What is below the drawings keeps its place, unless that would leave more than half of theirs empty at first.
        "ratio": round(max(height for height in heights if height <= 1.5 * heights[0]), 3),
    }
