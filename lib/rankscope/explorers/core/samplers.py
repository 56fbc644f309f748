"""The explorer of notebook 01: which rank reads which sample, for any sampler and setting."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...common.checks import count_of
from ...figures.assignments import draw_assignment, reading_title
from ...figures.marks import Drawing
from ...sampling import Assignment, assign, audit
from ...sampling.kinds import SAMPLERS
from ..explorer import ALL, Explorer, Now, Setting, Steps
from ..opening import shows


def _samplers() -> list[tuple[str, str]]:
    """The title and the name of each sampler, your own as soon as it is registered."""
    return [(sampler.title, name) for name, sampler in SAMPLERS.items()]


SETTINGS = (
    Setting("sampler", "torch", _samplers, "sampler"),
    Setting("num_ranks", 4, range(1, 65), "ranks"),
    Setting("size", 50, Steps((*range(65), 100, 128, 200, 256, 500, 512, 1000, 1024, 1797, 2000, 2048)), "samples"),
    Setting("batch_size", 4, range(1, 65), "batch size per rank"),
    Setting("epoch", 0, range(10), "epoch"),
    Setting("seed", 0, range(21), "seed"),
    Setting("color_by", "rank", (("rank", "rank"), ("position in the dataset", "position")), "colour by"),
    Setting("shuffle", True, (False, True), "shuffle"),
    Setting("drop_last", False, (False, True), "drop_last", "libtorch's name for the opposite is allow_duplicates"),
    Setting("forget_set_epoch", False, (False, True), "forget set_epoch"),
)

PRESETS: dict[str, dict[str, Any]] = {
    "10 samples, 4 ranks": {"size": 10},
    "the same with drop_last": {"size": 10, "drop_last": True},
    "3 samples, 8 ranks": {"size": 3, "num_ranks": 8, "batch_size": 1},
    "epoch 3 without set_epoch": {"epoch": 3, "forget_set_epoch": True},
    "libtorch: the lost tail": {"sampler": "libtorch_random", "size": 22, "drop_last": True, "epoch": 5},
    "libtorch: 3 samples, 8 ranks": {"sampler": "libtorch_random", "size": 3, "num_ranks": 8, "batch_size": 1},
    "libtorch: slices": {"sampler": "libtorch_sequential", "color_by": "position"},
}


@lru_cache(maxsize=8)  # picture, report and controls ask for the same
def epochs(now: Now) -> list[Assignment]:
    """Return what is read in the epochs up to the one that is set; without set_epoch all of them are epoch 0."""
    without_effect = SAMPLERS[now.sampler].without_effect
    own: dict[str, Any] = {"seed": now.seed, "shuffle": now.shuffle}
    own = {name: value for name, value in own.items() if name not in without_effect}
    numbers = [0 if now.forget_set_epoch else number for number in range(now.epoch + 1)]
    read = [
        assign(now.size, now.num_ranks, sampler=now.sampler, epoch=number, drop_last=now.drop_last, **own)
        for number in numbers
    ]
    return [epoch.with_loader(now.batch_size) for epoch in read]


def picture(now: Now) -> Drawing:
    """The last epoch: which rank reads which sample at which step."""
    last = epochs(now)[-1]
    when = f"epoch {now.epoch}"
    if last.epoch != now.epoch:
        when += f" in the order of epoch {last.epoch}"
    return draw_assignment(last, now.color_by, reading_title(last, when))


def report(now: Now) -> list[str]:
    """How many batches there are per rank, and the audit of all epochs so far."""
    num_steps = epochs(now)[-1].num_steps
    sizes = [min(now.batch_size, num_steps - start) for start in range(0, num_steps, now.batch_size)]
    last = f", the last of {sizes[-1]}" if sizes and sizes[-1] < sizes[0] else ""
    each = f" of {count_of(sizes[0], 'sample')}{last}" if sizes else ""
    first = epochs(now)[-1].ranks[0].tolist()
    begins = (
        f"rank 0 reads {', '.join(map(str, first[:8]))}{', …' * (len(first) > 8)}" if first else "rank 0 reads nothing"
    )
    return [
        f"{len(sizes)} batch{'es' * (len(sizes) != 1)} per rank{each}",
        begins,
        *str(audit(epochs(now))).splitlines(),
    ]


def _reads(now: Now) -> list[list[list[int]]]:
    return [[rank.tolist() for rank in epoch.ranks] for epoch in epochs(now)]


def without_effect(now: Now) -> dict[str, str]:
    """Settings that the sampler does not have, and those that change nothing for so few samples."""
    last = epochs(now)[-1]
    not_there = SAMPLERS[now.sampler].without_effect
    found = dict(not_there)
    if "shuffle" not in not_there and _reads(now._replace(shuffle=not now.shuffle)) == _reads(now):
        found["shuffle"] = "shuffling so few samples leaves them in order"
    if "shuffle" not in not_there and not now.shuffle:
        found["seed"] = "without shuffle nothing is random"
    elif now.size < 2:
        found["seed"] = "there is nothing to shuffle"
    if now.size % now.num_ranks == 0:
        found["drop_last"] = "the samples divide evenly among the ranks"
    if not now.epoch:
        found["forget_set_epoch"] = "epoch 0 is the same with and without set_epoch"
    if last.num_steps < 2:
        found["batch_size"] = "no rank reads more than one sample"
    if not last.num_steps:
        found |= dict.fromkeys(("sampler", "seed"), "no rank reads any sample")
    return found


ON_THE_SITE = {
    "sampler": ALL,
    "num_ranks": (1, 2, 3, 4, 6, 8),
    "size": (3, 10, 22, 50),
    "batch_size": (1, 4),
    "epoch": (0, 3, 5),
    "color_by": ALL,
    "drop_last": ALL,
    "forget_set_epoch": ALL,
}


@shows(SETTINGS, title="Which rank reads which sample", notebook="01_who_reads_what", on_the_site=ON_THE_SITE)
def samplers() -> Explorer:
    """Return controls over which rank reads which sample in an epoch, and the audit of all epochs up to it."""
    return Explorer(SETTINGS, {"picture": picture}, report, PRESETS, without_effect)
