"""Public threads, each in the form of its text with other names and numbers, and the right answer: pastes by source."""

from __future__ import annotations

from .pastes import Paste

_WAIT = (
    "[rank{0}]:[E{4} ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, "
    "OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)
_AT_WORK = (
    "[rank{0}]:[E{4} ProcessGroupNCCL.cpp:1664] [PG {5} Rank {0}] Exception (either an error or timeout) detected by "
    "watchdog at work: {1}, last enqueued NCCL work: {2}, last completed NCCL work: {3}.\n"
)
_STUCK = (
    "[rank{0}]:[E429 13:55:49.384372190 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
    "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring "
    "enqueued collectives.\n"
)
_PRINT = (
    "CollectiveFingerPrint(SequenceNumber={0}, OpType={1}, TensorShape=[{2}], TensorDtypes=Float, TensorDeviceTypes="
    "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default)))"
)
_OLD = (
    "[E ProcessGroupNCCL.cpp:458] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, "
    "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25624887 milliseconds before timing out.\n"
)
_AT = "321 02:07:08.408271257"
_SPY = (
    "Process {0}: /usr/bin/python -u train.py --local_rank={1} --epochs 1\nPython v3.8.10\n\nThread {0} "
    '(active): "MainThread"\n{2}'
)
_ELASTIC = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"

PUBLIC = [
    Paste(
        "vllm-project/vllm#8691",
        "(VllmWorkerProcess pid=1775) ERROR 09-23 10:49:22 multiproc_worker_utils.py:226] Exception in worker while "
        "processing method init_device: NCCL error: internal error, Traceback (most recent call last):\n"
        "(VllmWorkerProcess pid=1775) ERROR 09-23 10:49:22 multiproc_worker_utils.py:226]   File 'a.py', line 223\n",
        (),
        False,
        "collective of NCCL failed",
    ),
    Paste(
        "FoNDUE-HTR/Documentation#13",  # the frame of a traceback in a box is as wide as a terminal
        f"│ a/dataloader.py:1024{' ' * 79}│\n╰{'─' * 98}╯\nRuntimeError: DataLoader worker (pid 164244) is killed by "
        "signal: Killed.\n",
        (),
        True,
        "DataLoader worker .* was killed",
    ),
    Paste(
        "NVIDIA/OpenSeq2Seq#456",
        "1469.worker.1  | [2019-06-04T16:49:20Z] Stalled ops:Loss/HorovodAllreduce_Loss_mul_1_0 [missing ranks: 0]\n",
        (0,),
        True,
        "Rank 0 did not reach",
    ),
    Paste(
        "NVIDIA/Megatron-LM#1207",  # ranks within a group of pipeline stages
        _WAIT.format(3, 5, "ALLREDUCE", 1, _AT).replace("[Rank 3]", "[Rank 1]")
        + _WAIT.format(2, 5, "ALLREDUCE", 1, _AT).replace("[Rank 2]", "[Rank 0]"),
        (),
        False,
        "nothing shows that the lines are of one group",
    ),
    Paste(
        "hiyouga/LlamaFactory#7396",  # numbers of lines, eight ranks, a group that only has a number
        "".join(
            f"[{80746 + rank}] "
            + _WAIT.format(rank, 1580, "ALLREDUCE", 466119168, _AT)
            + f"[{80755 + rank}] "
            + _AT_WORK.format(rank, 1580, 1582, 1579, _AT, 1)
            for rank in range(8)
        ),
        (),
        False,
        "Ranks 0 to 7 wait in collective 1580",
    ),
    Paste(
        "hiyouga/LlamaFactory#6269",  # a rank of which there is no line
        "".join(
            _WAIT.format(rank, 7753, "_REDUCE_SCATTER_BASE", 544997376, _AT)
            + _AT_WORK.format(rank, 7753, 7755, 7752, _AT, 1)
            for rank in (0, 4, 3, 2, 6, 5, 7)
        ),
        (1,),
        False,
        "no line",
    ),
    Paste(
        "XPixelGroup/BasicSR#737",
        "".join(
            _WAIT.format(rank, 808, "ALLREDUCE", 9801523, "626 06:24:44.903")
            + _AT_WORK.format(rank, 808, 811, 807, "626 06:24:44.906", "ID 0 PG GUID 0(default_pg)")
            for rank in (1, 0, 2, 3)
        ),
        (),
        False,
        "none is missing",
    ),
    Paste(
        "pytorch/pytorch#118369",  # rank 0 speaks of several calls, far from those of rank 7
        "Epoch 0:   6%|██   | 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6, v_num=95nc]"
        + _OLD.format(0, 96120)
        + _OLD.format(0, 96117)
        + _OLD.format(7, 64088),
        (),
        False,
        "cannot tell",
    ),
    Paste(
        "om-ai-lab/VLM-R1#257",  # broken by a terminal, with blanks at the end of each line
        "\n".join(f"{_STUCK.format(6)[at : at + 116]:<116}" for at in range(0, len(_STUCK), 116)),
        (),
        True,
        "Rank 6: the watchdog thread itself hangs",
    ),
    Paste(
        "verl-project/verl#1158",
        _STUCK.format(2).replace("0(default_pg)", "9") + _STUCK.format(4),
        (),
        True,
        "anks 2 and 4: the",
    ),
    Paste(
        "snowflakedb/ArcticTraining#219",  # one rank waits, the watchdogs of others hang
        _STUCK.format(7) + _WAIT.format(2, 120049, "_ALLGATHER_BASE", 16384000, "626 05:06:30.9") + _STUCK.format(5),
        (),
        True,
        "anks 5 and 7: the watchdog",
    ),
    Paste(
        "vllm-project/vllm#5484",  # colours whose first byte is lost, and Ray's labels
        "[36m(RayWorkerWrapper pid=4009)[0m [rank1]:[E ProcessGroupNCCL.cpp:563] [Rank 1] Watchdog "
        "caught collective operation timeout: WorkNCCL(SeqNum=158046, OpType=GATHER, NumelIn=2867200, NumelOut=0, "
        "Timeout(ms)=600000) ran for 600027 milliseconds before timing out.\n(RayWorkerWrapper pid=4009) [rank1]:[E "
        "ProcessGroupNCCL.cpp:1537] [PG 1 Rank 1] Timeout "
        "at NCCL work: 158046, last enqueued NCCL work: 158046, last completed NCCL work: 158045.\n",
        (),
        False,
        "collectives of rank 1",
    ),
    Paste(
        "vllm-project/vllm#1957",
        "(RayWorkerVllm pid=409241) [E ProcessGroupNCCL.cpp:474] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for "
        "1800762 milliseconds before "
        "timing out.\n(RayWorkerVllm pid=409240) [E ProcessGroupNCCL.cpp:488] Some NCCL operations have "
        "failed or timed out.\n"
        "(RayWorkerVllm pid=409240) [E ProcessGroupNCCL.cpp:915] [Rank 0] NCCL watchdog thread "
        "terminated with exception: [Rank 0] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=1800000) ran for 1800790 milliseconds before timing out.\n",
        (),
        False,
        "anks 0 and 1 wait in collective 1",
    ),
    Paste(
        "modelscope/ms-swift#9443",
        "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        + _PRINT.format(3104, "ALLREDUCE", 195812480)
        + ", but Rank 0 is running collective: "
        + _PRINT.format(3104, "ALLREDUCE", 51123456)
        + ".Collectives differ in the following aspects:   Tensor Tensor shapes: 195812480vs 51123456\n",
        (0, 1),
        False,
        "cannot tell which",
    ),
    Paste(
        "pytorch/pytorch#78022",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: "
        + _PRINT.format(4, "BROADCAST", 34112).replace("SequenceNumber=4, ", ""),
        (0,),
        True,
        "BROADCAST",
    ),
    Paste(
        "NVIDIA/nccl#531",
        "n136-1:201800:202100 [2] transport/net_ib.cc:757 NCCL WARN NET/IB : collective mismatch error "
        "local size 4096 remote 8192 addr 7f33f878 rkey 1811 seq 3/3\n",
        (),
        False,
        "GPU 2 of n136-1",
    ),
    Paste(
        "NVIDIA/nccl#1911",
        "Warnings\n========\n\n#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different "
        "AllGather operation counts\n"
        "  30 ranks have launched up to operation 640\n  2 ranks have launched up to operation 641\n"
        "  Rank 12 -- GPU 4 managed by process 323032 on node 10.1.19.12\n"
        "  Rank 13 -- GPU 5 managed by process 323033 on node 10.1.19.12\n",
        (),
        False,
        "all others are behind",
    ),
    Paste(
        "NVIDIA/nccl#1730",  # RAS is content, and one rank waits
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    0         1      "
        "  32         8       256       256   RUNNING      OK\n\nErrors\n======\n\nWarnings\n========\n\n"
        + _WAIT.format(118, 2398459, "ALLREDUCE", 8652160, _AT),
        (),
        False,
        "collectives of rank 118",
    ),
    Paste(
        "ZhehengJiangLancaster/AMVUR#2",  # typed from a picture
        f"{_ELASTIC}Root Cause (first observed failure):\n[0]:\n  time      : 2023-09-14_01:45:50\n  host      : ding\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 36071)\n  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 36071\n",
        (2,),
        True,
        "SIGKILL",
    ),
    Paste(
        "hpcaitech/ColossalAI#3514",
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 812914 closing signal SIGTERM\n"
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: "
        "812917) of binary: /bin/python\n",
        (),
        True,
        "ocal rank 3 was killed by SIGKILL",
    ),
    Paste(
        "lmzpai/roboMamba#10",
        "E0325 20:57:27.620000 2606 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: -9) "
        f"local_rank: 5 (pid: 2630) of binary: /bin/python\n{_ELASTIC}test.py FAILED\n",
        (),
        True,
        "ocal rank 5 was killed",
    ),
    Paste(
        "mmrotate#501",
        "RuntimeError: DataLoader worker (pid 164244) is killed by signal: Killed. \n",
        (),
        True,
        "DataLoader worker .* was killed",
    ),
    Paste(
        "horovod/horovod#1012",
        "[1,0]<stderr>:[2019-04-13 13:53:31.851506: W horovod/common/operations.cc:588] dense_1_bias_0 "
        "[missing ranks: 1]\n"
        "[1,0]<stderr>:[2019-04-13 13:53:31.851547: W horovod/common/operations.cc:588] dense_bias_0 "
        "[missing ranks: 1]\n",
        (1,),
        True,
        "Rank 1 did not reach",
    ),
    Paste(
        "horovod/horovod#364",
        "Stalled ops: \nallreduce.conv1.weight [ready ranks: 0, 7, 3, 2, 4, 6], \nallreduce.bn1.bias "
        "[ready ranks: 0, 7, 3, 4, 2, 6], \n",
        (1, 5),
        True,
        "anks 1 and 5",
    ),
    Paste(
        "horovod/horovod#100",
        "Stalled ops: \nmodel/gradients_concat_0 [ready ranks: 1], \nmodel/gradients_AddN_58_0 [ready ranks: 1], \n",
        (0,),
        True,
        "Rank 0 did not submit",
    ),
    Paste(
        "huggingface/transformers#12989",  # both wait while DeepSpeed starts
        _SPY.format(
            147,
            0,
            "    broadcast (torch/distributed/distributed_c10d.py:1076)\n    initialize (deepspeed/__init__.py:120)\n",
        )
        + _SPY.format(
            148,
            1,
            "    broadcast (torch/distributed/distributed_c10d.py:1076)\n    initialize (deepspeed/__init__.py:120)\n",
        ),
        (),
        False,
        "broadcast",
    ),
    Paste(
        "deepspeedai/DeepSpeed#860",  # one stack, without a rank
        "Thread 0x00007f57caf71740 (most recent call first):\n  File 'torch/cuda/streams.py', line 95 in synchronize\n"
        "  File 'deepspeed/runtime/zero/stage3.py', line 490 in _synchronize_communication\n  File "
        "'train.py', line 9 in <module>\n",
        (),
        False,
        "cannot tell",
    ),
    Paste(
        "vllm-project/vllm-ascend#3717",
        "Processed prompts:   0%|      | 0/4 [00:00<?, ?it/s, est. speed input: 0.00 "
        "toks/s][rank0]:[W1209 11:24:53.753104426 "
        "compiler_depend.ts:117] Warning: Driver Version:  is invalid\n(EngineCore_DP0 pid=323240) INFO 12-09 11:25:53 "
        "[shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds. This "
        "typically happens when\n",
        (),
        False,
        "by itself is no error",
    ),
    Paste(
        "xdit-project/xDiT#147",
        "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process will "
        "be terminated after dumping "
        "debug info. workMetaList_.size()=3\n[rank4]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] "
        "Heartbeat monitor timed out! Process will be terminated\n",
        (),
        True,
        "anks 0 and 4: the watchdog",
    ),
]
