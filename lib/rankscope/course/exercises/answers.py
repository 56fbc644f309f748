"""The exercises, notebook by notebook. Each computes its right answer with the library."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from ... import parts
from ...box import Profile, nccl
from ...box.profile import busbw_factor
from ...cluster import Cluster, Link
from ...collectives import build, closed_form
from ...collectives import simulate as simulate_schedule
from ...common.checks import count_of, number, several, whole
from ...common.units import decimal_words, percent_words
from ...pipeline import Pipeline, Stage, simulate
from ...sampling import assign, audit
from ...train import ddp
from ...train.ddp.buckets import ParameterSpec
from ...train.ddp.step import default_buckets
from ...train.pipeline_parallel import bubble_share
from ...train.zero import model as zero
from ..steps import transformer
from . import scores
from .kinds import Score, amount, built, exactly, fewest, judged, nearly

_MIB = 1 << 20
_FOUR_RANKS = Cluster.uniform(4, Link(10e-6, 10e9))


# ---- 00: one step of several ranks


@exactly(
    "00.1",
    "{} is not 8 times a whole number, or not the smallest that covers 100 samples: all ranks read equally many",
    means={100: "ranks could read different numbers of samples", 96: "drop_last dropped the last 4 samples"},
)
def reads() -> int:
    """How many reads 8 ranks make of 100 samples in an epoch."""
    return sum(indices.size for indices in assign(100, 8).ranks)


@nearly(
    "00.2",
    "the rank does not wait {} ms: when does the second half start?",
    unit="ms",
    means={
        50: "nothing overlapped with the backward pass",
        20: "the second half could start at 35 ms, before its gradients are ready",
        0: "both halves were hidden",
    },
)
def exposed() -> float:
    """How long a rank waits, in ms, for two allreduces of 25 ms, of gradients that are ready after 10 and 40 ms."""
    any_size = 100  # bytes; each allreduce takes 25 ms, whatever its size
    halves = (ParameterSpec("first", any_size), ParameterSpec("last", any_size))
    ready_s = np.array([0.040, 0.010])  # the backward pass begins with the last layer
    local = ddp.LocalStep(halves, ready_s, forward_s=0.0, backward_s=0.040)
    step = ddp.simulate(local, lambda num_bytes: 0.025, buckets=[[1], [0]])
    return step.select(kind="wait").busy_s * 1e3


@built("00.3")
def buckets_of_layers(answer: Any) -> Score:
    """Buckets for eight layers of 4 MiB, a backward of 40 ms, and four ranks on a network of 1 GB/s and 0.5 ms."""
    local = ddp.LocalStep.modelled([4 * _MIB] * 8, backward_s=0.040)
    return scores.bucket_score(answer, local, ddp.cost(Link(500e-6, 1e9), 4))


# ---- 01 and a1: the samples of each rank


@exactly("01.1", "56 ranks make a multiple of 56 reads; {} is not what is beyond 450", means={0: "no rank was padded"})
def counted_twice() -> int:
    """How many reads more than 450 samples 56 ranks count."""
    return audit(assign(450, 56, shuffle=False)).duplicates


@built("01.2")
def exactly_once(answer: Any) -> Score:
    """A sampler that reads every sample once per epoch, shares evenly, and orders each epoch anew."""
    # 8 ranks cannot share 1797 samples evenly. So shares may be unbalanced, but by no more than one read.
    score = scores.sampler_score(answer, size=1797, num_ranks=8, epochs=range(3), allow=["unbalanced"])
    uneven_by = int(score.rows["yours"][score.columns.index("uneven by")])
    if score.wrong or uneven_by <= 1:
        return score
    return attrs.evolve(score, wrong=f"one rank has {uneven_by} reads more than another, and 1 is possible")


@judged("a1.1")
def never_seen(answer: Any) -> str | None:
    """The samples of 22 that libtorch's random sampler never reads over 4 ranks without duplicates."""
    # The sampler cuts the list of samples before it shuffles it, so every epoch misses the same ones. If it missed
    # others each time, 50 epochs would read them all.
    epochs = (assign(22, 4, sampler="libtorch_random", epoch=epoch, drop_last=True) for epoch in range(50))
    right = set(audit(epochs).never_seen.tolist())
    if not isinstance(answer, list | tuple | set) or not all(isinstance(sample, int) for sample in answer):
        return f"a list of samples was expected, got {answer!r}"
    read = sorted(set(answer) - right)
    if read:
        return f"50 epochs do read {', '.join(map(str, read))}"
    missing = right - set(answer)
    if missing:
        return f"50 epochs also miss {count_of(len(missing), 'more sample')}"
    return None


