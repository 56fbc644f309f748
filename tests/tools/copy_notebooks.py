"""`make lab`: copy notebooks that the reader does not have yet, and list the copies whose originals have changed since.

    python tests/tools/copy_notebooks.py notebooks my_notebooks

A copy is the reader's and is never overwritten, unless it is empty. What each was copied from stays in a folder
`.originals` beside it, so that the reader's own changes are told from those of the originals.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rankscope.common.files import write_whole

NOT_COPIED = ("__pycache__", ".ipynb_checkpoints")


def copy_missing(originals: Path, copies: Path) -> list[str]:
    """Copy each file that has no copy, and return the names of the copies that are behind their originals."""
    behind = []
    for original in sorted(originals.rglob("*")):
        name = original.relative_to(originals)
        if not original.is_file() or not set(NOT_COPIED).isdisjoint(name.parts):
            continue
        content, copy, copied_from = original.read_bytes(), copies / name, copies / ".originals" / name
        if not copy.exists() or copy.stat().st_size == 0:
            write(copied_from, content)
            write(copy, content)
        elif copy.read_bytes() == content:
            write(copied_from, content)
        elif is_behind(original, copy, copied_from):
            behind.append(str(name))
    return behind


def is_behind(original: Path, copy: Path, copied_from: Path) -> bool:
    """Whether the original has changed since it was copied."""
    if copied_from.exists():
        return copied_from.read_bytes() != original.read_bytes()
    return original.stat().st_mtime > copy.stat().st_mtime  # an earlier `make lab` kept no originals


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def main(originals: str, copies: str) -> None:
    try:
        behind = copy_missing(Path(originals), Path(copies))
    except OSError as error:
        sys.exit(f"lab: cannot copy the notebooks: {error}")
    if behind:
        print(f"lab: the originals of these files in {copies} have changed since you got them: {', '.join(behind)}")
        print("lab: your copies stay as they are. For a new one, rename or delete yours and run `make lab` again.")


if __name__ == "__main__":
    main(*sys.argv[1:])
