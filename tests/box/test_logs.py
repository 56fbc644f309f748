"""Logs of other programs: every figure that is printed, and what is not stated is not there."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankscope.box import Profile, read_log
from rankscope.box.logs import merged
from rankscope.cli import main

from . import logs_made as made

SHARED = Path(__file__).parents[3] / "shared" / "measurements"
UNNAMED = {("alltoall", 2), ("all_gather", 2), ("sendrecv", 1), ("sendrecv", 2)}  # nothing tells them apart
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")


def read(tmp_path: Path, text: str | Sequence[str], **options: Any) -> list[Profile]:
    path = tmp_path / "a.log"
    path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n")
    return read_log(path, **options)


def single_profile(tmp_path: Path, text: str | Sequence[str], **options: Any) -> Profile:
    (profile,) = read(tmp_path, text, **options)
    return profile


def figures(profile: Profile) -> list[tuple[int, bool, float]]:
    """The times of a table in the order of sizes."""
    return [(p.num_bytes, p.options["in_place"], s) for p in profile.points for s in p.seconds]


def expected(rows: Sequence[made.Printed]) -> list[tuple[int, bool, float]]:
    return [(r.size, bool(at), float(half[0]) / 1e6) for r in rows for at, half in enumerate(r.halves)]


def assert_same(profile: Profile, rows: Sequence[made.Printed]) -> None:
    times, expected_times = figures(profile), expected(rows)
    assert [row[:2] for row in times] == [row[:2] for row in expected_times]
    assert [row[2] for row in times] == pytest.approx([row[2] for row in expected_times], rel=1e-5)


# ---- nccl-tests


@pytest.mark.parametrize("era", [1, 2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_tables_of_four_eras_are_read(tmp_path: Path, collective: str, era: int) -> None:
    if (collective, era) in UNNAMED:
        with pytest.raises(ValueError, match=r"line \d+: the collective of the table is not stated$"):
            read(tmp_path, made.table(collective, era=era))
        return
    rows = made.printed(collective, 8)
    profile = single_profile(tmp_path, made.table(collective, era=era))
    assert_same(profile, rows)
    assert {point.what for point in profile.points} == {made.WHAT.get(collective, collective)}
    assert (profile.num_ranks, profile.ranks_per_node, profile.backend) == (8, (8,), "nccl")
    assert [gpu["name"] for gpu in profile.provenance["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 8
    assert profile.protocol["iterations"] == 20
    assert "date" not in profile.provenance
    if era == 4:
        assert profile.provenance["gpus"][0]["nccl"] == "2.29.2"
        assert profile.provenance["source"] == {"program": "nccl-tests 2.17.8"}
    point = profile.points[-1]
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
    "INFO between": lambda lines: [part for line in lines for part in (INFO, line, "")],
    "rows split": lambda lines: [part for line in lines for part in (split(line) if " sum " in line else [line])],
    "the last column cut": lambda lines: [line[:-1].rstrip() if " sum " in line else line for line in lines],
    "no average": lambda lines: [line for line in lines if "Avg" not in line],
    "a shell before and after": lambda lines: ["$ module load x | cat", *lines, "", "ann@node:~$ exit"],
    "DOS": lambda lines: [f"{line}\r" for line in lines],
}


@pytest.mark.parametrize("name", VARIED)
def test_what_surrounds_rows_does_not_matter(tmp_path: Path, name: str) -> None:
    profile = single_profile(tmp_path, VARIED[name](made.table()))
    assert_same(profile, made.printed("all_reduce", 8))
    assert (profile.num_ranks, profile.num_nodes) == (8, 1)
    assert all(gpu["name"] == "NVIDIA H100 80GB HBM3" for gpu in profile.provenance["gpus"])


def test_several_tables_are_several_profiles(tmp_path: Path) -> None:
    lines = [line for name in COLLECTIVES for line in [*made.table(name), "", "done"]]
    profiles = read(tmp_path, lines)
    assert [profile.points[0].what for profile in profiles] == [made.WHAT.get(name, name) for name in COLLECTIVES]
    for name, profile in zip(COLLECTIVES, profiles, strict=True):
        assert_same(profile, made.printed(name, 8))


def test_ranks_follow_from_bandwidths_only_where_they_can_be_no_others(tmp_path: Path) -> None:
    for number in (2, 3, 8, 16, 64):
        profile = single_profile(tmp_path, made.table(num_ranks=number, listed=False))
        assert (profile.num_ranks, profile.num_nodes) == (number, None)
        assert profile.provenance["source"]["notes"] == "the number of ranks follows from bus bandwidths"
    profile = single_profile(tmp_path, made.table("all_gather", 24, listed=False))
    assert profile.num_ranks == 24
    lines = made.table("broadcast", listed=False)
    with pytest.raises(ValueError, match="the number of ranks is not stated and does not follow from the bus"):
        read(tmp_path, lines)
    assert single_profile(tmp_path, lines, num_ranks=8).num_ranks == 8
    with pytest.raises(ValueError, match=r"a\.log: line 1: its tables have 8 ranks, not 16$"):
        read(tmp_path, made.table("broadcast"), num_ranks=16)
    with pytest.raises(ValueError, match=r"a\.log: line 1: its tables have 16 ranks, not 8$"):
        read(tmp_path, made.table(num_ranks=16, listed=False), num_ranks=8)


def test_the_number_of_ranks_chooses_among_tables_of_several(tmp_path: Path) -> None:
    sweep = [line for number in (2, 4, 8) for line in made.table(num_ranks=number)]
    assert [profile.num_ranks for profile in read(tmp_path, sweep)] == [2, 4, 8]
    assert_same(single_profile(tmp_path, sweep, num_ranks=4), made.printed("all_reduce", 4))
    with pytest.raises(ValueError, match="2, 4 and 8 ranks"):
        read(tmp_path, sweep, num_ranks=16)
    with pytest.raises(ValueError, match="2, 4 and 8 ranks"):
        merged(read(tmp_path, sweep), "sweep")
    broadcast = made.table("broadcast", listed=False)  # states no number, so it is of the number given
    both = read(tmp_path, [*made.table(num_ranks=2), *made.table(num_ranks=4), *broadcast], num_ranks=4)
    assert [(profile.points[0].what, profile.num_ranks) for profile in both] == [("allreduce", 4), ("broadcast", 4)]


def test_nodes_variables_and_ways_are_told(tmp_path: Path) -> None:
    said = ["mpirun -np 16 -x NCCL_IB_HCA=mlx5 ./all_reduce_perf", *made.table(num_ranks=16, num_nodes=2)]
    said[3:3] = [
        "node000:1:2 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1",
        "node000:1:2 [0] NCCL INFO NCCL version 2.25.1+cuda12.8",
        "node000:1:2 [0] NCCL INFO Using network Socket",
        "node000:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
    ]
    provenance = single_profile(tmp_path, said).provenance
    assert (provenance["num_nodes"], provenance["ranks_per_node"]) == (2, (8, 8))
    assert provenance["environment"] == "NCCL_IB_HCA=mlx5 NCCL_P2P_DISABLE=1"
    assert provenance["network"] == "NET/Socket, SHM"
    assert provenance["gpus"][0] == {"name": "NVIDIA H100 80GB HBM3", "cuda": "12.8", "nccl": "2.25.1"}


def test_nccls_own_networks_have_one_name_whichever_line_of_the_log_states_them(tmp_path: Path) -> None:
    ways = {
        "Using network Socket": "NET/Socket",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0": "NET/Socket",
        "Using network IB": "NET/IB",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA": "NET/IB",
        "Using network AWS Libfabric": "AWS Libfabric",
    }
    for line, network in ways.items():
        said = [f"node000:1:2 [0] NCCL INFO {line}", *made.table(num_ranks=16, num_nodes=2)]
        assert single_profile(tmp_path, said).provenance["network"] == network


# What nccl-tests 2.17 prints with -S 1, and in place only; src/util.cu, writeBenchmarkLineBody and its neighbours.
TIMESTAMP = "2026-03-04 05:06:07"
EMPTY = " " * 32


def with_timestamps(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table with a last column of timestamps."""
    stamped = []
    for line in lines:
        if " size " in line:
            stamped.append(f"{line}           timestamp")
        elif "(elements)" in line:
            stamped.append(f"{line}   %Y-%m-%d %H:%M:%S")
        else:
            stamped.append(f"{line}{TIMESTAMP:>21}" if re.search(r"float +\w+ +-?\d", line) else line)
    return stamped


