"""Logs of other programs: every figure that is printed, and what is not stated is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankscope.machine import Profile, read_log
from rankscope.machine.logs import READERS

from . import logs_made as made

SHARED = Path(__file__).parents[3] / "shared" / "measurements"
UNNAMED = {("alltoall", 2), ("all_gather", 2), ("sendrecv", 1), ("sendrecv", 2)}  # nothing tells them apart
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")


def read(tmp_path: Path, text: str | Sequence[str], **more: Any) -> list[Profile]:
    path = tmp_path / "a.log"
    path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n")
    return read_log(path, **more)


def one(tmp_path: Path, text: str | Sequence[str], **more: Any) -> Profile:
    (found,) = read(tmp_path, text, **more)
    return found


def figures(profile: Profile) -> list[tuple[int, bool, float]]:
    """The times of a table in the order of sizes."""
    return [(p.num_bytes, p.options["in_place"], s) for p in profile.points for s in p.seconds]


def expected(rows: Sequence[made.Printed]) -> list[tuple[int, bool, float]]:
    return [(r.size, bool(at), float(half[0]) / 1e6) for r in rows for at, half in enumerate(r.halves)]


def assert_same(profile: Profile, rows: Sequence[made.Printed]) -> None:
    found, wanted = figures(profile), expected(rows)
    assert [one[:2] for one in found] == [one[:2] for one in wanted]
    assert [one[2] for one in found] == pytest.approx([one[2] for one in wanted], rel=1e-5)


# ---- nccl-tests


@pytest.mark.parametrize("era", [1, 2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_tables_of_four_eras_are_read(tmp_path: Path, collective: str, era: int) -> None:
    if (collective, era) in UNNAMED:
        with pytest.raises(ValueError, match=r"line \d+: it is not said of which collective the table is$"):
            read(tmp_path, made.table(collective, era=era))
        return
    rows = made.printed(collective, 8)
    found = one(tmp_path, made.table(collective, era=era))
    assert_same(found, rows)
    assert {point.what for point in found.points} == {made.WHAT.get(collective, collective)}
    assert (found.num_ranks, found.ranks_per_node, found.backend) == (8, (8,), "nccl")
    assert [one["name"] for one in found.provenance["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 8
    assert found.protocol["iterations"] == 20
    assert "date" not in found.provenance
    if era == 4:
        assert found.provenance["gpus"][0]["nccl"] == "2.29.2"
        assert found.provenance["source"] == {"program": "nccl-tests 2.17.8"}
    point = found.points[-1]
    if collective in made.FACTORS:
        assert point.busbw_bytes_per_s(8) == pytest.approx(float(rows[-1].halves[1][2]) * 1e9, rel=1e-3)


INFO = "node000:4000:4012 [0] NCCL INFO threadThresholds 8/8/64 | 16/8/64 | 512 | 512"


def split(line: str) -> list[str]:
    """A row as it is where NCCL's output comes between its halves."""
    place = re.search(r"sum +-1", line)
    assert place
    return [line[: place.end()] + INFO, INFO, line[place.end() :]]


VARIED = {
    "MPI's tag": lambda lines: [f"[1,0]<stdout>:{line}" for line in lines],
    "srun's label": lambda lines: [f" 0: {line}" for line in lines],
    "indented": lambda lines: [f"    {line}" for line in lines],
    "a prefix of one's own": lambda lines: [f"run(), common.cu:998, {line}" for line in lines],
    "tags inside rows": lambda lines: [line.replace("float", "[1,3]<stdout>:float") for line in lines],
    "INFO between": lambda lines: [one for line in lines for one in (INFO, line, "")],
    "rows split": lambda lines: [one for line in lines for one in (split(line) if " sum " in line else [line])],
    "the last column cut": lambda lines: [line[:-1].rstrip() if " sum " in line else line for line in lines],
    "no average": lambda lines: [line for line in lines if "Avg" not in line],
    "a shell before and after": lambda lines: ["$ module load x | cat", *lines, "", "ann@node:~$ exit"],
    "DOS": lambda lines: [f"{line}\r" for line in lines],
}


@pytest.mark.parametrize("name", VARIED)
def test_what_surrounds_rows_does_not_matter(tmp_path: Path, name: str) -> None:
    found = one(tmp_path, VARIED[name](made.table()))
    assert_same(found, made.printed("all_reduce", 8))
    assert (found.num_ranks, found.num_nodes) == (8, 1)
    assert all(gpu["name"] == "NVIDIA H100 80GB HBM3" for gpu in found.provenance["gpus"])


