"""What an explorer shows at each of some hundred settings, drawn by itself and stored for pages that have no kernel."""

from __future__ import annotations

import gzip
import json
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from html import escape
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.box import Profile, recorded
from rankscope.common.checks import one_of
from rankscope.explorers.entries import EXPLORERS, Entry
from rankscope.explorers.explorer import Explorer, Now, Setting, Steps, explorer_of

PROFILES = Path(__file__).parents[3] / "notebooks" / "profiles"
MACHINES = {
    "emulated, 100 Mbit/s, 5 ms": "emulated_100mbit_5ms_4_ranks.json",
    "loopback, two cores": "loopback_2_cores_4_ranks.json",
}
FOLDER = "explorers"  # of the site's _static
MOST_BYTES = 2_000_000  # of the script that holds an explorer's states
LEAST_STATES = 300

Axes = Mapping[str, tuple[Any, ...]]
PLAYED = {"player": "moment", "allreduce": "step"}  # the slider that a button moves by itself
_ONE_PICTURE = re.compile(r"(?=<svg |<p>)")


class Shown(NamedTuple):
    """An explorer as a page shows it, with these settings at first."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def entry(self) -> Entry:
        return EXPLORERS[one_of("name", self.name, tuple(EXPLORERS))]

    @property
    def explorer(self) -> Explorer:
        """The explorer, with the profiles that its notebook gives it."""
        if self.name == "machine":
            inputs: list[Any] = [{name: Profile.load(PROFILES / file) for name, file in MACHINES.items()}]
        elif self.name == "transfers":
            inputs = [recorded(PROFILES, otherwise="bank:mi100_copies")]
        else:
            inputs = []
        return explorer_of(self.entry.show, *inputs)

    def grid(self, *, only_ends: bool = False) -> Grid:
        """What can be moved on the page. Raises ValueError for settings that the explorer refuses."""
        explorer = self.explorer
        start = explorer.at(**dict(self.settings))
        offered = {setting.name: setting for setting in explorer.settings}
        axes: dict[str, tuple[Any, ...]] = {}
        for name, values in self.entry.show.on_the_site.items():
            own = values or offered[name].values
            if unknown := [value for value in own if value not in offered[name].values]:
                raise ValueError(f"on_the_site of {self.name} has {name} {unknown}, which the setting does not offer")
            own = (own[0], own[-1]) if only_ends else own
            at_first = getattr(start, name)
            missing = at_first not in own
            axes[name] = tuple(value for value in offered[name].values if value in {*own, at_first}) if missing else own
            if missing and not _is_range(offered[name]):
                axes[name] = (at_first, *own)
        return Grid(self, explorer, start, axes)


class Grid(NamedTuple):
    """An explorer, its settings at first, and the values of some of them, at all combinations of which it is drawn."""

    shown: Shown
    explorer: Explorer
    start: Now
    axes: Axes

    @property
    def num_states(self) -> int:
        return prod(map(len, self.axes.values()))

    @property
    def key(self) -> str:
        """The name of what is stored: pages on which it is the same share it."""
        fixed = {name: value for name, value in self.start._asdict().items() if name not in self.axes}
        grid = repr((fixed, dict(self.axes)))
        return f"{self.shown.name}_{sha256(grid.encode()).hexdigest()[:8]}"

    def states(self) -> Iterator[Now]:
        """Every combination, the last setting changing fastest, with what follows from it."""
        for values in product(*self.axes.values()):
            now = self.start._replace(**dict(zip(self.axes, values, strict=True)))
            yield now._replace(**self.explorer.derived(now))

    def at(self, now: Now) -> list[int]:
        """The place of some settings in each axis. Raises ValueError where they are not of the grid."""
        follows = self.explorer.derived(now)
        for name, value in now._asdict().items():
            if name not in self.axes and name not in follows and getattr(self.start, name) != value:
                raise ValueError("not of the grid")
        return [values.index(getattr(now, name)) for name, values in self.axes.items()]

    def html(self) -> str:
        """What stands on the page: what the explorer shows at first, where a script adds the controls."""
        pictures, report = self.explorer.html(self.start)
        others = ", ".join(
            f"{setting.label} ({_words(setting, getattr(self.start, setting.name))})"
            for setting in self.explorer.settings
            if setting.name not in self.axes
        )
        other_settings = f" In a notebook you can also set {escape(others)}." if others else ""
        return (
            f'<div class="explorer" data-states="{self.key}" data-start="{self.at(self.start)}">\n'
            f'<div class="explorer-pictures">{pictures}</div>\n'
            f'<div class="explorer-report" aria-live="polite">{report}</div>\n'
            f'<details class="explorer-more"><summary>In Python</summary>'
            f'<p><code class="explorer-line">{escape(self.explorer.line(self.start))}</code> in a notebook shows '
            f"the same controls.{other_settings}</p></details>\n</div>"
        )

    def drawn(self) -> dict[str, Any]:
        """All states, each picture and report once, with the controls: what the page's script reads."""
        pictures = Numbers()
        reports = Numbers()
        drawn_at: dict[Now, tuple[list[int], int]] = {}
        shown = []
        for now in self.states():
            reachable = self._reachable(now)
            if reachable not in drawn_at:
                html, report = self.explorer.html(reachable)
                numbers = [pictures[picture] for picture in _ONE_PICTURE.split(html) if picture]
                drawn_at[reachable] = (numbers, reports[report])
            shown.append(drawn_at[reachable])
        controls = {setting.name: setting for setting in self.explorer.settings}
        limits = Numbers()
        return {
            "controls": [_control(controls[name], values) for name, values in self.axes.items()],
            "played": list(self.axes).index(PLAYED[self.shown.name]) if self.shown.name in PLAYED else -1,
            "presets": list(self.presets()),
            **_in_parts(list(pictures)),
            "reports": list(reports),
            "states": [
                [*shown[number], limits[json.dumps(self._limits(shown, number, now))], self.explorer.line(now)]
                for number, now in enumerate(self.states())
            ],
            "limits": list(map(json.loads, limits)),
        }

    def _reachable(self, now: Now) -> Now:
        """Return the settings with each slider at most where it ends in this state."""
        ends = self.explorer.most(now)
        return now._replace(**{name: min(getattr(now, name), end) for name, end in ends.items()})

    def presets(self) -> Iterator[dict[str, Any]]:
        """Those presets of the explorer that are of the grid."""
        for label, settings in self.explorer.presets.items():
            with suppress(ValueError):
                now = self.explorer.at(**settings)
                yield {"label": label, "line": self.explorer.line(now), "at": self.at(now)}

    def _limits(self, shown: list[Any], number: int, now: Now) -> dict[str, dict[int, Any]]:
        """By place, the controls that change nothing in this state, and why; and the ends of those that end earlier."""
        reasons, most = self.explorer.without_effect(now), self.explorer.most(now)
        dead, ends, stride = {}, {}, len(shown)
        for place, (name, values) in enumerate(self.axes.items()):
            whole, stride = stride, stride // len(values)
            first = number // whole * whole + number % stride
            along = [shown[first + stride * step] for step in range(len(values))]
            if name in reasons or along.count(along[0]) == len(along):
                dead[place] = reasons.get(name, "it changes nothing here")
            if name in most:
                ends[place] = max(step for step, value in enumerate(values) if value <= most[name])
                if not ends[place]:
                    dead.setdefault(place, "it has one value here")
        return {"dead": dead, "ends": ends}