def in_place_only(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table with blanks in place of what was measured out of place, and without an average."""
    halves = re.compile(r"(.*float +\w+ +-?\d+)((?: +\S+){4})((?: +\S+){4}.*)")
    matches = [halves.fullmatch(line) for line in lines]
    rows = [f"{half[1]}{EMPTY}{half[3]}" if half else line for line, half in zip(lines, matches, strict=True)]
    return [line for line in rows if "Avg" not in line]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_timestamps_and_empty_halves_are_read(tmp_path: Path, collective: str) -> None:
    rows = made.printed(collective, 8)
    assert_same(single_profile(tmp_path, with_timestamps(made.table(collective))), rows)
    inside = [figure for figure in expected(rows) if figure[1]]
    for lines in (in_place_only(made.table(collective)), in_place_only(with_timestamps(made.table(collective)))):
        profile = single_profile(tmp_path, lines)
        assert figures(profile) == [(size, place, pytest.approx(s, rel=1e-5)) for size, place, s in inside]
        assert profile.protocol["verified"]


def test_rows_with_timestamps_may_be_split_and_a_row_that_lacks_a_half_is_refused(tmp_path: Path) -> None:
    lines = [part for line in with_timestamps(made.table()) for part in (split(line) if " sum " in line else [line])]
    assert_same(single_profile(tmp_path, lines), made.printed("all_reduce", 8))
    whole = made.table(footer=False)
    at = next(place for place, line in enumerate(whole) if " sum " in line)
    without_half = [*whole[:at], re.sub(r"(.*sum +-1)(?: +\S+){4}", r"\1", whole[at]), *whole[at + 1 :]]
    with pytest.raises(ValueError, match=rf"a\.log: line {at + 1}: the row is cut"):
        read(tmp_path, without_half)


def test_columns_for_each_iteration_and_for_bits_are_left_out(tmp_path: Path) -> None:
    lines = []
    for line in made.table():
        words = line.replace("#wrong", "#wrong  #bitdiff  i_min  i_max  i_p99  i_cv%")
        cells = re.fullmatch(r"(.*sum +-1)((?: +\S+){4})((?: +\S+){4})", line)
        lines.append(f"{cells[1]}{cells[2]} 0 1.0 2.0 2.0 3.1{cells[3]} 0 1.0 2.0 2.0 3.1" if cells else words)
    assert_same(single_profile(tmp_path, lines), made.printed("all_reduce", 8))


def test_an_excerpt_is_labelled_and_an_average_that_is_off_refused(tmp_path: Path) -> None:
    lines = made.table()
    at = next(place for place, line in enumerate(lines) if " sum " in line)
    excerpt = [*lines[: at + 2], "   ...", *lines[at + 5 :]]
    profile = single_profile(tmp_path, excerpt)
    assert "an excerpt" in profile.provenance["source"]["notes"]
    assert len(profile.points) == 2 * (len(made.SIZES) - 3)
    del excerpt[at + 2]
    foot = next(place for place, line in enumerate(excerpt, 1) if "Avg" in line)
    with pytest.raises(ValueError, match=rf"a.log: line {foot}: the average is [\d.]+, and that of the rows [\d.]+$"):
        read(tmp_path, excerpt)


@pytest.mark.parametrize("gpus", [1, 4])
def test_json_is_read(tmp_path: Path, gpus: int) -> None:
    profile = single_profile(tmp_path, json.dumps(made.as_json(gpus=gpus)))
    assert_same(profile, made.printed("all_reduce", 8))
    assert (profile.num_ranks, profile.ranks_per_node) == (8, (8,))
    assert profile.provenance["date"] == "2026-03-04 05:06:07"
    assert profile.provenance["environment"] == "NCCL_P2P_DISABLE=1"
    assert profile.provenance["gpus"][7] == {"name": "NVIDIA H100 80GB HBM3", "nccl": "2.29.7"}
    assert profile.protocol["warm_up"] == 1


def test_bytes_are_a_whole_multiple_of_the_elements(tmp_path: Path) -> None:
    """Half of the elements' bytes passed, and the bus bandwidths told the number of ranks."""
    content = made.as_json()
    for result in content["results"]:
        result["count"] *= 2
    first = content["results"][0]
    with pytest.raises(ValueError, match=f"{first['size']} bytes are not {first['count']} elements"):
        read(tmp_path, json.dumps(content))


# ---- other programs


def seconds(profile: Profile, what: str, num_bytes: int, **options: Any) -> float:
    (point,) = profile.select(what, num_bytes, **options)
    return point.median_s


def rate(profile: Profile, **options: Any) -> float:
    (point,) = profile.select("transfer", **options)
    assert (point.num_bytes, point.options["size"]) == (10**9, "not stated")
    return round(point.algbw_bytes_per_s / 1e9, 2)


def test_matrices_are_read(tmp_path: Path) -> None:
    text, made_json = single_profile(tmp_path, made.NVBANDWIDTH), single_profile(tmp_path, made.NV_JSON)
    assert rate(text, direction="h2d", gpu=1) == 25.94
    assert rate(text, direction="p2p", src=0, dst=1, both=False) == 276.07
    assert text.provenance["gpus"] == ({"name": "NVIDIA A100-SXM4-80GB", "driver": "570.86.16"},) * 2
    assert "host_device_latency_sm" in text.provenance["source"]["notes"]
    assert rate(made_json, direction="h2d", both=True, gpu=0, method="pinned") == 44.33
    assert rate(made_json, method="all_to_host_memcpy_sm", gpu=1) == 31.08


def test_the_gpu_of_a_row_of_nvbandwidth_reads_from_that_of_the_column_or_writes_to_it(tmp_path: Path) -> None:
    """By nvbandwidth's source: its arrows point the other way than the bytes go."""
    assert rate(single_profile(tmp_path, made.NVBANDWIDTH), method="write", src=1, dst=0) == 275.19
    reads = made.NVBANDWIDTH.replace("write_ce", "read_ce").replace("GPU(row) <- GPU", "GPU(row) -> GPU")
    assert rate(single_profile(tmp_path, reads), method="read", src=0, dst=1) == 275.19


@pytest.mark.parametrize("title", ["All Gpus -> GPU(column)", "GPU(column) <- All GPUs"])
def test_sums_of_nvbandwidth_over_all_gpus_are_left_out(tmp_path: Path, title: str) -> None:
    log = made.NVBANDWIDTH.replace("host_to_device_memcpy_ce", "all_to_one_write_ce")
    log = log.replace("CPU(row) -> GPU(column) bandwidth", f"{title} total bandwidth")
    assert title in log
    profile = single_profile(tmp_path, log)
    assert {point.options["direction"] for point in profile.points} == {"p2p"}
    assert (
        "left out, because they state sums over all GPUs: all_to_one_write_ce" in profile.provenance["source"]["notes"]
    )


@pytest.mark.parametrize("name", ["all_to_one_write_ce", "one_to_all_read_sm"])
def test_sums_of_nvbandwidth_under_the_title_of_single_copies_are_left_out(tmp_path: Path, name: str) -> None:
    """Tables of one row: so says testcases_ce.cpp in nvbandwidth's commit f483e52. Version 0.2 says "All Gpus"."""
    title = "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)"
    text = f"""
Running {name}.
{title}
           0         1
 0    142.09    142.13

SUM {name} 284.22
"""
    case = {"name": name, "bandwidth_description": title, "bandwidth_matrix": [["142.09", "142.13"]], "sum": 284.22}
    content = json.loads(made.NV_JSON)
    content["nvbandwidth"]["testcases"].append(case)
    for log, original in ((made.NVBANDWIDTH + text, made.NVBANDWIDTH), (json.dumps(content), made.NV_JSON)):
        profile = single_profile(tmp_path, log)
        assert profile.points == single_profile(tmp_path, original).points
        assert f"left out, because they state sums over all GPUs: {name}" in profile.provenance["source"]["notes"]


def test_copies_of_nvbandwidth_between_gpus_of_several_nodes_are_read(tmp_path: Path) -> None:
    """Its titles of both directions call the row a CPU, and it does not print on how many nodes it runs."""
    several_nodes = made.NV_BOTH_WAYS.replace("device_to_device", "multinode_device_to_device")
    several_nodes = several_nodes.replace("GPU(row)", "CPU(row)").partition("Running device_local_copy")[0]
    profile = single_profile(tmp_path, several_nodes)
    assert len(profile.points) == 2
    assert rate(profile, direction="p2p", src=1, dst=0, both=True) == 760.61
    assert "num_nodes" not in profile.provenance


def test_a_table_of_nvbandwidth_without_gpus_as_columns_is_left_out(tmp_path: Path) -> None:
    case = {
        "name": "multinode_bisect_write_ce",
        "bandwidth_description": "Bisect benchmarking, simultaneous write CE BW",
        "bandwidth_matrix": [["142.09"] * 9, ["142.13"] * 9],
        "sum": 2557.98,
    }
    content = json.loads(made.NV_JSON)
    content["nvbandwidth"]["testcases"].append(case)
    profile = single_profile(tmp_path, json.dumps(content))
    without = single_profile(tmp_path, made.NV_JSON)
    assert profile.points == without.points
    assert profile.num_ranks == without.num_ranks
    assert profile.provenance["gpus"] == without.provenance["gpus"]
    assert "columns are not GPUs: multinode_bisect_write_ce" in profile.provenance["source"]["notes"]


@pytest.mark.parametrize("text", [made.NV_BOTH_WAYS, made.NV_BOTH_WAYS_JSON], ids=["text", "JSON"])
def test_copies_of_nvbandwidth_in_both_directions_have_half_of_the_total_each(tmp_path: Path, text: str) -> None:
    """Such a test prints three matrices: those of the two directions and their total; JSON has them as one."""
    profile = single_profile(tmp_path, text)
    assert profile.num_ranks == 2
    assert len(profile.select("transfer", direction="p2p")) == 2
    assert rate(profile, direction="p2p", src=1, dst=0, both=True, method="read") == 760.61
    assert "half of the printed total" in profile.provenance["source"]["notes"]


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("missing", ["Read2", "Total"])
def test_a_test_of_nvbandwidth_that_is_cut_before_its_total_is_refused(
    tmp_path: Path, missing: str, is_last: bool
) -> None:
    """The matrix of one direction is no measurement of a copy in both."""
    log = made.NV_BOTH_WAYS
    cut = log[: log.index(f"memcpy CE GPU(row) <-> GPU(column) {missing}")]
    if not is_last:
        cut += log[log.index("Running device_local_copy.") :]
    with pytest.raises(
        ValueError, match=r"line \d+: device_to_device_bidirectional_memcpy_read_ce is cut before its total$"
    ):
        read(tmp_path, cut)


def test_every_kind_is_recognised_and_can_be_named(tmp_path: Path) -> None:
    logs = {"nccl-tests": "\n".join(made.table()), "nvbandwidth": made.NVBANDWIDTH, "trace": json.dumps(made.TRACE)}
    for kind, text in logs.items():
        assert read(tmp_path, text) == read(tmp_path, text, kind=kind)
        for other in set(logs) - {kind}:
            with pytest.raises(ValueError, match=r"a\.log"):
                read(tmp_path, text, kind=other)
    both = [*made.table(), *made.NVBANDWIDTH.splitlines()]
    with pytest.raises(ValueError, match="nccl-tests and nvbandwidth"):
        read(tmp_path, both)
    assert len(read(tmp_path, both, kind="nccl-tests")) == 1
    for nothing in ("hello\n", "\n"):
        with pytest.raises(ValueError, match=r"a\.log"):
            read(tmp_path, nothing)


# ---- what others published, where it is found beside the checkout

READ = ("nccl-tests", "nvbandwidth")  # the kinds of logs in index.json that are read
ROW = re.compile(r"(?<![\w.])(\d+)[ \t]+(\d+)[ \t]+(float|double)\s([^\n]*)")


def published() -> list[dict[str, Any]]:
    if not (SHARED / "index.json").is_file():
        return []
    return [entry for entry in json.loads((SHARED / "index.json").read_text()) if entry["file"].startswith("logs/")]


@pytest.mark.skipif(not published(), reason="../shared/measurements is not there")
def test_every_published_log_is_read_or_refused() -> None:
    num_read = 0
    for about in published():
        path = SHARED / about["file"]
        if not about["kind"].startswith(READ) or path.suffix == ".csv":
            with pytest.raises(ValueError, match="not a log of"):
                read_log(path)
            continue
        num_read += 1
        profiles = read_log(path)
        assert {profile.protocol.get("verified", True) for profile in profiles} == {True}
        ranks = about["num_ranks"] if isinstance(about["num_ranks"], int) else None
        if ranks:
            assert {profile.num_ranks for profile in profiles} == {ranks}, path
        if about["kind"] == "nccl-tests":
            assert [sum(len(p.seconds) for p in profile.points) for profile in profiles] == [
                2 * table["rows"] for table in about["tables"]
            ]
            assert_printed(path, profiles)
    assert num_read > 40


def assert_printed(path: Path, profiles: Sequence[Profile]) -> None:
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
        for profile in profiles
        for p in profile.points
        for s in p.seconds
    ]
    assert len(points) == len(cells)
    for profile in profiles:
        mine = [row for row in points if row[3] is profile]
        theirs, cells = cells[: len(mine)], cells[len(mine) :]
        for size, place, seconds, _, point in mine:
            at = next(
                row for row in theirs if row[:2] == (size, place) and abs(float(row[2]) / 1e6 / seconds - 1) < 1e-5
            )
            theirs.remove(at)
            bus = (
                size / seconds * (point.busbw_bytes_per_s(profile.num_ranks) / point.algbw_bytes_per_s) if size else 0.0
            )
            if point.what != "together":
                digits = 0.5 * 10 ** -len(at[2].partition(".")[2])
                assert abs(bus / 1e9 - float(at[4])) <= 0.005001 + digits / float(at[2]) * float(at[4]), (path, at)
        assert theirs == []