def test_several_tables_are_several_profiles(tmp_path: Path) -> None:
    lines = [line for name in COLLECTIVES for line in [*made.table(name), "", "done"]]
    found = read(tmp_path, lines)
    assert [profile.points[0].what for profile in found] == [made.WHAT.get(name, name) for name in COLLECTIVES]
    for name, profile in zip(COLLECTIVES, found, strict=True):
        assert_same(profile, made.printed(name, 8))


def test_ranks_follow_from_bandwidths_only_where_they_can_be_no_others(tmp_path: Path) -> None:
    for number in (2, 3, 8, 16, 64):
        found = one(tmp_path, made.table(num_ranks=number, listed=False))
        assert (found.num_ranks, found.num_nodes) == (number, None)
        assert found.provenance["source"]["notes"] == "the number of ranks follows from bus bandwidths"
    found = one(tmp_path, made.table("all_gather", 24, listed=False))
    assert found.num_ranks == 24
    lines = made.table("broadcast", listed=False)
    with pytest.raises(ValueError, match="the number of ranks is not stated, and bus bandwidths do not tell it"):
        read(tmp_path, lines)
    assert one(tmp_path, lines, num_ranks=8).num_ranks == 8
    with pytest.raises(ValueError, match="is of 16 ranks, not of 8"):
        read(tmp_path, made.table(num_ranks=16, listed=False), num_ranks=8)


def test_a_list_of_ranks_that_does_not_fit_is_labelled(tmp_path: Path) -> None:
    lines = [line for line in made.table(num_ranks=16) if not re.search(r"Rank +(9|1\d) ", line)]
    found = one(tmp_path, lines)
    assert (found.num_ranks, found.num_nodes) == (16, None)
    assert (
        found.provenance["source"]["notes"] == "the number of ranks follows from bus bandwidths; 9 of them are listed"
    )


