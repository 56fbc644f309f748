"""Logs of other programs: every figure that is printed, and what is not stated is not there."""

from __future__ import annotations

import bisect
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankscope.box import Profile
from rankscope.box import read_log as box_read_log
from rankscope.box.logs import READERS as COMMON
from rankscope.box.logs import merged
from rankscope.box.logs.log import Log
from rankscope.cli import main
from rankscope.common.storage import StorageError
from tests.tools.rare_logs import ALL as READERS
from tests.tools.rare_logs import RARE
from tests.tools.rare_logs import read as read_log

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


def test_what_comes_between_the_halves_of_a_row_takes_no_long_time(tmp_path: Path) -> None:
    lines = [part for line in made.table() for part in (split(line) if " sum " in line else [line])]
    at = next(place for place, line in enumerate(lines) if "sum" in line)
    lines.insert(at + 1, "1" * 60 + "x")  # a regex that tries each way to cut it would take years
    assert_same(single_profile(tmp_path, lines), made.printed("all_reduce", 8))


def test_several_tables_are_several_profiles(tmp_path: Path) -> None:
    lines = [line for name in COLLECTIVES for line in [*made.table(name), "", "done"]]
    profiles = read(tmp_path, lines)
    assert [profile.points[0].what for profile in profiles] == [made.WHAT.get(name, name) for name in COLLECTIVES]
    for name, profile in zip(COLLECTIVES, profiles, strict=True):
        assert_same(profile, made.printed(name, 8))


def test_a_table_without_an_average_has_the_facts_above_it_also_if_another_table_follows(tmp_path: Path) -> None:
    cut, whole = read(tmp_path, [*made.table(footer=False), *made.table("all_gather")])
    assert [profile.points[0].what for profile in (cut, whole)] == ["allreduce", "allgather"]
    for profile in (cut, whole):
        assert (profile.protocol["warm_up"], profile.protocol["iterations"]) == (5, 20)
        assert profile.provenance["gpus"][0]["nccl"] == "2.29.2"
        assert "nccl-tests 2.17.8" in profile.provenance["source"]["program"]


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
    with pytest.raises(ValueError, match=r"its tables have 2, 4 and 8 ranks, and none has 16$"):
        read(tmp_path, sweep, num_ranks=16)
    with pytest.raises(ValueError, match="the tables are of 2, 4 and 8 ranks, .* choose it with num_ranks"):
        merged(read(tmp_path, sweep), "sweep")
    unlisted = [line for number in (2, 4) for line in made.table(num_ranks=number, listed=False)]
    assert_same(single_profile(tmp_path, unlisted, num_ranks=2), made.printed("all_reduce", 2))
    broadcast = made.table("broadcast", listed=False)  # states no number, so it is of the number given
    both = read(tmp_path, [*made.table(num_ranks=2), *made.table(num_ranks=4), *broadcast], num_ranks=4)
    assert [(profile.points[0].what, profile.num_ranks) for profile in both] == [("allreduce", 4), ("broadcast", 4)]
    assert [profile.num_ranks for profile in read(tmp_path, made.AICONFIGURATOR, num_ranks=8)] == [8]
    copies_and_table = read(tmp_path, made.OSU_LATENCY + made.OSU_ALLREDUCE, num_ranks=16)
    assert [profile.num_ranks for profile in copies_and_table] == [2, 16]  # messages are of no number of ranks


def test_a_list_of_ranks_that_does_not_fit_is_labelled(tmp_path: Path) -> None:
    lines = [line for line in made.table(num_ranks=16) if not re.search(r"Rank +(9|1\d) ", line)]
    profile = single_profile(tmp_path, lines)
    assert (profile.num_ranks, profile.num_nodes) == (16, None)
    assert (
        profile.provenance["source"]["notes"] == "the number of ranks follows from bus bandwidths; 9 of them are listed"
    )


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
    assert "node0" not in str(provenance)


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
    assert "ann" not in str(profile.provenance)


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("results", 3, "results"),
        ("results", [3], r"results\[0\]"),
        ("config", {"devices": [{}]}, "config"),
        ("average_bus_bandwidth", 3, "average_bus_bandwidth"),
        ("args", 3, "args"),
        ("env", 3, "env"),
    ],
)
def test_an_error_in_json_names_the_part_that_is_wrong(tmp_path: Path, key: str, value: Any, place: str) -> None:
    """It named the result behind the last one."""
    with pytest.raises(ValueError, match=f"a.log: {place}: not what nccl-tests writes"):
        read(tmp_path, json.dumps(made.as_json() | {key: value}), kind="nccl-tests")


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