@fewest("a1.2", 1, 1000, "ranks")
def smallest_world(ranks: int) -> str | None:
    """The smallest world size at which libtorch's random sampler reads indices that a dataset of 5 does not have."""
    if audit(assign(5, ranks, sampler="libtorch_random")).out_of_range:
        return None
    return f"with {count_of(ranks, 'rank')} every index is below 5"


@built("a1.3")
def cuts_no_tail(answer: Any) -> Score:
    """A sampler of equal shares that cuts, repeats nothing, and reads each of 22 samples within eight epochs."""
    return scores.sampler_score(answer, size=22, num_ranks=4, epochs=range(8), allow=["dropped"])


# ---- 02 and a2: how a batch arrives


@exactly(
    "02.1",
    "keeping the order does not cost {} s",
    unit="s",
    means={15: "the question asked for the time in order", 10: "the question asked for the time out of order"},
)
def cost_of_order() -> float:
    """How much longer 21 batches take in order, the first being slow."""
    in_order = Pipeline([Stage("decode", [9.0] + [1.0] * 20, num_workers=3), Stage("train", 0.0)])
    out_of_order = in_order.changed("decode", ordered=False)
    return simulate(in_order, 21).end_s - simulate(out_of_order, 21).end_s


@built("02.2")
def stage_table(answer: Any) -> Score:
    """The workers of each stage that deliver 100 batches per second, as few as possible."""
    times_ms = {"read": 12, "decode": 50, "augment": 30, "collate": 4, "copy": 3, "compute": 10}
    pipeline = Pipeline([Stage(name, ms / 1e3) for name, ms in times_ms.items()])
    return scores.stage_score(answer, pipeline, at_least_per_s=100)


@built("a2.1")
def shards(answer: Any) -> Score:
    """The files of three trainers, of which the fullest has as few rows as if the largest file is assigned first."""
    return scores.share_score(answer, sizes=range(90, 0, -10), num_ranks=3)


@nearly(
    "a2.2",
    "the share of the time without a step is not {}",
    means={
        0.4: "the question asked for the share with a step",
        60: "the question asked for percent (write 0.6 or '60 %')",
        1.5: "loading was compared with the steps, not with the whole",
    },
)
def alone_and_loading() -> float:
    """The idle share of a trainer that loads for 300 ms and then steps for 200 ms, for each of ten parts."""
    return parts.idle_share(parts.simulate([[0.3] * 10], steps_per_part=4, step_s=0.05))


@fewest("a2.3", 1, 64, "loaders")
def enough_loaders(loaders: int) -> str | None:
    """The smallest number of loaders that keeps up with a trainer."""
    seconds_of_parts = [0.3] * 200  # many, so that the wait for the first one hardly counts
    timeline = parts.simulate([seconds_of_parts], steps_per_part=4, step_s=0.05, queue_size=4, num_loaders=loaders)
    idle_share = parts.idle_share(timeline)
    if idle_share < 0.05:
        return None
    return f"with {count_of(loaders, 'loader')} the trainer waits {percent_words(idle_share)} of the time"


# ---- 04: how gradients are combined


@exactly(
    "04.1",
    "it does not take {} steps",
    means={9: "512 ranks were enough", 999: "the root sent to one rank after the other"},
)
def tree_steps() -> int:
    """The steps of a binomial broadcast among 1,000 ranks."""
    return build("broadcast", "binomial", 1000).num_steps


@fewest("04.2", 2, 10**6, "ranks")
def latency_half(ranks: int) -> str | None:
    """The fewest ranks with which a ring of 20 µs and 25 GB/s spends over half of its time for 10 MB on latency."""
    link = Link(alpha_s=20e-6, bytes_per_s=25e9)
    total_s = closed_form("allreduce", "ring", ranks, 10e6, link)
    latencies_s = 2 * (ranks - 1) * link.alpha_s
    share = float(latencies_s / total_s)
    if share > 0.5 + 1e-12:  # with 20 ranks it is exactly a half, except for rounding
        return None
    return f"with {ranks} ranks latency is {percent_words(share)} of the time"


