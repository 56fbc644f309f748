"""What explorers' tests take apart: the controls, the picture and the report of a panel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets


def parts(box: widgets.VBox, labels: Mapping[str, str]) -> tuple[dict[str, Any], Any, Any]:
    """Return a panel's controls by the name of what they set, its picture and its report; `labels` are by name."""
    controls, shown, told = box.children
    names = {label: name for name, label in labels.items()}
    return {names[control.description]: control for control in controls.children}, shown, told
