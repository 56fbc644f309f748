"""What tools report, what launchers print, and errors that went on or did not: pastes as those of `pastes`."""

from __future__ import annotations

from .pastes import Paste, tagged

_WAITS = (
    "[rank{0}]:[E816 01:45:40.18 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600021 "
    "milliseconds before timing out.\n"
)
_FAILED = (
    "[rank{0}]:[E816 01:45:40.28 ProcessGroupNCCL.cpp:2271] [PG ID {1} PG GUID {2} Rank {3}] failure "
    "detected by watchdog at work sequence id: {4} PG status: last enqueued work: {4}, last completed work: {5}\n"
)
_DUMPED = (
    "[rank{0}]:[E816 01:45:40.38 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump "
    "signal due to a collective timeout from rank 0 and we will try our best to dump the debug info. "
    "Last enqueued NCCL work: {1}, last completed NCCL work: {1}.\n"
)
_RAS = "#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
_ON = "-- GPU {0} managed by process 32303{0} on node 10.0.0.{0}\n"
_JSON = (
    '        {{\n          "rank": {0},\n          "host": "10.0.0.{0}",\n          "pid": 81{0},\n      '
    '    "cuda_dev": 0,\n'
    '          "status": {{\n            "init_state": 0\n          }},\n          "collective_counts": {{\n'
    '            "AllGather": {1},\n            "AllReduce": 7\n          }}\n        }},\n'
)
_STATE = (
    "Collective sequence number: {} has errors\ngroup info: 0:default_pg\nexpected ranks: {{0, 1, 2}}\n"
    "collective state: scheduled\nerror msg: Culprit rank {}; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: "
    "'{}' does not match found state: '{}'\n"
)
_STACK = (
    'Process 711{0}: python -u train.py --local_rank={0}\nThread 711{0} (active+gil): "MainThread"\n    {1} '
    "(torch/distributed/c10d.py:9)\n    main (train.py:3)\n"
)
_CAUGHT = (
    "Traceback (most recent call last):\n  File 'train.py', line 3, in get\n    raise "
    "ValueError(4)\nValueError: bad sample 7\n"
)
_GLOO = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete\n"
_MODEL = (
    "RuntimeError: DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has "
    "inconsistent {} params.\n"
)
_SHAPE = (
    "RuntimeError: [{}]: params[0] in this process with sizes [5, 4] appears not to match sizes of the same "
    "param in process 0.\n"
)
_READY = (
    "RuntimeError: Expected to mark a variable ready only once.\nParameter at index 127 with name "
    "lora_B.weight has been marked as ready twice.\n"
)
_STALL = "submitted by subset of ranks and are waiting for remainder of ranks.\n"


