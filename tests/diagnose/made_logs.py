"""Logs made from torch's format strings, with what is true of each: the ranks and causes that a verdict may name."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple


class MadeLog(NamedTuple):
    """A text; `truths` are the ranks and causes that are true of it, and `is_clear` says that the text shows one."""

    name: str
    text: str
    truths: frozenset[tuple[int, str]]
    is_clear: bool


TIMEOUT_MS = 600000
FORMS = ("2.0", "2.4", "2.6", "2.8")  # versions of torch whose lines differ


def head(rank: int, line: int, form: str) -> str:
    """How c10's logging begins a line."""
    if form == "2.0":
        return f"[E ProcessGroupNCCL.cpp:{line}] "
    return f"[rank{rank}]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:{line}] "


def pg(name: str, desc: str, rank_in_group: int, form: str) -> str:
    if form == "2.4":
        return f"[PG {name} ({desc}) Rank {rank_in_group}]"
    return f"[PG ID {name} PG GUID {name}({desc}) Rank {rank_in_group}]"


def watchdog(
    rank: int,
    seq: int,
    op: str = "ALLREDUCE",
    sizes: tuple[int, int] = (9801523, 9801523),
    form: str = "2.8",
    **where: int,
) -> str:
    """`WorkNCCL::checkTimeout`."""
    numel = "" if form == "2.0" else f"NumelIn={sizes[0]}, NumelOut={sizes[1]}, "
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, {numel}Timeout(ms)={TIMEOUT_MS})"
    in_group = where.get("in_group", rank)
    return (
        f"{head(rank, 632, form)}[Rank {in_group}] Watchdog caught collective operation timeout: {work} "
        f"ran for {TIMEOUT_MS + 60} milliseconds before timing out."
    )


def status(
    rank: int, failed: int, last: int, form: str = "2.8", group: tuple[str, str] = ("0", "default_pg"), **where: int
) -> str:
    """`Watchdog::runLoop`, after a timeout."""
    prefix = pg(*group, where.get("in_group", rank), form)
    if form in ("2.4", "2.6"):
        return (
            f"{head(rank, 1785, form)}{prefix} Exception (either an error or timeout) detected by watchdog at work: "
            f"{failed}, last enqueued NCCL work: {last}, last completed NCCL work: {failed - 1}."
        )
    return (
        f"{head(rank, 2271, form)}{prefix}  failure detected by watchdog at work sequence id: {failed} "
        f"PG status: last enqueued work: {last}, last completed work: {failed - 1}"
    )


def signal(rank: int, last: int, by: int, form: str = "2.8") -> str:
    """`HeartbeatMonitor::runLoop`, on a rank that did not time out itself."""
    return (
        f"{head(rank, 1746, form)}{pg('0', 'default_pg', rank, form)} Received a dump signal due to a "
        f"collective timeout "
        f"from rank {by} and we will try our best to dump the debug info. Last enqueued NCCL work: {last}, "
        f"last completed "
        f"NCCL work: {last}.This is most likely caused by incorrect usages of collectives, e.g., wrong "
        f"sizes used across "
        "ranks, the order of collectives is not same for all ranks or the scheduled collective, for some "
        "reason, didn't "
        "run."
    )


def fingerprint(op: str, shape: Sequence[int] | None, dtype: str = "Float", seq: int = 7) -> str:
    """`operator<<` of CollectiveFingerPrint."""
    if shape is None:
        return f"CollectiveFingerPrint(SequenceNumber={seq}OpType={op})"
    sizes = ", ".join(map(str, shape))
    options = (
        "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default))"
    )
    return (
        f"CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, TensorShape=[{sizes}], TensorDtypes={dtype}, "
        f"TensorDeviceTypes={options})"
    )