@pytest.mark.parametrize(
    "title",
    [
        "MPI-CUDA Non-blocking Allreduce Latency Test v7.5",  # its first column is Overall(us), with computation
        "MPI Non-blocking Neighborhood Allgather Latency Test",
        "MPI Neighborhood Alltoall Latency Test",
        "MPI All-to-Allv Personalized Exchange Latency Test v5.6.3",
        "MPI_Get Bandwidth Test v5.6",
        "MPI One Sided MPI_Accumulate Latency Test v3.6",
        "OpenSHMEM Broadcast Latency Test v5.6",
    ],
)
def test_a_benchmark_of_osu_that_measures_something_else_is_refused(tmp_path: Path, title: str) -> None:
    """Without this, most of them would be a ping-pong of two ranks, by the word "latency"."""
    log = made.OSU_ALLREDUCE.replace("MPI-CUDA Allreduce Latency Test v5.7", title)
    assert title in log
    with pytest.raises(ValueError, match="no benchmark of OSU's that is known"):
        read(tmp_path, log, num_ranks=16)


def test_a_gpu_build_of_osu_may_send_from_host_to_host(tmp_path: Path) -> None:
    def sent(send: str, receive: str) -> Profile:
        places = f"# Send Buffer on {send} and Receive Buffer on {receive}\n"
        header = "    # Size"
        assert header in made.OSU_BW
        return single_profile(tmp_path, made.OSU_BW.replace(header, places + header))

    assert sent("DEVICE (D)", "DEVICE (D)").points[0].options["direction"] == "p2p"
    host = sent("HOST (H)", "HOST (H)")
    assert (host.points[0].options["direction"], host.provenance.get("device")) == ("h2h", None)
    assert sent("MANAGED (M)", "MANAGED (M)").points[0].options["direction"] == "p2p"
    assert sent("MANAGED (M)", "DEVICE (D)").points[0].options["direction"] == "p2p"
    assert sent("MANAGED (MD)", "MANAGED (MH)").points[0].options["direction"] == "p2p"  # as OSU 7 prints them
    problem = r"line 1: messages between the host and a GPU are not read: line 1 \(Send Buffer on DEVICE"
    with pytest.raises(ValueError, match=problem):
        sent("DEVICE (D)", "HOST (H)")


@pytest.mark.parametrize("version", ["v5.7", "v7.5"])
def test_tables_of_osu_between_the_host_and_a_gpu_are_left_out_and_named(tmp_path: Path, version: str) -> None:
    """Version 7.5 does not print where the buffers are; the command says it."""

    def table(send: str, receive: str, mb_per_s: float) -> str:
        words = {"D": "DEVICE (D)", "H": "HOST (H)"}
        printed = ""
        if version == "v5.7":
            printed = f"# Send Buffer on {words[send]} and Receive Buffer on {words[receive]}\n"
        command = f"$ mpirun -n 2 osu_bw -m 1024:1024 -d cuda {send} {receive} | tee bw.log\n"
        title = f"# OSU MPI-CUDA Bandwidth Test {version}\n"
        return f"{command}\n{title}{printed}# Size      Bandwidth (MB/s)\n1024      {mb_per_s}\n"

    log = table("D", "D", 900.5) + table("H", "D", 700.5) + table("D", "H", 600.5) + table("H", "H", 500.5)
    between_gpus, between_hosts = read(tmp_path, log)
    assert seconds(between_gpus, "transfer", 1024, direction="p2p") == pytest.approx(1024 / 900.5e6, rel=1e-5)
    assert seconds(between_hosts, "transfer", 1024, direction="h2h") == pytest.approx(1024 / 500.5e6, rel=1e-5)
    lines = [number for number, text in enumerate(log.split("\n"), 1) if "# OSU " in text]
    for profile in (between_gpus, between_hosts):
        notes = profile.provenance["source"]["notes"]
        assert notes.startswith("left out, because messages between the host and a GPU are not read: ")
        assert [f"line {line} (" in notes for line in lines] == [False, True, True, False]
    with pytest.raises(ValueError, match=r"line 3: messages between the host and a GPU are not read: line 3 \("):
        read(tmp_path, table("H", "D", 700.5))


def test_the_command_of_the_table_before_is_not_that_of_a_table_of_osu(tmp_path: Path) -> None:
    """A table of few sizes, its title and its command are all within the lines that are searched for a command."""
    of_two, of_eight = (
        f"$ mpirun -n {num_ranks} osu_allreduce -m 4:4\n{made.OSU_ALLREDUCE}".replace(
            "65536                 137.90            136.15            139.51         100\n", ""
        )
        for num_ranks in (2, 8)
    )
    assert "65536" not in of_two
    assert [profile.num_ranks for profile in read(tmp_path, of_two + of_eight)] == [2, 8]


