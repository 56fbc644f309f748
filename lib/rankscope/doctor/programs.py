"""Probes of programs and files: compiler, headers, Open MPI, browser, fonts, make."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

from .diagnosis import Missing, told

COMPILERS = ("g++", "c++", "clang++")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SAMPLERS_HEADER = "include/torch/csrc/api/include/torch/data/samplers/distributed.h"
FONT = "DejaVuSans.ttf"
FONT_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "/Library/Fonts", "~/.local/share/fonts", "~/.fonts")


def which(*names: str) -> str:
    """Return the path of the first of these programs that is here."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise Missing(f"no {' or '.join(names)} on the PATH")
    return found


def version_in(text: str) -> str:
    """Return the first version number in a text, or its first line.

    >>> version_in("mpirun (Open MPI) 4.1.4\\nReport bugs")
    '4.1.4'
    """
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else text.strip().partition("\n")[0]


def make() -> str:
    return version_in(told([which("make"), "--version"]))


def compiler() -> str:
    """One that takes a program with a header of the standard library; libtorch's headers are those of the wheel."""
    program = which(*filter(None, [os.environ.get("CXX", "")]), *COMPILERS)
    told([program, "-fsyntax-only", "-x", "c++", "-"], "#include <random>\nint main() { return 0; }\n")
    torch = importlib.util.find_spec("torch")
    folder = Path(torch.origin).parent if torch and torch.origin else None
    headers = "with" if folder and (folder / SAMPLERS_HEADER).is_file() else "without"
    version = version_in(told([program, "-dumpfullversion", "-dumpversion"]))
    return f"{Path(program).name} {version}, {headers} libtorch's headers"


def simgrid() -> str:
    line = "#include <simgrid/version.h>\nSIMGRID_VERSION_MAJOR SIMGRID_VERSION_MINOR\n"
    try:
        seen = told([which("g++"), "-E", "-P", "-x", "c++", "-"], line)
    except Missing as missing:
        lacks = "simgrid" in str(missing)
        raise Missing("no SimGrid headers where g++ looks" if lacks else str(missing)) from None
    return ".".join(seen.split()[-2:])


def open_mpi() -> str:
    said = told([which("mpirun"), "--version"])
    if "Open MPI" not in said:
        raise Missing(f"mpirun is another MPI's: {said.strip().partition(chr(10))[0]}")
    told([which("mpicc"), "--version"])
    return f"{version_in(said)}, mpirun and mpicc"


def find_browser() -> str:
    """Return the path of the browser that tests drive: what RANKSCOPE_CHROMIUM names, or one of `BROWSERS`.

    Raises Missing where there is none.
    """
    named = os.environ.get("RANKSCOPE_CHROMIUM")
    if named and shutil.which(named) is None:
        raise Missing(f"RANKSCOPE_CHROMIUM names {named}, which is no program")
    return which(named) if named else which(*BROWSERS)


def browser() -> str:
    return version_in(told([find_browser(), "--version"]))


def fonts() -> str:
    folders = [Path(folder).expanduser() for folder in FONT_FOLDERS]
    if not any(path.name == FONT for folder in folders if folder.is_dir() for path in folder.rglob("*.ttf")):
        raise Missing(f"no {FONT} among the system's fonts")
    return "DejaVu Sans"
