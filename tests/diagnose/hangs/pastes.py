"""What people paste, in the form of public issues with made-up names and numbers, and the right answer to each."""

from __future__ import annotations

from typing import NamedTuple


class Paste(NamedTuple):
    """A text, the ranks that the answer must name and no others, whether it is certain, and a pattern that it has."""

    name: str
    text: str
    ranks: tuple[int, ...]
    is_certain: bool
    words: str


_WAIT = (
    "[rank{0}]:[E419 10:42:28.8{0} ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=44, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600013 milliseconds before "
    "timing out.\n"
)
_TRACEBACK = "Traceback (most recent call last):\n  File 'train.py', line 3, in <module>\n    main()\n{}\n"
_REPORT = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nRoot Cause (first observed failure):\n[0]:\n"
    "  time      : 2026-02-21_15:43:03\n  host      : node-a\n  rank      : 3 (local_rank: 1)\n"
    "  exitcode  : {} (pid: 24)\n"
)
_STACK = (
    "Timeout (0:05:00)!\nThread 0x7f57 (most recent call first):\n  File 'threading.py', line 3 in _bootstrap\n\n"
    "Thread 0x7f58 (most recent call first):\n  File '{}', line 36 in f\n  File 'train.py', line 9 in <module>\n"
)
_PRINT = (
    "CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes=Float, TensorDeviceTypes=x(y))"
)
_MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: {}, but Rank {} is "
    "running collective: {}.Collectives differ in the following aspects: x"
)


def tagged(tag: str, text: str) -> str:
    return "".join(f"{tag}{line}\n" for line in text.splitlines())


