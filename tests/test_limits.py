"""Sizes that a file or a caller declares: refused in one sentence with the limit, before work or memory is spent."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.box import Profile, verdict
from rankscope.box.profile import Point
from rankscope.cluster import Cluster, Link
from rankscope.collectives import ALGORITHMS, Schedule, best, build, verify
from rankscope.common.storage import StorageError
from rankscope.parts.files import load_part
from rankscope.pipeline import Pipeline, Stage
from rankscope.pipeline import simulate as pass_through
from rankscope.sampling import Assignment, assign
from rankscope.timeline import Recorder, Timeline
from rankscope.train.pipeline_parallel.schedule import build as build_pipeline

LINK = Link(1e-6, 1e9)
MOST_BYTES = 32 << 20  # of memory that a refusal may take

Ask = Callable[[], Any]


def refused(ask: Ask, message: str) -> None:
    """It raises ValueError with this message, in one line, and takes no memory to speak of on the way."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message) as caught:
            ask()
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


CALLS: list[tuple[Ask, str]] = [
    (lambda: assign(10**9, 4), "size must be a whole number from 0 to 268435456, got 1000000000"),
    (lambda: assign(10, 10**9), "num_replicas must be a whole number from 1 to 65536, got 1000000000"),
    (lambda: Assignment(10**15, [[0]]), "size must be a whole number from 0 to 268435456"),
    (lambda: Schedule.from_text("allreduce a ranks=1000000000 chunks=1\n"), "num_ranks must be .* from 1 to 65536"),
    (lambda: Schedule.from_text("allreduce a ranks=2 chunks=1000000000\n"), "num_chunks must be .* from 1 to 67108864"),
    (lambda: Schedule.from_text("allreduce a ranks=2 chunks=1 lag=1000000000\n"), "lag must be .* from 1 to 1024"),
    (
        lambda: verify(build("allreduce", "ring", 2**16)),
        "must take at most 2147483648 bytes, and 65536 ranks",
    ),
    (lambda: best(1e6, Cluster.uniform(10**6, LINK)), "num_ranks of cluster must be .* from 1 to 65536, got 1000000"),
    (
        lambda: Pipeline([Stage(f"s{n}", 1.0) for n in range(1500)]),
        "number of stages must be .* to 128, got 1500",
    ),
    (lambda: pass_through(Pipeline([Stage("a", 1.0)]), 10**12), "items must be a whole number from 0 to 33554432"),
    (lambda: assign(2**28, 3), "the samples that 3 ranks read together must be .* to 268435456, got 268435458"),
    (
        lambda: build_pipeline("interleaved_1f1b", 256, 4096, 2),
        "num_ranks times .* to 1048576",
    ),
]


@pytest.mark.parametrize(("ask", "message"), CALLS, ids=[message for _, message in CALLS])
def test_a_size_that_cannot_be_handled_is_refused(ask: Ask, message: str) -> None:
    refused(ask, message)


@pytest.mark.parametrize(
    ("collective", "name"), [(collective, name) for collective, names in ALGORITHMS.items() for name in names]
)
def test_no_builder_makes_a_schedule_for_a_thousand_million_ranks(collective: str, name: str) -> None:
    refused(lambda: build(collective, name, 10**9), "num_ranks must be a whole number from 1 to 65536, got 1000000000")


def test_the_deepest_pipeline_runs() -> None:
    path = Pipeline([Stage(f"s{n}", 1.0) for n in range(128)])
    assert pass_through(path, 2).makespan_s == 129.0


def provenance(num_ranks: int) -> dict[str, Any]:
    counts = {"num_ranks": num_ranks, "num_nodes": 1, "ranks_per_node": [num_ranks]}
    return {"name": "a", "date": "2030-01-01", "backend": "gloo", **counts}


@pytest.mark.parametrize("num_ranks", [257, 4096, 2**20])
def test_a_profile_of_more_ranks_than_can_be_predicted_is_not_predicted(num_ranks: int) -> None:
    point = Point("together", 8, [1e-6], [True], {"link": "intra"})
    found = Profile(provenance(num_ranks), {}, (point, Point("together", 2**20, [1e-4], [True], {"link": "intra"})))
    refused(found.cluster, "num_ranks must be a whole number from 1 to 256")
    refused(lambda: found.predict("allreduce", "ring", 1024), "num_ranks must be a whole number from 1 to 256")
    refused(lambda: Profile(provenance(2**20 + num_ranks), {}), "num_ranks must be a whole number from 1 to 1048576")


