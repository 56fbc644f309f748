"""Texts of each kind that can be pasted: made up, in the form of what the programs print."""

from __future__ import annotations

# ruff: noqa: E501  # lines as they are printed
EXAMPLES = {
    "nccl-tests": """\
# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8192 maxBytes 2147483648 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   4000 on node000 device  0 [0000:10:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   4001 on node000 device  1 [0000:20:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   4002 on node000 device  2 [0000:30:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   4003 on node000 device  3 [0000:40:00] NVIDIA H100 80GB HBM3
#  Rank  4 Group  0 Pid   4004 on node000 device  4 [0000:50:00] NVIDIA H100 80GB HBM3
#  Rank  5 Group  0 Pid   4005 on node000 device  5 [0000:60:00] NVIDIA H100 80GB HBM3
#  Rank  6 Group  0 Pid   4006 on node000 device  6 [0000:70:00] NVIDIA H100 80GB HBM3
#  Rank  7 Group  0 Pid   4007 on node000 device  7 [0000:80:00] NVIDIA H100 80GB HBM3
#
#                                                  out-of-place                    in-place
#       size         count      type   redop    root    time   algbw   busbw  #wrong    time   algbw   busbw  #wrong
#        (B)    (elements)                    (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        8192          2048     float     sum      -1    10.12    0.81    1.42      0    10.74    0.76    1.33      0
       65536         16384     float     sum      -1    10.82    6.06   10.60      0    10.99    5.96   10.43      0
      524288        131072     float     sum      -1    13.74   38.17   66.80      0    14.36   36.52   63.91      0
     4194304       1048576     float     sum      -1    40.76  102.91  180.10      0    39.57  105.99  185.49      0
    33554432       8388608     float     sum      -1   253.47  132.38  231.66      0   249.63  134.42  235.23      0
   268435456      67108864     float     sum      -1  1804.25  148.78  260.36      0  1801.84  148.98  260.71      0
  2147483648     536870912     float     sum      -1  15277.0  140.57  246.00      0  14596.7  147.12  257.46      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 143.679
#
""",
    "nvbandwidth": """\
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
""",
    "nvidia-smi topo -m": """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity
GPU0     X      NV4     NODE    SYS     NODE    SYS     0-95    0
GPU1    NV4      X      NODE    SYS     PXB     SYS     0-95    0
GPU2    NODE    NODE     X      SYS     PIX     SYS     0-95    0
GPU3    SYS     SYS     SYS      X      SYS     PHB     96-191  1
NIC0    NODE    PXB     PIX     SYS      X      SYS
NIC1    SYS     SYS     SYS     PHB     SYS      X
""",
    "a job that hangs": """\
[rank0]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.
[rank0]:[E816 01:45:40.184009389 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work sequence id: 808 PG status: last enqueued work: 811, last completed work: 807.
[rank2]:[E816 01:45:41.484009389 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 807, last completed NCCL work: 807.
""",
}