def test_buffers_of_osu_count_more_than_its_title(tmp_path: Path) -> None:
    """A build for GPUs may print the title of one for hosts; managed memory is that of a GPU."""
    for places, direction, device in (("MANAGED (M)", "p2p", "cuda"), ("HOST (H)", "h2h", None)):
        header = f"# Send Buffer on {places} and Receive Buffer on {places}\n    # Size"
        log = made.OSU_BW.replace("MPI-CUDA", "MPI").replace("    # Size", header)
        assert header in log
        profile = single_profile(tmp_path, log)
        assert (profile.points[0].options["direction"], profile.provenance.get("device")) == (direction, device)


def test_osu_is_read(tmp_path: Path) -> None:
    ping, bandwidth = read(tmp_path, made.OSU_LATENCY + made.OSU_BW)
    assert seconds(ping, "ping_pong", 1024) == pytest.approx(2.25e-6)
    assert (ping.num_ranks, ping.num_nodes, ping.points[0].options) == (2, 2, {"link": "inter"})
    assert seconds(bandwidth, "transfer", 1024, direction="p2p") == pytest.approx(1024 / 926.30e6, rel=1e-5)
    pairs = single_profile(tmp_path, made.OSU_PAIRS)
    assert pairs.num_ranks == 8
    assert seconds(pairs, "transfer", 4194304, pairs=4) == pytest.approx(4 * 4194304 / 39016.14e6, rel=1e-5)
    with pytest.raises(ValueError, match="line 1: the number of ranks is not stated"):
        read(tmp_path, made.OSU_ALLREDUCE)
    profile = single_profile(tmp_path, made.OSU_ALLREDUCE, num_ranks=16)
    assert seconds(profile, "allreduce", 65536, in_place=False) == pytest.approx(137.9e-6)


def test_messages_of_the_intel_mpi_benchmarks_are_read(tmp_path: Path) -> None:
    ping, together = read(tmp_path, made.IMB_MESSAGES)
    assert (ping.num_ranks, together.num_ranks) == (2, 4)
    assert [point.num_bytes for point in ping.points] == [0, 1024, 2**20]
    assert seconds(ping, "ping_pong", 1024) == pytest.approx(0.52e-6)
    assert seconds(together, "together", 2**20) == pytest.approx(190.42e-6)  # t_max
    assert ping.provenance["source"] == {"program": "IMB-MPI1 2021.7"}
    assert together.backend == "mpi"
    in_mib = made.IMB_MESSAGES.replace("10623.87", "10131.71").replace("1969.23", "1878.00")  # as old versions print
    assert seconds(read(tmp_path, in_mib)[0], "ping_pong", 2**20) == pytest.approx(98.70e-6)


def test_collectives_of_the_intel_mpi_benchmarks_are_read(tmp_path: Path) -> None:
    allreduce, allgather = read(tmp_path, made.IMB_COLLECTIVES)
    assert figures(allreduce) == [(1024, False, pytest.approx(2.62e-6)), (2**20, False, pytest.approx(431.07e-6))]
    assert [point.num_bytes for point in allgather.points] == [4 * 1024, 2**20]  # the whole buffer of four ranks
    assert seconds(allgather, "allgather", 4096) == pytest.approx(2.11e-6)
    assert "1 size not measured" in allgather.provenance["source"]["notes"]
    assert "times are t_max" in allreduce.provenance["source"]["notes"]
    without_title = made.IMB_COLLECTIVES.removeprefix(made.IMB_HEAD)
    assert [profile.points for profile in read(tmp_path, without_title)] == [allreduce.points, allgather.points]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# #processes = 4\n", "", r"line \d+: the number of processes of Allreduce is not stated"),
        ("# #processes = 4", "# #processes = 99999999999", r"line \d+: #processes must be a number from 1 to 1048576"),
        ("# #processes = 4", "# ( 2 groups of 2 processes each running simultaneous )", r"\(-multi\) are not read"),
        ("t_max[usec]", "t_most[usec]", r"line \d+: the header must have #bytes, #repetitions and t_min\[usec\]"),
        ("  1048576           40 ", "     1024           40 ", r"line \d+: must be a larger size than 1024, got 1024"),
        ("  1048576           40 ", "      512           40 ", r"line \d+: must be a larger size than 1024, got 512"),
        ("  1048576 out-of-mem", "   262144 out-of-mem", r"line \d+: must be a larger size than 262144, got 262144"),
        ("# Benchmarking Allreduce", "# Benchmarking Multi-Allreduce", r"line 19: groups .*\(-multi\) .*: Multi-Allr"),
        ("# Benchmarking Barrier", "# Benchmarking Multi-Barrier", r"line \d+: groups .*\(-multi\) .*: Multi-Barrier"),
        ("  2.62 ", "  2.22 ", r"line \d+: must have t_min ≤ t_avg ≤ t_max"),
        ("         2.31         2.62         2.47", "         2.31", r"line \d+: the row is cut or malformed"),
        ("# Benchmarking Allreduce", "# Allreduce", r"line \d+: a header without a line '# Benchmarking' above it"),
        ("# Benchmarking Allreduce", "# Benchmarking Exchange", ""),
    ],
)
def test_a_log_of_the_intel_mpi_benchmarks_that_is_damaged_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in made.IMB_COLLECTIVES
    text = made.IMB_COLLECTIVES.replace(old, new, 1)
    if not message:
        assert [profile.points[0].what for profile in read(tmp_path, text)] == ["allgather"]
        return
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize("part", ["P2P", "MPI-P2P", "MPI-NBC", "MPI-2", "RMA", "MPI-1.5"])
def test_other_parts_of_the_intel_mpi_benchmarks_are_refused_by_name(tmp_path: Path, part: str) -> None:
    other = made.IMB_MESSAGES.replace("MPI-1 part", f"{part} part")
    with pytest.raises(
        ValueError, match=f"line 2: only the MPI-1 part of the Intel MPI Benchmarks is read, got '{part}'"
    ):
        read(tmp_path, other)
    with pytest.raises(ValueError, match=rf"line \d+: only the MPI-1 part .*, got '{part}'"):
        read(tmp_path, made.IMB_COLLECTIVES + other)