PASTES = [
    Paste(
        "a worker of a DataLoader",
        " 2%| | 4/99 [25:36<39:50:56, 1s/it]Traceback (most recent call last):\n"
        + tagged(
            "g002: ",
            "  File 'a.py', line 1, in main\nRuntimeError: DataLoader worker (pid 8) is killed by signal: Killed.\n",
        ),
        (),
        True,
        "worker",
    ),
    Paste(
        "an error, and the launcher",
        _TRACEBACK.format("RuntimeError: CUDA error: out of memory")
        + "subprocess.CalledProcessError: Command '['x', '--local_rank=3']' returned non-zero exit status 1.",
        (),
        True,
        "out of memory",
    ),
    Paste(
        "stacks below a rank's name",
        'The stack for rank0:\nThread 1 (idle): "MainThread"\n    get (queue.py:170)\n'
        'The stack for rank1:\nThread 2 (idle): "MainThread"\n    all_reduce (torch/distributed/c10d.py:7)\n',
        (0,),
        True,
        "queue",
    ),
    Paste(
        "stacks that may all wait",
        'The stack for rank0:\nThread 1 (idle): "MainThread"\n    synchronize (torch/cuda/__init__.py:783)\n'
        'The stack for rank1:\nThread 2 (idle): "MainThread"\n    all_reduce (torch/distributed/c10d.py:7)\n',
        (),
        False,
        "each rank",
    ),
    Paste(
        "stacks of faulthandler",
        tagged("[rank0]: ", _STACK.format("torch/distributed/c10d.py")) + tagged("[rank1]: ", _STACK.format("PIL.py")),
        (1,),
        True,
        "PIL.py",
    ),
    Paste(
        "stacks of ranks that the watchdog ended",
        _WAIT.format(1, "ALLREDUCE", 466)
        + tagged("[rank0]: ", _STACK.format("torch/distributed/c10d.py"))
        + tagged("[rank1]: ", _STACK.format("train.py")),
        (),
        False,
        "of rank 1 that",
    ),
    # a rank's own error, in any tagging
    Paste(
        "Determined",
        tagged("[rank=1] || ", "OSError: retrying\n" + _TRACEBACK.format("FileNotFoundError: optim_rank0.pt")),
        (1,),
        True,
        "rank0",
    ),
    Paste(
        "srun --label",
        tagged(" 5: ", _TRACEBACK.format("RuntimeError: CUDA error: an illegal access")),
        (5,),
        True,
        "CUDA",
    ),
    Paste(
        "spawn",
        "-- Process 1 terminated with the following error:\n" + _TRACEBACK.format("IndexError: 3"),
        (),
        True,
        "rocess 1",
    ),
    Paste(
        "only the last line",
        "[1,2]<stderr>:RuntimeError: CUDA error: ECC",
        (2,),
        False,
        "ended with RuntimeError: CUDA error: ECC",
    ),
    Paste(
        "healthy",
        "[rank=1] || MeanSquaredError: 0.125\n[rank=1] || ConnectionError: down, retrying\nWorker exit type: INTENDED\n"
        "[rank0]: RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated.\n"
        "[rank0]: Thread 0x7 (most recent call first):\n[rank0]:   File 'torch/distributed/d.py', line 3 in <module>\n"
        "[rank1]: Thread 0x7 (most recent call first):\n[rank1]:   File 'train.py', line 3 in <module>\n"
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - no).\n"
        "n1:12:15 [0] NCCL INFO socketPollConnect: connect to n2<41> returned Connection refused, retrying (1/3)\n"
        "n1:12:15 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : GID change\nfailed (exitcode: -15) local_rank: 0",
        (),
        False,
        "^No line",
    ),
    Paste("error under torchrun", _TRACEBACK.format("NameError: x") + _REPORT.format(1), (), True, "NameError"),
    Paste(
        "consequence",
        tagged("[rank2]: ", _TRACEBACK.format("BrokenPipeError: [Errno 32] Broken pipe"))
        + tagged("[rank3]: ", _TRACEBACK.format("RuntimeError: Application timeout caused pair closure")),
        (),
        False,
        "cannot",
    ),
    Paste(
        "ignored", "Exception ignored in: <function x>\n" + _TRACEBACK.format("TypeError: y"), (), False, "cannot tell"
    ),
    # killed processes
    Paste("torchrun's report", _REPORT.format(-9), (3,), True, "node-a was killed by SIGKILL"),
    Paste("torchrun's report, exit code", _REPORT.format(1), (), False, "ended first"),
    Paste(
        "torchrun's first line",
        "failed (exitcode: -7) local_rank: 2 (pid: 16) of binary: /python",
        (),
        True,
        "rank 2 .*SIGBUS",
    ),
    Paste(
        "DeepSpeed",
        f"['python', 'a.py', '--local_rank=1', {'--x ' * 99}] exits with return code = -9",
        (),
        True,
        "log does not show was killed by SIGKILL(.|\n)*code = -9",
    ),
    Paste(
        "srun",
        "srun: error: n1: task 3: Bus error\nsrun: error: n2: tasks 4-7: Exited with exit code 137\nn1: task 2: Killed",
        (),
        True,
        "Task 3 .*SIGBUS.*\n.*error$",
    ),
    Paste(
        "srun, time limit",
        "*** STEP 7.0 ON n1 CANCELLED AT 2026-02-21T15:43:03 DUE TO TIME LIMIT ***\nsrun: error: n1: tasks 0-3: Killed",
        (),
        False,
        "^The job.*DUE TO TIME LIMIT",
    ),
    Paste(
        "memory is full",
        "srun: error: n1: task 3: Out Of Memory\n[rank0]: subprocess exited with code 137",
        (),
        True,
        "memory of a node",
    ),
    Paste("a process of a rank", "[rank0]: the subprocess exited with code 139", (), True, "Subprocess"),
    Paste("faulthandler", "Epoch 0: 9%|Fatal Python error: Segmentation fault", (), True, "SIGSEGV"),
    Paste(
        "Lightning", "[rank: 3] Child process with PID 123 terminated with code -9. Forcefully", (3,), True, "SIGKILL"
    ),
    Paste(
        "mpirun noticed",
        "process rank 3 with PID 0 on node n1 exited on signal 11 (Segmentation fault)",
        (),
        True,
        "SIGSEGV",
    ),
    # calls of NCCL
    Paste(
        "all but one wait",
        "".join(_WAIT.format(rank, "ALLREDUCE", 9) for rank in (0, 1, 3)),
        (2,),
        False,
        "there is no line",
    ),
    # checks of torch
    Paste(
        "other sizes",
        _MISMATCH.format(1, _PRINT.format(7, "ALLREDUCE", 4), 2, _PRINT.format(7, "ALLREDUCE", 5)),
        (2,),
        True,
        "size",
    ),
    Paste(
        "one call less",
        _MISMATCH.format(1, _PRINT.format(1, "BARRIER", ""), 2, _PRINT.format(0, "BARRIER", "")),
        (2,),
        True,
        "number 0",
    ),
    Paste(
        "fr_trace",
        "sequence number: 31\ncollective: nccl:all_reduce\nmissing ranks: {3, 4, 5}",
        (3, 4, 5),
        True,
        "number: 31",
    ),
    Paste(
        "store",
        "in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=2, worker_count=1, x)",
        (1,),
        True,
        "join",
    ),
    Paste(
        "too many",
        "in store based barrier on rank: 7, for key: store_based_barrier_key:1 (world_size=8, worker_count=9, x)",
        (),
        True,
        "same store",
    ),
    Paste("Horovod, each waits", "a [missing ranks: 1]\nb [missing ranks: 0]", (), False, "differ"),
    # networks, GPUs, NCCL
    Paste(
        "NCCL's last error",
        tagged("[rank0]: ", "ncclUnhandledCudaError: Call failed.\nLast error:\nCuda failure 'out of memory'")
        + "[rank2]: DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0]",
        (),
        True,
        "Rank 0 .*out of memory",
    ),
    Paste(
        "NCCL without a last error",
        "ncclInternalError: Internal check failed.\nLast error:\nException raised from getNCCLComm",
        (),
        False,
        "do not say",
    ),
    Paste(
        "peer",
        "[0] node3:71:12 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node5<418>",
        (),
        False,
        "node5",
    ),
    Paste(
        "RAS, JSON",
        '"missing_ranks": [{"rank": 3, "host": "10.0.0.7", "pid": 81, "status": {"unresponsive": true}}]',
        (3,),
        True,
        "10.0.0.7",
    ),
    Paste(
        "py-spy",
        'Process 3100: python train.py --local_rank=0\nThread 1 (active): "MainThread"\n'
        "    all_reduce (torch/distributed/c10d.py:13)\n"
        'Process 3101: python train.py --local_rank=1\nThread 1 (idle): "MainThread"\n'
        "    get (queue.py:170)\n    __next__ (data.py:64)\n",
        (1,),
        True,
        "queue.py",
    ),
]
