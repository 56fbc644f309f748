"""The Python of live pages: Pyodide and the wheels that inputs.json pins are fetched, and packed by node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from urllib.request import urlopen
from zipfile import ZipFile

ROOT = Path(__file__).parents[3]
LIVE = ROOT / "docs" / "site" / "live"
# Files that cannot be fetched may lie here.
AT_HAND = Path(os.environ.get("LIVE_INPUTS", ROOT / "../shared/prototypes/live/wheels"))


def fetch(folder: Path) -> None:
    """Put what inputs.json names into the folder. Raises ValueError if that fails, or if a checksum differs."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in json.loads((LIVE / "inputs.json").read_text(encoding="utf-8")):
        path = folder / entry["file"]
        at_hand = AT_HAND / entry["file"]
        if at_hand.exists():
            shutil.copyfile(at_hand, path)
        if not path.exists():
            fetch_one(entry, path)
        found = sha256(path.read_bytes()).hexdigest()
        if found != entry["sha256"]:
            path.unlink()
            raise ValueError(f"the sha256 of {path.name} is {found}, but inputs.json has {entry['sha256']}")


def fetch_one(entry: dict[str, str], path: Path) -> None:
    command = None
    if "npm" in entry:
        command = ["npm", "pack", "--silent", entry["npm"], "--pack-destination", str(path.parent)]
    elif "pypi" in entry:
        _, _, python, abi, platform = path.stem.split("-")
        tags = ["--python-version", python.removeprefix("cp"), "--abi", abi, "--platform", platform]
        download = ["download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(path.parent)]
        command = [sys.executable, "-m", "pip", *download, *tags, entry["pypi"]]
    try:
        if command is None:
            with urlopen(entry["address"], timeout=60) as answer:
                path.write_bytes(answer.read())
        else:
            subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", error)).strip().rpartition("\n")[2]
        raise ValueError(f"{path.name} cannot be fetched: {reason}") from error


def pack(inputs: Path, to: Path) -> None:
    """Write what a page's worker loads, and the licences of what is not ours, from the files that `fetch` got."""
    for archive in inputs.glob("*.tgz"):
        with tarfile.open(archive) as opened:
            opened.extractall(inputs, filter="data")
    # In node, Pyodide imports the package ws, for sockets, which nothing here opens.
    sockets = inputs / "package" / "node_modules" / "ws" / "index.js"
    sockets.parent.mkdir(parents=True, exist_ok=True)
    sockets.touch()
    script = [str(LIVE / "pack.mjs"), *map(str, (inputs / "package", inputs, ROOT / "lib", to))]
    ended = subprocess.run(["node", *script], capture_output=True, text=True)
    if ended.returncode:
        raise ValueError(f"node could not pack Python:\n{ended.stderr[-2000:]}")
    licences = to / "licences"
    shutil.copytree(LIVE / "licences", licences)
    for path in inputs.glob("*.whl"):
        with ZipFile(path) as wheel:
            wheel.extractall(licences, [name for name in wheel.namelist() if ".dist-info/licenses/" in name])
