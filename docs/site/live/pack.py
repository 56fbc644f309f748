"""Run by pack.mjs in Pyodide: draw what live pages may ask for, and pack the modules that this took, compiled."""

import gzip
import json
import py_compile
import sys
import zipfile
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path

FOLDERS = [Path("/wheels"), Path("/library"), Path("/site")]
STANDARD = Path("/standard")
# A browser imports some modules of these that node does not.
WHOLE = ("_pyodide", "collections", "importlib", "pyodide")
# What a reader's own code is likely to import, and encodings that Python itself looks up.
ALSO = "bisect dataclasses heapq itertools numpy.random queue random statistics string time typing"
ALSO += " encodings.ascii encodings.cp437 encodings.idna encodings.latin_1 encodings.utf_8_sig"

sys.path[:0] = map(str, FOLDERS)
sys.dont_write_bytecode = True

from pages import live  # noqa: E402


def draw_everything() -> list[tuple[str, dict, str]]:
    """Draw presets and all values of lists, so that everything is imported. Returns settings, and what they showed."""
    for name in ALSO.split():
        import_module(name)
    drawn = []
    for name in [*live.EXPLORERS, *live.ADDED]:
        if name in live.STORED_ONLY:
            continue
        explorer = live.explorer_of(name)
        lists = [setting for setting in explorer.settings if not isinstance(setting.choices, range | live.Steps)]
        values = [{setting.name: value} for setting in lists for value in setting.values]
        for settings in ({}, *explorer.presets.values(), *values):
            with suppress(ModuleNotFoundError):
                state = json.dumps(live.state(explorer, explorer.at(**settings)))
                drawn.append((name, settings, sha256(state.encode()).hexdigest()))
    return drawn


def compiled(source: Path, name: str, level: int) -> bytes:
    """Return the bytecode of a module, which is not compared with its source, since no source lies beside it."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), "/compiled", dfile=name, doraise=True, optimize=level, invalidation_mode=mode)
    return Path("/compiled").read_bytes()


def standard_library() -> dict[str, bytes]:
    """Return by path in the archive the modules of Python's own library."""
    archive = "python314.zip/"
    files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
    paths = {file.partition(archive)[2] for file in files if archive in file}
    for package in WHOLE:
        paths |= {str(path.relative_to(STANDARD)) for path in (STANDARD / package).rglob("*.py")}
    return {f"{path}c": compiled(STANDARD / path, path, 2) for path in paths}


def packages() -> dict[str, bytes]:
    """Return by path in site-packages the modules of the wheels and of the library, and the library's data."""
    found = {}
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "/")
        for folder in FOLDERS:
            if not path.is_relative_to(folder):
                continue
            name = str(path.relative_to(folder))
            if path.suffix == ".py":
                level = 2 if folder == Path("/wheels") else 0  # the library shows some of its docstrings
                found[f"{name}c"] = compiled(path, name, level)
            else:
                found[name] = path.read_bytes()
    for path in Path("/library/rankscope").rglob("*.gz"):
        found[str(path.relative_to("/library"))] = path.read_bytes()
    return found


Path("/drawn.json").write_text(json.dumps(draw_everything()))  # tests compare it with another Python's
with zipfile.ZipFile("/standard.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for name, data in sorted(standard_library().items()):
        archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)  # its date is always 1980
parts = sorted(packages().items())
index = json.dumps([(name, len(data)) for name, data in parts]).encode()
Path("/packages.gz").write_bytes(gzip.compress(b"\n".join([index, b"".join(data for _, data in parts)]), 9, mtime=0))
