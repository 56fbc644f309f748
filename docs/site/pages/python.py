"""The Python of live pages: Pyodide and wheels are fetched as inputs.json pins them, and node packs what pages need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[3]
LIVE = ROOT / "docs" / "site" / "live"
# Files that cannot be fetched may lie here.
AT_HAND = Path(os.environ.get("LIVE_INPUTS", ROOT / "../shared/prototypes/live/wheels"))


def fetch(folder: Path) -> None:
    """Put the files of inputs.json into the folder. Raises ValueError if one cannot be fetched, or has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in json.loads((LIVE / "inputs.json").read_text(encoding="utf-8")):
        path = folder / entry["file"]
        at_hand = AT_HAND / path.name
        if at_hand.exists():
            shutil.copyfile(at_hand, path)
        elif not path.exists():
            command = [sys.executable if word == "python" else word for word in entry["command"]]
            try:
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise ValueError(f"{path.name} cannot be fetched, but can be put into {folder} by hand") from error
        found = sha256(path.read_bytes()).hexdigest()
        if found != entry["sha256"]:
            path.unlink()
            raise ValueError(f"the sha256 of {path.name} is {found}, but inputs.json has {entry['sha256']}")


def pack(inputs: Path, to: Path) -> None:
    """Write what a page's worker loads, and the licences of what is not ours, from the files that `fetch` got."""
    pyodide = inputs / "package"
    for archive in inputs.glob("*.tgz"):
        with tarfile.open(archive) as opened:
            opened.extractall(inputs, filter="data")
    # In node, Pyodide imports the package ws, for sockets, which nothing here opens.
    sockets = pyodide / "node_modules" / "ws" / "index.js"
    sockets.parent.mkdir(parents=True, exist_ok=True)
    sockets.touch()
    subprocess.run(["node", LIVE / "pack.mjs", pyodide, inputs, ROOT / "lib", to], check=True)
    shutil.copytree(LIVE / "licences", to / "licences")
    for path in inputs.glob("*.whl"):
        with ZipFile(path) as wheel:
            wheel.extractall(to / "licences", [name for name in wheel.namelist() if ".dist-info/licenses/" in name])