def test_older_titles_of_the_intel_mpi_benchmarks_are_read(tmp_path: Path) -> None:
    for title, program in (
        ("Intel (R) MPI Benchmark Suite V3.2.4, MPI-1 part", "IMB-MPI1 3.2.4"),
        ("Intel(R) MPI Benchmarks 2019 Update 6, MPI-1 part", "IMB-MPI1 2019"),
    ):
        text = made.IMB_MESSAGES.replace("Intel(R) MPI Benchmarks 2021.7, MPI-1 part", title)
        assert read(tmp_path, text)[0].provenance["source"] == {"program": program}


def test_a_ping_pong_of_other_than_two_processes_is_refused(tmp_path: Path) -> None:
    text = made.IMB_MESSAGES.replace("# #processes = 2", "# #processes = 4")
    with pytest.raises(ValueError, match=r"line \d+: PingPong must state #processes = 2, got 4"):
        read(tmp_path, text)


IMB_TIMES = re.compile(r"^ +(?:1024|262144|1048576) +\d.*\n", re.MULTILINE)  # rows of sizes above 0


@pytest.mark.parametrize("instead", ["", "      1024 time-out.; Time limit (secs_per_sample * msg_sizes_list_len)\n"])
def test_a_table_without_times_is_left_out_if_another_one_has_them(tmp_path: Path, instead: str) -> None:
    first, second = made.IMB_COLLECTIVES.split("# Benchmarking Allgather")
    untimed = IMB_TIMES.sub("", first)  # only the row of 0 bytes is left
    if instead:
        untimed = IMB_TIMES.sub(instead, first, count=1)
        untimed = IMB_TIMES.sub("", untimed)
    (allgather,) = read(tmp_path, untimed + "# Benchmarking Allgather" + second)
    assert allgather.points[0].what == "allgather"
    with pytest.raises(ValueError, match=r"line \d+: the table of Allreduce has no rows with times"):
        read(tmp_path, untimed)
    cut = "\n".join(line for line in first.split("\n") if not line.startswith("   "))
    with pytest.raises(ValueError, match="Allreduce has no"):
        read(tmp_path, cut + "# Benchmarking Allgather" + second)


def test_all_reduce_bench_is_read(tmp_path: Path) -> None:
    profile = single_profile(tmp_path, made.BENCH)
    assert (profile.num_ranks, profile.protocol["iterations"]) == (32, 20)
    assert seconds(profile, "allreduce", 2**30) == pytest.approx(2**30 / 188.9e9, rel=1e-5)
    trials = single_profile(tmp_path, made.TRIALS)
    assert trials.num_ranks == 2
    assert trials.points[0].num_bytes == 4_000_000_000
    assert trials.points[0].seconds == pytest.approx((64e9 / 1335850436641.9412, 64e9 / 1338717258044.6157), rel=1e-5)


