"""Ask libtorch what its C++ distributed samplers return, and replay the same cases in Python.

A case is a line: the sampler's kind, its arguments (size, replicas, rank, whether duplicates are allowed) and
operations on it, in order: ``e<EPOCH>`` set_epoch, ``r`` reset, ``R<SIZE>`` reset to a new size, ``n<BATCH>`` next,
``i`` index, ``s`` save, ``l`` load what was saved into this sampler, ``L`` load it into a new sampler of the same
arguments that takes this one's place. Its output line holds what ``next`` and ``index`` returned.

``libtorch_oracle.cpp`` answers cases with the libtorch of the installed wheel, ``replay`` with Python twins.
``notebooks/profiles/libtorch_samplers.json`` keeps whole epochs for readers of the notebooks and machines without a
compiler. To record them anew: ``python -m tests.sampling.samplers.libtorch_oracle``.
"""

from __future__ import annotations

import datetime
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("libtorch_oracle.cpp")
WHOLE_EPOCHS = Path(__file__).parents[3] / "notebooks" / "profiles" / "libtorch_samplers.json"

EPOCHS = (0, 1, 2, 3, 4, 5, 2**32 - 1, 2**32, 2**32 + 5, 2**63 - 1)
SMALL_SIZES = (0, 1, 2, 3, 7, 10, 64, 100, 1000)
# std::shuffle draws two swaps at a time for up to 65,535 items and one at a time beyond.
EDGE_SIZES = (65_520, 65_534, 65_535, 65_536, 65_537, 65_551)
LARGE_SIZES = (199_999, 1_000_003)

# What is easily got wrong, whatever the seed: indices beyond the size, an epoch that is saved
# before it shuffles, positions that come to a sampler of another size, epochs that wrap.
NAMED_CASES = (
    *(f"random 3 8 {rank} 1 n2 e2 r n2 n1 i" for rank in range(8)),
    "random 30 1 0 1 n3 e5 s n4 l n4 L n40 n1 i",
    "random 10 1 0 1 e1 R30 n7 s n3 L n30 i",
    "random 10 1 0 1 n10 s R30 l n30 n1 i",
    "random 10 2 1 1 n5 s R20 L n1 i",
    "random 30 1 0 1 e4294967301 r n30 e5 r n30 s e0 r n30 l i",
    "random 30 1 0 1 e18446744073709551615 r n3 s e0 r n3 l n30 L n2 i",
    "random 0 1 0 1 n1 i r n1 s L n1 R1 n1 n1 i",
    "sequential 3 8 7 1 n1 n1 i",
    "sequential 10 4 3 1 n2 s r n2 l n2 L n9 n1 i",
    "sequential 10 1 0 1 n4 s R30 l n3 L n30 n1 i",
)


