"""`shows`: makes a function that returns an Explorer into one that opens its panel.

ipywidgets is imported only when a panel is opened.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..common.extras import naming_extra
from .explorer import Explorer, Setting

if TYPE_CHECKING:
    from .panel import Panel


def shows(
    settings: Sequence[Setting],
    opens: str = "panel.Panel",
    *,
    on_the_site: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
) -> Callable[[Callable[..., Explorer]], Callable[..., Panel]]:
    """Make a function that returns an Explorer into one that opens its panel, and also takes settings as keywords.

    The new function's signature and docstring list the settings; `explorer_of` returns the Explorer. `opens` is the
    module and the class of the panel, which is imported when one is opened, so that importing an explorer does not need
    ipywidgets. `on_the_site` has the settings that move on the explorer's static page, where no kernel runs, with their
    values; `ALL` stands for every value of the control.
    """

    def decorate(make: Callable[..., Explorer]) -> Callable[..., Panel]:
        signature = inspect.signature(make)

        def make_named(*arguments: Any, **named_arguments: Any) -> Explorer:
            """Return the Explorer with its name and its inputs, which its line of settings names."""
            explorer = make(*arguments, **named_arguments)
            explorer.name = make.__name__
            # The keys are the names of the parameters that have an argument.
            explorer.inputs = tuple(signature.bind(*arguments, **named_arguments).arguments)
            return explorer

        def show(*arguments: Any, **keywords: Any) -> Panel:
            named_arguments = {name: value for name, value in keywords.items() if name in signature.parameters}
            changed_settings = {name: value for name, value in keywords.items() if name not in signature.parameters}
            explorer = make_named(*arguments, **named_arguments)
            start = explorer.at(**changed_settings)
            for name, value in changed_settings.items():
                applied = getattr(start, name)
                if applied != value:  # it follows from other settings
                    reason = explorer.without_effect(start)[name]
                    raise ValueError(f"{name} must be {applied!r}, got {value!r}: {reason}")
            panel: Panel = open_panel(opens, explorer, start)
            return panel

        # `functools.wraps` would also set __wrapped__, and then Sphinx would look for the defaults of the settings in
        # the source of `make`.
        show.__module__ = make.__module__
        show.__name__ = make.__name__
        show.__qualname__ = make.__qualname__
        show.__doc__ = _docstring(make, settings)
        parameters = [*signature.parameters.values(), *map(_keyword_of, settings)]
        show_signature = inspect.Signature(parameters, return_annotation="Panel")
        show.__signature__ = show_signature  # type: ignore[attr-defined]
        show.explorer = make_named  # type: ignore[attr-defined]  # for `explorer_of`
        show.on_the_site = on_the_site  # type: ignore[attr-defined]
        return show

    return decorate


def _docstring(make: Callable[..., Explorer], settings: Sequence[Setting]) -> str:
    """Return the docstring of a function, with the values of the settings as a list below it."""
    lines = [
        inspect.getdoc(make) or "",
        "",
        "Controls start at these settings. Raises ValueError if a control does not offer its setting:",
        "",
    ]
    for setting in settings:
        # Choices that depend on the inputs are declared as (), because they are unknown until `make` is called.
        if setting.choices:
            lines.append(f"- `{setting.name}`: {setting.allowed} (“{setting.label}”)")
    return "\n".join(lines)


def _keyword_of(setting: Setting) -> inspect.Parameter:
    """The keyword parameter of a setting."""
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=setting.default, annotation=setting.kind
    )


@naming_extra()
def open_panel(panel: str, *arguments: Any) -> Any:
    """Return a new panel of these arguments; `panel` is its module in this package and its class, as "panel.Panel"."""
    module_name, _, class_name = panel.partition(".")
    module = import_module(f"{__package__}.{module_name}")
    panel_class = getattr(module, class_name)
    return panel_class(*arguments)