def test_trials_without_the_numbers_of_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trials are missing: of ranks there are \[\]"):
        read(tmp_path, made.TRIALS.replace("1:\n", "").replace("0:\n", ""))


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
    shmoo = single_profile(tmp_path, made.SHMOO)
    rates = [point.algbw_bytes_per_s / 1e9 for point in shmoo.points]
    assert rates == pytest.approx([0.4, 12.4, 6070.1 * 2**20 / 1e9, 758.5], rel=0.01)
    assert shmoo.provenance["gpus"] == ({"name": "Tesla V100-PCIE-32GB"},)
    quick = single_profile(tmp_path, made.QUICK)
    assert seconds(quick, "transfer", 33554432, method="pageable") == pytest.approx(32 / 6536, rel=1e-5)
    hip = single_profile(tmp_path, made.HIP)
    assert seconds(hip, "transfer", 2**29) == pytest.approx(21.6897e-3)
    table, csv = single_profile(tmp_path, made.QUADRO), single_profile(tmp_path, made.QUADRO_CSV)
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
    text, made_json = single_profile(tmp_path, made.NVBANDWIDTH), single_profile(tmp_path, made.NV_JSON)
    assert rate(text, direction="h2d", gpu=1) == 25.94
    assert rate(text, direction="p2p", src=0, dst=1, both=False) == 276.07
    assert text.provenance["gpus"] == ({"name": "NVIDIA A100-SXM4-80GB", "driver": "570.86.16"},) * 2
    assert "host_device_latency_sm" in text.provenance["source"]["notes"]
    assert rate(made_json, direction="h2d", both=True, gpu=0, method="pinned") == 44.33
    assert rate(made_json, method="all_to_host_memcpy_sm", gpu=1) == 31.08
    peers = single_profile(tmp_path, made.P2P)
    assert rate(peers, direction="p2p", src=0, dst=1, both=False) == 276.2
    assert rate(peers, direction="through_host", src=1, dst=0) == 17.92
    assert rate(peers, direction="p2p", src=1, dst=0, both=True) == 265.39
    rocm = single_profile(tmp_path, made.ROCM)
    assert rate(rocm, direction="h2d", gpu=1, both=False) == 13.77
    assert rate(rocm, direction="p2p", src=1, dst=0, both=False) == 49.92
    assert (rocm.provenance["cpu"], rocm.num_ranks) == ("A Processor @ 3.70GHz", 2)
    copies = single_profile(tmp_path, made.GPU_COPY)
    assert rate(copies, direction="h2d", method="pinned", gpu=0) == 26.24
    assert rate(copies, direction="p2p", src=0, dst=1) == 279.29


def test_the_gpu_of_a_row_of_nvbandwidth_reads_from_that_of_the_column_or_writes_to_it(tmp_path: Path) -> None:
    """By nvbandwidth's source: its arrows point the other way than the bytes go."""
    assert rate(single_profile(tmp_path, made.NVBANDWIDTH), method="write", src=1, dst=0) == 275.19
    reads = made.NVBANDWIDTH.replace("write_ce", "read_ce").replace("GPU(row) <- GPU", "GPU(row) -> GPU")
    assert rate(single_profile(tmp_path, reads), method="read", src=0, dst=1) == 275.19


def test_reads_of_p2p_bandwidth_latency_test_are_not_further_iterations_of_its_writes(tmp_path: Path) -> None:
    """With --p2p_read it prints both; in a read the bytes go from the column's GPU to the row's."""
    title = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)"
    before, _, below = made.P2P.partition(title)
    writes = below[: below.index("Bidirectional")]
    reads = title.replace("Writes", "Reads") + writes.replace("276.20", "266.20")
    profile = single_profile(tmp_path, before + title + writes + reads + below[len(writes) :])
    assert rate(profile, direction="p2p", src=0, dst=1, both=False, method="device") == 276.2
    assert rate(profile, direction="p2p", src=1, dst=0, both=False, method="read") == 266.2


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


@pytest.mark.parametrize("kind", made.OTHERS)
def test_every_kind_is_recognised_and_can_be_forced(tmp_path: Path, kind: str) -> None:
    for text in made.OTHERS[kind]:
        assert read(tmp_path, text) == read(tmp_path, text, kind=kind)
    other = next(name for name in READERS if name not in (kind, "osu"))
    with pytest.raises(ValueError, match="line"):
        read(tmp_path, made.OTHERS[kind][0], kind=other)


@pytest.mark.parametrize("kind", RARE)
def test_the_library_reads_no_rare_logs(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a.log").write_text(made.OTHERS[kind][0])
    with pytest.raises(ValueError, match=f"not a log of {', '.join(COMMON)}"):
        box_read_log(tmp_path / "a.log")


def test_what_is_no_log_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a.log: line 1: not a log of nccl-tests, osu"):
        read(tmp_path, "hello\n")
    with pytest.raises(ValueError, match="a.log: it is empty"):
        read(tmp_path, "\n")
    with pytest.raises(ValueError, match="has logs of nccl-tests and hipBusBandwidth: name one of these kinds"):
        read(tmp_path, [*made.table(), *made.HIP.splitlines()])
    assert len(read(tmp_path, [*made.table(), *made.HIP.splitlines()], kind="nccl-tests")) == 1
    with pytest.raises(ValueError, match="a.log: line 1: not a log of osu: no line contains '# OSU '"):
        read(tmp_path, made.table(), kind="osu")
    with pytest.raises(ValueError, match="kind must be one of"):
        read(tmp_path, "hello", kind="nccl")
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "none.log")


