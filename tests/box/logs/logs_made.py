"""Logs made up for tests, as the programs print them: figures that agree with each other."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rankscope.diagnose.pasted_examples import EXAMPLES

FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
SUMMED = ("all_reduce", "reduce_scatter", "reduce")
WHAT = {"all_reduce": "allreduce", "all_gather": "allgather", "alltoall": "all_to_all", "sendrecv": "together"}
SIZES = tuple(2**power for power in range(7, 32, 3))


class Printed(NamedTuple):
    """A line of a table: its size, and time, algbw and busbw as they are printed, out of place and in place."""

    size: int
    halves: tuple[tuple[str, str, str], ...]


def float_text(value: float, width: int) -> str:
    digits = len(str(int(value)))
    return f"{value:.2f}" if digits < width - 2 else f"{value:.1f}" if digits < width - 1 else f"{value:.0f}"


def printed(collective: str, num_ranks: int, sizes: Sequence[int] = SIZES, seed: int = 0) -> list[Printed]:
    draw = random.Random(f"{collective} {num_ranks} {seed}")
    factor = FACTORS[collective] * (num_ranks - 1) / num_ranks if collective in FACTORS else 1.0
    rows = []
    share = 4 * num_ranks if collective in FACTORS and collective != "all_reduce" else 4
    for size in (one // share * share for one in sizes):
        halves = []
        for _ in range(2):
            seconds = (10e-6 + size / 150e9) * (1 + 0.1 * draw.random())
            rate = size / seconds / 1e9
            halves.append((float_text(seconds * 1e6, 7), float_text(rate, 6), float_text(rate * factor, 6)))
        rows.append(Printed(size, tuple(halves)))
    return rows


def ranks(num_ranks: int, num_nodes: int = 1, era: int = 4, card: str = "NVIDIA H100 80GB HBM3") -> list[str]:
    each = num_ranks // num_nodes
    group = "" if era < 3 else " Group  0"
    bus = "[0x{:02x}]" if era < 4 else "[0000:{:02x}:00]"
    return [
        f"#  Rank {rank:2d}{group} Pid {4000 + rank:6d} on node{rank // each:03d} device {rank % each:2d} "
        f"{bus.format(16 * (1 + rank % each))} {card}".rstrip()
        for rank in range(num_ranks)
    ]


def table(
    collective: str = "all_reduce",
    num_ranks: int = 8,
    era: int = 4,
    num_nodes: int = 1,
    sizes: Sequence[int] = SIZES,
    listed: bool = True,
    footer: bool = True,
    rows: Sequence[Printed] | None = None,
) -> list[str]:
    """The lines of a table of nccl-tests: 1 has no root and errors, 2 has all columns, 3 groups, 4 versions."""
    rows = printed(collective, num_ranks, sizes) if rows is None else rows
    shared = collective in FACTORS and collective != "all_reduce"
    rooted = collective in ("broadcast", "reduce")
    lines = [] if era < 4 else [f"# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library={'22902'}"]
    lines += [] if era < 3 else [f"# Collective test starting: {collective}_perf"]
    last = ("", " agg iters: 1 validation: 1 graph: 0")[era > 1]
    lines += [
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) warmup iters: 5 iters: 20{last}"
    ]
    lines += ["#", "# Using devices", *(ranks(num_ranks, num_nodes, era) if listed else []), "#"]
    redop = ("sum" if collective in SUMMED else "none") if era > 1 else "sum" if collective in SUMMED else ""
    has_redop = era > 1 or collective in (*SUMMED, "alltoall")
    has_root = era > 1 or rooted
    wrong = "error" if era == 1 else "#wrong"
    half = f"   time   algbw   busbw  {wrong}"
    head = "size         count      type" + "   redop" * has_redop + "    root" * has_root
    lines += ["#" + 50 * " " + "out-of-place" + 20 * " " + "in-place", f"#       {head} {half} {half}"]
    lines += ["#        (B)    (elements)                    (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"]
    for row in rows:
        count = row.size // 4 // (num_ranks if shared else 1)
        cells = f"{row.size:12d}  {count:12d}     float"
        cells += f"  {redop:>6}" * has_redop + (f"  {0 if rooted else -1:6d}") * has_root
        for time, alg, bus in row.halves:
            cells += f"  {time:>7}  {alg:>6}  {bus:>6}  {'0e+00' if era == 1 else '0':>5}"
        lines.append(cells)
    if footer:
        values = [float(half[2]) for row in rows for half in row.halves]
        lines += ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {sum(values) / len(values):g} ", "#"]
    return lines


NVBANDWIDTH = f"""\
{EXAMPLES["nvbandwidth"]}
Running device_to_device_bidirectional_memcpy_read_ce.
memcpy CE GPU(row) <-> GPU(column) Read1 bandwidth (GB/s)
           0         1
 0       N/A    760.10
 1    760.20       N/A

SUM device_to_device_bidirectional_memcpy_read_ce_read1 1520.30

Running all_to_one_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0    142.09    142.13

SUM all_to_one_write_ce 284.22

Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0         1
 0    574.73    574.61

SUM host_device_latency_sm 1149.34
"""


def peer_to_peer(rates: Mapping[tuple[int, int], tuple[float, float]]) -> str:
    """What p2pBandwidthLatencyTest prints of three GPUs: GB/s of pairs with and without access."""
    lines = [f"Device: {gpu}, NVIDIA RTX A6000, pciBusID: {gpu}, pciDeviceID: 0, pciDomainID:0" for gpu in range(3)]
    lines += [
        "P2P Connectivity Matrix",
        "     D\\D     0     1     2",
        *[f"     {gpu}\t     1     1     1" for gpu in range(3)],
    ]
    for ways in ("Unidirectional", "Bidirectional"):
        for access, way in (("Disabled Bandwidth", 1), ("Enabled Bandwidth (P2P Writes)", 0)):
            lines += [f"{ways} P2P={access} Matrix (GB/s)", "   D\\D     0      1      2 "]
            for row in range(3):
                cells = [1450.1 if row == column else rates.get((row, column), (300, 10))[way] for column in range(3)]
                lines.append(
                    f"{row:6d} " + "".join(f"{cell:6.2f} " if cell < 1000 else f"{cell:.2f}" for cell in cells)
                )
    for access in ("Disabled Latency", "Enabled Latency (P2P Writes)"):
        lines.append(f"P2P={access} Matrix (us)")
        for clock in ("GPU", "CPU"):
            lines += [f"   {clock}     0      1      2 ", *[f"{row:6d}   1.50   1.50   1.50 " for row in range(3)], ""]
    return "\n".join(lines)