# ---- traces, topologies, and the command


@pytest.mark.parametrize("packed", [False, True])
def test_copies_and_kernels_of_a_trace_are_points_with_their_spread(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("a.json.gz" if packed else "a.json")
    raw = json.dumps(made.TRACE).encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    (profile,) = read_log(path)
    assert (profile.num_ranks, profile.num_nodes) == (2, None)
    assert profile.provenance["gpus"] == ({"name": "NVIDIA A100", "nccl": "2.17.1"},)
    assert seconds(profile, "transfer", 98304, direction="h2d", method="pinned") == pytest.approx(
        98304 / 7.5e9, rel=1e-5
    )
    (back,) = profile.select("transfer", 1000, direction="d2h", method="pageable")
    assert back.seconds == (2.5e-6, 2.5e-6)
    (kernels,) = profile.select("allreduce", 1024, algorithm="native")
    assert kernels.seconds == pytest.approx((20.5e-6, 30.5e-6))
    assert "wait" in profile.provenance["source"]["notes"]
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"a\.json"):
        read_log(path)


TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-15\t0\nGPU1\tPHB\t X \t0-15\t0\n\nLegend:\n"


def test_a_topology_is_kept_with_what_was_measured_there(tmp_path: Path) -> None:
    profile = single_profile(tmp_path, [*TOPOLOGY.split("\n"), *made.table()])
    assert profile.provenance["topology"] == TOPOLOGY.partition("\n\n")[0].strip()
    with pytest.raises(ValueError, match="line 1: a GPU topology without measurements"):
        read(tmp_path, TOPOLOGY)


