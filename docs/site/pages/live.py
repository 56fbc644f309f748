"""What a page shows of an explorer. The site stores it when it is built; on a live page, its own Python computes it.

That Python has this module and the library, without torch and scipy. A page asks in JSON, and is answered in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from rankscope.explorers import EXPLORERS
from rankscope.panel.explorer import Explorer, Now, Setting, Steps, Typed

from .own_sampler import own_sampler

STORED_ONLY = ("fsdp", "pipeline_parallel")  # these explorers need torch, which no page has
ADDED = {"own_sampler": own_sampler}  # explorers that only pages have


def setting_data(setting: Setting) -> dict[str, Any]:
    """Return what a page needs for the control of a setting."""
    kind = "select"
    if isinstance(setting.default, bool):
        kind = "checkbox"
    elif isinstance(setting.choices, range | Steps):
        kind = "range"
    elif isinstance(setting.choices, Typed):
        kind = "text"
    data = {"name": setting.name, "label": setting.label, "kind": kind, "most": setting.most}
    words, values = zip(*setting.options, strict=True)
    return data | {"words": words, "values": values}


def state(explorer: Explorer, now: Now) -> dict[str, Any]:
    """Return as HTML what the explorer shows, and the names of the settings that have no effect then.

    The style of its drawings is the page's.
    """
    _, drawn, report = explorer.shown(now)
    html = f'<div class="explorer-scrolled"><div class="explorer-drawn">{drawn}</div></div>{report}'
    return {"html": html, "disabled": [setting.name for setting in explorer.settings if not setting.when(now)]}


@cache
def explorer_of(name: str) -> Explorer:
    return ADDED[name]() if name in ADDED else EXPLORERS[name].make()


def state_of(name: str, values: dict[str, Any]) -> dict[str, Any]:
    explorer = explorer_of(name)
    try:
        return state(explorer, explorer.at(**values))
    except ModuleNotFoundError as error:
        return {"html": f"<p>This needs {error.name}, which no page has. In a notebook it works.</p>", "disabled": []}


QUESTIONS: dict[str, Callable[..., Any]] = {"state": state_of}


def answer(question: str, arguments: str) -> str:
    """Return the answer to a question, or what went wrong, in one line."""
    try:
        return json.dumps({"answer": QUESTIONS[question](*json.loads(arguments))})
    except BaseException as error:  # SystemExit, too, ends no page
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