# ---- what others published, where it is found beside the checkout

NOT_READ = {  # no logs of collectives or copies
    "imagenet": "not a log of nccl-tests",
    "allreduce-mpi": "the number of ranks is not stated",
}
ROW = re.compile(r"(?<![\w.])(\d+)[ \t]+(\d+)[ \t]+(float|double)\s([^\n]*)")


def published() -> list[dict[str, Any]]:
    if not (SHARED / "index.json").is_file():
        return []
    return [entry for entry in json.loads((SHARED / "index.json").read_text()) if entry["file"].startswith("logs/")]


@pytest.mark.skipif(not published(), reason="../shared/measurements is not there")
def test_every_published_log_is_read_or_refused_for_a_reason() -> None:
    for about in published():
        path = SHARED / about["file"]
        reason = next((reason for word, reason in NOT_READ.items() if word in path.name), None)
        if reason:
            with pytest.raises(ValueError, match=reason):
                read_log(path)
            continue
        profiles = read_log(path)
        assert {profile.protocol.get("verified", True) for profile in profiles} == {True}
        ranks = about["num_ranks"] if isinstance(about["num_ranks"], int) else None
        if ranks and "-lat" not in path.name:
            assert {profile.num_ranks for profile in profiles} == {ranks}, path
        if about["kind"] == "nccl-tests":
            assert [sum(len(p.seconds) for p in profile.points) for profile in profiles] == [
                2 * table["rows"] for table in about["tables"]
            ]
            assert_printed(path, profiles)


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


# ---- spoilt logs: one clear error each, or the rows that stand there

BASES = {
    **{f"{name}, era {era}": made.table(name, era=era) for name in COLLECTIVES for era in (3, 4)},
    "two nodes": made.table(num_ranks=16, num_nodes=2),
    "no ranks": made.table(listed=False),
    "MPI": [f"[1,0]<stdout>:{line}" for line in made.table(num_ranks=4)],
    "INFO": [part for line in made.table(num_ranks=2) for part in (INFO, line)],
    "split": [part for line in made.table() for part in (split(line) if " sum " in line else [line])],
    "two tables": [*made.table("all_gather"), *made.table("broadcast")],
    **{f"{kind} {at}": text.splitlines() for kind, some in made.OTHERS.items() for at, text in enumerate(some)},
    "JSON": json.dumps(made.as_json(), indent=1).splitlines(),
}
FOREIGN = ("Traceback (most recent call last):", "[node1:07511] 3 more processes sent help", "", "a | b | c", "|" * 90)
WAYS = ("cut", "cut within", "swapped", "foreign", "digit", "dropped", "doubled", "mixed", "cell", "joined")


def spoilt(lines: Sequence[str], draw: random.Random) -> tuple[str, list[str]]:
    some, at = list(lines), draw.randrange(len(lines))
    how = draw.choice(WAYS)
    if how == "cut":
        some = some[:at]
    elif how == "cut within":
        some = [*some[:at], some[at][: draw.randrange(len(some[at]) + 1)]]
    elif how == "swapped":
        other = draw.randrange(len(some))
        some[at], some[other] = some[other], some[at]
    elif how == "foreign":
        some.insert(at, draw.choice(FOREIGN))
    elif how == "digit":
        places = [place for place, character in enumerate(some[at]) if character.isdigit()]
        if places:
            place = draw.choice(places)
            some[at] = (
                some[at][:place] + str((int(some[at][place]) + draw.randrange(1, 10)) % 10) + some[at][place + 1 :]
            )
    elif how == "dropped":
        del some[at]
    elif how == "doubled":
        some.insert(at, some[at])
    elif how == "mixed":
        other = BASES[draw.choice(list(BASES))]
        some[at:at] = other[draw.randrange(len(other)) :][: draw.randrange(1, 30)]
    elif how == "cell":
        words = re.split(r"(\s+)", some[at])
        del words[draw.randrange(len(words))]
        some[at] = "".join(words)
    else:
        some[at : at + 2] = ["".join(some[at : at + 2])]
    return how, some


def shown(text: str) -> set[float]:
    """Every number that stands in a text."""
    return {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e[+-]\d+)?", text.replace("_", ""))}


