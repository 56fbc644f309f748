"""A line of a log for each kind of evidence in a wording that no paste and no job has."""

SAMPLES = {
    "actor": "The actor died because its node has died. Node Id: 12ab, node IP address: 10.0.0.7",
    "culprit": "Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[4]]' does not match",
    "same GPU": "init.cc:795 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3b000",
    "port": "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false",
    "store": "The client socket has timed out after 900s while trying to connect to (node-a, 29500).",
    "unused": "Parameters which did not receive grad for rank 3: head.bias, head.weight",
    "CUDA error": (
        "[PG 3 Rank 3] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access"
    ),
    "GPU": "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
    "connect": "socketStartConnect: Connect to fe80::16d%ib1<279> failed : Software caused connection abort",
    "link": "NCCL WARN NET/IB : Got completion from peer 10.0.0.7<43> with error 12, opcode 0, len 0, vendor err 129",
    "out of memory": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed."
    ),
    "truncated": (
        "gpu-a:812:901 [2] include/socket.h:403 NCCL WARN Message truncated : received 524288 bytes instead of 65536"
    ),
    "stopped": "torch.distributed.elastic.multiprocessing.api.SignalException: Process 84933 got signal: 1",
    "timeout": "[E ProcessGroupNCCL.cpp:488] Some NCCL operations have failed or timed out.",
}