def test_nodes_variables_and_ways_are_told(tmp_path: Path) -> None:
    said = ["mpirun -np 16 -x NCCL_IB_HCA=mlx5 ./all_reduce_perf", *made.table(num_ranks=16, num_nodes=2)]
    said[3:3] = [
        "node000:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1",
        "node000:1:2 [0] NCCL INFO NCCL version 2.25.1+cuda12.8",
        "node000:1:2 [0] NCCL INFO Using network Socket",
        "node000:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    ]
    found = one(tmp_path, said).provenance
    assert (found["num_nodes"], found["ranks_per_node"]) == (2, (8, 8))
    assert found["environment"] == "NCCL_IB_HCA=mlx5 NCCL_P2P_DISABLE=1"
    assert found["network"] == "Socket, SHM"
    assert found["gpus"][0] == {"name": "NVIDIA H100 80GB HBM3", "cuda": "12.8", "nccl": "2.25.1"}
    assert "node0" not in str(found)


def test_an_excerpt_is_labelled_and_an_average_that_is_off_refused(tmp_path: Path) -> None:
    lines = made.table()
    at = next(place for place, line in enumerate(lines) if " sum " in line)
    excerpt = [*lines[: at + 2], "   ...", *lines[at + 5 :]]
    found = one(tmp_path, excerpt)
    assert "an excerpt" in found.provenance["source"]["notes"]
    assert len(found.points) == 2 * (len(made.SIZES) - 3)
    del excerpt[at + 2]
    foot = next(place for place, line in enumerate(excerpt, 1) if "Avg" in line)
    with pytest.raises(ValueError, match=rf"a.log: line {foot}: the average is [\d.]+, and that of the rows [\d.]+$"):
        read(tmp_path, excerpt)


@pytest.mark.parametrize("gpus", [1, 4])
def test_json_is_read(tmp_path: Path, gpus: int) -> None:
    found = one(tmp_path, json.dumps(made.as_json(gpus=gpus)))
    assert_same(found, made.printed("all_reduce", 8))
    assert (found.num_ranks, found.ranks_per_node) == (8, (8,))
    assert found.provenance["date"] == "2026-03-04 05:06:07"
    assert found.provenance["environment"] == "NCCL_P2P_DISABLE=1"
    assert found.provenance["gpus"][7] == {"name": "NVIDIA H100 80GB HBM3", "nccl": "2.29.7"}
    assert found.protocol["warm_up"] == 1
    assert "ann" not in str(found.provenance)


# ---- other programs


def seconds(profile: Profile, what: str, num_bytes: int, **options: Any) -> float:
    (point,) = profile.select(what, num_bytes, **options)
    return point.median_s


def test_osu_is_read(tmp_path: Path) -> None:
    ping, bandwidth = read(tmp_path, made.OSU_LATENCY + made.OSU_BW)
    assert seconds(ping, "ping_pong", 1024) == pytest.approx(2.25e-6)
    assert (ping.num_ranks, ping.num_nodes, ping.points[0].options) == (2, 2, {"link": "inter"})
    assert seconds(bandwidth, "transfer", 1024, direction="p2p") == pytest.approx(1024 / 926.30e6, rel=1e-5)
    pairs = one(tmp_path, made.OSU_PAIRS)
    assert pairs.num_ranks == 8
    assert seconds(pairs, "transfer", 4194304, pairs=4) == pytest.approx(4 * 4194304 / 39016.14e6, rel=1e-5)
    with pytest.raises(ValueError, match="line 1: the number of ranks is not stated"):
        read(tmp_path, made.OSU_ALLREDUCE)
    found = one(tmp_path, made.OSU_ALLREDUCE, num_ranks=16)
    assert seconds(found, "allreduce", 65536, in_place=False) == pytest.approx(137.9e-6)


def test_all_reduce_bench_is_read(tmp_path: Path) -> None:
    found = one(tmp_path, made.BENCH)
    assert (found.num_ranks, found.protocol["iterations"]) == (32, 20)
    assert seconds(found, "allreduce", 2**30) == pytest.approx(2**30 / 188.9e9, rel=1e-5)
    trials = one(tmp_path, made.TRIALS)
    assert trials.num_ranks == 2
    assert trials.points[0].num_bytes == 4_000_000_000
    assert trials.points[0].seconds == pytest.approx((64e9 / 1335850436641.9412, 64e9 / 1338717258044.6157), rel=1e-5)


def test_tables_of_others_are_read(tmp_path: Path) -> None:
    half, int8 = read(tmp_path, made.AICONFIGURATOR)
    assert seconds(half, "allreduce", 1024) == pytest.approx(9.08e-6)
    assert seconds(int8, "allreduce", 536870912) == pytest.approx(4.3643e-3)
    assert (int8.num_ranks, int8.provenance["gpus"][7]["nccl"]) == (8, "2.27.3")
    small, large = read(tmp_path, made.FLEET)
    assert (small.num_ranks, small.num_nodes, large.num_ranks) == (2, 2, 16)
    assert seconds(small, "all_to_all", 2**34, src="n1") == pytest.approx(0.635876, rel=1e-5)
    assert 2**34 / seconds(small, "together", 2**34, dst="n3") == pytest.approx(0.97e9, rel=1e-2)


def test_copies_are_read(tmp_path: Path) -> None:
    shmoo = one(tmp_path, made.SHMOO)
    rates = [point.algbw_bytes_per_s / 1e9 for point in shmoo.points]
    assert rates == pytest.approx([0.4, 12.4, 6070.1 * 2**20 / 1e9, 758.5], rel=0.01)
    assert shmoo.provenance["gpus"] == ({"name": "Tesla V100-PCIE-32GB"},)
    quick = one(tmp_path, made.QUICK)
    assert seconds(quick, "transfer", 33554432, method="pageable") == pytest.approx(32 / 6536, rel=1e-5)
    hip = one(tmp_path, made.HIP)
    assert seconds(hip, "transfer", 2**29) == pytest.approx(21.6897e-3)
    table, csv = one(tmp_path, made.QUADRO), one(tmp_path, made.QUADRO_CSV)
    assert len(table.points), len(csv.points) == (8, 8)
    assert table.provenance["source"]["notes"] == "left out: 4 bandwidths printed as 0.000"
    assert seconds(csv, "transfer", 2**20, direction="d2h", method="pinned") == pytest.approx(
        2**20 / 12.0333e9, rel=1e-5
    )


def rate(profile: Profile, **options: Any) -> float:
    (point,) = profile.select("transfer", **options)
    assert (point.num_bytes, point.options["size"]) == (10**9, "not stated")
    return round(point.algbw_bytes_per_s / 1e9, 2)


def test_matrices_are_read(tmp_path: Path) -> None:
    text, made_json = one(tmp_path, made.NVBANDWIDTH), one(tmp_path, made.NV_JSON)
    assert rate(text, direction="h2d", gpu=1) == 25.94
    assert rate(text, direction="p2p", src=1, dst=0, both=False) == 276.07
    assert text.provenance["gpus"] == ({"name": "NVIDIA A100-SXM4-80GB", "driver": "570.86.16"},) * 2
    assert "host_device_latency_sm" in text.provenance["source"]["notes"]
    assert rate(made_json, direction="h2d", both=True, gpu=0, method="pinned") == 44.33
    assert rate(made_json, method="all_to_host_memcpy_sm", gpu=1) == 31.08
    peers = one(tmp_path, made.P2P)
    assert rate(peers, direction="p2p", src=0, dst=1, both=False) == 276.2
    assert rate(peers, direction="through_host", src=1, dst=0) == 17.92
    assert rate(peers, direction="p2p", src=1, dst=0, both=True) == 265.39
    rocm = one(tmp_path, made.ROCM)
    assert rate(rocm, direction="h2d", gpu=1, both=False) == 13.77
    assert rate(rocm, direction="p2p", src=1, dst=0, both=False) == 49.92
    assert (rocm.provenance["cpu"], rocm.num_ranks) == ("A Processor @ 3.70GHz", 2)
    copies = one(tmp_path, made.GPU_COPY)
    assert rate(copies, direction="h2d", method="pinned", gpu=0) == 26.24
    assert rate(copies, direction="p2p", src=0, dst=1) == 279.29


@pytest.mark.parametrize("kind", made.OTHERS)
def test_every_kind_is_recognised_and_can_be_forced(tmp_path: Path, kind: str) -> None:
    for text in made.OTHERS[kind]:
        assert read(tmp_path, text) == read(tmp_path, text, kind=kind)
    other = next(name for name in READERS if name not in (kind, "osu"))
    with pytest.raises(ValueError, match="line"):
        read(tmp_path, made.OTHERS[kind][0], kind=other)


def test_what_is_no_log_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a.log: line 1: no log of nccl-tests, osu"):
        read(tmp_path, "hello\n")
    with pytest.raises(ValueError, match="a.log: it is empty"):
        read(tmp_path, "\n")
    with pytest.raises(ValueError, match="has logs of nccl-tests and hipBusBandwidth: name one of these kinds"):
        read(tmp_path, [*made.table(), *made.HIP.splitlines()])
    assert len(read(tmp_path, [*made.table(), *made.HIP.splitlines()], kind="nccl-tests")) == 1
    with pytest.raises(ValueError, match="kind must be one of"):
        read(tmp_path, "hello", kind="nccl")
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "none.log")