def is_printed(profile: Profile, numbers: list[float]) -> bool:
    """Whether each time, or the rate that it stands for, is one of the numbers of a text, which are in order."""
    for point in profile.points:
        for seconds in point.seconds:
            rates = [point.num_bytes * share / seconds for share in (1, 2, 4)] if point.num_bytes else []
            stands = [
                seconds * 1e6,
                seconds * 1e3,
                seconds,
                *(rate / unit for rate in rates for unit in (1e9, 1e6, 2**20)),
            ]
            stands.append(16 * point.num_bytes / seconds)
            off = 0.02 if point.what == "transfer" else 1e-4
            near = [numbers[min(bisect.bisect_left(numbers, value * (1 - off)), len(numbers) - 1)] for value in stands]
            if not any(
                abs(value - printed) <= max(off * printed, 0.051) for value, printed in zip(stands, near, strict=True)
            ):
                return False
    return True


TABLE_ROW = re.compile(r"(?<![\w.])(\d+) +(\d+) +float")
TIMES = re.compile(r"(?<![\w.])(\d+) +\d+ +float +(?:[a-z]+ +)?(?:-?\d+ +)?([\d.]+) +[\d.]+ +[\d.]+ +\S+ +([\d.]+) ")


TELLING = {"allreduce", "allgather", "reduce_scatter", "all_to_all"}  # bus bandwidths tell the number of ranks


def assert_rows(profiles: Sequence[Profile], text: str, name: str, how: str) -> None:
    """All rows of nccl-tests in a text were read, as they stand there, and of as many ranks as there were."""
    assert sum(len(p.seconds) for profile in profiles for p in profile.points) == 2 * len(TABLE_ROW.findall(text))
    if name not in ("split", "INFO"):
        there = [
            (int(size), float(f"{float(time) * 1e-6:.6g}")) for size, *both in TIMES.findall(text) for time in both
        ]
        assert Counter((p.num_bytes, s) for profile in profiles for p in profile.points for s in p.seconds) == Counter(
            there
        )
    ranks = {"two nodes": 16, "MPI": 4, "INFO": 2}.get(name, 8)
    if {point.what for profile in profiles for point in profile.points} <= TELLING and how != "mixed":
        assert {profile.num_ranks for profile in profiles} == {ranks}


def test_a_spoilt_log_gives_one_clear_error_or_the_rows_that_stand_there(tmp_path: Path) -> None:
    draw, seen = random.Random(18), Counter[str]()
    for number in range(1500):
        name = draw.choice(list(BASES))
        how, lines = spoilt(BASES[name], draw)
        try:
            profiles = read(tmp_path, lines)
        except ValueError as error:
            words = str(error)
            clear = r"a\.log: (line \d+|[\w\[\]]+|the trace): .|a\.log: it is empty$"
            assert re.search(clear, words), (number, name, how, words)
            assert "\n" not in words
            assert len(words) < 500
            seen["refused"] += 1
            continue
        seen["read"] += 1
        text = "\n".join(lines)
        if "busbw" in text and "# Using devices" in text and not re.search(r"GBps|Gbps", text):
            assert_rows(profiles, text, name, how)
        else:
            numbers = sorted(shown(text))
            assert all(is_printed(profile, numbers) for profile in profiles), (number, name, how)
    assert min(seen.values()) > 300


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


