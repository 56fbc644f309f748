"""The subpackages that `course` needs; it adds nothing to the common tables. See `rankscope.common.extensions`."""

from __future__ import annotations

from ..common.extensions import Extension

EXTENSION = Extension(needs=("box", "train"))