class Numbers(dict[str, int]):
    """Numbers texts as they come."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


class Store(NamedTuple):
    """What is stored of a grid: the text of a script, and how it came about."""

    key: str
    script: str
    num_states: int
    num_pictures: int
    raw_bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.key}: {self.num_states} states, {self.num_pictures} pictures, {self.raw_bytes / 1e6:.1f} MB, "
            f"stored in {len(self.script) / 1e3:.0f} kB, {self.seconds:.1f} s of CPU"
        )


def stored_at(shown: Shown, only_ends: bool) -> Store:
    """Return the states of an explorer; its arguments can be sent to another process."""
    return stored(shown.grid(only_ends=only_ends))


def stored(grid: Grid) -> Store:
    """Draw all states and pack them into a script, which a page loads from disk, where it could fetch no data."""
    start = time.process_time()
    drawn = grid.drawn()
    lengths = [sum(len(drawn["parts"][part]) for part in picture) for picture in drawn["pictures"]]
    raw_bytes = sum(lengths[picture] for pictures, *_ in drawn["states"] for picture in pictures)
    script = packed(grid.key, drawn)
    seconds = time.process_time() - start
    return Store(grid.key, script, len(drawn["states"]), len(drawn["pictures"]), raw_bytes, seconds)


def packed(key: str, drawn: dict[str, Any]) -> str:
    text = json.dumps(drawn, ensure_ascii=False, separators=(",", ":")).encode()
    letters = b64encode(gzip.compress(text, 9, mtime=0)).decode()
    return f'rankscopeStates["{key}"]="{letters}"\n'


def _in_parts(pictures: list[str]) -> dict[str, Any]:
    """Pictures as lists of parts that they share, split at each element or at each group, whichever is shorter."""
    splits = []
    for between in (r"(?=<)", r"(?=<g)|(?<=</g>)"):
        parts = Numbers()
        lists = [[parts[part] for part in re.split(between, picture)] for picture in pictures]
        splits.append({"parts": list(parts), "pictures": lists})
    return min(splits, key=lambda split: len(gzip.compress(json.dumps(split).encode(), 6)))


def _control(setting: Setting, values: tuple[Any, ...]) -> dict[str, Any]:
    kind = "checkbox" if setting.kind is bool else "range" if _is_range(setting) else "select"
    return {
        "name": setting.name,
        "label": setting.label,
        "hint": setting.hint,
        "kind": kind,
        "values": [_words(setting, value) for value in values],
    }


def _is_range(setting: Setting) -> bool:
    return isinstance(setting.choices, range | Steps)


def _words(setting: Setting, value: Any) -> str:
    """A value as its control says it."""
    return next(label for label, offered in setting.options if offered == value)
