"""Jupyter's configuration for `make edit`: opening and saving a notebook leaves its file as the repository has it."""

from __future__ import annotations

from typing import Any

c: Any = get_config()  # type: ignore[name-defined]  # noqa: F821  # Jupyter gives it to its configuration files


def without_version_of_python(model: dict[str, Any], **_: Any) -> None:
    """Leave out what depends on who saves: JupyterLab puts the version of its kernel's Python into each notebook."""
    if model["type"] == "notebook" and model["content"] is not None:
        model["content"]["metadata"].get("language_info", {}).pop("version", None)


c.ContentsManager.pre_save_hook = without_version_of_python