# ---- figures that hardly agree


def test_a_sum_that_is_off_by_a_digit_is_a_warning_and_by_a_factor_an_error(tmp_path: Path) -> None:
    sum_of_row = "memcpy_ce 51.97"
    assert "warning" not in str(single_profile(tmp_path, made.NVBANDWIDTH).provenance["source"])
    close = single_profile(tmp_path, made.NVBANDWIDTH.replace(sum_of_row, "memcpy_ce 52.00"))
    assert "do not have the sum 52.00" in close.provenance["source"]["notes"]
    with pytest.raises(ValueError, match=r"line \d"):
        read(tmp_path, made.NVBANDWIDTH.replace(sum_of_row, "memcpy_ce 53.22"))


def table_with(alg: str, bus: str, time: str = "121.10") -> list[str]:
    """A table whose second row has these figures for 8 MiB, both out of place and in place."""
    first = made.Printed(4194304, (("70.00", "59.92", "104.86"),) * 2)
    second = made.Printed(8388608, ((time, alg, bus),) * 2)
    return made.table(sizes=(4194304, 8388608), rows=(first, second))


def test_a_bandwidth_that_differs_in_its_last_digit_is_read_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = single_profile(tmp_path, table_with("69.27", "121.22"))
    assert "warning" not in str(dict(exact.provenance["source"]))
    profile = single_profile(tmp_path, table_with("69.28", "121.24"))
    assert figures(profile) == figures(exact)  # the printed times
    assert profile.num_ranks == 8
    rows = [number for number, text in enumerate(table_with("69.28", "121.24"), 1) if " sum " in text]
    several = "warning: 2 printed figures do not agree with the others to their last digit"
    note = f"{several}; the first: line {rows[1]}: 69.28 GB/s is not 8388608 bytes in 121.10 µs"
    assert profile.provenance["source"]["notes"] == note
    path = tmp_path / "a.log"
    assert main(["import", str(path), "-o", str(tmp_path / "a.json")]) == 0
    assert note in " ".join(capsys.readouterr().out.split())
    assert note in Profile.load(tmp_path / "a.json").provenance["source"]["notes"]