def aspects(own: str, other: str) -> str:
    """`compute_collective_diff` in ProcessGroupWrapper.cpp: what is not the same."""
    words = []
    for name, pattern in (
        ("Op type", r"OpType=(\w+)"),
        ("Tensor Tensor shapes", r"TensorShape=\[([\d, ]*)\]"),
        ("Tensor Tensor dtypes", r"TensorDtypes=(\w+)"),
    ):
        values = [match[1] if match else "" for match in (re.search(pattern, text) for text in (own, other))]
        if values[0] != values[1]:
            words.append(f"{name}: {values[0]}vs {values[1]}")
    return f"Collectives differ in the following aspects: \t {'  '.join(words)}"


def mismatch(rank: int, own: str, other: int, others: str) -> str:
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {rank} is "
        f"running collective: {own}, but Rank {other} is running collective: {others}.{aspects(own, others)}"
    )


def uncaught(rank: int, error: str) -> str:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 9', error]
    return "\n".join(f"[rank{rank}]: {line}" for line in lines)


def closed(rank: int) -> str:
    return uncaught(
        rank,
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[10.0.0.7]:38291. This is typically caused by a remote worker crashing.",
    )


def _missing(form: str) -> MadeLog:
    lines = []
    for rank in (0, 1, 3):
        lines += [watchdog(rank, 808, form=form), status(rank, 808, 811, form)]
    lines.append(signal(2, 807, 0, form))
    return MadeLog(f"rank 2 put 807 calls into the queue, torch {form}", "\n".join(lines), truth(2, "missing"), True)


def _other_call(form: str, sizes: tuple[int, int], op: str, cause: str) -> MadeLog:
    lines = []
    for rank in range(4):
        is_odd = rank == 1
        lines.append(watchdog(rank, 80078, op if is_odd else "ALLREDUCE", sizes if is_odd else (9, 9), form))
        if form != "2.0":
            lines.append(status(rank, 80078, 80079, form))
    is_clear = form != "2.0"  # which does not print the group, and the lines may be of two
    return MadeLog(f"rank 1 came with another {cause}, torch {form}", "\n".join(lines), truth(1, cause), is_clear)


def truth(rank: int, *causes: str) -> frozenset[tuple[int, str]]:
    return frozenset((rank, cause) for cause in causes)


NOTHING: frozenset[tuple[int, str]] = frozenset()


def _groups() -> list[MadeLog]:
    """Ranks of several groups, whose numbers are those within the group unless torch states the rank."""
    tp = ("5", "mesh_tp")
    waits = [watchdog(rank, 40, in_group=rank % 2) for rank in (4, 5)]
    waits += [status(rank, 40, 44, group=tp, in_group=rank % 2) for rank in (4, 5)]
    nested = [watchdog(rank, 9) for rank in (0, 1)] + [status(rank, 9, 12) for rank in (0, 1)]
    nested += [watchdog(2, 33, in_group=0), status(2, 33, 33, group=tp, in_group=0), signal(2, 8, 0)]
    absent = [watchdog(2, 33, in_group=0), status(2, 33, 33, group=tp, in_group=0)]
    absent += [status(3, 31, 32, group=("6", "mesh_dp"), in_group=0)]
    behind = [watchdog(6, 33, in_group=0), status(6, 33, 35, group=tp, in_group=0)]
    behind += [watchdog(7, 90, in_group=3), status(7, 90, 90, group=("6", "mesh_dp"), in_group=3)]
    behind.append(status(5, 90, 90, group=("6", "mesh_dp"), in_group=2))
    nameless = [line.replace("[rank4]:", "").replace("[rank5]:", "") for line in waits]
    return [
        MadeLog("both ranks of a group wait", "\n".join(waits), NOTHING, False),
        MadeLog("a rank that waits in another group", "\n".join(nested), truth(2, "missing"), False),
        MadeLog("ranks of two groups", "\n".join(absent), NOTHING, False),
        MadeLog("three groups and no rank that is behind", "\n".join(behind), NOTHING, False),
        MadeLog("numbers within a group, without the ranks of the job", "\n".join(nameless), NOTHING, False),
    ]