def _drawn(draw: random.Random, kind: str, size: int, num_replicas: int, num_ops: int = 12) -> str:
    """A case of operations that C++ defines: it is loaded only what was saved at the same size."""
    ops: list[str] = []
    for _ in range(draw.randint(4, num_ops)):
        op = draw.choice("nnnnneerRsslLi")
        if op == "n":
            op += str(draw.choice([1, 2, 3, 5, 16, 1 + size // num_replicas]))
        elif op == "e":
            op += str(draw.choice(EPOCHS))
        elif op == "R":
            op += str(draw.choice([size, size + 1, max(size - 1, 0)]))
        elif op in "lL" and ("s" not in ops or any(other[0] == "R" for other in ops)):
            op = "i"
        ops.append(op)
    rank = draw.randrange(num_replicas)
    return f"{kind} {size} {num_replicas} {rank} {draw.randint(0, 1)} {' '.join(ops)} n16 i"


def cases(seed: int) -> list[str]:
    """The named cases, then all numbers of ranks, then sizes on both sides of std::shuffle's switch."""
    draw = random.Random(seed)
    drawn = list(NAMED_CASES)
    for kind in ("random", "sequential"):
        for num_replicas in range(1, 17):
            drawn += [_drawn(draw, kind, draw.choice(SMALL_SIZES), num_replicas) for _ in range(12)]
        drawn += [_drawn(draw, kind, size, num_replicas, 5) for size in EDGE_SIZES for num_replicas in (1, 3, 16)]
        drawn += [_drawn(draw, kind, size, 7, 4) for size in LARGE_SIZES]
    drawn += [f"random {size} 1 0 1 e{draw.choice(EPOCHS)} r n{size} n1 i" for size in EDGE_SIZES]  # the whole order
    return drawn


def compile_oracle(build_dir: Path) -> Path | None:
    """Build the oracle in ``build_dir``, or reuse the build of an earlier run; None without a C++ compiler.

    None also off Linux, where libtorch may be built with another C++ library, which shuffles differently.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or sys.platform != "linux":
        return None
    binary = build_dir / f"libtorch_oracle-{torch.__version__}"
    if binary.exists() and binary.stat().st_mtime > SOURCE.stat().st_mtime:
        return binary
    # Here because it needs setuptools, which reading the recorded epochs does not.
    from torch.utils.cpp_extension import include_paths, library_paths

    flags = ["-std=c++20", "-O1", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-isystem{path}" for path in include_paths()]
    # The CPU library holds the samplers. What it needs itself, CUDA's libraries in some wheels, it finds when it is
    # loaded: the linker is not to look for it.
    links = ["-ltorch_cpu", "-lc10", "-Wl,--allow-shlib-undefined"]
    for path in library_paths():
        links += [f"-L{path}", f"-Wl,-rpath,{path}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(binary), *links], check=True)
    return binary


def run_oracle(binary: Path, cases: Sequence[str]) -> list[str]:
    """libtorch's output line for each case."""
    text = "".join(f"{case}\n" for case in cases)
    done = subprocess.run([str(binary)], input=text, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def replay(case: str, twins: dict[str, Any]) -> str:
    """The output line that Python twins of the samplers, by kind, give for a case."""
    kind, *numbers = case.split()[:5]

    def build() -> Any:
        size, num_replicas, rank, allow_duplicates = map(int, numbers)
        return twins[kind](size, num_replicas, rank, allow_duplicates == 1)

    sampler = build()
    state: dict[str, Any] = {}
    results: list[str] = []
    for op in case.split()[5:]:
        code = op[0]
        value = int(op[1:] or 0)
        if code == "e":
            sampler.set_epoch(value)
        elif code in "rR":
            sampler.reset(value if code == "R" else None)
        elif code == "s":
            state = sampler.state_dict()
        elif code in "lL":
            sampler = build() if code == "L" else sampler
            sampler.load_state_dict(state)
        elif code == "i":
            results.append(str(sampler.index()))
        else:
            batch = sampler.next(value)
            results.append("none" if batch is None else ",".join(map(str, batch)))
    return ";".join(results)


def whole_epochs(binary: Path) -> list[dict[str, Any]]:
    """What every rank reads in some epochs: the arguments of ``rankscope.sampling.assign``, and libtorch's answer."""
    epochs = [
        {"size": size, "num_ranks": n, "sampler": f"libtorch_{kind}", "epoch": epoch, "drop_last": drop_last}
        for kind in ("random", "sequential")
        for size, n in ((20, 4), (22, 4), (10, 4), (3, 8), (5, 2), (97, 16), (64, 1))
        for epoch, drop_last in ((0, False), (1, False), (2, True), (2**32 + 1, False))
    ]
    for epoch in epochs:
        kind = epoch["sampler"].removeprefix("libtorch_")
        size = epoch["size"]
        n = epoch["num_ranks"]
        rest = f"{int(not epoch['drop_last'])} e{epoch['epoch']} r n{size + 1}"
        lines = run_oracle(binary, [f"{kind} {size} {n} {rank} {rest}" for rank in range(n)])
        epoch["ranks"] = [[int(index) for index in line.replace("none", "").split(",") if index] for line in lines]
    return epochs


def main() -> None:
    """Record the whole epochs anew."""
    with tempfile.TemporaryDirectory() as build_dir:
        binary = compile_oracle(Path(build_dir))
        if binary is None:
            sys.exit("no C++ compiler: nothing done")
        rows = map(json.dumps, whole_epochs(binary))  # a row a line, so that changes read well
    head = {
        "torch": torch.__version__,
        "torch_built_with": re.findall(r"GCC [\d.]+", torch.__config__.show())[0],
        "date": datetime.date.today().isoformat(),
        "command": "python -m tests.sampling.samplers.libtorch_oracle",
    }
    text = json.dumps(head, indent=1).removesuffix("\n}")
    WHOLE_EPOCHS.write_text(f'{text},\n "epochs": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