REPORTS = [
    # waits of NCCL
    Paste(
        "a rank without a wait",
        _WAITS.format(0, 77, "ALLREDUCE", 4)
        + _WAITS.format(1, 77, "ALLREDUCE", 4)
        + "[rank2]: evaluating 50000 samples\n",
        (2,),
        False,
        "evaluating 50000",
    ),
    Paste(
        "one of eight without a wait",
        "".join(_WAITS.format(rank, 77, "ALLREDUCE", 4) for rank in range(8) if rank != 5)
        + "[rank5]: saving a checkpoint\n",
        (5,),
        False,
        "“saving a checkpoint”",
    ),
    Paste(
        "a small group waits",
        _WAITS.format(0, 77, "ALLREDUCE", 4)
        + _WAITS.format(1, 77, "ALLREDUCE", 4)
        + "".join(f"[rank{rank}]: evaluating 50000 samples\n" for rank in (2, 3, 4)),
        (),
        False,
        "cannot tell",
    ),
    Paste(
        "one of four calls another collective",
        "".join(_WAITS.format(rank, 1201, "ALLGATHER" if rank == 1 else "ALLREDUCE", 4) for rank in range(4)),
        (1,),
        False,
        "ALLGATHER",
    ),
    Paste(
        "two of four call another collective",
        "".join(_WAITS.format(rank, 1201, "ALLGATHER" if rank < 2 else "ALLREDUCE", 4) for rank in range(4)),
        (0, 1, 2, 3),
        False,
        "cannot tell which",
    ),
    Paste(
        "behind while others wait elsewhere",
        "".join(
            _WAITS.format(rank, 1003, "ALLREDUCE", 512) + _FAILED.format(rank, 0, "0(default_pg)", rank, 1003, 1002)
            for rank in (0, 1)
        )
        + _WAITS.format(2, 461, "ALLREDUCE", 64).replace("[Rank 2]", "[Rank 0]")
        + _FAILED.format(2, 1, "4(mesh_tp)", 0, 461, 460)
        + _DUMPED.format(2, 1002)
        + _DUMPED.format(3, 1002),
        (3,),
        True,
        "1003",
    ),
    # errors that were caught, and others
    Paste(
        "an error and more steps",
        tagged("[default1]:", "step 40\n" + _CAUGHT + "step 41\nstep 42\n") + tagged("[default0]:", "step 40\nstep 41"),
        (),
        False,
        "^No line",
    ),
    Paste(
        "an error before a wait of others",
        tagged("[rank1]: ", _CAUGHT + "step 2\nstep 3\n" + _GLOO)
        + tagged("[rank2]: ", "step 3\n" + _GLOO)
        + "[rank0]: step 2\n",
        (0,),
        False,
        "step 2",
    ),
    Paste(
        "an optional import",
        "".join(
            tagged(f"[default{rank}]:", _CAUGHT.replace("ValueError", "ImportError") + "using the slow path\n")
            for rank in range(4)
        ),
        (),
        False,
        "^No line",
    ),
    Paste(
        "an error with a long message", tagged("3: ", f"{_CAUGHT}CUDA kernel errors might be late\n"), (3,), True, "7"
    ),
    Paste("an error and a remark", tagged("3: ", f"{_CAUGHT}skipping it\n"), (3,), False, "caught"),
    Paste("Open MPI", "Process name: [[43264,1],2]\n  Exit code:    1\n", (), False, "Rank 2 ended"),
    Paste("out of memory at a task", "srun: error: n1: task 13: Out Of Memory\n", (), True, "task 13"),
    # DDP
    Paste("three models", _MODEL.format(2, 2, 1, 1) + _MODEL.format(0, 2, 1, 1), (1,), True, "1 params"),
    Paste("two models", _MODEL.format(1, 160, 0, 158), (0, 1), False, "158 params.*160 params"),
    Paste("three shapes", tagged("[rank1]: ", _SHAPE.format(1)) + "[rank2]: step 1\n", (1,), True, "5, 4"),
    Paste("ready twice", tagged("[rank5]: ", _READY), (5,), True, "use_reentrant.*lora_B"),
    # NCCL's RAS
    Paste(
        "RAS, a rank with its count",
        f"{_RAS}  Rank 1 has launched up to operation 288686 {_ON.format(1)}"
        f"  Rank 0 has launched up to operation 288685 {_ON.format(0)}",
        (0,),
        False,
        "gap of one",
    ),
    Paste(
        "RAS, those that are behind",
        f"{_RAS}  26 ranks have launched up to operation 6650\n  2 ranks have launched up to operation 6640\n"
        f"  Rank 4 {_ON.format(4)}  Rank 7 {_ON.format(7)}",
        (4, 7),
        False,
        "6640.*323037.*look there first",
    ),
    Paste(
        "RAS, nothing launched",
        f"{_RAS}  3 ranks have launched up to operation 4\n  Rank 2 has not launched any operations {_ON.format(2)}",
        (2,),
        False,
        "launched 0",
    ),
    Paste(
        "RAS, missing processes",
        "INCOMPLETE\n  Missing communicator data from 2 ranks\n  Rank 5 -- GPU 1 managed by process 9 on node n1\n"
        "  Rank 6 -- [process information not found]\n",
        (5, 6),
        True,
        "process 9 on node n1",
    ),
    Paste(
        "RAS, a dead process",
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n#0-0 (cf264af53edbe986) INCOMPLETE\n"
        "  Missing communicator data from 1 rank\n  The missing rank: 21\n",
        (21,),
        True,
        "3487984",
    ),
    Paste(
        "RAS, JSON of counts",
        '{\n  "communicators": [\n    {\n      "hash": "0xae94",\n      "ranks": [\n'
        + "".join(_JSON.format(rank, 60 - (rank == 2)) for rank in range(4))
        + "      ]\n    }\n  ]\n}",
        (2,),
        False,
        "process 812 on node 10.0.0.2",
    ),
    # other tools
    Paste(
        "fr_trace, the first is behind", _STATE.format(9, 1, "scheduled", "completed"), (0, 2), False, "collective 9"
    ),
    Paste("fr_trace, a culprit is behind", _STATE.format(9, 1, "completed", "started"), (1,), False, "collective 9"),
    Paste(
        "NCCL, old mismatch",
        "node-1:39:39 [3] init.cc:11 NCCL WARN Mismatched collective detected, please check your "
        "collective calls at and around rank 11. You can use NCCL_DEBUG=INFO\n",
        (11,),
        False,
        "next to",
    ),
    Paste(
        "NCCL, another size",
        "n7:17:19 [1] ib.cc:16 NCCL WARN NET/IB : req 0/1 tag 7 peer 10.0.0.7<51> collective mismatch "
        "error, local size 4096 remote size 8192\n",
        (),
        False,
        "GPU 1 of n7.*10.0.0.7.*4096.*8192",
    ),
    Paste(
        "stacks in different collectives",
        "".join(
            _STACK.format(rank, "reduce_scatter_tensor" if rank == 2 else "all_gather_single") for rank in range(4)
        ),
        (2,),
        False,
        "reduce_scatter",
    ),
    Paste(
        "Ctrl-C",
        _CAUGHT.replace("raise Value", "dist.barrier").replace("ValueError: bad sample 7", "KeyboardInterrupt"),
        (),
        False,
        "Ctrl-C",
    ),
    Paste(
        "Horovod, today",
        f"{_STALL}Missing ranks:\n1: [a/AddN_1, a/AddN_2 ...]\n3: [a/AddN_1]\n",
        (1, 3),
        True,
        "submit",
    ),
    Paste("Horovod, in turn", f"{_STALL}Missing ranks:\n0: [a/AddN_1]\n1: [a/AddN_2]\n", (), False, "differ"),
]