def _gloo() -> list[MadeLog]:
    barrier = (
        "[rank0]:[E1 01:02:03.4 ProcessGroupGloo.cpp:67] [Rank 0]: Rank 11 failed to pass monitoredBarrier in 2000 ms"
    )
    several = "[rank0]: RuntimeError: [Rank 0]: Ranks 1, 12 failed to pass monitoredBarrier in 2000 ms"
    waited = (
        "[E ProcessGroupGloo.cpp:136] Rank 3 successfully reached monitoredBarrier, but received errors "
        "while waiting "
        "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    in_part = "[rank4]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"
    error = "\n".join([closed(0), uncaught(5, "KeyError: 'labels'"), closed(7)])
    chained = f"{closed(1)}\n[rank1]: During handling of the above exception, another exception occurred:\n" + uncaught(
        1, "ValueError: cannot save"
    )
    size = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail "
        "at pair.cc:456] "
        "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is "
        "there a distributed "
        "collective mismatch in your code?"
    )
    return [
        MadeLog("monitored barrier", barrier, truth(11, "missing"), True),
        MadeLog("monitored barrier, two ranks", several, truth(1, "missing") | truth(12, "missing"), True),
        MadeLog("monitored barrier, as seen by a rank that came", waited, NOTHING, False),
        MadeLog("monitored barrier of a group", in_part, NOTHING, False),
        MadeLog("an error on one rank", error, truth(5, "error"), True),
        MadeLog("an error after a lost connection", chained + "\n" + closed(2), truth(1, "error"), False),
        MadeLog("sizes that differ", size, NOTHING, False),
        MadeLog("only lost connections", "\n".join([closed(0), closed(2)]), NOTHING, False),
        MadeLog("full mesh", "[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with no error", NOTHING, False),
    ]


def _detail() -> list[MadeLog]:
    reduce = fingerprint("ALLREDUCE", [4])
    gather = fingerprint("ALLGATHER", [4])
    three = [mismatch(0, reduce, 2, gather), mismatch(1, reduce, 2, gather), mismatch(2, gather, 0, reduce)]
    first = [mismatch(0, gather, 1, reduce), mismatch(1, reduce, 0, gather), mismatch(2, reduce, 0, gather)]
    garbage = mismatch(3, reduce, 5, fingerprint("_REDUCE_SCATTER_BASE", None, seq=0))
    size = mismatch(0, reduce, 3, fingerprint("ALLREDUCE", [4, 2]))
    return [
        MadeLog("DETAIL, three reports", "\n".join(three), truth(2, "collective"), True),
        MadeLog("DETAIL, rank 0 differs", "\n".join(first), truth(0, "collective"), True),
        MadeLog("DETAIL, one report", three[0], truth(2, "collective"), True),
        MadeLog("DETAIL, a call that torch misreads", garbage, truth(5, "call"), True),
        MadeLog("DETAIL, another size", size, truth(3, "size"), True),
    ]


def _desync() -> list[MadeLog]:
    report = (
        "[E ProcessGroupNCCL.cpp:566] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, TensorShape=[20, 20], Timeout(ms)=10000) ran for 10025 "
        "milliseconds before "
        "timing out.\n\t - [0] Timeout at collective: ALLREDUCE, #5\n\t - To our best knowledge, the "
        "lagging/dead/mismatched "
        "ranks that caused the desync are:\n\t     [1, 3] finished collective #4, but didn't join "
        "collective #5 (count from "
        "1)\n\t - Snapshot of ranks' latest states:\n\t   #4 finished ranks:\n\t     [1, 3] finished "
        "ALLREDUCE\n\t   #5 "
        "started ranks:\n\t     [0, 2] started ALLREDUCE"
    )
    never = (
        "\t - To our best knowledge, ranks [6] are the lagging ranks that caused this timeout. They never joined any"
    )
    both = "\t   - [0, 1] joined but didn't finish collective #4 (count from 1)"
    lags = truth(1, "missing") | truth(3, "missing")
    return [
        MadeLog("desync report", report, lags, True),
        MadeLog("desync report, a rank that never joined", f"{never} collectives", truth(6, "missing"), True),
        MadeLog("desync report, ranks that did not finish", both, NOTHING, False),
    ]


