"""The folder of published measurements and cases, which stands beside a checkout and is no part of it."""

from __future__ import annotations

from pathlib import Path

_FOUND = [folder / "shared" / "measurements" for folder in Path(__file__).parents]
MEASUREMENTS = next((folder for folder in _FOUND if folder.is_dir()), None)