@built("04.3")
def few_steps(answer: Any) -> Score:
    """An allreduce of 1 KiB among four ranks in as few steps as the best."""
    return scores.schedule_score(answer, "allreduce", _FOUR_RANKS, num_bytes=1024)


# ---- 03: how a batch gets onto the GPU


@nearly(
    "03.1",
    "the last chunk is not there at {} s",
    unit="s",
    means={12: "the last chunk did not have to pass the link", 16: "nothing overlapped", 4: "there was one chunk"},
)
def staged() -> float:
    """When the last of four chunks is on the GPU, by a staging copy of 3 s each and a link that takes 1 s each."""
    return simulate(Pipeline([Stage("staging", 3.0, capacity=1), Stage("link", 1.0)]), 4).end_s


@built("03.2")
def workers_of_a_loader(answer: Any) -> Score:
    """The workers by stage with which 90 batches arrive per second, and no more workers."""
    times_s = {"load": 0.020, "prepare": 0.055, "copy": 0.004, "step": 0.010}
    pipeline = Pipeline([Stage(name, seconds) for name, seconds in times_s.items()])
    return scores.stage_score(answer, pipeline, at_least_per_s=90.0)


# ---- 07: DDP's buckets and overlap


@exactly(
    "07.1",
    "DDP does not make {} buckets: one closes once it holds its cap or more, and a gradient is never split",
    means={
        5: "a bucket never exceeded its cap",
        10: "each gradient had its own bucket",
        3: "incomplete buckets were dropped",
    },
)
def num_buckets() -> int:
    """How many buckets ten gradients of 4 MiB make with a cap of 10 MiB."""
    return len(default_buckets(ddp.LocalStep.modelled([4 * _MIB] * 10, backward_s=1.0), bucket_cap_mb=10))


@built("07.2")
def small_bucket_first(answer: Any) -> Score:
    """Sizes of buckets for 64 layers of 1 MiB that leave at most 6.5 ms of communication exposed."""
    sizes = [whole("a bucket's size in MiB", size, 1, 64) for size in several("the answer", answer, "bucket sizes")]
    if sum(sizes) != 64:
        raise ValueError(f"the buckets must hold 64 MiB in all, got {sum(sizes)}")
    local = ddp.LocalStep.modelled([_MIB] * 64, backward_s=0.064)
    buckets = []
    num_left = 64  # layers that are in no bucket yet; the last layer is ready first
    for size in sizes:
        buckets.append(list(range(num_left - 1, num_left - size - 1, -1)))
        num_left -= size

    def cost(num_bytes: Any) -> Any:
        """The time of an allreduce: 3 ms, and 0.5 ms for each MiB."""
        return 0.003 + num_bytes / _MIB * 0.5e-3

    exposed_ms = ddp.simulate(local, cost, buckets=buckets).select(kind="wait").busy_s * 1e3
    wrong = None
    if exposed_ms > 6.5:
        wrong = f"{exposed_ms:.1f} ms are exposed; the goal is at most 6.5 ms"
    # This goal replaces that of `bucket_score`, which is the step with the recommended cap.
    return attrs.evolve(scores.bucket_score(buckets, local, cost), wrong=wrong)


@judged("07.3")
def useless_overlap(answer: Any) -> str | None:
    """The factor, the same for both, at and above which overlap gains nothing."""
    factor = number("the factor", amount(answer), 1, 100)
    contention = ddp.Contention(factor, factor)
    local = ddp.LocalStep.modelled([_MIB] * 40, backward_s=0.100)
    # The same for each bucket, whatever its bytes. It is short, because nothing can hide the last bucket's allreduce.
    allreduce_s = 20e-6
    negligible_ms = 0.01 * 40 * allreduce_s * 1e3  # 1 % of all 40 allreduces: each layer fills a bucket of 1 MiB

    def step_ms(overlap: bool) -> float:
        step = ddp.simulate(
            local, lambda num_bytes: allreduce_s, bucket_cap_mb=1, contention=contention, overlap=overlap
        )
        return step.makespan_s * 1e3

    with_ms = step_ms(overlap=True)
    without_ms = step_ms(overlap=False)
    # Below the right factor overlap makes the step shorter, above it longer.
    if abs(with_ms - without_ms) < negligible_ms:
        return None
    return f"with a factor of {factor:g} a step takes {with_ms:.2f} ms with overlap and {without_ms:.2f} ms without"