@pytest.mark.parametrize(
    ("alg", "bus", "words"),
    [
        ("70.94", "124.14", r"70\.94 GB/s is not 8388608 bytes in 121\.10 µs"),  # KiB taken for kB
        ("138.54", "242.44", r"138\.54 GB/s is not 8388608 bytes in 121\.10 µs"),  # both directions
        ("69.27", "138.54", r"bus bandwidths do not fit 8 ranks"),
        ("69.27", "118.70", r"bus bandwidths do not fit 8 ranks"),  # of seven ranks
    ],
)
def test_a_factor_between_figures_is_an_error(tmp_path: Path, alg: str, bus: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(tmp_path, table_with(alg, bus))


def test_the_command_says_what_it_read_and_writes_one_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    log.write_text("\n".join([*made.table(), *made.table("all_gather")]))
    other.write_text("\n".join(made.table()).replace("NVIDIA", "AMD"))
    assert main(["import", str(log), "-o", str(tmp_path / "box.json")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "a, allreduce: 8 ranks on 1 node, nccl, nccl-tests 2.17.8: 18 measurements, 128 B to 2 GiB" in words
    box = Profile.load(tmp_path / "box.json")
    assert [len(box.select(what)) for what in ("allreduce", "allgather")] == [18, 18]
    assert (box.provenance["name"], box.num_ranks) == ("box", 8)
    assert main(["import", str(log), str(other), "-o", str(tmp_path / "two.json")]) == 2
    assert "the logs are of different machines" in capsys.readouterr().err
    assert not (tmp_path / "two.json").exists()


COPIES = {"critical_path": 16, "df_index": 2040, "nccl_parser": 960 + 21, "rank-0": 40, "trace_diff": 228, "rank-1": 40}


@pytest.mark.skipif(not published(), reason="../shared/measurements is not there")
@pytest.mark.parametrize("name", COPIES)
def test_every_copy_of_a_published_trace_is_read(name: str) -> None:
    (path,) = (SHARED / "traces").glob(f"*{name}*")
    (profile,) = read_log(path)
    assert sum(len(point.seconds) for point in profile.points) == COPIES[name]
