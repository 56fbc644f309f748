"""A text of each kind of evidence: what a line of a log, or a few of one process, look like."""

SAMPLES = {
    "wait": (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, "
        "NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
    ),
    "queue": (
        "[PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected by watchdog at work sequence id: 8 PG "
        "status: last enqueued work: 9, last completed work: 7"
    ),
    "error": "Traceback (most recent call last):\n  File 'train.py', line 3, in main\nKeyError: 'labels'",
    "last line": "ValueError: bad sample",
    "failure": (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-24_01:50:00\n  host      : "
        "node1\n  rank      : 2 (local_rank: 0)\n  exitcode  : -9 (pid: 4002)"
    ),
    "exit": "failed (exitcode: -9) local_rank: 2 (pid: 161617) of binary: /usr/bin/python3",
    "Open MPI": "Process name: [[43264,1],2]\n  Exit code:    1",
    "worker": "[rank0]: RuntimeError: DataLoader worker (pid 9382) is killed by signal: Killed.",
    "out of memory": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed."
    ),
    "actor": "The actor died because its node has died. Node Id: 12ab, node IP address: 10.0.0.7",
    "mismatch": (
        "Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=1OpType=BARRIER), but Rank 2 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=0OpType=BARRIER).Collectives differ in the following aspects: "
        "Sequence number: 1vs 0"
    ),
    "barrier": "[Rank 0]: Ranks 1, 12 failed to pass monitoredBarrier in 2000 ms",
    "lag": "[1, 3] finished collective #4, but didn't join collective #5 (count from 1)",
    "unfinished": "[0, 1] joined but didn't finish collective #4 (count from 1)",
    "Horovod": "Missing ranks:\n1: [DistributedGradientTape_Allreduce/cond_163/HorovodAllreduce_AddN_103_0, a/b]",
    "culprit": "Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[4]]' does not match",
    "state": (
        "Collective sequence number: 9 has errors\nexpected ranks: {0, 1}\ncollective state: "
        "scheduled\nerror msg: Culprit rank 1; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: "
        "'scheduled' does not match found state: 'completed'"
    ),
    "around": "NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 11.",
    "truncated": (
        "gpu-a:812:901 [2] include/socket.h:403 NCCL WARN Message truncated : received 524288 bytes instead of 65536"
    ),
    "same GPU": "init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000",
    "port": "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false",
    "store": "The client socket has timed out after 900s while trying to connect to (node-a, 29500).",
    "model": (
        "DDP expects same model across all ranks, but Rank 1 has 160 params, while rank 0 has inconsistent 158 params."
    ),
    "ready twice": "Parameter at index 127 with name lora_B.weight has been marked as ready twice.",
    "unused": "Parameters which did not receive grad for rank 3: head.bias, head.weight",
    "CUDA error": (
        "[PG 3 Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access"
    ),
    "Xid": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
    "NCCL's CUDA error": "node1:163028:166152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
    "connect": "socketStartConnect: Connect to fe80::16d%ib1<279> failed : Software caused connection abort",
    "link": "NCCL WARN NET/IB : Got completion from peer 10.0.0.7<43> with error 12, opcode 0, len 0, vendor err 129",
    "NCCL error": "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'",
    "stuck watchdog": (
        "[PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds "
        "without making progress in monitoring enqueued collectives."
    ),
    "id": (
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0'"
    ),
    "joined": (
        "Timed out initializing process group in store based barrier on rank 0, for key: "
        "store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)"
    ),
    "address": "wait timeout after 10000ms, keys: /default_pg/0//cpu//0/2",
    "RAS": (
        "different AllGather operation counts\n30 ranks have launched up to operation 640\n  2 ranks have "
        "launched up to operation 641"
    ),
    "stopped": "torch.distributed.elastic.multiprocessing.api.SignalException: Process 84933 got signal: 1",
    "stack": 'Thread 0x7F (active): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:1316)\n',
    "peer": "socketProgress: Connection closed by remote peer node-b<45821>",
    "gloo": "[unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
    "waits for workers": (
        "No available shared memory broadcast block found in 60 seconds. This typically happens when some "
        "processes hang"
    ),
    "timeout": "[E ProcessGroupNCCL.cpp:488] Some NCCL operations have failed or timed out.",
}
