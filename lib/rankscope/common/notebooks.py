"""What `make lab` does when it saves a notebook."""

from __future__ import annotations

from typing import Any

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_PICTURE = "image/svg+xml"


def without_views(model: dict[str, Any], **_: Any) -> None:
    """Leave the views of widgets out of what is saved where a picture can stand for them.

    JupyterLab prefers a view, and says "model not found" when the kernel that made it is gone. This is a
    ``pre_save_hook`` of Jupyter Server's ContentsManager.
    """
    if model["type"] != "notebook":
        return
    for cell in model["content"]["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if _PICTURE in data:
                data.pop(_WIDGET_VIEW, None)