# ---- 08: the memory of a rank


@fewest("08.1", 1, 10**6, "ranks")
def fewest_ranks(ranks: int) -> str | None:
    """The fewest ranks on which stage 2 leaves 24 GB or less of 7.5 billion parameters."""
    needed_bytes = zero.memory(7.5e9, ranks, stage=2).total_bytes
    if needed_bytes > 24e9:
        return f"with {count_of(ranks, 'rank')} it is {decimal_words(needed_bytes)} per rank"
    return None


@exactly(
    "08.2",
    "the shards do not hold {} bytes more than the tensor",
    unit="B",
    means={
        2000: "the question asked for elements",
        0: "shards could be of different sizes",
        48_000: "the question asked for all bytes of the shards",
        4000: "only one row was padded",
    },
)
def padding() -> int:
    """The bytes that four shards of ten rows of a thousand floats hold beyond the tensor itself."""
    num_ranks = 4
    weight = zero.Parameter("weight", (10, 1000), itemsize=4)
    num_allocated = num_ranks * weight.rows_bound(num_ranks)  # elements of all shards
    return (num_allocated - weight.size) * weight.itemsize


@built("08.3")
def wrapping_policy(answer: Any) -> Score:
    """Names of modules to wrap with which 64 GPUs wait at most 70 ms per step and need at most 21 GB each."""
    return scores.wrapping_score(answer, transformer(num_tokens=8192), most_wait_s=0.070, most_bytes=21e9)


# ---- a4: parameter servers and shared memory


@nearly(
    "a4.1",
    "the server does not receive {} times as much",
    means={16: "a rank of a ring received one gradient", 8: "a rank of a ring received two whole gradients"},
)
def server_against_ring() -> float:
    """How many times as much a synchronous server of sixteen workers receives as a rank of a ring."""
    received_by_server = 16  # gradients
    received_by_ring_rank = 2 * (16 - 1) / 16
    return received_by_server / received_by_ring_rank


@nearly(
    "a4.2",
    "its gradient is not behind by {} updates",
    means={4: "there was one other worker", 9: "its own update counted"},
)
def behind() -> float:
    """How many updates two workers of 20 ms each make while a third one computes its gradient for 80 ms."""
    updates_by_one_fast_worker = 80 / 20
    return 2 * updates_by_one_fast_worker


@built("a4.3")
def lost_updates(answer: Any) -> Score:
    """An order in which two processes that add 1 three times each, without a lock, come to 2."""
    orders = {
        "yours": answer,
        "in turn": "r0 w0 r1 w1 r0 w0 r1 w1 r0 w0 r1 w1",
        "in step": "r0 r1 w0 w1 r0 r1 w0 w1 r0 r1 w0 w1",
    }
    counters = {name: _counted(order) for name, order in orders.items()}
    num_updates = 2 * 3
    rows = {name: (str(counter), str(num_updates - counter)) for name, counter in counters.items()}
    wrong = None
    if counters["yours"] != 2:
        wrong = f"the counter ends at {counters['yours']}; 2 is possible"
    return Score(("counter", "lost"), rows, wrong)


def _counted(order: Any) -> int:
    """The last value of a counter that processes read and write in this order."""
    operations = order.split() if isinstance(order, str) else []
    of_process_0 = [operation for operation in operations if operation.endswith("0")]
    others = [operation for operation in operations if not operation.endswith("0")]
    if of_process_0 != ["r0", "w0"] * 3 or others != ["r1", "w1"] * 3:
        raise ValueError(f"r0 and w0, r1 and w1 were expected in turn, three times each, got {order!r}")
    counter = 0
    values_read = {}
    for operation in operations:
        process = operation[1]
        if operation[0] == "r":
            values_read[process] = counter
        else:
            counter = values_read[process] + 1
    return counter


# ---- 05: what a GPU box reaches


@nearly(
    "05.1",
    "its busbw is not {} GB/s: what does a ring put on each link?",
    unit="GB/s",
    means={
        224: "the question asked for algbw",
        196: "it was an allgather, with (N-1)/N",
        365: "a GB had 2³⁰ bytes",
        447: "the factor was 2, not 2·7/8",
    },
)
def busbw() -> float:
    """The busbw in GB/s of an allreduce of 256 MiB over eight GPUs that takes 1.2 ms."""
    return 256 * _MIB / 1.2e-3 * busbw_factor("allreduce", 8) / 1e9


