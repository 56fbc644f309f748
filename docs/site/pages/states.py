"""An explorer on a page without a kernel: what it shows at some thousand settings, drawn when the site is made."""

from __future__ import annotations

import ast
import gzip
import json
import re
from base64 import b64encode
from html import escape
from itertools import product
from math import ceil
from typing import Any, NamedTuple

from rankscope.panel.explorer import Explorer, Now, Steps, Typed
from rankscope.panel.widgets import NUM_BESIDE, height_of

from .live import STORED_ONLY, explorer_of, setting_data, state

_MOST_OF_A_SLIDER = 16  # values; of longer sliders some, evenly spread
_MOST_OF_A_LIST = 4


class Place(NamedTuple):
    """A cell that opens an explorer, by its settings alone, and the name of the script with its states."""

    source: str
    key: str

    @property
    def name(self) -> str:
        return re.findall(r"(\w+)\(", self.source)[-1]

    def explorer(self) -> tuple[Explorer, Now]:
        """Return the explorer, and its settings at first."""
        explorer = explorer_of(self.name)
        call = ast.parse(self.source.splitlines()[-1], mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args, self.source
        return explorer, explorer.at(**{one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg})

    def html(self, is_live: bool) -> str:
        """Return what stands on the page: the explorer as it is at first, to which scripts add controls."""
        explorer, now = self.explorer()
        call = escape(self.source.splitlines()[-1])
        labels = escape(", ".join(setting.label for setting in explorer.settings))
        more = f'<p class="explorer-more">In a notebook, <code>{call}</code> has all settings: {labels}.</p>'
        if any(isinstance(setting.choices, Typed) for setting in explorer.settings):
            more = ""  # its page says it
        live = " data-live" if is_live and self.name not in STORED_ONLY else ""
        return (
            f'<div class="explorer" data-name="{self.name}" data-states="{self.key}"{live}>'
            f'<div class="explorer-shown">{state(explorer, now)["html"]}</div>{more}</div>'
        )

    def script(self, most_states: int) -> str:
        """Return a script with all states, which a page loads from disk, where it could fetch no data."""
        data = states(*self.explorer(), most_states)
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        letters = b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
        return f'rankscopeStates["{self.key}"]="{letters}"\n'


def axes(explorer: Explorer, start: Now, most_states: int) -> dict[str, list[Any]]:
    """Return the settings that move on a page, with their values: as many as make at most `most_states` states.

    Those move that the panel does not fold: first switches, then the others in their order. A long list has the values
    of presets only, a long slider some evenly spread, too; what does not fit has the former, or stands still.
    Numbers beyond the slider, which a preset types, are shown with that preset only.
    """
    at_presets = [explorer.at(**preset) for preset in explorer.presets.values()]
    chosen: dict[str, list[Any]] = {}
    num_states = 1
    for setting in sorted(explorer.settings[:NUM_BESIDE], key=lambda setting: not isinstance(setting.default, bool)):
        wanted = [getattr(now, setting.name) for now in (start, *at_presets)]
        if isinstance(setting.choices, Typed):
            chosen[setting.name] = [getattr(start, setting.name)]  # others are presets
            continue
        few = [value for value in setting.values if value in wanted]
        some = few
        if isinstance(setting.choices, range | Steps):
            every = ceil(len(setting.values) / _MOST_OF_A_SLIDER)
            some = [value for place, value in enumerate(setting.values) if value in wanted or place % every == 0]
        elif len(setting.values) <= _MOST_OF_A_LIST:
            some = list(setting.values)
        for values in (some, few):
            if 1 < len(values) <= most_states // num_states:
                chosen[setting.name] = values
                num_states *= len(values)
                break
    return {setting.name: chosen[setting.name] for setting in explorer.settings if setting.name in chosen}


def states(explorer: Explorer, start: Now, most_states: int) -> dict[str, Any]:
    """Return what the page's script reads: settings, presets, and all combinations of what moves, the last one fastest.

    A state is a number of what it shows and the names of the settings that have no effect. What is shown is a list of
    numbers of pieces of HTML, because states share most of them.
    """
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
    for label, preset in {"the defaults": {}, **explorer.presets}.items():
        now = explorer.at(**preset)
        presets.append({"label": label, "at": now._asdict(), "state": None if now in combinations else stored(now)})
    return {
        "settings": [setting_data(setting) | {"stored": moving.get(setting.name)} for setting in explorer.settings],
        "first": start._asdict(),
        "presets": presets,
        "states": all_states,
        "shown": [json.loads(numbers) for numbers in all_shown],
        "pieces": list(pieces),
        # What is below the drawings keeps its place, unless more than a tenth of theirs would be empty at first.
        "ratio": round(max(height for height in heights if height <= 1.1 * heights[0]), 3),
    }
