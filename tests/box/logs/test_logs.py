"""Logs of other programs: every figure that is printed, and what is not stated is not there."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankscope.box import Profile, read_log
from rankscope.box.judging.shares import LOW
from rankscope.box.judging.verdict import judge
from rankscope.box.logs import FAULT, merged
from rankscope.cli import main

from . import logs_made as made

UNNAMED = {("alltoall", 2), ("all_gather", 2), ("sendrecv", 1), ("sendrecv", 2)}  # nothing tells them apart
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")
Times = list[tuple[int, bool, float]]


def read(tmp_path: Path, text: str | Sequence[str], **options: Any) -> list[Profile]:
    path = tmp_path / "a.log"
    path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n")
    return read_log(path, **options)


def single_profile(tmp_path: Path, text: str | Sequence[str], **options: Any) -> Profile:
    (profile,) = read(tmp_path, text, **options)
    return profile


def times(profile: Profile) -> Times:
    """The times of a table in the order of sizes."""
    return [(p.num_bytes, p.options["in_place"], s) for p in profile.points for s in p.seconds]


def printed_times(rows: Sequence[made.Printed]) -> Times:
    return [
        (r.size, bool(at), pytest.approx(float(h[0]) / 1e6, rel=1e-5)) for r in rows for at, h in enumerate(r.halves)
    ]


def notes(profile: Profile) -> str:
    return str(profile.provenance["source"].get("notes", ""))


ROWS = made.printed("all_reduce", 8)

# ---- tables of nccl-tests


@pytest.mark.parametrize("era", [1, 2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_tables_of_four_eras_are_read(tmp_path: Path, collective: str, era: int) -> None:
    lines = made.table(collective, era=era)
    stated = {}
    if (collective, era) in UNNAMED:
        with pytest.raises(ValueError, match=r"line \d+: the collective .* --collective$"):
            read(tmp_path, lines)
        stated = {"collective": collective}
    rows = made.printed(collective, 8)
    profile = single_profile(tmp_path, lines, **stated)
    assert times(profile) == printed_times(rows)
    assert {point.what for point in profile.points} == {made.WHAT.get(collective, collective)}
    assert (profile.num_ranks, profile.ranks_per_node, profile.backend) == (8, (8,), "nccl")
    assert [gpu["name"] for gpu in profile.provenance["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 8
    assert profile.protocol["iterations"] == 20
    assert notes(profile) == ""


IS_ROW = re.compile(r"float +(?:sum|none) ")
Lines = list[str]


def each_row(change: Callable[[str], str]) -> Callable[[Lines], Lines]:
    """Return what changes the rows of a log; a changed row may be several lines."""
    return lambda lines: [
        part for line in lines for part in (change(line) if IS_ROW.search(line) else line).split("\n")
    ]


VARIED: dict[str, Callable[[Lines], Lines]] = {
    "MPI's tag": lambda lines: [f"[1,0]<stdout>:{line}" for line in lines],
    "srun's label": lambda lines: [f" 0: {line}" for line in lines],
    "quoted": lambda lines: [f"> > {line}" for line in lines],
    "a prefix of one's own": lambda lines: [f"run(), common.cu:998, {line}" for line in lines],
    "colours and DOS": lambda lines: [f"\x1b[32m{line}\x1b[0m\r" for line in lines],
    "tabs": lambda lines: [re.sub(" +", "\t", line) for line in lines],
    "a table of Markdown": lambda lines: ["|".join(["", *line.split(" "), ""]) for line in lines],
    "blanks that do not break": lambda lines: [line.replace(" ", "\u00a0") for line in lines],
    "escapes of HTML": lambda lines: [line.replace("-", "&#45;") for line in lines],
    "no number signs": lambda lines: [line.replace("#wrong", "wrong").lstrip("#") for line in lines],
    "dates before": lambda lines: [f"2026-03-04T05:06:07.123Z {line}" for line in lines],
    "tags inside rows": each_row(lambda line: line.replace("float", "[1,3]<stdout>:float")),
    "tags at cells": each_row(lambda line: re.sub(r"(sum +-1)", r"\1[0]", line)),
    "the choices of rccl-tests": lambda lines: [
        f"{line}  algo  proto  nchannels" if "busbw" in line and "size" in line else line
        for line in each_row(lambda line: f"{line}  {'Direct' if '  128 ' in line else 'RING'}    LL128          32")(
            lines
        )
    ],
    "no header": lambda lines: [line for line in lines if "busbw" not in line],
    "a time at the end of each row, as by -T": lambda lines: [
        f"{line}           timestamp" if "busbw" in line and "size" in line else line
        for line in each_row(lambda line: f"{line}  2026-03-04 12:11:10")(lines)
    ],
    "a blank in the name of the host": lambda lines: [line.replace("on node000", "on my node000") for line in lines],
    "no name of the host": lambda lines: [line.replace("on node000", "on       ") for line in lines],
    "a shell before and after": lambda lines: ["$ module load x | cat", *lines, "", "ann@node:~$ exit"],
}


@pytest.mark.parametrize("name", VARIED)
def test_what_surrounds_rows_does_not_matter(tmp_path: Path, name: str) -> None:
    profile = single_profile(tmp_path, VARIED[name](made.table()))
    assert times(profile) == printed_times(ROWS)
    assert (profile.num_ranks, profile.num_nodes) == (8, 1)
    assert {gpu["name"] for gpu in profile.provenance["gpus"]} == {"NVIDIA H100 80GB HBM3"}
    assert notes(profile) == ""


def test_rows_that_are_cut_are_left_out_and_named(tmp_path: Path) -> None:
    lines = made.table()
    first, second, *_ = [place for place, line in enumerate(lines) if IS_ROW.search(line)]
    lines[first] = lines[first][:70]
    lines[second] = lines[second].replace("  0", "  O", 1)
    profile = single_profile(tmp_path, [*lines[: second + 1], "   ...", *lines[second + 2 :]])
    assert times(profile) == printed_times(ROWS[3:])
    assert f"line {first + 1} is cut" in notes(profile)
    assert f"line {second + 1} is cut" in notes(profile)


@pytest.mark.parametrize("end", [20, 33, 43], ids=["in the count", "in the type", "after the type"])
def test_a_row_that_ends_before_its_times_is_named(tmp_path: Path, end: int) -> None:
    lines = made.table()
    last = max(place for place, line in enumerate(lines) if IS_ROW.search(line))
    profile = single_profile(tmp_path, [*lines[:last], lines[last][:end], *lines[last + 1 :]])
    assert times(profile) == printed_times(ROWS[:-1])
    assert notes(profile) == f"line {last + 1} is cut or damaged, and left out"


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_a_size_that_has_lost_digits_is_left_out_and_named(tmp_path: Path, collective: str) -> None:
    rows = made.printed(collective, 8)
    for lost in (rows[0].size, rows[-1].size):
        lines = [line.replace(f" {lost} ", f" {str(lost)[1:]} ", 1) for line in made.table(collective)]
        profile = single_profile(tmp_path, lines)
        assert times(profile) == printed_times([row for row in rows if row.size != lost])
        assert "is cut or damaged" in notes(profile)
    assert FAULT not in notes(profile)


def test_times_of_the_cpu_are_no_rate(tmp_path: Path) -> None:
    text = "\n".join(made.table()).replace("   time ", "cputime ")
    profile = single_profile(tmp_path, text)
    assert times(profile) == printed_times(ROWS)
    assert profile.protocol["clock"] == "cpu"
    assert notes(profile).startswith(f"{FAULT}the times are those of the CPU")
    assert {finding.kind for finding in judge(profile)} <= {"stated_fault", "p2p_off"}


def test_no_cut_makes_a_point_that_the_whole_log_does_not_have(tmp_path: Path) -> None:
    draw = random.Random(3)
    text = "\n".join(made.table())
    whole = times(single_profile(tmp_path, text))
    num_read = 0
    for _ in range(100):
        start, stop = sorted(draw.sample(range(len(text)), 2))
        try:
            cut = read(tmp_path, text[start:stop], num_ranks=8, collective="all_reduce")
        except ValueError:
            continue
        num_read += 1
        # The last time may have lost digits.
        assert set(times(cut[0])[:-2]) <= set(whole)
    assert num_read > 20


def test_several_tables_are_several_profiles(tmp_path: Path) -> None:
    lines = [line for name in COLLECTIVES for line in [*made.table(name), "", "done"]]
    profiles = read(tmp_path, lines)
    assert [profile.points[0].what for profile in profiles] == [made.WHAT.get(name, name) for name in COLLECTIVES]
    for name, profile in zip(COLLECTIVES, profiles, strict=True):
        assert times(profile) == printed_times(made.printed(name, 8))
    one_process = [line.replace("Pid   400", "Pid 4000 #") for line in made.table(footer=False)]
    again = read(tmp_path, [*one_process, *made.table()])  # the first one lost its average
    assert [len(profile.points) for profile in again] == [18, 18]
    assert FAULT not in str(again)
    without_a_row = [re.sub("float .*", "float", line) for line in made.table()]
    (cut,) = read(tmp_path, [*made.table(), *without_a_row])
    assert "cut or damaged" in cut.provenance["source"]["notes"]


def test_the_number_of_ranks_follows_only_where_it_can_be_no_other(tmp_path: Path) -> None:
    for number in (2, 3, 8, 16, 64):
        profile = single_profile(tmp_path, made.table(num_ranks=number, listed=False))
        assert (profile.num_ranks, profile.num_nodes) == (number, None)
    assert single_profile(tmp_path, made.table("all_gather", 24, listed=False)).num_ranks == 24
    broadcast = made.table("broadcast", listed=False)
    assert single_profile(tmp_path, broadcast, num_ranks=8).num_ranks == 8
    sweep = [line for number in (2, 4, 8) for line in made.table(num_ranks=number)]
    assert [profile.num_ranks for profile in read(tmp_path, sweep)] == [2, 4, 8]
    with pytest.raises(ValueError, match="--num-ranks"):
        merged(read(tmp_path, sweep), "sweep")
    both = read(tmp_path, [*sweep, *broadcast], num_ranks=4)  # states no number, so it is of the number given
    assert [(profile.points[0].what, profile.num_ranks) for profile in both] == [("allreduce", 4), ("broadcast", 4)]
    for wrong in ({"num_ranks": 5}, {"collective": "gossip"}):
        with pytest.raises(ValueError, match="5 ranks|collective"):
            read(tmp_path, sweep, **wrong)


def test_versions_variables_paths_and_cards_are_told(tmp_path: Path) -> None:
    lines = ["mpirun -np 16 -x NCCL_IB_HCA=mlx5_0,mlx5_3 ./all_reduce_perf", *made.table(num_ranks=16, num_nodes=2)]
    said = {
        "NCCL_P2P_DISABLE set by environment to 1": "",
        "NCCL version 2.25.1+cuda12.8": "",
        "Using network IB": "NET/IB",
        "Using network AWS Libfabric": "AWS Libfabric",
        "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB eth0": "card mlx5_0, card mlx5_3 400 Gbit/s",
        "NET/IB: [1] mlx5_3:uverbs3:1/RoCE provider=Mlx5 speed=400000 context=0x0": "",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA": "paths with GDRDMA: 1",
        "Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1": "paths without GDRDMA: 1",
        "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct": "SHM",
    }
    lines[3:3] = [f"node000:1:2 [0] NCCL INFO {line}" for line in said]
    provenance = single_profile(tmp_path, lines).provenance
    assert (provenance["num_nodes"], provenance["ranks_per_node"]) == (2, (8, 8))
    assert provenance["environment"] == "NCCL_IB_HCA=mlx5_0,mlx5_3 NCCL_P2P_DISABLE=1"
    words = ", ".join(filter(None, said.values())).split(", ")
    assert sorted(provenance["network"].split(", ")) == sorted(words)
    assert provenance["gpus"][0] == {"name": "NVIDIA H100 80GB HBM3", "nccl": "2.25.1"}


# ---- what makes the figures worthless


def run_on(host: str, seed: int) -> list[str]:
    rows = made.printed("all_reduce", 8, seed=seed)
    lines = made.table(rows=rows)
    return [re.sub(r"Pid +\d+ on +node000", f"Pid {seed} on {host}", line) for line in lines]


def test_runs_that_are_mixed_line_by_line_are_separate(tmp_path: Path) -> None:
    """Their times are iterations of the same points; nothing crossed the network."""
    draw = random.Random(1)
    runs = [run_on("a", 1), run_on("b", 2)]
    head = next(place for place, line in enumerate(runs[0]) if "busbw" in line) + 2  # as far as both are alike
    mixed = runs[0][:head] + runs[1][:head]
    rows = [run[head:] for run in runs]
    while any(rows):
        mixed.append(draw.choice([run for run in rows if run]).pop(0))
    profile = single_profile(tmp_path, mixed)
    both = [time for run in runs for time in times(single_profile(tmp_path, run))]
    assert sorted(times(profile)) == sorted(both)
    assert (profile.num_ranks, profile.num_nodes) == (8, 1)
    assert notes(profile).startswith(f"{FAULT}2 separate runs of 8 ranks each, each on its own host: nothing crossed")
    assert "MPI=1" in notes(profile)


def test_ranks_on_one_gpu_and_wrong_results_come_first(tmp_path: Path) -> None:
    shared = [line.replace("[0000:20:00]", "[0000:10:00]") for line in made.table()]
    assert notes(single_profile(tmp_path, shared)) == f"{FAULT}2 ranks share a GPU with another one"
    profile = single_profile(tmp_path, each_row(lambda line: re.sub(r"0$", "3", line))(made.table()))
    assert notes(profile) == f"{FAULT}{3 * len(ROWS)} elements of the results are wrong"
    assert profile.protocol["verified"] is False


def test_iterations_of_a_text_are_a_spread_round_the_mean(tmp_path: Path) -> None:
    lines = [line.replace("#wrong", "#wrong  i_min  i_max  i_p99  i_cv%") for line in made.table()]
    spread = each_row(
        lambda line: re.sub(r"(sum +-1)((?: +\S+){4})(.*)", r"\1\2 1.0 9e+09 8.5 3.1\3 2.0 9e+09 7.5 2.1", line)
    )
    profile = single_profile(tmp_path, spread(lines))
    assert [point.median_s for point in profile.points] == [row[2] for row in printed_times(ROWS)]
    assert {point.seconds[0] for point in profile.points} == {1e-6, 2e-6}
    assert {point.seconds[2] for point in profile.points} == {9000.0}


# ---- other programs


def rate(profile: Profile, **options: Any) -> float:
    (point,) = profile.select("transfer", **options)
    assert (point.num_bytes, point.options["size"]) == (10**9, "not stated")
    return round(point.algbw_bytes_per_s / 1e9, 2)


def test_matrices_are_read_and_those_of_no_single_copies_named(tmp_path: Path) -> None:
    text = single_profile(tmp_path, made.NVBANDWIDTH)
    assert len(text.points) == 4
    assert rate(text, direction="h2d", gpu=1, method="pinned") == 25.94
    assert rate(text, method="write", src=1, dst=0) == 275.19  # the arrows of the titles point the other way
    read = single_profile(tmp_path, made.NVBANDWIDTH.replace("device_memcpy_write", "device_memcpy_read"))
    assert rate(read, method="read", src=0, dst=1) == 275.19  # the GPU of the row reads from that of the column
    assert text.provenance["gpus"] == ({"name": "NVIDIA A100-SXM4-80GB"},) * 2
    old = made.NVBANDWIDTH.replace(" N/A", "0.00").replace("275.19", "  0.00")  # the word of old versions for no copy
    assert len(single_profile(tmp_path, old).points) == 3
    for name in ("host_device_latency_sm", "all_to_one_write_ce", "device_to_device_bidirectional_memcpy_read_ce"):
        assert f"{name} is left out" in notes(text)


def test_a_matrix_that_is_cut_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    whole = single_profile(tmp_path, made.NVBANDWIDTH)
    again = made.NVBANDWIDTH + made.NVBANDWIDTH.replace("26.03", "16.03")  # with another size of buffer
    assert single_profile(tmp_path, again).points == whole.points
    cut = single_profile(tmp_path, made.NVBANDWIDTH.partition("275.19")[0] + "27")
    assert cut.points == whole.select(direction="h2d")
    assert "device_to_device_memcpy_write_ce is left out: it is cut" in notes(cut)
    excerpt = re.sub(r"Running \w+\.", "...", made.NVBANDWIDTH)  # the names stand with the sums
    assert single_profile(tmp_path, excerpt).points == whole.points


def test_what_was_waived_is_named(tmp_path: Path) -> None:
    waived = "Waiving device_to_device_memcpy_write_ce.\n"
    assert "waived device_to_device_memcpy_write_ce" in notes(single_profile(tmp_path, made.NVBANDWIDTH + waived))
    with pytest.raises(ValueError, match=r"nothing was measured: .* waived .* peer-to-peer"):
        read(tmp_path, "nvbandwidth Version: v0.8\n" + waived)


@pytest.mark.parametrize(
    ("rates", "kinds"),
    [
        ({(0, 1): (6.2, 22.4), (1, 0): (6.4, 22.5)}, [LOW]),
        ({(0, 1): (258.0, 13.2), (1, 0): (257.0, 13.1)}, ["copies"]),
        ({(0, 1): (258.0, 13.2), (0, 2): (6.2, 22.4)}, [LOW]),
        ({(0, 1): (20.9, 21.7), (1, 0): (22.4, 22.6)}, ["copies"]),
    ],
)
def test_matrices_of_peer_to_peer_copies_are_read_and_judged(
    tmp_path: Path, rates: dict[tuple[int, int], tuple[float, float]], kinds: list[str]
) -> None:
    profile = single_profile(tmp_path, made.peer_to_peer(rates))
    for (source, target), (peer, host) in rates.items():
        pair = {"src": source, "dst": target, "both": False, "size": "not stated"}
        (written,) = profile.select("transfer", 10**9, method="write", **pair)
        (staged,) = profile.select("transfer", 10**9, method="through host memory", **pair)
        assert written.algbw_bytes_per_s == pytest.approx(peer * 1e9, rel=1e-4)
        assert staged.algbw_bytes_per_s == pytest.approx(host * 1e9, rel=1e-4)
    (late,) = profile.select("transfer", 0, method="write", src=0, dst=1)
    assert late.median_s == 1.5e-6
    assert len(profile.points) == 6 * 6  # of each pair of three GPUs, in both directions
    assert profile.provenance["gpus"] == ({"name": "NVIDIA RTX A6000"},) * 3
    assert [finding.kind for finding in judge(profile)] == kinds
    cut = single_profile(tmp_path, made.peer_to_peer(rates).rpartition("\n   CPU")[0].rpartition("\n     2")[0])
    assert "is left out: it is cut" in notes(cut)


# ---- what is refused


REFUSED = {
    "nothing": ("hello\n", "not a log"),
    "no rows": (made.ranks(8), "whole row"),
    "another program": ("D\\D  0  1\n0 941.77  19.93\n", "not a log"),
    "JSON of another program": ('{"a": 1}', "not a log"),
    "columns of another program": (
        "#  size  count  time  algbw  busbw\n  3221225472  805306368  28286  113.88\n",
        "not a log",
    ),
    "messages, which are not verified in place": (
        each_row(lambda line: re.sub(r"0$", "N/A", line))(made.table(era=2)),
        "--collective",
    ),
    "of seven ranks": (made.table(rows=[*ROWS, *made.printed("all_reduce", 7)]), "stated as 8"),
    "no ranks": (made.table("broadcast", listed=False), "--num-ranks"),
    "an unknown program": (
        [re.sub("all_reduce", "x", line.replace("sum", "none")) for line in made.table()],
        "--collective",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_log_is_one_error_with_its_name(tmp_path: Path, name: str) -> None:
    text, words = REFUSED[name]
    with pytest.raises(ValueError, match=rf"a\.log: .*{words}") as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


# ---- the command


def test_the_command_writes_one_machine_and_replaces_nothing_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, other, output, script = (tmp_path / name for name in ("a.b.log", "b.log", "box.json", "train.py"))
    log.write_text("\n".join([*made.table(), *made.table("all_gather")]))
    other.write_text("\n".join(made.table()).replace("NVIDIA", "AMD"))
    script.write_text("print(1)\n")
    assert [main(["import", str(log), "-o", str(path)]) for path in (output, output, script, log)] == [0, 2, 2, 2]
    assert re.search(r"a\.b: .*8 ranks", capsys.readouterr().out)
    assert script.read_text() == "print(1)\n"
    box = Profile.load(output)
    assert [len(box.select(what)) for what in ("allreduce", "allgather")] == [18, 18]
    assert (box.provenance["name"], box.num_ranks) == ("box", 8)
    assert main(["import", str(log), "-o", str(script), "--force"]) == 0
    assert Profile.load(script).points == box.points
    assert main(["import", str(log), str(other), "-o", str(tmp_path / "two.json")]) == 2
    assert not (tmp_path / "two.json").exists()
