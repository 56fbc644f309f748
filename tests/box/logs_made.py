"""Logs made up for tests, as the programs print them: figures that agree with each other."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

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


def as_json(
    collective: str = "all_reduce", num_ranks: int = 8, gpus: int = 1, sizes: Sequence[int] = SIZES
) -> dict[str, Any]:
    """What nccl-tests writes with -J."""
    rows = printed(collective, num_ranks, sizes)
    names = ("time", "alg_bw", "bus_bw")
    halves = [
        [dict(zip(names, map(float, half), strict=True)) | {"nwrong": 0.0} for half in row.halves] for row in rows
    ]
    shared = collective in FACTORS and collective != "all_reduce"
    results = [
        {"size": row.size, "count": row.size // 4 // (num_ranks if shared else 1), "type": "float", "redop": "sum"}
        | {"root": "    -1", "out_of_place": out, "in_place": inside, "actual_iterations": 20, "experiment_name": ""}
        for row, (out, inside) in zip(rows, halves, strict=True)
    ]
    for one in results:  # times to six digits after the point, bandwidths from them
        for key in ("out_of_place", "in_place"):
            half = one[key]
            half["alg_bw"] = one["size"] / half["time"] / 1e3
            factor = FACTORS[collective] * (num_ranks - 1) / num_ranks if collective in FACTORS else 1.0
            half["bus_bw"] = half["alg_bw"] * factor
    mean = sum(one[key]["bus_bw"] for one in results for key in ("out_of_place", "in_place")) / 2 / len(results)
    devices = [
        {"rank": rank, "group": 0, "pid": 100 + rank, "hostname": "node1", "device": rank, "device_hex": "0000:1b:00"}
        | {"device_info": "NVIDIA H100 80GB HBM3"}
        for rank in range(0, num_ranks, gpus)
    ]
    config = {"nthreads": 1, "ngpus": gpus, "warmup_iters": 1, "iterations": 20, "devices": devices}
    return json.loads(
        json.dumps(
            {
                "version": 2,
                "start_time": "2026-03-04 05:06:07",
                "args": [f"/home/ann/nccl-tests/build/{collective}_perf", "-J", "a.json"],
                "env": ["HOME=/home/ann", "NCCL_P2P_DISABLE=1"],
                "nccl_version": 22907,
                "config": config,
                "results": results,
                "out_of_bounds": {"count": 0, "okay": "true"},
                "average_bus_bandwidth": {"bandwidth": mean, "okay": "unchecked"},
            }
        )
    )


OSU_LATENCY = """\
$ srun -N2 --mpi=pmix ./pt2pt/osu_latency D D
# OSU MPI-CUDA Latency Test v7.5
# Size          Latency (us)
0                       1.50
8                       1.75
1024                    2.25
65536                  10.40
"""
OSU_BW = """\
    # OSU MPI-CUDA Bandwidth Test v7.5
    # Datatype: MPI_CHAR.
    # Size      Bandwidth (MB/s)        Validation
    1                       0.90              Pass
    1024                  926.30              Pass
    4194304             23989.54              Pass
"""
OSU_PAIRS = """\
# OSU MPI Multiple Bandwidth / Message Rate Test v5.7
# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)
# [ pairs: 4 ] [ window size: 64 ]
# Size                  MB/s        Messages/s
1                      10.61       10609793.75
1024                 9644.70        9418651.23
4194304             39016.14           9302.17
"""
OSU_ALLREDUCE = """\
# OSU MPI-CUDA Allreduce Latency Test v5.7
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      34.31             33.27             35.07        1000
65536                 137.90            136.15            139.51         100
"""
# Written by the format of the Intel MPI Benchmarks User Guide and its samples; the figures are made up.
IMB_HEAD = """\
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.7, MPI-1 part
#----------------------------------------------------------------
# Machine               : x86_64
# MPI Version           : 3.1

# Calling sequence was:

# IMB-MPI1 PingPong Sendrecv Allreduce Allgather Barrier

# Minimum message length in bytes:   0
# Maximum message length in bytes:   1048576
#
# MPI_Datatype for reductions    :   MPI_FLOAT
# MPI_Op                         :   MPI_SUM
#
"""
IMB_MESSAGES = f"""\
{IMB_HEAD}
#---------------------------------------------------
# Benchmarking PingPong
# #processes = 2
# ( 2 additional processes waiting in MPI_Barrier)
#---------------------------------------------------
       #bytes #repetitions      t[usec]   Mbytes/sec
            0         1000         0.21         0.00
         1024         1000         0.52      1969.23
      1048576           40        98.70     10623.87

