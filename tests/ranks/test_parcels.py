"""Ranks where cloudpickle is not installed: what can be imported goes, and what cannot is refused in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
from rankscope.ranks import launch
from tests.ranks import functions

class Mine:
    pass

def mine():
    return 1

def nested():
    def inner():
        return 1
    return inner

if __name__ == "__main__":
    print(launch(functions.rank, 2))
    print(launch(torch.add, 1, (torch.arange(3), 1)))
    for fn, args in ((lambda: 1, ()), (mine, ()), (nested(), ()), (functions.rank, (Mine(),))):
        try:
            launch(fn, 1, args)
        except ValueError as error:
            print(error)
"""


def test_without_cloudpickle_what_can_be_imported_goes_and_the_rest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cloudpickle.py").write_text("raise ImportError('not installed')\n")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "lib", ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    sent, added, *refused = done.stdout.splitlines()
    assert sent == "[0, 1]"
    assert added == "[tensor([1, 2, 3])]"
    assert len(refused) == 4
    for words, name in zip(refused, ("<lambda>", "mine", "inner", "Mine"), strict=True):
        assert name in words.split("cannot be sent to another process")[0]
        assert words.endswith("sending it needs cloudpickle, which is not installed: pip install 'rankscope[torch]'")