@exactly(
    "05.2",
    "it does not take {} latencies",
    means={3: "there was no ready signal", 6: "each exchange took two latencies"},
)
def latencies_on_the_wire() -> int:
    """How many latencies the executor's recursive doubling takes among eight ranks for a few bytes."""
    cluster = Cluster.uniform(8, Link(alpha_s=1.0, bytes_per_s=math.inf))  # so that the time is the number of latencies
    return round(simulate_schedule(build("allreduce", "recursive_doubling", 8), 8, cluster, executor=True).makespan_s)


@built("05.3")
def other_group(answer: Any) -> Score:
    """The nodes of an H100 fleet that are not in the group of node 1, found from pairs that are slow."""
    pairs = Profile.load("bank:h100_fleet_a_pairs_2x8").select("all_to_all")
    # The names of nodes end in their numbers, as in "cnode2-001".
    nodes = [[int(str(point.options[end])[-3:]) for end in ("src", "dst")] for point in pairs]
    # 25 GB/s are measured within a group, and 5 to 8 GB/s between the groups.
    is_fast = [point.algbw_bytes_per_s > 15e9 for point in pairs]
    largest = max(map(max, nodes))
    others = {whole("a node", node, 2, largest) for node in several("the answer", answer, "nodes")}

    def num_explained(others: set[int]) -> int:
        """The pairs that are fast if and only if both nodes are in the same group."""
        explained = 0
        for (src, dst), fast in zip(nodes, is_fast, strict=True):
            same_group = (src in others) == (dst in others)
            if same_group == fast:
                explained += 1
        return explained

    explained = {"yours": num_explained(others), "one group": num_explained(set())}
    rows = {name: (f"{count} of {len(pairs)}",) for name, count in explained.items()}
    num_wrong = len(pairs) - explained["yours"]
    wrong = None
    if num_wrong:
        wrong = f"{num_wrong} of {len(pairs)} pairs are on the wrong side"
    return Score(("pairs explained",), rows, wrong)


# ---- 06: NCCL's choice


@nearly(
    "06.1",
    "NCCL does not expect {} µs: how many steps has a ring of 16?",
    unit="µs",
    means={
        6.6: "steps were free",
        15.6: "there were 15 steps",
        25.2: "there were 31 steps",
        18: "only the steps counted",
    },
)
def ring_ll_us() -> float:
    """NCCL's latency in µs of an allreduce over 16 GPUs of one NVLink domain, by a ring with LL."""
    return nccl.Model("h100", 16).latency_us("allreduce", "ring", "ll")


@nearly("06.2", "NCCL does not use NVLS at {} MiB and above", unit="MiB")
def first_nvls_mib() -> float:
    """The first power of two, in MiB, at which NCCL 2.29 chooses NVLS for an allreduce over eight H100s."""
    model = nccl.Model("h100", version=(2, 29))
    num_bytes = 1024
    while model.choose("allreduce", num_bytes).algorithm != "nvls":
        num_bytes *= 2
    return num_bytes / _MIB


@built("06.3")
def launch_and_hop(answer: Any) -> Score:
    """The launch and the hop in µs that predict allgathers of 1 to 64 KiB on 2, 4 and 8 H100s: median error below 5 %.

    The median, because these times jump between 8 and 32 KiB: the launch and the hop, which do not depend on bytes,
    miss at least one size by 13 % or more.
    """
    numbers = several("the answer", answer, "two numbers: the launch and the hop in µs")
    if len(numbers) != 2:
        raise ValueError(f"two numbers were expected, the launch and the hop in µs, got {answer!r}")
    launch, hop = [number("the launch and the hop", amount(value, "µs"), 0) for value in numbers]
    measured_us = []
    for num_ranks in (2, 4, 8):
        for point in Profile.load(f"bank:h100_{num_ranks}").select("allgather"):
            if 1024 <= point.num_bytes <= 65536:
                measured_us.append((num_ranks, point.median_s * 1e6))

    def median_error(launch: float, hop: float) -> float:
        """Return the median of the relative errors; an allgather in a ring has one hop fewer than ranks."""
        errors = [abs((launch + (num_ranks - 1) * hop) / time_us - 1) for num_ranks, time_us in measured_us]
        return float(np.median(errors))

    errors = {"yours": median_error(launch, hop), "NCCL's 6.6 and 0.6": median_error(6.6, 0.6)}
    rows = {name: (f"{error:.1%}",) for name, error in errors.items()}
    wrong = None
    if errors["yours"] >= 0.05:
        wrong = f"with {launch:g} and {hop:g} µs the median error is {percent_words(errors['yours'], 1)}"
    return Score(("median error",), rows, wrong)