#-----------------------------------------------------------------------------
# Benchmarking Sendrecv
# #processes = 4
#-----------------------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
            0         1000         0.33         0.35         0.34         0.00
         1024         1000         0.88         0.91         0.90      2250.55
      1048576           40       188.10       190.42       189.30     11013.30
"""
IMB_COLLECTIVES = f"""\
{IMB_HEAD}
#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.03         0.04         0.03
         1024         1000         2.31         2.62         2.47
      1048576           40       402.11       431.07       420.60

#----------------------------------------------------------------
# Benchmarking Allgather
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1024         1000         2.05         2.11         2.08
       262144          160       150.20       155.41       152.90
      1048576 out-of-mem.; needed X=   1.125 GB; use flag "-mem 1.13" or MAX_MEM_USAGE>=1.13 (IMB_mem_info.h)

#---------------------------------------------------
# Benchmarking Barrier
# #processes = 4
#---------------------------------------------------
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         0.80         0.83         0.81


# All processes entering MPI_Finalize
"""
SHMOO = """\
[CUDA Bandwidth Test] - Starting...
Running on...

 Device 0: Tesla V100-PCIE-32GB
 Shmoo Mode

....
bandwidthTest-H2D-Pinned, Bandwidth = 0.4 GB/s, Time = 0.00000 s, Size = 1000 bytes, NumDevsUsed = 1
bandwidthTest-H2D-Pinned, Bandwidth = 12.4 GB/s, Time = 0.00484 s, Size = 60000000 bytes, NumDevsUsed = 1
bandwidthTest-D2H-Paged, Bandwidth = 6070.1 MB/s, Time = 0.00527 s, Size = 33554432 bytes, NumDevsUsed = 1
bandwidthTest-D2D, Bandwidth = 758.5 GB/s, Time = 0.00008 s, Size = 60000000 bytes, NumDevsUsed = 1
Result = PASS
"""
QUICK = """\
 Device 0: NVIDIA GeForce GTX 1650
 Quick Mode

 Host to Device Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t12.6

 Device to Host Bandwidth, 1 Device(s)
 PAGEABLE Memory Transfers
   Transfer Size (Bytes)\tBandwidth(MB/s)
   33554432\t\t\t6536.0

 Device to Device Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t144.8

Result = PASS
"""
HIP = """\
Device:Device 738c Mem=32.0GB #CUs=120 Freq=1502Mhz  MallocMode=pinned
                   test        atts        units        median  mean    stddev  min     max
   H2D_Bandwidth_pinned      +064By       GB/sec        0.0000  0.0000  0.0000  0.0000  0.0000
   H2D_Bandwidth_pinned         1kB       GB/sec        0.0414  0.0411  0.0017  0.0189  0.0434
   H2D_Bandwidth_pinned    524288kB       GB/sec        24.7523 24.6708 0.1586  24.3154 24.7880
         H2D_Timepinned      +064By           ms        0.0245  0.0253  0.0240  0.0232  0.7821
         H2D_Timepinned         1kB           ms        0.0242  0.0244  0.0016  0.0230  0.0530
         H2D_Timepinned    524288kB           ms        21.6897 21.7622 0.1411  21.6585 22.0794
"""
NVBANDWIDTH = """\
nvbandwidth Version: v0.8
Driver Version: 570.86.16