# ---- what others published, where it is found beside the checkout

NOT_READ = {  # no logs of collectives or copies
    "imagenet": "no log of nccl-tests",
    "allreduce-mpi": "the number of ranks is not stated",
}
ROW = re.compile(r"(?<![\w.])(\d+)[ \t]+(\d+)[ \t]+(float|double)\s([^\n]*)")


def published() -> list[dict[str, Any]]:
    if not (SHARED / "index.json").is_file():
        return []
    return [one for one in json.loads((SHARED / "index.json").read_text()) if one["file"].startswith("logs/")]


@pytest.mark.skipif(not published(), reason="../shared/measurements is not there")
def test_every_published_log_is_read_or_refused_for_a_reason() -> None:
    for about in published():
        path = SHARED / about["file"]
        reason = next((reason for word, reason in NOT_READ.items() if word in path.name), None)
        if reason:
            with pytest.raises(ValueError, match=reason):
                read_log(path)
            continue
        found = read_log(path)
        assert {profile.protocol.get("verified", True) for profile in found} == {True}
        ranks = about["num_ranks"] if isinstance(about["num_ranks"], int) else None
        if ranks and "-lat" not in path.name:
            assert {profile.num_ranks for profile in found} == {ranks}, path
        if about["kind"] == "nccl-tests":
            assert [sum(len(p.seconds) for p in profile.points) for profile in found] == [
                2 * table["rows"] for table in about["tables"]
            ]
            assert_printed(path, found)


def assert_printed(path: Path, found: Sequence[Profile]) -> None:
    """Every time is the one that is printed, and every bus bandwidth within half a digit, and that of the time."""
    text = re.sub(r"\[1,\d+\]<stdout>:", "", path.read_text(errors="replace"))
    rows = list(ROW.finditer(text))
    cells = []
    for row in rows:
        words = [word for word in row[4].split() if re.fullmatch(r"[\d.]+|N/A|\d+e[+-]\d+", word)]
        words = words[1:] if len(words) == 9 else words  # the root
        cells += [(int(row[1]), False, *words[:3]), (int(row[1]), True, *words[4:7])]
    points = [
        (p.num_bytes, p.options["in_place"], s, profile, p)
        for profile in found
        for p in profile.points
        for s in p.seconds
    ]
    assert len(points) == len(cells)
    for profile in found:
        mine = [one for one in points if one[3] is profile]
        theirs, cells = cells[: len(mine)], cells[len(mine) :]
        for size, place, seconds, _, point in mine:
            at = next(
                one for one in theirs if one[:2] == (size, place) and abs(float(one[2]) / 1e6 / seconds - 1) < 1e-5
            )
            theirs.remove(at)
            bus = (
                size / seconds * (point.busbw_bytes_per_s(profile.num_ranks) / point.algbw_bytes_per_s) if size else 0.0
            )
            if point.what != "together":
                digits = 0.5 * 10 ** -len(at[2].partition(".")[2])
                assert abs(bus / 1e9 - float(at[4])) <= 0.005001 + digits / float(at[2]) * float(at[4]), (path, at)
        assert theirs == []
