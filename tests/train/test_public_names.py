"""`rankscope.train` offers its packages by name before they are imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import rankscope.train

PACKAGES = ["data_parallel", "ddp", "fsdp", "gradients", "pipeline_parallel", "uneven", "zero"]

COMPLETE = """
import json
import sys
import rankscope.train
assert not [name for name in sys.modules if name.startswith("rankscope.train.")]
print(json.dumps(dir(rankscope.train)))
print(rankscope.train.zero.memory.__module__)
"""


def test_a_new_process_can_complete_the_packages_and_use_them() -> None:
    """It completes them before any is imported, and imports one when it is first used."""
    process = subprocess.run([sys.executable, "-c", COMPLETE], capture_output=True, text=True, timeout=300)
    names, module = process.stdout.splitlines()
    assert set(PACKAGES) <= set(json.loads(names))
    assert module == "rankscope.train.zero.model"


def test_the_packages_are_the_public_names() -> None:
    assert rankscope.train.__all__ == PACKAGES
    for name in PACKAGES:
        assert getattr(rankscope.train, name).__name__ == f"rankscope.train.{name}"
    with pytest.raises(AttributeError, match=r"^module 'rankscope\.train' has no attribute 'squares'$"):
        _ = rankscope.train.squares
