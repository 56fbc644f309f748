"""Which of the profiles in a folder has copies to a GPU, in words, too."""

from __future__ import annotations

import os
from pathlib import Path

from .profile import Profile
from .profile_file import FORMAT

COMMAND = "python tests/tools/measure_gpu.py -o notebooks/profiles/gpu.json"
_HEAD, _COPY = f'{{"format": "{FORMAT}"', '{"what":"transfer"'


def recorded_transfers(folder: str | os.PathLike[str]) -> Profile | None:
    """Return the latest profile in a folder that has "transfer" points, None where there is none.

    Files of other kinds are passed over. Raises ProfileError for a damaged profile, OSError for a folder that cannot be
    read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(recorded_transfers(folder))
    None
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    texts = ((path, path.read_text(encoding="utf-8", errors="replace")) for path in (Path(folder, n) for n in names))
    found = [Profile.load(path) for path, text in texts if text.startswith(_HEAD) and _COPY in text]
    return max(found, key=lambda profile: str(profile.provenance["date"]), default=None)


def recorded_words(profile: Profile | None) -> str:
    """Say on which GPU a profile's copies were measured, or that none were and what measures them.

    >>> print(recorded_words(None))
    No copies were measured yet: what follows is predicted.
    Where there is a GPU: python tests/tools/measure_gpu.py -o notebooks/profiles/gpu.json
    """
    if profile is None:
        return f"No copies were measured yet: what follows is predicted.\nWhere there is a GPU: {COMMAND}"
    told = profile.provenance
    gpus = ", ".join(str(one["name"]) for one in told.get("gpus", []) if "name" in one)
    number = len(profile.select("transfer"))
    machine = ", ".join(filter(None, [gpus, told.get("cpu"), f"torch {told['torch']}" if "torch" in told else ""]))
    return f"{told['name']}, {told['date']}: {number} copies were measured.\n{machine}"
