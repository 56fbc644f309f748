"""`run_python`: a command in another process of this Python, as the notebooks start their scripts and torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

TIMEOUT_S = 500.0
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def run_python(*arguments: object, **environment: str) -> list[str]:
    """Run ``python arguments...`` and return the lines that it prints.

    All processes communicate over the loopback interface, and each computes with one thread. `environment` adds
    variables to those of this process. Raises RuntimeError with what the command wrote to stderr if it fails, and
    subprocess.TimeoutExpired if it takes longer than 500 seconds.

    >>> run_python("-c", "print('rank 0'); print('rank 1')")
    ['rank 0', 'rank 1']
    """
    command = [sys.executable, *[str(argument) for argument in arguments]]
    variables = {**os.environ, **_LOOPBACK, **environment}
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=TIMEOUT_S)
    if ended.returncode != 0:
        raise RuntimeError(f"the command ended with status {ended.returncode}:\n{ended.stderr}")
    return ended.stdout.splitlines()