def _start() -> list[MadeLog]:
    """`ProcessGroupNCCL::broadcastUniqueNCCLID`, and torchrun's agent."""
    said = (
        "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', "
        "but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
    )
    restart = (
        "W0816 01:46:10.301000 4711 torch/distributed/elastic/agent/server/api.py:900] [default] Worker group FAILED. "
        "3/3 attempts left; will restart worker group"
    )
    restarted = "\n".join([watchdog(0, 808), status(0, 808, 811), restart, watchdog(1, 12), status(1, 12, 12)])
    wait = f"[rank1]: torch.distributed.DistBackendError: {said}"
    return [
        MadeLog("a rank that waits for the id of NCCL", wait, NOTHING, False),
        MadeLog("torchrun starts the ranks again", restarted, NOTHING, False),
    ]


def _mixed() -> list[MadeLog]:
    whole = _missing("2.8")
    lines = whole.text.split("\n")
    draw = random.Random(33)
    interleaved = []
    for line in lines:
        interleaved += [f"Epoch 3:  45%|████▌     | {draw.randrange(999)}/999 [07:24,  1.48s/it]", line]
    glued = "".join(f"Epoch 3: 45%|███|\r{line}" for line in lines)
    joined = lines[0] + lines[2] + "\n" + "\n".join(lines)
    cut = "\n".join(line[:150] for line in lines)
    slurm = "\n".join(f"{line[5]}: {line}" for line in lines)
    nodes = "\n".join(f"[default{int(line[5]) % 2}]:{line}" for line in lines)
    old = "\n".join(watchdog(rank, 469508, form="2.0") for rank in (1, 3, 2, 6, 7, 5, 4))
    far = "\n".join(watchdog(rank, seq, form="2.0") for rank, seq in ((0, 96120), (0, 96117), (7, 64088), (0, 96125)))
    peers = [
        watchdog(0, 77, "SEND"),
        status(0, 77, 80),
        watchdog(1, 75, "ALLREDUCE"),
        status(1, 75, 76),
        signal(2, 70, 0),
    ]
    attempts = [watchdog(0, 12), status(0, 12, 13), signal(2, 11, 0), status(2, 808, 811)]
    split = "\n".join(line.replace("WorkNCCL(", "WorkNCCL(\n") for line in lines if "WorkNCCL" in line)
    return [
        MadeLog("lines between progress bars", "\n".join(interleaved), whole.truths, True),
        MadeLog("lines after progress bars", glued, whole.truths, True),
        MadeLog("two lines run into one", joined, whole.truths, True),
        MadeLog("doubled and reversed", "\n".join(reversed(lines * 3)), whole.truths, True),
        MadeLog("cut at 150 letters", cut, whole.truths, False),
        MadeLog("cut in the middle", whole.text[: len(whole.text) // 2 + 7], whole.truths, False),
        MadeLog("srun's labels", slurm, whole.truths, True),
        MadeLog("labels that count within nodes", nodes, whole.truths, True),
        MadeLog("old lines of seven ranks of eight", old, truth(0, "missing"), False),
        MadeLog("old lines with far numbers", far, NOTHING, False),
        MadeLog("a message between ranks waits, too", "\n".join(peers), truth(2, "missing"), False),
        MadeLog("two attempts", "\n".join(attempts), truth(2, "missing"), False),
        MadeLog("lines wrapped by a terminal", split, whole.truths, False),
        MadeLog("nothing of a hang", "step 3 loss 0.5\nValueError: skipped a sample\n" * 9, NOTHING, False),
    ]


MADE = [
    *(_missing(form) for form in FORMS[1:]),
    *(_other_call(form, (9, 9), "BROADCAST", "collective") for form in FORMS),
    *(_other_call(form, (18, 18), "ALLREDUCE", "size") for form in FORMS[1:]),
    *_groups(),
    *_gloo(),
    *_detail(),
    *_desync(),
    *_start(),
    *_mixed(),
]
