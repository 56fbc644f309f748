"""Explorers in an interpreter that has numpy and ipywidgets, and none of the other packages that are often there."""

from __future__ import annotations

import subprocess
import sys

_MISSING = ("torch", "pandas", "matplotlib", "cloudpickle", "typer", "rich", "sklearn", "scipy")
_CODE = """
import sys

MISSING = set(sys.argv[1].split(","))


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

from rankscope import explorers

box = eval(sys.argv[2])
for _, name in box.children[0].options:
    box.children[0].value = name
    (panel,) = box.children[2].children
    before = panel.pictures.value
    *presets, reset = panel.presets
    if presets:
        presets[-1].click()
        print(name, "<svg" in before, before != panel.pictures.value)
    else:
        print(name, "<svg" in before, "no preset")
print(sorted(MISSING & set(sys.modules)))
"""


def _run(gallery: str, *also_missing: str) -> subprocess.CompletedProcess[str]:
    missing = ",".join([*_MISSING, *also_missing])
    command = [sys.executable, "-c", _CODE, missing, gallery]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def explorers_with_numpy_and_ipywidgets_alone(gallery: str) -> list[str]:
    """Pick each explorer of a gallery, which an expression makes, and click one of its presets.

    Return its name, whether it had a picture and whether that changed, or that it has no preset, a line for each
    explorer. In the last line are the packages that should be missing and are not.
    """
    done = _run(gallery)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def last_error_without_numpy() -> str:
    """Return what an interpreter without numpy says, too."""
    return _run("explorers.gallery()", "numpy").stderr
