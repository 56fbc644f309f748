"""The explorer of a sampler that a visitor writes: `explorers.samplers` of what the text defines last."""

from __future__ import annotations

from functools import lru_cache, partial
from traceback import walk_tb
from typing import Any

from rankscope.common.words import error_words
from rankscope.drawing.drawing import Drawing
from rankscope.explorers import EXPLORERS
from rankscope.panel.explorer import Explorer, Now, Setting, Typed

_MODULE = "your code"
FIRST = """\
import random

class EveryNth:
    def __init__(self, dataset, num_replicas, rank, seed=0, epoch=0):
        order = list(range(len(dataset)))
        random.Random(seed + epoch).shuffle(order)
        self.mine = order[rank::num_replicas]

    def __iter__(self):
        return iter(self.mine)
"""
PRESETS = {"each rank shuffles for itself": {"code": FIRST.replace("seed + epoch", "seed + rank")}}


@lru_cache(maxsize=8)
def explorer_of(code: str) -> Explorer:
    """Return the explorer of the class or function that the code defines last; ValueError has what the code raises."""
    names: dict[str, Any] = {"__name__": _MODULE}
    try:
        exec(compile(code, _MODULE, "exec", dont_inherit=True), names)
    except Exception as error:
        raise ValueError(error_words(error)) from error
    defined = [value for value in names.values() if callable(value) and getattr(value, "__module__", "") == _MODULE]
    if not defined:
        raise ValueError("The code defines neither a class nor a function.")
    return EXPLORERS["samplers"].make(defined[-1])


def line_of(error: BaseException) -> str:
    """Return in words the line of the visitor's code at which an error, or what it was made of, was raised last."""
    frames = walk_tb((error.__cause__ or error).__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == _MODULE]
    return f" (line {lines[-1]})" if lines else ""


def draw(now: Now) -> list[Drawing]:
    try:
        return [*explorer_of(now.code).draw(now)]
    except ValueError as error:
        raise ValueError(f"{error}{line_of(error)}") from error
    except Exception as error:
        raise ValueError(f"{error_words(error)}{line_of(error)}") from error
    except BaseException as error:  # such as SystemExit, which would end another Python
        raise ValueError(f"{type(error).__name__} ends the code{line_of(error)}") from error


def has_effect(name: str, now: Now) -> bool:
    """Return whether the code takes a setting; as long as it is wrong, nothing is known, and every setting stays."""
    try:
        return name in {setting.name for setting in explorer_of(now.code).settings}
    except BaseException:
        return True


def own_sampler() -> Explorer:
    """Return an area for code, every setting that `explorers.samplers` may have for it, and what each rank reads."""
    every = EXPLORERS["samplers"].make(lambda dataset, num_replicas, rank, shuffle, drop_last, seed: None).settings
    code = Setting("code", FIRST, Typed([FIRST]), "your sampler")
    return Explorer(
        (code, *[setting._replace(when=partial(has_effect, setting.name)) for setting in every]),
        draw,
        lambda now: explorer_of(now.code).report(now),
        PRESETS,
    )
