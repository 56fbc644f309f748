"""Writes requirements.lock: every package that `make` installs next to torch, one version, with hashes.

Run by `make lock`. The lock holds for Python 3.11 to 3.14 on Linux, macOS and Windows. torch
and what only its CUDA builds need are left out: whoever installs chooses the build.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
HEAD = """\
# Every package that `make` installs next to torch, for Python 3.11 to 3.14. Written by `make lock`; do not edit.
"""
OF_TORCH = re.compile(r"(torch|triton|nvidia-|cuda-)")
# jsonschema's check of the format "iri", which no schema of Jupyter's asks for. It makes 38 parsers when jsonschema is
# imported, in 1.5 s, and without it jsonschema leaves that one check out.
NOT_NEEDED = re.compile(r"(rfc3987-syntax|lark)==")


def main() -> None:
    """Resolve, leave out what belongs to a build of torch, and write the lock."""
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "-q", "pyproject.toml", "-", "--all-extras"),
        *("-c", "constraints.txt", "--universal", "--python-version", "3.11", "--generate-hashes"),
        *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
    ]
    build = "setuptools>=77"  # builds rankscope itself
    done = subprocess.run(command, cwd=ROOT, input=build, text=True, stdout=subprocess.PIPE, check=True)
    entries = re.split(r"^(?=\S)", done.stdout, flags=re.M)
    entries = [entry for entry in entries if entry and not NOT_NEEDED.match(entry)]
    kept = [entry for entry in entries if not OF_TORCH.match(entry) or entry.startswith("torchdata")]
    LOCK.write_text(HEAD + "".join(kept), encoding="utf-8")
    print(f"{LOCK.name}: {len(kept)} packages")


if __name__ == "__main__":
    main()
