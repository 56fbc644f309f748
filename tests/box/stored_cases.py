"""The values of `box` that are kept in files, for the battery in `tests/common/test_stored.py`."""

from __future__ import annotations

from pathlib import Path

from rankscope.box import Profile

from ..common.kinds import Kind

KINDS = [
    Kind(Path(__file__).with_name("stored") / "profile.v1.json", Profile.load, lambda value, path: value.save(path)),
]