Device 0: NVIDIA A100-SXM4-80GB (00000000:0c:00)
Device 1: NVIDIA A100-SXM4-80GB (00000000:22:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     26.03     25.94

SUM host_to_device_memcpy_ce 51.97

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    276.07
 1    275.19       N/A

SUM device_to_device_memcpy_write_ce 551.26

Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0         1
 0    574.73    574.61

SUM host_device_latency_sm 1149.34
"""
NV_JSON = """\
{"nvbandwidth": {"Driver Version": "570.86.16", "GPU Device list":
["0: NVIDIA GeForce RTX 5090 (00000000:0c:00): (box)",
"1: NVIDIA GeForce RTX 5090 (00000000:22:00): (box)"], "git_version": "v0.8", "testcases": [
{"bandwidth_description": "memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)",
"bandwidth_matrix": [["44.3294", "44.0729"]],
"name": "host_to_device_bidirectional_memcpy_ce", "status": "Passed", "sum": 88.4023},
{"name": "device_to_device_memcpy_read_ce", "status": "Waived"},
{"bandwidth_description": "memcpy SM CPU(row) <- GPU(column) bandwidth (GB/s)",
"bandwidth_matrix": [["31.5489", "31.0772"]],
"name": "all_to_host_memcpy_sm", "status": "Passed", "sum": 62.6261},
{"bandwidth_description": "memcpy local GPU(column) bandwidth (GB/s)", "bandwidth_matrix": [["760.777", "761.047"]],
"name": "device_local_copy", "status": "Passed", "sum": 1521.824}], "version": "v0.8"}}
"""
NV_BOTH_WAYS = """\
nvbandwidth Version: v0.8

Running device_to_device_bidirectional_memcpy_read_ce.
memcpy CE GPU(row) <-> GPU(column) Read1 bandwidth (GB/s)
           0         1
 0       N/A    760.10
 1    760.20       N/A

SUM device_to_device_bidirectional_memcpy_read_ce_read1 1520.30

memcpy CE GPU(row) <-> GPU(column) Read2 bandwidth (GB/s)
           0         1
 0       N/A    761.11
 1    760.31       N/A

SUM device_to_device_bidirectional_memcpy_read_ce_read2 1521.42

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A   1521.21
 1   1520.51       N/A

SUM device_to_device_bidirectional_memcpy_read_ce_total 3041.72

Running device_local_copy.
memcpy local GPU(column) bandwidth (GB/s)
           0         1
 0   1260.12   1261.34

SUM device_local_copy 2521.46
"""
NV_BOTH_WAYS_JSON = """\
{"nvbandwidth": {"git_version": "v0.8", "testcases": [
{"bandwidth_description": "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
"bandwidth_matrix": [["N/A", "760.1"], ["760.2", "N/A"], ["N/A", "761.11"], ["760.31", "N/A"],
["N/A", "1521.21"], ["1520.51", "N/A"]],
"name": "device_to_device_bidirectional_memcpy_read_ce", "status": "Passed", "sum": 3041.72}]}}
"""
P2P = """\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA A100, pciBusID: 21, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA A100, pciBusID: 61, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1516.99  17.24
     1  17.92 1537.94
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 1509.66 276.20
     1 275.66 1536.43
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1525.06 531.19
     1 530.78 1539.36
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.09  12.76
     1  12.87   2.08
"""
ROCM = """\
          RocmBandwidthTest Version: 2.6.0

          Device: 0,  A Processor @ 3.70GHz
          Device: 1,  AMD Instinct MI250,  GPU-9318692173497dfc,  19:0.0
          Device: 2,  AMD Instinct MI250,  GPU-6a96212172f0fcb5,  67:0.0

          Unidirectional copy peak bandwidth GB/s

          D/D       0           1           2

          0         N/A         13.750      13.769

          1         14.280      696.717     48.902

          2         14.281      49.920      586.201

          Bidirectional copy peak bandwidth GB/s

          D/D       0           1           2

          0         N/A         25.911      25.911

          1         25.911      N/A         97.678

          2         25.911      97.678      N/A
"""
GPU_COPY = """\
cpu_to_gpu0_by_sm_under_numa0 26.2409
cpu_to_gpu0_by_dma_under_numa0 26.2387
gpu0_to_cpu_by_dma_under_numa0 25.8516
gpu0_to_gpu0_by_dma 657.332
gpu0_to_gpu1_write_by_dma 279.287
gpu1_to_gpu0_read_by_sm 261.804
gpu_all_to_gpu_all_write_by_sm 55.6522
"""
QUADRO = """\
CUDA Device: Quadro RTX 6000

   Bytes    H2D Page    D2H Page  H2D Pinned  D2H Pinned H2D Speedup D2H Speedup
--------------------------------------------------------------------------------
       1       0.000       0.000       0.000       0.000       0.880       1.110
    1024       0.166       0.131       0.148       0.149       0.893       1.140
 1048576       3.748       3.405      11.021      12.030       2.941       3.533
"""
QUADRO_CSV = """\
bytes,h2d_pageable_gbps,d2h_pageable_gbps,h2d_pinned_gbps,d2h_pinned_gbps
1,0.000167392,0.000131442,0.000151264,0.0001482
1048576,3.75782,3.39241,11.0621,12.0333
"""
BENCH = """\
The average bandwidth of all_reduce over 32 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   0.65GBps |   0.33GBps |
|    1MiB |  12.47GBps |   6.44GBps |
|1_073_741_824 | 365.99GBps | 188.90GBps |
"""
TRIALS = """\
0 data size: 4.0 GB
1 data size: 4.0 GB
1:
 duration: 0.0479 sec
 algo throughput: 1335850436641.9412 bps, 1335.8504 Gbps
 busbw: 667.9252  Gbps
0:
 duration: 0.0478 sec
ignore me 7
 algo throughput: 1338717258044.6157 bps, 1338.7173 Gbps
 busbw: 669.3586  Gbps
"""
AICONFIGURATOR = """\
framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency
TRTLLM,2.27.3,NVIDIA A100-SXM4-80GB,all_gather,NCCL,half,2,256,0.00898
TRTLLM,2.27.3,NVIDIA A100-SXM4-80GB,all_reduce,NCCL,half,2,512,0.00908
TRTLLM,2.27.3,NVIDIA A100-SXM4-80GB,all_reduce,NCCL,int8,8,536870912,4.3643
"""
FLEET = """\
cluster,gpus_per_node,node_a,node_b,collective,size_bytes,time_oop_us,busbw_oop_GBps,avg_busbw_GBps
a,1,n1,n2,alltoall,17179869184,635876.0,13.51,13.4689
a,1,n1,n2,sendrecv,17179869184,1263724.0,13.59,13.5405
a,1,n1,n3,sendrecv,17179869184,18000000.0,0.97,5.05954
b,8,n1,n2,alltoall,17179869184,175763.0,91.64,91.8359
"""
TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA A100", "totalGlobalMem": 42297524224}],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "nccl_version": "2.17.1"},
    "traceEvents": [
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 1, "dur": 13, "args": args}
        for args in ({"bytes": 98304, "memory bandwidth (GB/s)": 7.5}, {"bytes": 97500, "memory bandwidth (GB/s)": 7.5})
    ]
    + [{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "ts": 1, "dur": 2.5, "args": args}
        for args in ({"bytes": 1000}, {"bytes": 1000}, {"bytes": 0}, None)]
    + [
        {"ph": "X", "cat": "kernel", "name": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork*)", "ts": 9, "dur": dur}
        | {"args": {"Collective name": "allreduce", "In msg nelems": 256, "Group size": size, "dtype": "Float"}}
        for dur, size in ((20.5, 2), (30.5, 2), (99, 4))
    ],
}  # fmt: skip
TOPOLOGY_MATRIX = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPHB\t0-15\t0
GPU1\tNV18\t X \tSYS\t0-15\t0
NIC0\tPHB\tSYS\t X \t\t

Legend:

  X    = Self
"""
NCCL_LOG = """\
box:1:2 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
#  Rank  0 on box device 0 [0x1b] NVIDIA H100 80GB HBM3
box:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
box:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 24, bw 15.000000/15.000000, type NVL/PIX, sameChannels 0
box:1:2 [0] NCCL INFO   Algorithm   |                             Tree                   |
box:1:2 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |
box:1:2 [0] NCCL INFO     AllReduce |    24.0/   6.2 |    44.5/  58.5 |    84.4/  73.1 |
"""
OTHERS = {
    "osu": (OSU_LATENCY, OSU_BW, OSU_PAIRS, OSU_LATENCY + OSU_BW),
    "imb": (IMB_MESSAGES, IMB_COLLECTIVES),
    "all_reduce_bench": (BENCH, TRIALS),
    "aiconfigurator": (AICONFIGURATOR,),
    "pairs": (FLEET,),
    "bandwidthTest": (SHMOO, QUICK),
    "hipBusBandwidth": (HIP,),
    "nvbandwidth": (NVBANDWIDTH, NV_JSON, NV_BOTH_WAYS, NV_BOTH_WAYS_JSON),
    "p2pBandwidthLatencyTest": (P2P,),
    "rocm_bandwidth_test": (ROCM,),
    "gpu_copy": (GPU_COPY,),
    "pageable_pinned": (QUADRO, QUADRO_CSV),
}
