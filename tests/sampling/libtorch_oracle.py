"""Ask libtorch what its C++ distributed samplers return, and replay the same cases in Python.

A case builds one sampler and applies operations to it; its output line holds what the reads
(``next`` and ``index``) returned. ``libtorch_oracle.cpp`` answers cases with the libtorch of the
installed wheel, ``replay`` with Python twins, and ``libtorch_vectors.json`` keeps recorded answers
for machines without a compiler, as ``notebooks/profiles/libtorch_samplers.json`` keeps whole epochs for readers of the
notebooks. To record both anew: ``python -m tests.sampling.libtorch_oracle``.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from rankscope.common.files import write_whole

SOURCE = Path(__file__).with_name("libtorch_oracle.cpp")
VECTORS = Path(__file__).with_name("libtorch_vectors.json")
WHOLE_EPOCHS = Path(__file__).parents[2] / "notebooks" / "profiles" / "libtorch_samplers.json"

# A recorded output longer than this is kept as its hash.
LONGEST_RECORDED = 600

EPOCHS = (0, 1, 2, 3, 4, 5, 2**32 - 1, 2**32, 2**32 + 5, 2**63 - 1)
SMALL_SIZES = (0, 1, 2, 3, 7, 10, 64, 100)
# std::shuffle draws two swaps at a time for up to 65,535 items and one at a time beyond.
EDGE_SIZES = (65_520, 65_534, 65_535, 65_536, 65_537, 65_551)
LARGE_SIZES = (199_999, 200_000, 214_748)
HUGE_SIZE = 1_000_003

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

_T = TypeVar("_T")


@dataclass(frozen=True)
class Case:
    """One sampler's constructor arguments and the operations applied to it, in order.

    Operations: ``e<EPOCH>`` set_epoch, ``r`` reset, ``R<SIZE>`` reset to a new size, ``n<BATCH>``
    next, ``i`` index, ``s`` save, ``l`` load what was saved into this sampler, ``L`` load it into a
    new sampler of the same arguments that takes this one's place.
    """

    kind: str
    size: int
    num_replicas: int
    rank: int
    allow_duplicates: bool
    ops: tuple[str, ...]

    def line(self) -> str:
        """The case as the oracle reads it."""
        head = (self.kind, self.size, self.num_replicas, self.rank, int(self.allow_duplicates))
        return " ".join(map(str, head + self.ops))

    @classmethod
    def parse(cls, line: str) -> Case:
        """The case whose ``line()`` this is."""
        kind, size, num_replicas, rank, allow_duplicates, *ops = line.split()
        return cls(kind, int(size), int(num_replicas), int(rank), allow_duplicates == "1", tuple(ops))


def _below(rng: random.Random, stop: int) -> int:
    # random() alone is promised to give the same numbers in every Python version.
    return int(rng.random() * stop)


def _pick(rng: random.Random, options: Sequence[_T]) -> _T:
    return options[_below(rng, len(options))]


@dataclass
class _Position:
    """Where a sampler stands: enough of it to draw operations that C++ defines."""

    num_replicas: int
    rank: int
    allow_duplicates: bool
    size: int = 0
    begin: int = 0
    end: int = 0
    at: int = 0

    def reset(self, size: int) -> None:
        extra = self.num_replicas - 1 if self.allow_duplicates else 0
        local = (size + extra) // self.num_replicas
        self.size, self.begin, self.end = size, self.rank * local, (self.rank + 1) * local
        self.at = self.begin


def _batch(rng: random.Random, position: _Position, longest: int) -> int:
    """A batch size: a few, one within what is left, or all that is left and more."""
    left = position.end - position.at
    chosen = (1, 2, 3, 5, 16, 1 + left // 2, max(left, 1), left + 1 + _below(rng, 20))
    return min(_pick(rng, chosen), longest)


def _draw(
    rng: random.Random,
    kind: str,
    size: int,
    num_replicas: int,
    rank: int,
    *,
    sizes: Sequence[int] = SMALL_SIZES,
    steps: int = 12,
    shuffles: int = 12,
    longest: int = 1 << 20,
) -> Case:
    """A case of about ``steps`` operations, at most ``shuffles`` of them shuffling."""
    allow_duplicates = rng.random() < 0.5
    position = _Position(num_replicas, rank, allow_duplicates)
    position.reset(size)
    saved: int | None = None
    ops: list[str] = []

    def read(batch: int) -> None:
        position.at = min(position.at + batch, position.end)
        ops.append(f"n{batch}")

    for _ in range(4 + _below(rng, steps - 3)):
        op = _pick(rng, "nnnnneerRsslLi")
        if op in "rRlL" and shuffles == 0:
            continue
        drawn = len(ops)
        if op == "n":
            read(_batch(rng, position, longest))
        elif op == "e":
            ops.append(f"e{_pick(rng, EPOCHS)}")
            if shuffles and rng.random() < 0.6:
                position.reset(position.size)
                ops.append("r")
        elif op == "r":
            position.reset(position.size)
            ops.append("r")
        elif op == "R":
            new_size = max(0, _pick(rng, (*sizes, size - 1, size + 1)))
            position.reset(new_size)
            ops.append(f"R{new_size}")
        elif op == "s":
            saved = position.at
            ops.append("s")
        elif op in "lL":
            # A position outside the slice it comes to is undefined, or another rank's.
            target = _Position(num_replicas, rank, allow_duplicates)
            target.reset(size if op == "L" else position.size)
            if saved is not None and target.begin <= saved <= target.end:
                target.at = saved
                position = target
                ops.append(op)
        else:
            ops.append("i")
        shuffles -= any(op[0] in "rRlL" for op in ops[drawn:])
    read(_batch(rng, position, longest))
    if rng.random() < 0.5 and position.end - position.at < longest:
        read(position.end - position.at + 1)
        read(1)
    ops.append("i")
    return Case(kind, size, num_replicas, rank, allow_duplicates, tuple(ops))


def cases(seed: int) -> list[Case]:
    """The cases of one seed: the same everywhere, each with only operations that C++ defines.

    After the named ones they take every rank of 1 to 16 replicas for both kinds, then every small
    size, then sizes on both sides of std::shuffle's switch, of which the largest are read only a little.
    """
    rng = random.Random(seed)
    kinds = ("random", "sequential")
    drawn = [Case.parse(line) for line in NAMED_CASES]
    for num_replicas in range(1, 17):
        for rank in range(num_replicas):
            size = _pick(rng, (*SMALL_SIZES, 64, 100, 1000))
            drawn += [_draw(rng, kind, size, num_replicas, rank) for kind in kinds]
    for size in (*SMALL_SIZES, 1000, 1001):
        for _ in range(12):
            num_replicas = _pick(rng, (1, 2, 3, 4, 8, 13, 16))
            sizes = (*SMALL_SIZES, 1000) if size < 1000 else (999, 1000, 1023)
            kind = _pick(rng, (*kinds, "random"))
            drawn.append(_draw(rng, kind, size, num_replicas, _below(rng, num_replicas), sizes=sizes))
    for size in EDGE_SIZES:
        # The whole order once, then slices: with 16 replicas the padding may cross the switch.
        order = f"e{_pick(rng, EPOCHS)}"
        drawn.append(Case("random", size, 1, 0, True, (order, "r", f"n{size}", "n1", "i")))
        for kind, num_replicas in (("random", 3), ("random", 16), ("sequential", 16)):
            rank = _below(rng, num_replicas)
            drawn.append(_draw(rng, kind, size, num_replicas, rank, sizes=EDGE_SIZES, shuffles=2))
    for size in LARGE_SIZES:
        for kind in kinds:
            rank = _below(rng, 7)
            drawn.append(_draw(rng, kind, size, 7, rank, sizes=(size,), shuffles=2, longest=100))
    end = (f"e{_pick(rng, EPOCHS)}", "n16", "r", "n5", "s", "n64", "i")
    drawn.append(Case("random", HUGE_SIZE, 16, _below(rng, 16), True, end))
    return drawn


def _compiler() -> list[str] | None:
    """The C++ compiler to call: $CXX, or the first of the usual names that is installed."""
    for command in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    return None


def compile_oracle(build_dir: Path) -> Path | None:
    """Build the oracle in ``build_dir``, or reuse the same build; None without a C++ compiler.

    None also off Linux, where libtorch may be built with another C++ library, which shuffles
    differently. A failing compilation raises RuntimeError with what the compiler wrote.
    """
    compiler = _compiler()
    if compiler is None or sys.platform != "linux":
        return None
    # Here because it needs setuptools, which reading the recorded vectors does not.
    from torch.utils.cpp_extension import include_paths, library_paths

    flags = ["-std=c++20", "-O1", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    flags += [f"-isystem{path}" for path in include_paths()]
    # The CPU library holds the samplers. What it needs itself, CUDA's libraries in some wheels, it
    # finds when it is loaded: the linker is not to look for it.
    links = ["-Wl,--allow-shlib-undefined"]
    for path in library_paths():
        links += [f"-L{path}", f"-Wl,-rpath,{path}"]
    links += ["-ltorch_cpu", "-lc10"]

    key = hashlib.sha256(SOURCE.read_bytes())
    key.update("\0".join([torch.__version__, *compiler, *flags, *links]).encode())
    binary = Path(build_dir) / f"libtorch_oracle-{torch.__version__}-{key.hexdigest()[:16]}"
    if binary.exists():
        return binary
    binary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
        output = Path(scratch) / "oracle"
        command = [*compiler, *flags, str(SOURCE), "-o", str(output), *links]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the libtorch oracle does not compile:\n{done.stderr[-4000:]}")
        output.replace(binary)
    return binary


def run_oracle(binary: Path, cases: Sequence[Case], *, timeout: float = 120.0) -> list[str]:
    """libtorch's output line for each case."""
    text = "".join(f"{case.line()}\n" for case in cases)
    done = subprocess.run([str(binary)], input=text, capture_output=True, text=True, timeout=timeout, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != len(cases):
        raise RuntimeError(
            f"the libtorch oracle ended with {done.returncode} after {len(lines)} of {len(cases)} cases:"
            f" {done.stderr[-2000:]}"
        )
    return lines


def replay(case: Case, random_cls: Callable[..., Any], sequential_cls: Callable[..., Any]) -> str:
    """The output line that Python twins of the samplers give for a case."""
    twin = {"random": random_cls, "sequential": sequential_cls}[case.kind]

    def build() -> Any:
        return twin(case.size, case.num_replicas, case.rank, case.allow_duplicates)

    sampler = build()
    state: dict[str, Any] = {}
    results: list[str] = []
    for op in case.ops:
        code, value = op[0], int(op[1:] or 0)
        if code == "e":
            sampler.set_epoch(value)
        elif code == "r":
            sampler.reset()
        elif code == "R":
            sampler.reset(value)
        elif code == "s":
            state = sampler.state_dict()
        elif code in "lL":
            sampler = build() if code == "L" else sampler
            sampler.load_state_dict(state)
        elif code == "i":
            results.append(str(sampler.index()))
        elif code == "n":
            batch = sampler.next(value)
            results.append("none" if batch is None else ",".join(map(str, batch)))
        else:
            raise ValueError(f"unknown op {op!r} in {case.line()!r}")
    return ";".join(results)


def recordable(output: str) -> str:
    """An output line as the vectors keep it: itself, or its hash where it is long."""
    if len(output) <= LONGEST_RECORDED:
        return output
    return "sha256:" + hashlib.sha256(output.encode()).hexdigest()


def recorded() -> list[tuple[Case, str]]:
    """The recorded cases, each with its recordable output."""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    return [(Case.parse(line), output) for line, output in vectors["cases"]]


def provenance(binary: Path) -> dict[str, str]:
    """What the answers come from: torch, the compiler it was built with, and the oracle's own."""
    about = subprocess.run([str(binary), "--about"], capture_output=True, text=True, check=True)
    compiler, libstdcxx = about.stdout.splitlines()
    built_with = re.search(r"built with:\s+- (.+)", torch.__config__.show())
    return {
        "torch": torch.__version__,
        "torch_built_with": built_with[1] if built_with else "unknown",
        "compiler": compiler,
        "libstdcxx": libstdcxx,
    }


def whole_epochs(binary: Path) -> list[dict[str, Any]]:
    """What every rank reads in some epochs: the arguments of ``rankscope.sampling.assign``, and libtorch's answer."""
    epochs = [
        {"size": size, "num_replicas": n, "sampler": f"libtorch_{kind}", "epoch": epoch, "drop_last": drop_last}
        for kind in ("random", "sequential")
        for size, n in ((20, 4), (22, 4), (10, 4), (3, 8), (5, 2), (97, 16), (64, 1))
        for epoch, drop_last in ((0, False), (1, False), (2, True), (2**32 + 1, False))
    ]
    ranks: list[Case] = []
    for epoch in epochs:
        kind = epoch["sampler"].removeprefix("libtorch_")
        size = epoch["size"]
        n = epoch["num_replicas"]
        ops = (f"e{epoch['epoch']}", "r", f"n{size + 1}")
        ranks += [Case(kind, size, n, rank, not epoch["drop_last"], ops) for rank in range(n)]
    reads = iter(run_oracle(binary, ranks))
    for epoch in epochs:
        lines = [next(reads).replace("none", "") for _ in range(epoch["num_replicas"])]
        epoch["ranks"] = [[int(index) for index in line.split(",") if index] for line in lines]
    return epochs


def record(binary: Path) -> int:
    """Write the vectors of ``cases(0)`` and the whole epochs anew; how many vectors there are."""
    chosen = cases(0)
    rows = [
        json.dumps([case.line(), recordable(output)])
        for case, output in zip(chosen, run_oracle(binary, chosen), strict=True)
    ]
    head = provenance(binary)
    _write(VECTORS, head, "cases", rows)
    date = datetime.date.today().isoformat()
    command = "python -m tests.sampling.libtorch_oracle"
    _write(WHOLE_EPOCHS, {**head, "date": date, "command": command}, "epochs", map(json.dumps, whole_epochs(binary)))
    return len(rows)


def _write(path: Path, head: dict[str, str], name: str, rows: Iterable[str]) -> None:
    """Write JSON with a row a line, so that changes read well."""
    text = "{\n" + "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    text += f' "{name}": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"
    json.loads(text)
    write_whole(path, text.encode())


def main() -> int:
    """Record the vectors of seed 0 and the whole epochs anew."""
    with tempfile.TemporaryDirectory() as build_dir:
        binary = compile_oracle(Path(build_dir))
        if binary is None:
            print("no C++ compiler: nothing done", file=sys.stderr)
            return 1
        print(f"{record(binary)} cases in {VECTORS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