def test_many_sizes_are_judged_by_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict of 500 sizes asks for at most 40 predictions."""
    ring = {"algorithm": "ring", "in_place": True}
    points = [Point("together", 2**k, [1e-5 + 2**k / 5e9], [True], {"link": "intra"}) for k in range(8, 20)]
    points += [Point("allreduce", 64 * k, [1e-3], [True], ring) for k in range(1, 501)]
    asked, plain = list[int](), Profile.predict

    def counted(self: Profile, point: Point, **more: Any) -> Any:
        asked.append(point.num_bytes)
        return plain(self, point, **more)

    monkeypatch.setattr(Profile, "predict", counted)
    assert any("predictions are off for ring" in sentence for sentence in verdict(Profile(provenance(4), {}, points)))
    assert 30 <= len(asked) <= 40


# ---- archives and traces


def npz(path: Path, declared: tuple[int, ...] | None = None, **arrays: Any) -> Path:
    """An archive; with `declared`, its arrays say that they have another shape than they do."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            raw, array = io.BytesIO(), np.asarray(values)
            described = {"descr": array.dtype.str, "fortran_order": False, "shape": declared or array.shape}
            np.lib.format.write_array_header_1_0(raw, described)
            archive.writestr(f"{name}.npy", raw.getvalue() + array.tobytes())
    return path


def assignment(path: Path, lengths: Any, indices: Any, **options: Any) -> Path:
    recipe = {"size": 4, "sampler": "a", "shuffle": None, "seed": None, "epoch": 0, "drop_last": None}
    header = {"format": "rankscope.assignment", "version": 1, "loader": None, "recipe": recipe}
    return npz(path, header=np.array(json.dumps(header)), lengths=lengths, indices=indices, **options)


def test_a_small_archive_does_not_become_large_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.parts.files.MOST_PART_BYTES", 2**26)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**23 + 1,)})
        file.write(bytes(2**26 + 8))
    assert bomb.stat().st_size < 2**17
    refused(lambda: load_part(bomb), "its arrays must have at most 67108864 bytes unpacked, and have 67109000")
    refused(lambda: Assignment.load(bomb), "bytes unpacked, and have 67109000")


def test_an_array_that_declares_more_than_there_is_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "declared.npz", (10**12,), x=np.arange(4))
    refused(lambda: load_part(path), r"x.npy must have 80000000001\d\d bytes for int64 of shape \(1000000000000,\)")
    path = npz(tmp_path / "negative.npz", (-1,), x=np.arange(4))
    refused(lambda: load_part(path), "x.npy")


def test_lengths_that_go_round_at_64_bits_are_refused(tmp_path: Path) -> None:
    lengths = np.array([2**62, 2**62, 2**62, 2**62, 4])  # their sum is 4 modulo 2**64
    path = assignment(tmp_path / "a.npz", lengths, np.arange(4))
    refused(lambda: Assignment.load(path), f"lengths add up to {2**64 + 4}, with 4 indices")


def test_a_trace_is_unpacked_up_to_the_limit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.timeline.timeline._MOST_TRACE_BYTES", 2**20)
    for name, pack in (("a.json.gz", gzip.compress), ("a.json", bytes)):
        path = tmp_path / name
        path.write_bytes(pack(b"[" + b" " * 2**26 + b"]"))
        refused(lambda path=path: Timeline.from_chrome_trace(path), "it has more than 1048576 bytes")


READERS: dict[str, Callable[[Path], Any]] = {
    "assignment": Assignment.load,
    "trace": Timeline.from_chrome_trace,
    "part": load_part,
}


@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices_are_not_read(reader: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        refused(lambda path=path: READERS[reader](path), "it is not a file")


# ---- a recorder's folder


def test_a_folder_that_no_recorder_wrote_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    def folder(name: str, spans: bytes, names: str | None = "[0, 'x']") -> Recorder:
        recorder = Recorder(folder=tmp_path / name)
        (tmp_path / name / "1.000000.spans").write_bytes(spans)
        if names is not None:
            (tmp_path / name / "1.names").write_text(names)
        return recorder

    one = np.zeros(1, np.dtype([("", "<i4")] * 3 + [("", "<i8")] * 3 + [("", "<i4")]))
    one["f6"] = 1
    refused(folder("short", b"1234567").timeline, "1.000000.spans: not written by a recorder")
    refused(
        folder("long", bytes(2**15 * 44 + 1)).timeline, "1.000000.spans: not written by a recorder: it has more than"
    )
    refused(folder("far", one.tobytes(), '[1000000000000, "x"]').timeline, "not written by a recorder")
    pipe = folder("pipe", b"")
    (tmp_path / "pipe" / "1.names").unlink()
    os.mkfifo(tmp_path / "pipe" / "2.000000.spans")
    assert len(pipe.timeline()) == 0
    nameless = folder("nameless", one.tobytes(), None)
    with pytest.raises((StorageError, FileNotFoundError)):
        nameless.timeline()


# ---- under a limit of the system's


def test_bounds_hold_where_memory_ends(tmp_path: Path) -> None:
    """All of them again in a process that gets no more than 1.5 GiB beyond what it has once all is imported."""
    code = f"""
import resource
from tests import test_limits
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + {3 << 29}, now + {3 << 29}))
for ask, message in test_limits.CALLS:
    test_limits.refused(ask, message)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=100
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