@pytest.mark.parametrize(
    "raw", [b"\x1f\x8b", b"\x1f\x8bno gzip", gzip.compress(b"x" * 999)[:-9], gzip.compress(b"")[:12]], ids=range(4)
)
def test_what_is_no_gzip_or_is_cut_short_is_named(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(raw)
    with pytest.raises(StorageError, match=r"a\.log\.gz: it is damaged or cut short: "):
        read_log(path)
    packed = bytearray(gzip.compress(bytes(range(256))))
    packed[12:20] = b"\xff" * 8
    path.write_bytes(packed)
    with pytest.raises(StorageError, match=r"a\.log\.gz: it is damaged or cut short: "):
        read_log(path)


TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\t0-15\t0\nGPU1\tPHB\t X \t0-15\t0\n\nLegend:\n"


def test_a_topology_is_kept_with_what_was_measured_there(tmp_path: Path) -> None:
    profile = single_profile(tmp_path, [*TOPOLOGY.split("\n"), *made.table()])
    assert profile.provenance["topology"] == TOPOLOGY.partition("\n\n")[0].strip()
    with pytest.raises(ValueError, match="line 1: a GPU topology without measurements"):
        read(tmp_path, TOPOLOGY)


# ---- figures that hardly agree

OFF_BY_A_DIGIT = {  # what is replaced in a log, by what is off by a digit, and by what is off by a factor; the warning
    "pairs": (made.FLEET, "635876.0,13.51", "635876.0,13.53", "635876.0,13.84", "line 2: 13.53 GB/s does not fit"),
    "OSU": (made.OSU_PAIRS, "9418651.23", "9418700.00", "9644700.00", "line 6: 9644.70 MB/s are not 9418700.00"),
    "bench": (made.BENCH, "12.47GBps", "12.51GBps", "12.77GBps", "line 6: busbw 12.51 does not fit"),
    "trials": (made.TRIALS, "busbw: 667.9252", "busbw: 668.1", "busbw: 684.0", "no throughput fits a busbw of 66"),
    "IMB": (made.IMB_MESSAGES, "10623.87", "10624.90", "11140.00", "10624.90 MB/s are not 1048576 bytes in 98.70 µs"),
    "sums": (made.NVBANDWIDTH, "memcpy_ce 51.97", "memcpy_ce 52.00", "memcpy_ce 53.22", "do not have the sum 52.00"),
    "shmoo": (made.SHMOO, "12.4 GB/s", "12.6 GB/s", "12.9 GB/s", "line 9: 12.6 GB/s is not 60000000 bytes in 0.00484"),
    "hip": (made.HIP, "21.6897 21", "21.7000 21", "22.0500 21", "line 8: 21.7000 ms are not 536870912 bytes"),
    "gains": (made.QUADRO, "2.941", "2.945", "3.012", "line 7: a gain of 2.945 is not 11.021 GB/s over 3.748"),
}


@pytest.mark.parametrize("name", OFF_BY_A_DIGIT)
def test_a_figure_that_is_off_by_a_digit_is_a_warning_and_by_a_factor_an_error(name: str, tmp_path: Path) -> None:
    text, old, digit, factor, words = OFF_BY_A_DIGIT[name]
    assert text.count(old) == 1
    assert all("warning" not in str(dict(profile.provenance["source"])) for profile in read(tmp_path, text))
    notes = [profile.provenance["source"].get("notes", "") for profile in read(tmp_path, text.replace(old, digit))]
    (note,) = [note for note in notes if "warning" in note]
    assert "warning: a printed figure does not agree with the others to its last digit: " in note
    assert words in note
    with pytest.raises(ValueError, match=r"a\.log: (line \d|\w+)"):
        read(tmp_path, text.replace(old, factor))


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


def test_a_bus_bandwidth_that_differs_in_its_last_digit_is_read_with_a_warning(tmp_path: Path) -> None:
    profile = single_profile(tmp_path, table_with("69.27", "121.30"))
    assert "bus bandwidths do not fit 8 ranks" in profile.provenance["source"]["notes"]
    assert "bus bandwidths do not fit" not in str(
        dict(single_profile(tmp_path, table_with("69.27", "121.22")).provenance["source"])
    )


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


def test_a_number_of_many_digits_is_read(tmp_path: Path) -> None:
    assert single_profile(tmp_path, table_with("69.27", f"121.22{'0' * 500}")).num_ranks == 8


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
    assert main(["import", str(log), "--kind", "osu"]) == 2
    assert capsys.readouterr().err.startswith(f"rankscope: {log}: line")


COPIES = {"critical_path": 16, "df_index": 2040, "nccl_parser": 960 + 21, "rank-0": 40, "trace_diff": 228, "rank-1": 40}


@pytest.mark.skipif(not published(), reason="../shared/measurements is not there")
@pytest.mark.parametrize("name", COPIES)
def test_every_copy_of_a_published_trace_is_read(name: str) -> None:
    (path,) = (SHARED / "traces").glob(f"*{name}*")
    (profile,) = read_log(path)
    assert sum(len(point.seconds) for point in profile.points) == COPIES[name]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "# Size                  MB/s        Messages/s",
            "# Size",
            "line 4: the header must have sizes and µs or MB/s",
        ),
        ("pairs: 4", "pairs: 0", "line 1: there must be a pair of ranks"),
        ("pairs: 4", "pairs: 5" + "0" * 400, "line 1: .*too large"),
    ],
)
def test_what_no_benchmark_prints_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, made.OSU_PAIRS.replace(old, new))


def test_numbers_that_no_float_holds_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("[" + "9" * 5000 + "]")
    log = Log(path, None)
    with pytest.raises(StorageError, match="line 7: 10+ … 0+ must be a number"):
        log.number(7, 10**400)
    with pytest.raises(StorageError, match="'0.5' must be a number of at least 1"):
        log.number(1, "0.5", 1)
    with pytest.raises(StorageError, match="'0' must be a number above 0"):
        log.number(1, "0", 1e-9)
    with pytest.raises(StorageError, match="digits"):
        log.json()
