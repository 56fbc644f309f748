"""Commands that notebooks start: what they print, their environment, and what is raised if they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.course import run_python

PRINT_VARIABLES = "import os; print(os.environ['GLOO_SOCKET_IFNAME'], os.environ['ONE_MORE'])"


def test_a_command_gets_the_loopback_and_variables_of_its_own() -> None:
    assert run_python("-c", PRINT_VARIABLES, ONE_MORE="2") == ["lo 2"]


def test_a_command_that_fails_raises_with_its_message() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)status 3.*out of memory"):
        run_python("-c", "import sys; sys.stderr.write('out of memory'); sys.exit(3)")


@pytest.mark.slow
def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text("import os, sys; sys.stdout.write(f'rank {os.environ[\"RANK\"]}\\n')")
    lines = run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script)
    assert sorted(lines) == ["rank 0", "rank 1"]