# ---- 09: pipelines


@fewest("09.1", 1, 4096, "microbatches")
def fewest_microbatches(microbatches: int) -> str | None:
    """The fewest microbatches with which 1F1B on eight ranks is idle for a tenth of the step or less."""
    share = bubble_share("one_f_one_b", num_ranks=8, num_microbatches=microbatches)
    if share > 0.1:
        return f"with m = {microbatches} the bubble is {percent_words(float(share), 1)}"
    return None


@fewest("09.2", 1, 64, "chunks", means={5: "the bubble were 7/(v·m)", 63: "there was one microbatch"})
def fewest_chunks(chunks: int) -> str | None:
    """The fewest chunks with which interleaved 1F1B of 16 microbatches on eight ranks is idle for a tenth or less."""
    share = bubble_share("interleaved_1f1b", num_ranks=8, num_microbatches=16, num_chunks=chunks)
    if share > 0.1:
        return f"with v = {chunks} the bubble is {percent_words(float(share), 1)}"
    return None


@built("09.3")
def three_kept(answer: Any) -> Score:
    """A schedule as text, of three ranks and four microbatches, with GPipe's bubble and at most three activations."""
    bubble_of_gpipe = float(bubble_share("gpipe", num_ranks=3, num_microbatches=4))
    return scores.pipeline_score(answer, num_ranks=3, num_microbatches=4, most_bubble=bubble_of_gpipe, most_kept=3)


# ---- 10: silent bugs


@exactly(
    "10.1",
    "the ranks do not count {} samples twice",
    means={
        21: "the question asked for the reads of one rank",
        40: "drop_last dropped them: the question asked for repeats",
        0: "no rank was padded",
    },
)
def repeats_in_validation() -> int:
    """How many samples are counted twice if 48 ranks validate on 1,000."""
    return audit(assign(1000, 48, shuffle=False)).duplicates


@nearly(
    "10.2",
    "the first token does not count {} times as much",
    means={
        1: "the loss was divided by all tokens of the batch",
        0.25: "the question asked for the other rank's tokens",
        2.5: "the question compared it with a token of the whole batch",
    },
)
def token_of_a_short_rank() -> float:
    """How many times as much a token counts on a rank with 100 tokens as on one with 400, each dividing by its own."""
    return (1 / 100) / (1 / 400)


@built("10.3")
def one_synchronisation(answer: Any) -> Score:
    """A step of two micro-batches that synchronises its gradients once and has the gradients of the whole batch."""
    return scores.step_score(answer, 2)


# ---- 11: slow or stuck

_BACKWARD_MS = (73, 70, 72, 71)  # of ranks 0 to 3, waiting included
_WAIT_MS = (66, 2, 65, 64)  # of ranks 0 to 3


@exactly(
    "11.1",
    "the others do not wait for rank {}",
    means={
        0: "that rank has the longest backward, but nearly all of it is waiting",
        2: "nearly all of its backward is waiting",
        3: "nearly all of its backward is waiting",
    },
)
def late_rank() -> int:
    """Which of four ranks is late, from the time of each rank's backward and the part of it in which it waits."""
    return int(np.argmin(_WAIT_MS))


@nearly(
    "11.2",
    "the step does not get {} ms shorter",
    unit="ms",
    means={
        64: "the question asked for rank 1 as fast as the others: they wait 64 ms or more, and rank 1 waits too",
        68: "rank 1 would still compute as long as the others do",
    },
)
def saved_ms() -> float:
    """How much shorter the step is if the late rank computes as long as the others."""
    own_ms = np.subtract(_BACKWARD_MS, _WAIT_MS)
    late = int(own_ms.argmax())
    return float(own_ms[late] - np.median(np.delete(own_ms, late)))


@built("11.3")
def names_culprits(answer: Any) -> Score:
    """A function that names the late rank and phase of made jobs, and nobody in healthy ones."""
    return scores.culprit_score(answer)
